/* Tests of fl_tar and fl_tar_index: members of all formats, keys, samples and their sets; what is
 * refused, byte for byte; archives that nobody wrote; refused resources. Each buffer has exactly
 * the bytes that the reader is told of, for the sanitizers. */
#include "check.h"

#include "fl_hash.h"
#include "fl_tar_index.h"

enum { ROOM = 64 * 1024, CASES = 20000 };

typedef struct archive {
    char data[ROOM];
    int64_t bytes;
} archive;

static void put_sum(char *header)
{
    unsigned int sum = 0;
    memset(header + 148, ' ', 8);
    for (int i = 0; i < FL_TAR_BLOCK; i++) sum += (unsigned char)header[i];
    snprintf(header + 148, 8, "%06o", sum);
}

static char *put_header(archive *to, const char *name, char kind, int64_t bytes)
{
    char *header = to->data + to->bytes;
    CHECK(to->bytes + 3 * FL_TAR_BLOCK < ROOM);
    memset(header, 0, FL_TAR_BLOCK);
    memcpy(header, name, strlen(name));
    snprintf(header + 124, 12, "%011llo", (long long)bytes);
    header[156] = kind;
    memcpy(header + 257, "ustar\00000", 8);
    put_sum(header);
    return header;
}

/* Adds a member whose contents are `text`. */
static void put(archive *to, const char *name, char kind, const char *text)
{
    int64_t bytes = (int64_t)strlen(text);
    CHECK(to->bytes + bytes + 4 * FL_TAR_BLOCK < ROOM);
    put_header(to, name, kind, bytes);
    to->bytes += FL_TAR_BLOCK;
    memset(to->data + to->bytes, 0, (size_t)bytes + FL_TAR_BLOCK);
    memcpy(to->data + to->bytes, text, (size_t)bytes);
    to->bytes += (bytes + FL_TAR_BLOCK - 1) / FL_TAR_BLOCK * FL_TAR_BLOCK;
}

static void end(archive *to)
{
    memset(to->data + to->bytes, 0, (size_t)2 * FL_TAR_BLOCK);
    to->bytes += (int64_t)2 * FL_TAR_BLOCK;
}

/* Makes the index of the first `bytes` bytes of an archive. */
static int make_index(const archive *from, int64_t bytes, fl_tar_index *out, fl_err *err)
{
    int fd = memfd_create("archive", 0);
    CHECK(fd >= 0 && write(fd, from->data, (size_t)bytes) == bytes);
    int status = fl_tar_index_make(fd, bytes, out, err);
    close(fd);
    return status;
}

static void check_refused(const archive *from, int64_t bytes, const char *text)
{
    fl_tar_index index;
    fl_err err;
    CHECK_INT(make_index(from, bytes, &index, &err), FL_EINVAL);
    fl_tar_index_clear(&index);
    if (strstr(err.text, text) == NULL) fprintf(stderr, "\n%s\n", err.text);
    CHECK(strstr(err.text, text) != NULL);
}

