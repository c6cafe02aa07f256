/* Tests of fl_token_reader: rows of files and of memory against the tokens themselves, however they
 * are read; files that are cut; tokens out of range; refused resources. */
#include "token_fixture.h"

#include "fl_safe_read.h"

#include <errno.h>

enum { WINDOWS = 150 };

/* Tensors of a batch of `rows` rows of `length` elements of 8 bytes. */
typedef struct batch {
    char *memory[5]; /* owned */
    fl_token_rows rows;
} batch;

static batch make_batch(int64_t rows, int64_t length, bool has_y, bool has_documents)
{
    batch made;
    for (int i = 0; i < 5; i++) CHECK((made.memory[i] = fl_alloc(rows * length * 8)) != NULL);
    made.rows = fl_token_rows_at(made.memory, has_y, has_documents);
    return made;
}

static void drop_batch(batch *made)
{
    for (int i = 0; i < 5; i++) fl_free(made->memory[i]);
}

/* Row `row` of an int64 tensor holds the tokens from `first` on. */
static void
check_row(const char *tensor, int64_t row, const tokens *from, int64_t first, int64_t length)
{
    int64_t *expected = fl_alloc(length * 8), bytes = fl_token_bytes(from->type);
    fl_cpu_tokens_plain.convert[from->type][FL_TOKEN_OUT_64](
        expected, NULL, from->memory + HEAD + first * bytes, length, 0, UINT64_MAX);
    CHECK(memcmp(tensor + row * length * 8, expected, (size_t)(length * 8)) == 0);
    fl_free(expected);
}

static void fill_windows(fl_window *windows, int64_t count, int64_t files, int64_t length)
{
    uint64_t state = (uint64_t)(length + files);
    for (int64_t i = 0; i < count; i++)
        windows[i] =
            (fl_window){random_below(&state, files), random_below(&state, TOKENS - length)};
}

static void check_read(fl_token_reader *reader, const tokens *from, int64_t files, int64_t length,
                       int64_t count)
{
    fl_window windows[WINDOWS];
    fl_err err;
    batch made = make_batch(count + 1, length, true, false);
    fill_windows(windows, count, files, length);
    fl_token_reader_advise(reader, windows, count);
    CHECK_INT(fl_token_reader_read(reader, windows, count, &made.rows, 1, &err), FL_OK);
    for (int64_t i = 0; i < count; i++) {
        const tokens *file = &from[windows[i].file];
        check_row(made.memory[0], i + 1, file, windows[i].first, length);
        check_row(made.memory[1], i + 1, file, windows[i].first + 1, length);
    }
    for (int64_t i = 0; i < length; i++) CHECK_INT(((int64_t *)(void *)made.memory[0])[i], 0);
    drop_batch(&made);
}

/* Reads files of all types in one reader, with windows in any order. */
static void check_places(token_place place, fl_token_io io, const char *how)
{
    tokens from[FL_TOKEN_TYPES];
    fl_token_source sources[FL_TOKEN_TYPES];
    for (fl_token_type type = 0; type < FL_TOKEN_TYPES; type++) {
        from[type] = make_tokens(type, (uint64_t)type + 1);
        sources[type] = source_of(&from[type], place == PLACES ? type % PLACES : place);
    }
    static const int64_t lengths[] = {1, 7, 100, 1024, LENGTH_MOST};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        fl_token_config config = config_of(sources, FL_TOKEN_TYPES, lengths[l]);
        config.io = io;
        fl_token_reader *reader;
        fl_err err;
        CHECK_INT(fl_token_reader_open(&config, &reader, &err), FL_OK);
        CHECK_INT(fl_token_reader_window(reader), lengths[l] + 1);
        CHECK_INT(fl_token_reader_is_volatile(reader), place != IN_MEMORY);
        CHECK(how == NULL || strcmp(fl_token_reader_io(reader, 3), how) == 0);
        check_read(reader, from, FL_TOKEN_TYPES, lengths[l], lengths[l] > 2000 ? 9 : WINDOWS);
        fl_token_reader_close(reader);
    }
    for (fl_token_type type = 0; type < FL_TOKEN_TYPES; type++) drop_tokens(&from[type]);
}

