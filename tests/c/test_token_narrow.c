/* Tests of fl_token_reader: the narrow type, and rows of that type, from which a device makes x and
 * y. */
#include "token_fixture.h"

static fl_token_type narrow_type(const fl_token_source *sources, int64_t count)
{
    fl_token_config config = config_of(sources, count, 10);
    fl_token_reader *reader;
    CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
    fl_token_type type = fl_token_reader_narrow_type(reader);
    fl_token_reader_close(reader);
    return type;
}

static void test_the_narrow_type_holds_all_that_pass(void)
{
    static const struct {
        fl_token_type type[2];
        uint64_t most[2];
        fl_token_type narrow;
    } cases[] = {
        {{FL_TOKEN_U8, FL_TOKEN_U16}, {UINT64_MAX, UINT64_MAX}, FL_TOKEN_U16},
        {{FL_TOKEN_U16, FL_TOKEN_U32}, {UINT64_MAX, UINT64_MAX}, FL_TOKEN_U32},
        {{FL_TOKEN_U16, FL_TOKEN_I16}, {UINT64_MAX, UINT64_MAX}, FL_TOKEN_I32},
        {{FL_TOKEN_U8, FL_TOKEN_I16}, {UINT64_MAX, UINT64_MAX}, FL_TOKEN_I16},
        {{FL_TOKEN_U8, FL_TOKEN_I8}, {UINT64_MAX, UINT64_MAX}, FL_TOKEN_I16},
        {{FL_TOKEN_U32, FL_TOKEN_I8}, {UINT64_MAX, UINT64_MAX}, FL_TOKEN_I64},
        {{FL_TOKEN_U32, FL_TOKEN_I32}, {UINT64_MAX, INT32_MAX}, FL_TOKEN_U32},
        {{FL_TOKEN_I64, FL_TOKEN_U16}, {UINT64_MAX, UINT64_MAX}, FL_TOKEN_I64},
        {{FL_TOKEN_I64, FL_TOKEN_U16}, {50256, 50256}, FL_TOKEN_U16},
        {{FL_TOKEN_I64, FL_TOKEN_I64}, {65535, 0}, FL_TOKEN_U16},
        {{FL_TOKEN_I64, FL_TOKEN_I64}, {65536, 0}, FL_TOKEN_U32},
        {{FL_TOKEN_U16, FL_TOKEN_U16}, {255, UINT64_MAX}, FL_TOKEN_U16},
        {{FL_TOKEN_U16, FL_TOKEN_U16}, {255, 100}, FL_TOKEN_U8},
        {{FL_TOKEN_I16, FL_TOKEN_U8}, {255, 0}, FL_TOKEN_U8},
        {{FL_TOKEN_I16, FL_TOKEN_U8}, {UINT32_MAX, 0}, FL_TOKEN_U16},
        {{FL_TOKEN_I64, FL_TOKEN_U8}, {(uint64_t)INT64_MAX + 1, 0}, FL_TOKEN_I64},
    };
    char memory[1] = {0};
    for (fl_token_type type = 0; type < FL_TOKEN_TYPES; type++) {
        fl_token_source one = {.fd = -1, .data = memory, .type = type, .most = UINT64_MAX};
        CHECK_INT(narrow_type(&one, 1), type);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_token_source two[2];
        for (int f = 0; f < 2; f++)
            two[f] = (fl_token_source){
                .fd = -1, .data = memory, .type = cases[i].type[f], .most = cases[i].most[f]};
        CHECK_INT(narrow_type(two, 2), cases[i].narrow);
    }
}

/* Reads rows of x and the token after it, from files of two types, with windows of several
 * pieces. */
static void
check_narrow_rows(const fl_token_type types[2], token_place place, fl_token_io io, int64_t length)
{
    enum { ROWS = 3 };
    tokens from[2] = {make_tokens(types[0], 3), make_tokens(types[1], 4)};
    fl_token_source sources[2] = {source_of(&from[0], place), source_of(&from[1], place)};
    fl_token_config config = config_of(sources, 2, length);
    config.io = io;
    fl_token_reader *reader;
    CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
    int64_t token = fl_token_bytes(fl_token_reader_narrow_type(reader)), row = length + 1;
    char *memory = fl_alloc(ROWS * row * token + 1), *wide = fl_alloc(row * 8);
    memory[ROWS * row * token] = 77;
    const fl_window windows[ROWS] = {{0, 5}, {1, TOKENS - row}, {0, 9}};
    fl_token_rows rows = {.is_narrow = true, .x = memory};
    CHECK_INT(fl_token_reader_read(reader, windows, ROWS, &rows, 0, NULL), FL_OK);
    for (int64_t i = 0; i < ROWS; i++) {
        const tokens *file = &from[windows[i].file];
        const char *first = file->memory + HEAD + windows[i].first * fl_token_bytes(file->type);
        fl_cpu_tokens_plain.convert[file->type][FL_TOKEN_OUT_64](wide, NULL, first, row, 0,
                                                                 UINT64_MAX);
        for (int64_t t = 0; t < row; t++)
            CHECK(memcmp(memory + (i * row + t) * token, wide + t * 8, (size_t)token) == 0);
    }
    CHECK_INT(memory[ROWS * row * token], 77);
    fl_free(memory);
    fl_free(wide);
    fl_token_reader_close(reader);
    for (int f = 0; f < 2; f++) drop_tokens(&from[f]);
}