static void test_keys(void)
{
    static const struct {
        const char *name;
        int64_t key;
    } names[] = {{"a.jpg", 1},       {"a.seg.png", 1},  {"d.x/a.jpg", 5}, {"./a.jpg", 3},
                 {"a", -1},          {".a", -1},        {"d/.a.jpg", -1}, {"d.x/a", -1},
                 {"__a__.jpg", 5},   {"__a__/b.c", -1}, {"____", -1},     {"___.jpg", 3},
                 {"x/__a__/b.c", 9}, {"", -1},          {"a.", 1},        {"__x.y__", -1},
                 {"___/a.b", 5}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        CHECK_INT(fl_tar_key(names[i].name, (int64_t)strlen(names[i].name)), names[i].key);
}

static void check_member(const archive *from, const char *name, int64_t bytes, bool is_file)
{
    fl_tar_member member;
    CHECK_INT(fl_tar_read(from->data, from->bytes, 0, &member, NULL), FL_OK);
    CHECK(member.needs <= from->bytes);
    CHECK_INT(member.name_bytes, strlen(name));
    CHECK(memcmp(member.name, name, strlen(name)) == 0);
    CHECK_INT(member.bytes, bytes);
    CHECK(member.is_file == is_file);
    for (int64_t n = 0; n < member.needs; n++) { /* asks for bytes, and looks at no others */
        char *part = malloc((size_t)n + 1);
        CHECK(part != NULL);
        memcpy(part + 1, from->data, (size_t)n);
        fl_tar_member cut;
        CHECK_INT(fl_tar_read(part + 1, n, 0, &cut, NULL), FL_OK);
        CHECK(cut.needs > n);
        free(part);
        if (n > 600) n += 111;
    }
}

static void test_members_of_all_formats(void)
{
    static archive a;
    char *header;
    a.bytes = 0;
    header = put_header(&a, "name.x", '0', 5); /* USTAR, with a prefix */
    memcpy(header + 345, "some/folder", 11);
    put_sum(header);
    a.bytes = FL_TAR_BLOCK;
    check_member(&a, "some/folder/name.x", 5, true);
    memcpy(header + 257, "ustar  ", 8); /* GNU has times in the place of the prefix */
    put_sum(header);
    check_member(&a, "name.x", 5, true);
    memset(header + 124, 0, 12);
    header[124] = (char)0x80; /* to base 256 */
    header[131] = 2;
    put_sum(header);
    check_member(&a, "name.x", INT64_C(2) << 32, true);
    a.bytes = 0;
    put(&a, "././@LongLink", 'K', "where the link points to");
    put(&a, "././@LongLink", 'L', "a long name.jpg");
    put(&a, "short", '0', "x");
    check_member(&a, "a long name.jpg", 1, true);
    a.bytes = 0;
    put(&a, "pax", 'g', "20 comment=whatever\n");
    put(&a, "pax", 'x', "15 path=\xc3\xa4.jpg\n17 mtime=1700.25\n11 size=12\n");
    put(&a, "short", '0', "x");
    check_member(&a, "\xc3\xa4.jpg", 12, true);
    a.bytes = 0;
    header = put_header(&a, "\xe4.x", '\0', 5); /* as programs before USTAR wrote it */
    a.bytes = FL_TAR_BLOCK;
    check_member(&a, "\xe4.x", 5, true);
    header[151] -= 4; /* the sum of signed bytes: 256 less */
    check_member(&a, "\xe4.x", 5, true);
    static const char others[] = "123456";
    for (size_t i = 0; i < sizeof others; i++) {
        a.bytes = 0;
        put_header(&a, "folder/", others[i], 700); /* the last: a folder of old programs */
        a.bytes = FL_TAR_BLOCK;
        check_member(&a, "folder/", 0, false);
    }
}

static void test_samples_and_their_sets(void)
{
    static archive a;
    fl_tar_index index;
    a.bytes = 0;
    put(&a, "d/1.JPG", '0', "picture");
    put(&a, "d/", '5', "");
    put(&a, "d/1.cls", '0', "7");
    put(&a, "README", '0', "no sample");
    int64_t second = a.bytes;
    put(&a, "long", 'L', "d/2.cls");
    put(&a, "d/2", '0', "8");
    put(&a, "d/2.jpg", '0', "");
    put(&a, "d/3.jpg", '0', "other");
    put(&a, "d/3.cls", '7', "9");
    end(&a);
    CHECK_INT(make_index(&a, a.bytes, &index, NULL), FL_OK);
    CHECK_INT(index.count, 3);
    CHECK_INT(index.set_count, 2);
    CHECK(memcmp(index.sets[0].text, "jpg/cls/", 8) == 0 && index.sets[0].bytes == 8);
    CHECK(memcmp(index.sets[1].text, "cls/jpg/", 8) == 0);
    CHECK_INT(index.entries[0].byte, 0);
    CHECK_INT(index.entries[0].bytes, 2 * FL_TAR_BLOCK + 512 + 512 + 1);
    CHECK_INT(index.entries[1].byte, second);
    CHECK_INT(index.entries[1].check, fl_tar_check(fl_hash("d/2", 3)) << 8 | 1);
    CHECK_INT(index.entries[2].check & 255, 0);
    CHECK(index.hashes[2] == fl_hash("d/3", 3));
    fl_tar_index_clear(&index);
}

static void test_more_sets_than_numbers(void)
{
    fl_tar_index index;
    static archive all;
    all.bytes = 0;
    int fd = memfd_create("archive", 0);
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d.e%d", i, i);
        all.bytes = 0;
        put(&all, name, '0', "");
        CHECK(write(fd, all.data, (size_t)all.bytes) == all.bytes);
    }
    all.bytes = 0;
    end(&all);
    CHECK(write(fd, all.data, (size_t)all.bytes) == all.bytes);
    CHECK_INT(fl_tar_index_make(fd, 300 * FL_TAR_BLOCK + all.bytes, &index, NULL), FL_OK);
    CHECK_INT(index.set_count, FL_TAR_SETS);
    CHECK_INT(index.entries[254].check & 255, 254);
    CHECK_INT(index.entries[299].check & 255, FL_TAR_SETS);
    fl_tar_index_clear(&index);
    close(fd);
}