static void test_memory(void) { check_places(IN_MEMORY, FL_TOKEN_AUTO, "memory"); }
static void test_mapped_memory(void) { check_places(IN_MAPPED_MEMORY, FL_TOKEN_AUTO, "memory"); }
static void test_pread(void) { check_places(IN_FILE, FL_TOKEN_PREAD, "pread"); }
static void test_mmap(void) { check_places(IN_FILE, FL_TOKEN_MMAP, "mmap"); }
static void test_places_mixed(void) { check_places(PLACES, FL_TOKEN_PREAD, NULL); }
static void test_places_mixed_and_mapped(void) { check_places(PLACES, FL_TOKEN_MMAP, NULL); }

/* Windows whose pieces fill the buffer in the middle of one, and documents go on in the next. */
static void check_documents(token_place first, token_place second, fl_token_io io)
{
    tokens from = make_tokens(FL_TOKEN_I64, 5);
    for (int64_t i = 0; i < TOKENS; i++) from.memory[HEAD + i * 8] = (char)(i % 997 == 0 ? 77 : 1);
    CHECK(pwrite(from.file.fd, from.memory, (size_t)from.file.bytes, 0) == from.file.bytes);
    int64_t eos;
    memcpy(&eos, from.memory + HEAD, 8);
    for (int64_t i = 0; i < TOKENS; i += 997) memcpy(from.memory + HEAD + i * 8, &eos, 8);
    CHECK(pwrite(from.file.fd, from.memory, (size_t)from.file.bytes, 0) == from.file.bytes);
    fl_token_source sources[2] = {source_of(&from, first), source_of(&from, second)};
    fl_token_config config = config_of(sources, 2, 20000);
    config.io = io;
    config.has_eos = true;
    config.eos = eos;
    fl_token_reader *reader;
    CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
    const fl_window windows[] = {{0, 5}, {1, 700}, {0, 39000}, {1, 3}};
    batch made = make_batch(4, 20000, true, true);
    CHECK_INT(fl_token_reader_read(reader, windows, 4, &made.rows, 0, NULL), FL_OK);
    for (int64_t w = 0; w < 4; w++)
        for (int64_t t = 0; t < 20000; t++) {
            int64_t at = windows[w].first + t, i = w * 20000 + t;
            int64_t since = (at - 1) % 997; /* since the token after the last EOS */
            CHECK_INT(made.rows.position[i], fl_min(t, since));
            CHECK_INT(made.rows.document[i], (at - 1) / 997 - (windows[w].first - 1) / 997);
            CHECK_INT(made.rows.mask[i], at % 997 != 0);
        }
    drop_batch(&made);
    fl_token_reader_close(reader);
    drop_tokens(&from);
}

static void test_documents_across_pieces(void)
{
    check_documents(IN_FILE, IN_FILE, FL_TOKEN_PREAD);
    check_documents(IN_FILE, IN_FILE, FL_TOKEN_MMAP);
    check_documents(IN_MAPPED_MEMORY, IN_FILE, FL_TOKEN_PREAD);
    check_documents(IN_MAPPED_MEMORY, IN_MEMORY, FL_TOKEN_PREAD);
}

/* A type may be too narrow for the EOS. Then no file of that type has the EOS, and a source's own
 * ends do not count. */
static void test_eos_beyond_the_type(void)
{
    tokens from = make_tokens(FL_TOKEN_U8, 6);
    int64_t ends[] = {3, TOKENS};
    fl_token_source source = source_of(&from, IN_MEMORY);
    source.ends = ends;
    source.documents = 2;
    for (int has_eos = 0; has_eos < 2; has_eos++) {
        fl_token_config config = config_of(&source, 1, 10);
        config.has_eos = has_eos;
        config.eos = 256 + (unsigned char)from.memory[HEAD + 2];
        fl_token_reader *reader;
        CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
        batch made = make_batch(1, 10, true, true);
        fl_window window = {0, 0};
        CHECK_INT(fl_token_reader_read(reader, &window, 1, &made.rows, 0, NULL), FL_OK);
        CHECK_INT(made.rows.position[9], has_eos ? 9 : 6);
        CHECK_INT(made.rows.document[9], has_eos ? 0 : 1);
        drop_batch(&made);
        fl_token_reader_close(reader);
    }
    drop_tokens(&from);
}

