/* Tests of fl_file_reader: parts of more files than it keeps open, from many threads and a child;
 * files that are cut, rewritten, replaced, or gone; refused resources. */
#include "check.h"

#include "fl_file_reader.h"

#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>

enum { FILES = 300, BYTES = 5000, THREADS = 6, READS = 2000 };

static char folder[] = "/tmp/fastloop-test-XXXXXX";
static char paths[FILES][64];
static const char *names[FILES];
static fl_file_state states[FILES];

static char byte_at(int64_t file, int64_t byte)
{
    return (char)(file * 7 + byte * 13 + byte / 256);
}

static void write_file(int64_t file, int64_t bytes, int64_t like)
{
    char content[BYTES];
    int fd = open(paths[file], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    for (int64_t i = 0; i < bytes; i++) content[i] = byte_at(like, i);
    CHECK(write(fd, content, (size_t)bytes) == bytes && close(fd) == 0);
}

static fl_file_reader *make_reader(int64_t files)
{
    fl_file_reader *reader;
    fl_err err;
    for (int64_t f = 0; f < files; f++) {
        snprintf(paths[f], sizeof paths[f], "%s/%03d", folder, (int)f);
        names[f] = paths[f];
        write_file(f, BYTES, f);
    }
    CHECK_INT(fl_file_reader_open(names, NULL, files, &reader, &err), FL_OK);
    for (int64_t f = 0; f < files; f++) states[f] = *fl_file_reader_state(reader, f);
    for (int64_t f = 0; f < files; f++) CHECK_INT(states[f].bytes, BYTES);
    fl_file_reader_close(reader);
    CHECK_INT(fl_file_reader_open(names, states, files, &reader, &err), FL_OK);
    return reader;
}

static void remove_files(int64_t files)
{
    for (int64_t f = 0; f < files; f++) unlink(paths[f]);
}

static int count_descriptors(void)
{
    DIR *open_ones = opendir("/proc/self/fd");
    int count = 0;
    CHECK(open_ones != NULL);
    while (readdir(open_ones) != NULL) count++;
    closedir(open_ones);
    return count;
}

static void check_reads(fl_file_reader *reader, uint64_t seed, int64_t reads)
{
    char out[BYTES];
    fl_err err;
    for (int64_t n = 0; n < reads; n++) {
        int64_t byte = random_below(&seed, BYTES);
        fl_file_part part = {random_below(&seed, FILES), byte,
                             1 + random_below(&seed, BYTES - byte)};
        if (n % 50 == 0) fl_file_reader_announce(reader, &part, 1);
        CHECK_INT(fl_file_reader_read(reader, &part, out, &err), FL_OK);
        for (int64_t i = 0; i < part.bytes; i++) CHECK(out[i] == byte_at(part.file, part.byte + i));
    }
}

static void *read_in_thread(void *reader)
{
    check_reads(reader, (uint64_t)(uintptr_t)&reader, READS);
    return NULL;
}

static int read_in_child(void *reader)
{
    check_reads(reader, 9, 100);
    return 0;
}

static void test_parts_of_many_files_with_few_descriptors(void)
{
    pthread_t threads[THREADS];
    fl_file_reader *reader = make_reader(FILES);
    int before = count_descriptors();
    for (int t = 0; t < THREADS; t++)
        CHECK_INT(fl_thread_start(&threads[t], read_in_thread, reader, NULL), FL_OK);
    CHECK_INT(run_child(read_in_child, reader), 0);
    for (int t = 0; t < THREADS; t++) CHECK(pthread_join(threads[t], NULL) == 0);
    for (int64_t f = 0; f < FILES; f++) {
        char out;
        CHECK_INT(fl_file_reader_read(reader, &(fl_file_part){f, 0, 1}, &out, NULL), FL_OK);
    }
    CHECK_INT(count_descriptors() - before, FL_FILE_DESCRIPTORS);
    fl_file_reader_close(reader);
    CHECK_INT(count_descriptors(), before);
    remove_files(FILES);
}

static void check_error(fl_file_reader *reader, fl_file_part part, int64_t byte, int number)
{
    char out[BYTES];
    fl_err err;
    CHECK_INT(fl_file_reader_read(reader, &part, out, &err), FL_EFILE);
    CHECK_INT(err.position, part.file);
    CHECK_INT(err.value, byte);
    CHECK_INT(err.length, number);
    CHECK(strstr(err.text, number == ESTALE ? "has changed" : strerror(number)) != NULL);
}

static void test_files_that_change_are_errors(void)
{
    fl_file_reader *reader = make_reader(6);
    fl_file_part all = {0, 0, BYTES};
    char out[BYTES];
    for (all.file = 0; all.file < 3; all.file++) /* these are open */
        CHECK_INT(fl_file_reader_read(reader, &all, out, NULL), FL_OK);
    int before = count_descriptors();
    struct timespec later[] = {{0, UTIME_OMIT}, {states[0].mtime_ns / 1000000000 + 1, 0}};
    CHECK(truncate(paths[0], 4096) == 0);
    check_error(reader, (fl_file_part){0, 100, 4900}, 4096, ESTALE);
    check_error(reader, (fl_file_part){0, 0, 10}, 0, ESTALE);
    write_file(1, BYTES, 2); /* of the same size */
    CHECK(utimensat(AT_FDCWD, paths[1], later, 0) == 0);
    check_error(reader, (fl_file_part){1, 7, 10}, 7, ESTALE);
    write_file(3, BYTES, 3);
    CHECK(utimensat(AT_FDCWD, paths[3], later, 0) == 0);
    check_error(reader, (fl_file_part){3, 0, BYTES}, 0, ESTALE); /* found when it is opened */
    CHECK(rename(paths[5], paths[4]) == 0);                      /* equal but for the inode */
    check_error(reader, (fl_file_part){4, 1, 1}, 1, ESTALE);
    check_error(reader, (fl_file_part){5, 2, 1}, 2, ENOENT);
    CHECK(mkfifo(paths[5], 0600) == 0);
    check_error(reader, (fl_file_part){5, 3, 1}, 3, ESTALE); /* and nobody waits for a writer */
    CHECK(unlink(paths[2]) == 0);
    CHECK_INT(fl_file_reader_read(reader, &(fl_file_part){2, 0, BYTES}, out, NULL), FL_OK);
    fl_file_reader_announce(reader, &(fl_file_part){5, 0, 1}, 1); /* errors are left to reads */
    CHECK_INT(count_descriptors(), before);
    fl_file_reader_close(reader);
    remove_files(6);
}

/* All inherited descriptors are of a different file now, as if the parent had opened them while it
 * forked. The child neither reads nor closes them. */
static int read_with_wrong_descriptors(void *given)
{
    fl_file_reader *reader = given;
    char out[BYTES];
    struct stat found;
    int wrong = open("/dev/null", O_RDONLY), before = count_descriptors();
    for (int fd = 3; fd < wrong; fd++) dup2(wrong, fd);
    for (int64_t f = 0; f < 4; f++) {
        fl_file_part all = {f, 0, BYTES};
        CHECK_INT(fl_file_reader_read(reader, &all, out, NULL), FL_OK);
        for (int64_t i = 0; i < BYTES; i++) CHECK(out[i] == byte_at(f, i));
    }
    CHECK_INT(count_descriptors(), before + 4);
    CHECK_INT(fl_file_reader_read(reader, &(fl_file_part){0, 0, BYTES}, out, NULL), FL_OK);
    CHECK_INT(count_descriptors(), before + 4);
    fl_file_reader_close(reader);
    CHECK_INT(count_descriptors(), before);
    for (int fd = 3; fd <= wrong; fd++)
        if (fstat(fd, &found) == 0) CHECK(S_ISCHR(found.st_mode));
    return 0;
}

static void test_a_child_leaves_inherited_descriptors(void)
{
    fl_file_reader *reader = make_reader(8);
    for (int64_t f = 0; f < 8; f++) {
        char out;
        CHECK_INT(fl_file_reader_read(reader, &(fl_file_part){f, 0, 1}, &out, NULL), FL_OK);
    }
    int before = count_descriptors();
    CHECK_INT(run_child(read_with_wrong_descriptors, reader), 0);
    CHECK_INT(count_descriptors(), before);
    fl_file_reader_close(reader);
    CHECK_INT(count_descriptors(), before - 8);
    remove_files(8);
}

static void test_what_is_no_file(void)
{
    const char *wrong[] = {"/dev/null", folder, "/tmp/fastloop-no-such-file"};
    const int numbers[] = {EINVAL, EISDIR, ENOENT};
    fl_file_reader *reader;
    fl_err err;
    for (int i = 0; i < 3; i++) {
        const char *both[] = {"/proc/self/stat", wrong[i]};
        CHECK_INT(fl_file_reader_open(both, NULL, 2, &reader, &err), FL_EFILE);
        CHECK(reader == NULL && err.position == 1 && err.length == numbers[i]);
        CHECK(strstr(err.text, i == 0 ? "regular file" : strerror(numbers[i])) != NULL);
    }
}

static int open_and_close(void *ignored)
{
    fl_file_reader *reader;
    fl_err err;
    (void)ignored;
    int status = fl_file_reader_open(names, states, 2, &reader, &err);
    CHECK(status == FL_OK || reader == NULL);
    fl_file_reader_close(reader);
    return status;
}

static void test_refused_resources(void) { CHECK_INT(refuse_each(open_and_close, NULL), 3); }

int main(void)
{
    start_tests();
    CHECK(mkdtemp(folder) != NULL);
    RUN(test_parts_of_many_files_with_few_descriptors);
    RUN(test_files_that_change_are_errors);
    RUN(test_a_child_leaves_inherited_descriptors);
    RUN(test_what_is_no_file);
    RUN(test_refused_resources);
    CHECK(rmdir(folder) == 0);
    return 0;
}