/* Larger than what is read at a time, with members that lie across the borders of reads and members
 * that are left out. */
static void test_samples_of_a_large_archive(void)
{
    enum { SAMPLES = 3000 };
    static archive a;
    static int64_t begins[SAMPLES], bytes[SAMPLES];
    uint64_t random = 1;
    int64_t size = 0;
    int fd = memfd_create("archive", 0);
    for (int i = 0; i < SAMPLES; i++) {
        char name[32];
        int64_t room = i % 500 == 499 ? 400000 : 2500;
        snprintf(name, sizeof name, "%d.x", i);
        a.bytes = 0;
        begins[i] = size;
        if (i % 3 == 0) put(&a, "long", 'L', name);
        int64_t contents = random_below(&random, room);
        put_header(&a, name, '0', contents);
        a.bytes += FL_TAR_BLOCK;
        bytes[i] = a.bytes + contents;
        CHECK(pwrite(fd, a.data, (size_t)a.bytes, size) == a.bytes);
        size += (bytes[i] + FL_TAR_BLOCK - 1) / FL_TAR_BLOCK * FL_TAR_BLOCK;
    }
    fl_tar_index index;
    CHECK(ftruncate(fd, size + 10000) == 0); /* zeros */
    CHECK_INT(fl_tar_index_make(fd, size + 10000, &index, NULL), FL_OK);
    CHECK_INT(index.count, SAMPLES);
    for (int i = 0; i < SAMPLES; i++) CHECK_INT(index.entries[i].byte, begins[i]);
    for (int i = 0; i < SAMPLES; i++) CHECK_INT(index.entries[i].bytes, bytes[i]);
    fl_tar_index_clear(&index);
    close(fd);
}

static void test_a_sample_of_four_gibibytes(void)
{
    static archive a;
    fl_tar_index index;
    fl_err err;
    int64_t bytes = INT64_C(4) << 30;
    int fd = memfd_create("archive", 0);
    a.bytes = 0;
    char *header = put_header(&a, "1.x", '0', 0);
    for (int64_t most = bytes - FL_TAR_BLOCK - 1; most < bytes - FL_TAR_BLOCK + 1; most++) {
        snprintf(header + 124, 12, "%011llo", (long long)most);
        put_sum(header);
        CHECK(pwrite(fd, a.data, FL_TAR_BLOCK, 0) == FL_TAR_BLOCK);
        CHECK(ftruncate(fd, bytes + 1024) == 0); /* takes no memory */
        bool fits = most + FL_TAR_BLOCK <= UINT32_MAX;
        CHECK_INT(fl_tar_index_make(fd, bytes + 1024, &index, &err), fits ? FL_OK : FL_EINVAL);
        CHECK(fits || strstr(err.text, "less than 4 GiB") != NULL);
        fl_tar_index_clear(&index);
    }
    close(fd);
}