static void test_targets_and_widths(void)
{
    tokens from = make_tokens(FL_TOKEN_U16, 7);
    fl_token_source source = source_of(&from, IN_FILE);
    for (fl_token_targets targets = FL_TARGETS_NONE; targets <= FL_TARGETS_SHIFT; targets++) {
        fl_token_config config = config_of(&source, 1, 50);
        config.targets = targets;
        config.out = FL_TOKEN_OUT_16;
        fl_token_reader *reader;
        CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
        batch made = make_batch(1, 50, targets != FL_TARGETS_NONE, false);
        /* The window has the last tokens of the file: no target is read if there is none. */
        fl_window window = {0, TOKENS - fl_token_reader_window(reader)};
        const char *last = from.memory + HEAD + window.first * 2;
        CHECK_INT(fl_token_reader_read(reader, &window, 1, &made.rows, 0, NULL), FL_OK);
        CHECK(memcmp(made.rows.x, last, 100) == 0);
        int64_t shift = targets == FL_TARGETS_SHIFT ? 2 : 0;
        CHECK(targets == FL_TARGETS_NONE || memcmp(made.rows.y, last + shift, 100) == 0);
        drop_batch(&made);
        fl_token_reader_close(reader);
    }
    drop_tokens(&from);
}

/* Checks that the error of a cut file names the file and the first byte that is gone. */
static void check_cut(fl_token_io io, int64_t size, int64_t byte)
{
    tokens from[2] = {make_tokens(FL_TOKEN_U16, 8), make_tokens(FL_TOKEN_U16, 9)};
    fl_token_source sources[2] = {source_of(&from[0], IN_FILE), source_of(&from[1], IN_FILE)};
    fl_token_config config = config_of(sources, 2, 3000);
    config.io = io;
    fl_token_reader *reader;
    CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
    const fl_window windows[] = {{0, 9}, {1, 4}, {1, 50000}, {0, 9}};
    batch made = make_batch(4, 3000, true, false);
    CHECK(ftruncate(from[1].file.fd, size) == 0);
    fl_err err;
    CHECK_INT(fl_token_reader_read(reader, windows, 4, &made.rows, 0, &err), FL_EFILE);
    CHECK_INT(err.position, 1);
    CHECK_INT(err.value, byte);
    CHECK_INT(err.length, 0);
    CHECK(strstr(err.text, "shorter") != NULL);
    CHECK_INT(fl_token_reader_read(reader, windows, 2, &made.rows, 0, &err), FL_OK);
    check_row(made.memory[1], 1, &from[1], 5, 3000);
    CHECK(ftruncate(from[1].file.fd, 0) == 0);
    CHECK_INT(fl_token_reader_read(reader, windows, 2, &made.rows, 0, &err), FL_EFILE);
    CHECK_INT(err.value, io == FL_TOKEN_PREAD ? HEAD + 8 : err.value);
    drop_batch(&made);
    fl_token_reader_close(reader);
    for (int i = 0; i < 2; i++) drop_tokens(&from[i]);
}

static void test_a_file_is_cut(void)
{
    check_cut(FL_TOKEN_PREAD, 101000, 101000);
    check_cut(FL_TOKEN_MMAP, 101000, 101000); /* zeros up to the end of the page */
    check_cut(FL_TOKEN_MMAP, 102400, 102400); /* the end of a page */
    check_cut(FL_TOKEN_PREAD, 50000, HEAD + 100000);
    check_cut(FL_TOKEN_MMAP, 50000, HEAD + 100000);
}

static void test_a_read_fails(void)
{
    tokens from = make_tokens(FL_TOKEN_U16, 10);
    fl_token_source source = source_of(&from, IN_FILE);
    CHECK((source.fd = open("/dev/null", O_WRONLY | O_CLOEXEC)) >= 0);
    fl_token_config config = config_of(&source, 1, 10);
    config.io = FL_TOKEN_PREAD;
    fl_token_reader *reader;
    CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
    batch made = make_batch(1, 10, true, false);
    fl_window window = {0, 0};
    fl_err err;
    CHECK_INT(fl_token_reader_read(reader, &window, 1, &made.rows, 0, &err), FL_EFILE);
    CHECK(err.length == EBADF && err.value == HEAD);
    drop_batch(&made);
    fl_token_reader_close(reader);
    CHECK(close(source.fd) == 0);
    drop_tokens(&from);
}