static void test_narrow_rows(void)
{
    static const fl_token_type types[][2] = {
        {FL_TOKEN_U8, FL_TOKEN_U16}, {FL_TOKEN_I8, FL_TOKEN_I8}, {FL_TOKEN_I16, FL_TOKEN_U32}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int64_t length = 1; length <= LENGTH_MOST; length *= 200) {
            check_narrow_rows(types[i], IN_MEMORY, FL_TOKEN_AUTO, length);
            check_narrow_rows(types[i], IN_MAPPED_MEMORY, FL_TOKEN_AUTO, length);
            check_narrow_rows(types[i], IN_FILE, FL_TOKEN_PREAD, length);
            check_narrow_rows(types[i], IN_FILE, FL_TOKEN_MMAP, length);
        }
}

/* Parts of any length, whatever the windows of the reader, without targets. */
static void check_parts(token_place place, fl_token_io io)
{
    static const fl_window parts[] = {{0, 0}, {0, 7}, {1, 3}, {1, TOKENS - 1}};
    tokens from[2] = {make_tokens(FL_TOKEN_I16, 3), make_tokens(FL_TOKEN_U32, 4)};
    fl_token_source sources[2] = {source_of(&from[0], place), source_of(&from[1], place)};
    fl_token_config config = config_of(sources, 2, 10);
    config.io = io;
    fl_token_reader *reader;
    CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
    CHECK_INT(fl_token_reader_narrow_type(reader), FL_TOKEN_I64);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int64_t left = TOKENS - parts[i].first, count = left; count > 0; count /= 50) {
            const tokens *file = &from[parts[i].file];
            const char *first = file->memory + HEAD + parts[i].first * fl_token_bytes(file->type);
            char *made = fl_alloc(count * 8 + 1), *expected = fl_alloc(count * 8);
            made[count * 8] = 77;
            CHECK_INT(fl_token_reader_copy(reader, parts[i], count, made, NULL), FL_OK);
            fl_cpu_tokens_plain.convert[file->type][FL_TOKEN_OUT_64](expected, NULL, first, count,
                                                                     0, UINT64_MAX);
            CHECK(memcmp(made, expected, (size_t)count * 8) == 0);
            CHECK_INT(made[count * 8], 77);
            fl_free(made);
            fl_free(expected);
        }
    char none;
    CHECK_INT(fl_token_reader_copy(reader, parts[0], 0, &none, NULL), FL_OK);
    fl_token_reader_close(reader);
    for (int f = 0; f < 2; f++) drop_tokens(&from[f]);
}

static void test_parts_of_files(void)
{
    check_parts(IN_MEMORY, FL_TOKEN_AUTO);
    check_parts(IN_MAPPED_MEMORY, FL_TOKEN_AUTO);
    check_parts(IN_FILE, FL_TOKEN_PREAD);
    check_parts(IN_FILE, FL_TOKEN_MMAP);
}

/* A token out of range is found even if it is only the target of the last token. */
static void test_narrow_tokens_are_checked(void)
{
    tokens from = make_tokens(FL_TOKEN_I64, 5);
    memset(from.memory, 0, (size_t)(HEAD + TOKENS * 8));
    fl_token_source source = source_of(&from, IN_MEMORY);
    source.most = 100;
    fl_token_config config = config_of(&source, 1, 10);
    fl_token_reader *reader;
    CHECK_INT(fl_token_reader_open(&config, &reader, NULL), FL_OK);
    CHECK_INT(fl_token_reader_narrow_type(reader), FL_TOKEN_U8);
    char memory[11];
    fl_token_rows rows = {.is_narrow = true, .x = memory};
    const fl_window window = {0, 20};
    fl_err err;
    for (int64_t at = 19; at <= 31; at++)
        for (int64_t token = -1; token <= 257;
             token += 258) { /* of 257 the lowest byte would pass */
            memcpy(from.memory + HEAD + at * 8, &token, 8);
            bool is_inside = at >= 20 && at <= 30;
            CHECK_INT(fl_token_reader_read(reader, &window, 1, &rows, 0, &err),
                      is_inside ? FL_ETOKEN : FL_OK);
            CHECK(!is_inside || (err.value == token && err.length == at));
            bool is_among = at >= 25; /* in the part, which has no target after its last token */
            CHECK_INT(fl_token_reader_copy(reader, (fl_window){0, 25}, 6, memory, &err),
                      is_among && is_inside ? FL_ETOKEN : FL_OK);
            memset(from.memory + HEAD + at * 8, 0, 8);
        }
    fl_token_reader_close(reader);
    drop_tokens(&from);
}

int main(void)
{
    start_tests();
    RUN(test_the_narrow_type_holds_all_that_pass);
    RUN(test_narrow_rows);
    RUN(test_parts_of_files);
    RUN(test_narrow_tokens_are_checked);
}