static void test_what_is_refused(void)
{
    static archive a;
    a.bytes = 0;
    put(&a, "1.jpg", '0', "picture");
    put(&a, "1.cls", '0', "7");
    end(&a);
    check_refused(&a, 0, "must not be empty");
    check_refused(&a, 100, "ends within a header at byte 0");
    check_refused(&a, 515, "cut within the member at byte 0");
    check_refused(&a, 1024, "ends without two blocks of zeros at byte 1024");
    check_refused(&a, 2048, "ends without two blocks of zeros at byte 2048");
    a.data[a.bytes] = 1;
    check_refused(&a, a.bytes + 1, "goes on after its end at byte 3072");
    a.data[1030] ^= 1;
    check_refused(&a, a.bytes, "wrong checksum at byte 1024");
    a.data[1030] ^= 1;
    put_header(&a, "1.JPG", '0', 0);
    memmove(a.data + 1024, a.data + a.bytes, FL_TAR_BLOCK);
    check_refused(&a, a.bytes, "two members .JPG, the second at byte 1024");
    static const char *const packed[] = {"\x1f\x8b", "\x28\xb5\x2f\xfd", "BZh",
                                         "\xfd"
                                         "7zXZ",
                                         "\x04\x22\x4d\x18"};
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++) {
        memcpy(a.data, packed[i], strlen(packed[i]));
        check_refused(&a, a.bytes, "must not be compressed");
    }
    static const struct {
        char kind;
        const char *body, *text;
    } extras[] = {{'S', "", "sparse"},
                  {'x', "22 GNU.sparse.major=1\n", "sparse"},
                  {'x', "x", "damaged PAX"},
                  {'x', "4 a\n", "damaged PAX"},
                  {'x', "99 path=a\n", "damaged PAX"},
                  {'x', "9 size=a\n", "damaged PAX"},
                  {'x', "99999999999999999999 a=b\n", "damaged PAX"},
                  {'g', "9 path=a\n", "global PAX header with a path"}};
    for (size_t i = 0; i < sizeof extras / sizeof *extras; i++) {
        a.bytes = 0;
        put(&a, "h", extras[i].kind, extras[i].body);
        put(&a, "1.jpg", '0', "");
        end(&a);
        check_refused(&a, a.bytes, extras[i].text);
    }
    a.bytes = 0;
    char *header = put_header(&a, "1.jpg", '0', 0);
    memcpy(header + 124, "99999999999", 11);
    put_sum(header);
    check_refused(&a, FL_TAR_BLOCK, "wrong size");
    memset(header + 124, 0xff, 12);
    put_sum(header);
    check_refused(&a, FL_TAR_BLOCK, "wrong size");
    put_header(&a, "1.jpg", 'L', 2 << 20 & 0xFFFF);
    snprintf(header + 124, 12, "%011o", 2 << 20);
    put_sum(header);
    check_refused(&a, FL_TAR_BLOCK, "more than a MiB");
}

static void put_some(uint64_t *random, archive *to)
{
    static const char *const names[] = {"a.jpg", "a.cls", "b.jpg", "dir/", "c.d.png", "n", "x/y.z"};
    static const char *const pax[] = {"12 path=q.a\n", "9 size=3\n", "5 a=\n", "9999 a=b\n",
                                      "17 size=88888888\n"};
    static const char kinds[] = {'0', '0', '0', 0, '5', '7', '2', 'L', 'x', 'g', 'K', 'S', 'Z'};
    char kind = kinds[random_below(random, sizeof kinds)], text[1500];
    int64_t bytes = random_below(random, 3) * random_below(random, 500);
    memset(text, 'p', (size_t)bytes);
    text[bytes] = 0;
    bool is_pax = kind == 'x' || kind == 'g';
    put(to, names[random_below(random, 7)], kind, is_pax ? pax[random_below(random, 5)] : text);
}

static void damage(uint64_t *random, archive *it)
{
    static const int fields[] = {0, 100, 124, 125, 134, 156, 257, 345};
    if (random_below(random, 2)) return;
    int64_t header = random_below(random, it->bytes / FL_TAR_BLOCK) * FL_TAR_BLOCK;
    int64_t field = random_below(random, 2) ? fields[random_below(random, 8)]
                                            : random_below(random, FL_TAR_BLOCK);
    it->data[header + field] = (char)next_random(random);
    if (random_below(random, 4) > 0) put_sum(it->data + header);
    if (random_below(random, 3) == 0) it->bytes -= random_below(random, it->bytes);
}