static void test_tokens_out_of_range(void)
{
    tokens from = make_tokens(FL_TOKEN_I32, 11);
    static const int64_t places[] = {0, 1, 4000, 9000, 20000};
    memset(from.memory + HEAD, 0, TOKENS * 4);
    for (size_t p = 0; p < sizeof places / sizeof *places; p++)
        for (int32_t value = -1; value <= 1000; value += 1001) {
            memcpy(from.memory + HEAD + (7 + places[p]) * 4, &value, 4);
            CHECK(pwrite(from.file.fd, from.memory, (size_t)from.file.bytes, 0) > 0);
            for (token_place place = IN_MEMORY; place < PLACES; place++) {
                fl_token_source source = source_of(&from, place);
                source.most = 999;
                fl_token_config config = config_of(&source, 1, 20000);
                fl_token_reader *reader;
                CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
                batch made = make_batch(1, 20000, true, false);
                fl_window window = {0, 7}, behind = {0, 20028};
                fl_err err;
                CHECK_INT(fl_token_reader_read(reader, &window, 1, &made.rows, 0, &err), FL_ETOKEN);
                CHECK_INT(err.position, 0);
                CHECK_INT(err.value, value);
                CHECK_INT(err.length, 7 + places[p]);
                CHECK_INT(fl_token_reader_read(reader, &behind, 1, &made.rows, 0, &err), FL_OK);
                drop_batch(&made);
                fl_token_reader_close(reader);
            }
            memset(from.memory + HEAD + (7 + places[p]) * 4, 0, 4);
        }
    drop_tokens(&from);
}

/* Every type that can hold one says the token itself, whatever its width and sign. */
static void test_what_a_token_out_of_range_is(void)
{
    for (fl_token_type type = 0; type < FL_TOKEN_TYPES; type++) {
        tokens from = make_tokens(type, 14);
        bool is_signed = type == FL_TOKEN_I8 || type == FL_TOKEN_I16 || type == FL_TOKEN_I32 ||
                         type == FL_TOKEN_I64;
        int64_t value = is_signed ? -56 : 200, bytes = fl_token_bytes(type);
        memset(from.memory + HEAD, 0, (size_t)(TOKENS * bytes));
        memcpy(from.memory + HEAD + 5 * bytes, &value, (size_t)bytes);
        fl_token_source source = source_of(&from, IN_MEMORY);
        source.most = 100;
        fl_token_config config = config_of(&source, 1, 10);
        fl_token_reader *reader;
        CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
        batch made = make_batch(1, 10, true, false);
        fl_window window = {0, 0};
        fl_err err;
        CHECK_INT(fl_token_reader_read(reader, &window, 1, &made.rows, 0, &err), FL_ETOKEN);
        CHECK(err.value == value && err.length == 5);
        drop_batch(&made);
        fl_token_reader_close(reader);
        drop_tokens(&from);
    }
}

/* Refuses the tokens, and mends them at once, as if a second thread had written good tokens. */
static bool
mend_and_refuse(void *x, void *y, const void *src, int64_t count, int64_t shift, uint64_t most)
{
    (void)x, (void)y, (void)most;
    memset((void *)(uintptr_t)src, 0, (size_t)((count + shift) * 8));
    return false;
}

/* Nothing is looked for beyond the window, because the memory may end there. */
static void test_a_token_that_is_mended_meanwhile(void)
{
    fl_token_ops ops = *fl_cpu_token_ops_find();
    ops.convert[FL_TOKEN_I64][FL_TOKEN_OUT_64] = mend_and_refuse;
    char *memory = malloc(11 * 8);
    CHECK(memory != NULL);
    fl_token_source source = {
        .fd = -1, .data = memory, .tokens = 11, .type = FL_TOKEN_I64, .most = 100};
    fl_token_config config = config_of(&source, 1, 10);
    config.ops = &ops;
    fl_token_reader *reader;
    CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
    batch made = make_batch(1, 10, true, false);
    fl_window window = {0, 0};
    fl_err err;
    CHECK_INT(fl_token_reader_read(reader, &window, 1, &made.rows, 0, &err), FL_ETOKEN);
    CHECK_INT(err.length, 10);
    drop_batch(&made);
    fl_token_reader_close(reader);
    free(memory);
}

