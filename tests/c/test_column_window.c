/* Tests of fl_column_window: batches of windows in a table, in parts, against the reader alone;
 * what layouts say; errors that name the file; refused resources. */
#include "check.h"
#include "fl_column_window.h"
#include "fl_cpu_tokens.h"
#include "fl_table.h"

enum { TOKENS = 5000, LENGTH = 24, ROWS = 150 };

/* A table of one column over tokens in memory. */
typedef struct window_world {
    uint16_t tokens[TOKENS];
    fl_windows *windows; /* owned, as all below */
    fl_token_reader *reader;
    fl_table *table;
} window_world;

static int
open_world(window_world *made, bool has_y, bool has_documents, uint64_t most, fl_err *err)
{
    uint64_t state = 4;
    int64_t tokens = TOKENS;
    for (int i = 0; i < TOKENS; i++) made->tokens[i] = (uint16_t)random_below(&state, 50);
    made->reader = NULL, made->table = NULL;
    fl_token_source source = {.fd = -1,
                              .data = (const char *)made->tokens,
                              .tokens = TOKENS,
                              .type = FL_TOKEN_U16,
                              .most = most};
    fl_token_config reader = {.sources = &source,
                              .count = 1,
                              .length = LENGTH,
                              .targets = has_y ? FL_TARGETS_SHIFT : FL_TARGETS_NONE,
                              .out = FL_TOKEN_OUT_64,
                              .has_eos = true,
                              .eos = 7,
                              .ops = fl_cpu_token_ops_find()};
    fl_window_config windows = {&tokens, 1, LENGTH + 1, 1, FL_WINDOW_RANDOM, 3};
    FL_TRY(fl_windows_open(&windows, &made->windows, err));
    FL_TRY(fl_token_reader_open(&reader, &made->reader, err));
    fl_column_window_config config = {made->windows, made->reader, LENGTH,
                                      {0, 64, 1},    has_y,        has_documents};
    fl_column *column;
    FL_TRY(fl_column_window_open(&config, &column, err));
    int status = fl_table_open(&column, 1, &made->table, err);
    if (status != FL_OK) fl_column_close(column);
    return status;
}

static void close_world(window_world *made)
{
    fl_table_close(made->table);
    fl_token_reader_close(made->reader);
    fl_windows_close(made->windows);
}

static fl_rows some_rows(int64_t *index, int64_t count)
{
    uint64_t state = (uint64_t)count;
    for (int64_t i = 0; i < count; i++) index[i] = random_below(&state, TOKENS);
    return (fl_rows){.count = count, .index = index};
}

static void check_rows(const window_world *world, const fl_layout *layout, const char *buffer,
                       const int64_t *index, int64_t count, uint32_t epoch, bool has_y)
{
    const int64_t *x = (const void *)(buffer + layout->outputs[0].offset);
    const int64_t *y = (const void *)(buffer + layout->outputs[has_y].offset);
    for (int64_t i = 0; i < count; i++) {
        int64_t first = fl_windows_find(world->windows, index[i], epoch).first;
        for (int64_t t = 0; t < LENGTH; t++) {
            CHECK_INT(x[i * LENGTH + t], world->tokens[first + t]);
            CHECK_INT(y[i * LENGTH + t], world->tokens[first + t + has_y]);
        }
    }
}

static void check_batches(bool has_y, bool has_documents)
{
    window_world world;
    fl_err err;
    fl_layout layout = {0};
    int64_t index[ROWS];
    CHECK_INT(open_world(&world, has_y, has_documents, UINT64_MAX, &err), FL_OK);
    int32_t outputs = 1 + has_y + 3 * has_documents;
    CHECK_INT(fl_table_outputs(world.table), outputs);
    CHECK_INT(fl_table_length(world.table), TOKENS);
    CHECK(!fl_table_is_volatile(world.table));
    for (int64_t count = 1; count <= ROWS; count += 1 + count / 2)
        for (int32_t parts = 1; parts <= 3; parts++) {
            fl_rows rows = some_rows(index, count);
            CHECK_INT(fl_table_layout(world.table, &rows, 5, &layout, &err), FL_OK);
            CHECK_INT(layout.count, outputs);
            for (int32_t i = 0; i < outputs; i++) {
                bool is_mask = i >= 1 + has_y && i == outputs - 1;
                CHECK(layout.outputs[i].ndim == 2 && layout.outputs[i].shape[0] == count);
                CHECK_INT(layout.outputs[i].bytes, count * LENGTH * (is_mask ? 1 : 8));
            }
            char *buffer = fl_alloc(layout.bytes);
            for (int32_t part = 0; part < parts; part++)
                CHECK_INT(
                    fl_table_gather(world.table, &rows, 5, &layout, part, parts, buffer, &err),
                    FL_OK);
            check_rows(&world, &layout, buffer, index, count, 5, has_y);
            fl_free(buffer);
        }
    fl_layout_close(&layout);
    close_world(&world);
}

static void test_batches(void)
{
    for (int has_y = 0; has_y < 2; has_y++)
        for (int has_documents = 0; has_documents < 2; has_documents++)
            check_batches(has_y, has_documents);
}

/* The last row of the second part of a batch is wrong, and says so. */
static void test_an_error_names_the_file(void)
{
    window_world world;
    fl_err err;
    fl_layout layout = {0};
    CHECK_INT(open_world(&world, true, false, 49, &err), FL_OK);
    fl_rows rows = {.count = 70, .first = 0, .is_range = true};
    CHECK_INT(fl_table_layout(world.table, &rows, 0, &layout, &err), FL_OK);
    char *buffer = fl_alloc(layout.bytes);
    CHECK_INT(fl_table_gather(world.table, &rows, 0, &layout, 0, 1, buffer, &err), FL_OK);
    int64_t wrong = fl_windows_find(world.windows, 69, 0).first + LENGTH;
    world.tokens[wrong] = 50;
    CHECK_INT(fl_table_gather(world.table, &rows, 0, &layout, 0, 1, buffer, &err), FL_ETOKEN);
    CHECK(err.position == 0 && err.value == 50 && err.length == wrong);
    fl_free(buffer);
    fl_layout_close(&layout);
    close_world(&world);
}

static int open_and_close(void *arg)
{
    window_world world;
    (void)arg;
    int status = open_world(&world, true, true, UINT64_MAX, NULL);
    close_world(&world);
    return status;
}

static void test_refused_resources(void) { CHECK_INT(refuse_each(open_and_close, NULL), 4); }

int main(void)
{
    start_tests();
    RUN(test_batches);
    RUN(test_an_error_names_the_file);
    RUN(test_refused_resources);
}
