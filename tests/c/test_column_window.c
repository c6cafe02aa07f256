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
    fl_column_window_config config; /* of the table's column */
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
    made->config = (fl_column_window_config){.windows = made->windows,
                                             .reader = made->reader,
                                             .length = LENGTH,
                                             .tokens = {0, 64, 1},
                                             .has_y = has_y,
                                             .has_documents = has_documents};
    fl_column *column;
    FL_TRY(fl_column_window_open(&made->config, &column, err));
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
            CHECK(!layout.may_wait); /* the tokens are in memory */
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

/* ---- batches whose x and y are made at their destination */

/* Widens an output, as the device would. */
static void widen(const fl_output *output, char *buffer)
{
    const fl_transfer_cast *cast = &output->cast;
    CHECK(cast->kind == FL_CAST_WIDEN && cast->bytes == 8 && !cast->is_signed);
    for (int64_t i = 0; i < cast->count; i++) {
        int64_t at = i / cast->row * cast->pitch + i % cast->row, token = 0;
        memcpy(&token, buffer + cast->from + at * cast->from_bytes, (size_t)cast->from_bytes);
        memcpy(buffer + cast->to + i * 8, &token, 8);
    }
}

static void check_cut_layout(const fl_layout *layout, int64_t count, bool has_y, int64_t token)
{
    const fl_output *x = &layout->outputs[0], *y = &layout->outputs[has_y];
    CHECK(x->is_cast && y->is_cast && x->ndim == 2 && x->dtype.bits == 64);
    CHECK(x->shape[0] == count && x->shape[1] == LENGTH);
    CHECK_INT(x->bytes, count * (LENGTH + has_y) * token); /* of y as well */
    CHECK_INT(x->cast.from, 0);
    CHECK_INT(y->cast.from, has_y * token);
    CHECK_INT(x->cast.to, layout->bytes);
    CHECK_INT(x->cast.count, count * LENGTH);
    CHECK(!has_y || y->bytes == 0);
    for (int32_t i = 1 + has_y; i < layout->count; i++)
        CHECK(!layout->outputs[i].is_cast && layout->outputs[i].bytes > 0);
    int64_t made = (count * LENGTH * 8 + 63) / 64 * 64;
    CHECK_INT(layout->delivered_bytes, layout->bytes + (1 + has_y) * made);
}

/* Checks that x and y, once delivered, and the remaining tensors equal the tensors of a whole
 * batch. */
static void check_cut_batch(const window_world *world, const fl_table *cut, int64_t count,
                            int32_t parts, int64_t token)
{
    fl_layout layout = {0}, whole = {0};
    int64_t index[ROWS];
    fl_rows rows = some_rows(index, count);
    CHECK_INT(fl_table_layout(cut, &rows, 5, &layout, NULL), FL_OK);
    CHECK_INT(fl_table_layout(world->table, &rows, 5, &whole, NULL), FL_OK);
    check_cut_layout(&layout, count, world->config.has_y, token);
    char *buffer = fl_alloc(layout.delivered_bytes), *expected = fl_alloc(whole.bytes);
    for (int32_t part = 0; part < parts; part++)
        CHECK_INT(fl_table_gather(cut, &rows, 5, &layout, part, parts, buffer, NULL), FL_OK);
    for (int64_t at = layout.bytes; at < layout.delivered_bytes; at++) CHECK_INT(buffer[at], 0);
    CHECK_INT(fl_table_gather(world->table, &rows, 5, &whole, 0, 1, expected, NULL), FL_OK);
    for (int32_t i = 0; i < layout.count; i++) {
        const fl_output *output = &layout.outputs[i];
        if (output->is_cast) widen(output, buffer);
        CHECK(memcmp(buffer + fl_output_at(output), expected + whole.outputs[i].offset,
                     (size_t)whole.outputs[i].bytes) == 0);
    }
    fl_free(buffer);
    fl_free(expected);
    fl_layout_close(&layout);
    fl_layout_close(&whole);
}

static void check_cut_batches(bool has_y, bool has_documents, uint64_t most, int64_t token)
{
    window_world world;
    fl_column *column;
    fl_table *cut;
    CHECK_INT(open_world(&world, has_y, has_documents, most, NULL), FL_OK);
    fl_column_window_config config = world.config;
    config.is_narrow = true;
    CHECK(fl_column_window_can_narrow(&config));
    CHECK_INT(fl_column_window_open(&config, &column, NULL), FL_OK);
    CHECK_INT(fl_table_open(&column, 1, &cut, NULL), FL_OK);
    CHECK_INT(fl_table_outputs(cut), fl_table_outputs(world.table));
    for (int64_t count = 1; count <= ROWS; count += 1 + count / 2)
        for (int32_t parts = 1; parts <= 3; parts++)
            check_cut_batch(&world, cut, count, parts, token);
    fl_layout layout = {0};
    fl_rows many = {.is_range = true, .count = INT64_MAX / LENGTH / 8};
    CHECK_INT(fl_table_layout(cut, &many, 0, &layout, NULL), FL_EINVAL);
    fl_layout_close(&layout);
    fl_table_close(cut);
    close_world(&world);
}

static void test_narrow_tokens_for_a_device(void)
{
    for (int has_y = 0; has_y < 2; has_y++)
        for (int has_documents = 0; has_documents < 2; has_documents++) {
            check_cut_batches(has_y, has_documents, UINT64_MAX, 2);
            check_cut_batches(has_y, has_documents, 255, 1);
        }
}

/* Tokens that are not narrower, and tokens that no device widens, are not cut. */
static void test_what_is_not_cut(void)
{
    static const fl_dtype dtypes[] = {{0, 64, 1}, {0, 32, 1}, {1, 32, 1}, {1, 16, 1}};
    window_world world;
    for (int type = 0; type < 4; type++)
        for (uint64_t most = 100; most < UINT64_MAX; most = most == 100 ? 49999 : UINT64_MAX) {
            CHECK_INT(open_world(&world, true, false, most, NULL), FL_OK);
            world.config.tokens = dtypes[type];
            CHECK_INT(fl_column_window_can_narrow(&world.config), type < 3);
            close_world(&world);
        }
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
    RUN(test_narrow_tokens_for_a_device);
    RUN(test_what_is_not_cut);
    RUN(test_an_error_names_the_file);
    RUN(test_refused_resources);
}