/* FL_TOKEN_AUTO maps small files, and none when all together are large. */
static void test_what_is_mapped(void)
{
    tokens from = make_tokens(FL_TOKEN_U16, 12);
    fl_token_source sources[2] = {source_of(&from, IN_FILE), source_of(&from, IN_FILE)};
    sources[1].tokens = FL_TOKEN_MAPPED_BYTES / 2 - 100;
    CHECK(ftruncate(from.file.fd, FL_TOKEN_MAPPED_BYTES) == 0); /* sparse */
    for (int64_t count = 1; count <= 2; count++) {
        fl_token_config config = config_of(sources, count, 10);
        fl_token_reader *reader;
        CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
        bool is_small = count == 1 && strcmp(fl_safe_read_method(), "process_vm") == 0;
        CHECK(strcmp(fl_token_reader_io(reader, 0), is_small ? "mmap" : "pread") == 0);
        fl_token_reader_close(reader);
    }
    drop_tokens(&from);
}

/* Batches are read ahead until reads are known to be quick, and then no more. */
static void test_reading_ahead_ends(void)
{
    tokens from = make_tokens(FL_TOKEN_U16, 13);
    fl_token_source source = source_of(&from, IN_FILE);
    fl_token_config config = config_of(&source, 1, 10);
    fl_token_reader *reader;
    CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
    int batches = 0;
    while (fl_token_reader_is_cold(reader)) batches++;
    CHECK(batches > 10 && batches < 1000 && !fl_token_reader_is_cold(reader));
    fl_token_reader_close(reader);
    drop_tokens(&from);
}

static bool is_cached(const tokens *from, int64_t byte)
{
    unsigned char state = 0;
    int64_t page = sysconf(_SC_PAGESIZE);
    CHECK(mincore(from->file.data + byte / page * page, 1, &state) == 0);
    return state & 1;
}

/* A window is in the page cache before it is read, and no more than the window is. */
static void test_windows_are_read_ahead(void)
{
    tokens from = make_tokens(FL_TOKEN_I64, 15);
    fl_token_source source = source_of(&from, IN_FILE);
    fl_token_config config = config_of(&source, 1, 10);
    config.io = FL_TOKEN_PREAD;
    fl_token_reader *reader;
    CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
    const fl_window windows[] = {{0, 50000}, {0, 10000}};
    CHECK(fsync(from.file.fd) == 0);
    CHECK(posix_fadvise(from.file.fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    bool can_drop = !is_cached(&from, 0) && !is_cached(&from, 80000) && !is_cached(&from, 400000);
    if (can_drop) { /* tmpfs cannot */
        fl_token_reader_advise(reader, windows, 2);
        for (int i = 0; i < 2; i++)
            while (!is_cached(&from, HEAD + windows[i].first * 8)) sleep_ms(1);
        CHECK(!is_cached(&from, 0) && !is_cached(&from, 240000));
    }
    fl_token_reader_close(reader);
    drop_tokens(&from);
}

static int open_and_read(void *arg)
{
    const fl_token_source *sources = arg;
    fl_token_config config = config_of(sources, 1, 10);
    fl_token_reader *reader;
    fl_err err;
    FL_TRY(fl_token_reader_open(&config, &reader, &err));
    static int64_t x[10], y[10];
    fl_token_rows rows = {.x = (char *)x, .y = (char *)y};
    fl_window window = {0, 3};
    int status = fl_token_reader_read(reader, &window, 1, &rows, 0, &err);
    fl_token_reader_close(reader);
    return status;
}

/* A reader, and the mapping: without that the file is read with pread. */
static void test_refused_resources(void)
{
    tokens from = make_tokens(FL_TOKEN_U16, 14);
    fl_token_source source = source_of(&from, IN_FILE);
    CHECK(refuse_each(open_and_read, &source) >= 1);
    drop_tokens(&from);
}

int main(void)
{
    start_tests();
    RUN(test_memory);
    RUN(test_mapped_memory);
    RUN(test_pread);
    RUN(test_mmap);
    RUN(test_places_mixed);
    RUN(test_places_mixed_and_mapped);
    RUN(test_documents_across_pieces);
    RUN(test_eos_beyond_the_type);
    RUN(test_targets_and_widths);
    RUN(test_a_file_is_cut);
    RUN(test_a_read_fails);
    RUN(test_tokens_out_of_range);
    RUN(test_what_a_token_out_of_range_is);
    RUN(test_a_token_that_is_mended_meanwhile);
    RUN(test_what_is_mapped);
    RUN(test_reading_ahead_ends);
    RUN(test_windows_are_read_ahead);
    RUN(test_refused_resources);
}