/* Reads members one after the other from exactly the bytes of the archive. */
static void read_members(const archive *from)
{
    char *data = malloc((size_t)from->bytes + 1);
    fl_tar_member member;
    CHECK(data != NULL);
    memcpy(data + 1, from->data, (size_t)from->bytes);
    for (int64_t at = 0; at < from->bytes; at += member.end) {
        int status = fl_tar_read(data + 1 + at, from->bytes - at, at, &member, NULL);
        if (status != FL_OK || member.needs > from->bytes - at) break;
        CHECK(member.body >= FL_TAR_BLOCK && member.end >= member.body + member.bytes);
        CHECK(fl_tar_key(member.name, member.name_bytes) < member.name_bytes);
    }
    free(data);
}

/* What is found lies in the archive, in order, and is found again in its own bytes alone. */
static void check_index(const archive *from, const fl_tar_index *index)
{
    int64_t before = 0;
    for (int64_t i = 0; i < index->count; i++) {
        const fl_tar_entry *entry = &index->entries[i];
        int64_t first = (int64_t)entry->byte, bytes = entry->bytes;
        CHECK(first >= before && bytes >= FL_TAR_BLOCK && first + bytes <= from->bytes);
        before = first + bytes;
        CHECK(entry->check >> 8 == fl_tar_check(index->hashes[i]));
        CHECK((int64_t)(entry->check & 255) < index->set_count);
        char *sample = malloc((size_t)bytes);
        CHECK(sample != NULL);
        memcpy(sample, from->data + first, (size_t)bytes);
        fl_tar_member member;
        for (int64_t at = 0; at < bytes; at += member.end) {
            CHECK_INT(fl_tar_read(sample + at, bytes - at, at, &member, NULL), FL_OK);
            CHECK(member.needs <= bytes - at && member.body + member.bytes <= bytes - at);
            int64_t key = member.is_file ? fl_tar_key(member.name, member.name_bytes) : -1;
            CHECK(key < 0 || fl_hash(member.name, key) == index->hashes[i]);
        }
        free(sample);
    }
}

static void test_archives_that_nobody_wrote(void)
{
    static archive a;
    int64_t were_read = 0, samples = 0;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        uint64_t random = seed;
        fl_tar_index index;
        fl_err err;
        a.bytes = 0;
        for (int64_t n = 1 + random_below(&random, 6); n > 0; n--) put_some(&random, &a);
        end(&a);
        damage(&random, &a);
        read_members(&a);
        int status = make_index(&a, a.bytes, &index, &err);
        CHECK(status == FL_OK || (status == FL_EINVAL && strlen(err.text) > 0));
        if (status == FL_OK) check_index(&a, &index);
        were_read += status == FL_OK;
        samples += index.count;
        fl_tar_index_clear(&index);
    }
    CHECK(were_read > CASES / 20 && were_read < CASES && samples > CASES / 20);
}

static int make_and_clear(void *from)
{
    fl_tar_index index;
    fl_err err;
    int status = make_index(from, ((archive *)from)->bytes, &index, &err);
    fl_tar_index_clear(&index);
    return status;
}

static void test_refused_resources(void)
{
    static archive a;
    a.bytes = 0;
    put(&a, "1.jpg", '0', "");
    put(&a, "2.longer", '0', "");
    end(&a);
    CHECK(refuse_each(make_and_clear, &a) >= 6);
}

static void test_a_file_that_cannot_be_read(void)
{
    fl_tar_index index;
    fl_err err;
    int fd = memfd_create("archive", 0);
    CHECK_INT(fl_tar_index_make(fd, 1024, &index, &err), FL_EFILE); /* it has become shorter */
    CHECK(err.length == ESTALE && err.position == 0);
    close(fd);
    CHECK_INT(fl_tar_index_make(fd, 1024, &index, &err), FL_EFILE);
    CHECK_INT(err.length, EBADF);
}

int main(void)
{
    start_tests();
    RUN(test_keys);
    RUN(test_members_of_all_formats);
    RUN(test_samples_and_their_sets);
    RUN(test_more_sets_than_numbers);
    RUN(test_samples_of_a_large_archive);
    RUN(test_a_sample_of_four_gibibytes);
    RUN(test_what_is_refused);
    RUN(test_archives_that_nobody_wrote);
    RUN(test_refused_resources);
    RUN(test_a_file_that_cannot_be_read);
    return 0;
}
