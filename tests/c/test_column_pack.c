/* Tests of fl_packing and fl_column_pack: every byte of every output is compared with rows that are
 * packed element by element, as docs/use/text.md says. */
#include "ragged_fixture.h"

#include "fl_packing.h"

#include <pthread.h>

enum { OUTPUTS = 5, MAX_ROWS = 64 };

static const char PADDING[16] = "\x5a\x4b\x3c\x2d\x1e\x0f\xf0\xe1\xd2\xc3\xb4\xa5\x96\x87\x78\x69";

/* The reference: the position of each sequence, and the segments of all rows. */
typedef struct expected {
    int64_t rows, width, segments, longest;
    int64_t used[MAX_ROWS];
    int64_t samples[MAX_ROWS][MAX_ROWS], count[MAX_ROWS]; /* of each row, in order */
    int64_t bounds[2 * MAX_ROWS + 1];
} expected;

static void expect_packing(const int64_t *lengths, int64_t count, int64_t max_tokens, expected *out)
{
    *out = (expected){.rows = 1, .width = max_tokens};
    for (int64_t i = 0; i < count; i++) {
        int64_t row = 0;
        while (max_tokens > 0 && row < out->rows && out->used[row] + lengths[i] > max_tokens) row++;
        if (row == out->rows) out->rows++;
        out->samples[row][out->count[row]++] = i;
        out->used[row] += lengths[i];
    }
    if (max_tokens == 0) out->width = out->used[0];
    for (int64_t row = 0; row < out->rows; row++) {
        int64_t at = row * out->width;
        for (int64_t k = 0; k < out->count[row]; k++) {
            int64_t length = lengths[out->samples[row][k]];
            out->bounds[out->segments++] = at;
            out->longest = fl_max(out->longest, length);
            at += length;
        }
        if (out->used[row] < out->width) out->bounds[out->segments++] = at;
        out->longest = fl_max(out->longest, out->width - out->used[row]);
    }
    out->bounds[out->segments] = out->rows * out->width;
}

static fl_column_pack_config
config_of(const ragged_fixture *fix, fl_pack_output output, int32_t leader, int64_t max_tokens)
{
    fl_column_pack_config config = {.ragged = fix->ragged,
                                    .main = fix->ragged,
                                    .leader = leader,
                                    .output = output,
                                    .max_tokens = max_tokens,
                                    .name = "'labels'",
                                    .main_name = "'input_ids'",
                                    .ops = &fl_cpu_sequence_ops};
    memcpy(config.padding, PADDING, sizeof PADDING);
    return config;
}

/* Values, labels of the same values as int64, positions, bounds, and the longest. */
static void
configs_of(const ragged_fixture *fix, int64_t max_tokens, fl_column_pack_config configs[OUTPUTS])
{
    configs[0] = config_of(fix, FL_PACK_VALUES, 0, max_tokens);
    configs[1] = config_of(fix, FL_PACK_VALUES, 1, max_tokens);
    configs[1].is_label = true;
    configs[1].is_widened = fix->ragged.dtype.code < 2;
    configs[2] = config_of(fix, FL_PACK_POSITIONS, 2, max_tokens);
    configs[3] = config_of(fix, FL_PACK_BOUNDS, 3, max_tokens);
    configs[4] = config_of(fix, FL_PACK_LONGEST, 4, max_tokens);
}

static int open_pack(const fl_column_pack_config *configs, int32_t count, fl_table **out)
{
    fl_column *columns[OUTPUTS] = {NULL};
    int status = FL_OK;
    *out = NULL;
    for (int32_t c = 0; status == FL_OK && c < count; c++)
        status = fl_column_pack_open(&configs[c], &columns[c], NULL);
    if (status == FL_OK) status = fl_table_open(columns, count, out, NULL);
    for (int32_t c = 0; status != FL_OK && c < count; c++) fl_column_close(columns[c]);
    return status;
}

/* Finds element `at` of the rows laid end to end: the sample (-1: padding), and the position in the
 * sample. */
static int64_t
find_element(const expected *want, const int64_t *lengths, int64_t at, int64_t *place)
{
    int64_t row = at / want->width, segment = row * want->width;
    for (int64_t k = 0; k < want->count[row]; k++) {
        int64_t i = want->samples[row][k];
        *place = at - segment;
        if (*place < lengths[i]) return i;
        segment += lengths[i];
    }
    *place = at - segment;
    return -1;
}

static void check_matrices(const ragged_fixture *fix, const fl_column_pack_config *configs,
                           const expected *want, const int64_t *lengths, const fl_rows *rows,
                           const fl_layout *layout, const char *block)
{
    for (int64_t at = 0; at < want->rows * want->width; at++) {
        int64_t place, i = find_element(want, lengths, at, &place);
        for (int c = 0; c < 2; c++) {
            char value[16];
            int64_t bytes = fl_dtype_bytes(layout->outputs[c].dtype);
            memcpy(value, PADDING, sizeof value);
            if (i >= 0 && !(configs[c].is_label && place == 0))
                put_value(fix, fl_row_at(rows, i), place, configs[c].is_widened, value);
            CHECK(memcmp(block + layout->outputs[c].offset + at * bytes, value, (size_t)bytes) ==
                  0);
        }
        CHECK_INT(((int64_t *)(void *)(block + layout->outputs[2].offset))[at], place);
    }
}

static void
check_batch(const ragged_fixture *fix, const fl_column_pack_config *configs, const fl_table *table,
            const fl_rows *rows, fl_layout *layout, int32_t parts)
{
    int64_t lengths[MAX_ROWS];
    expected want;
    CHECK(rows->count <= MAX_ROWS);
    for (int64_t i = 0; i < rows->count; i++) lengths[i] = length_of(fix, fl_row_at(rows, i));
    expect_packing(lengths, rows->count, configs->max_tokens, &want);
    CHECK_INT(fl_table_layout(table, rows, 0, layout, NULL), FL_OK);
    char *block = gather_all(table, rows, layout, parts);
    for (int c = 0; c < 4; c++) {
        const fl_output *output = &layout->outputs[c];
        CHECK(output->is_whole && !output->is_number && output->ndim == (c < 3 ? 2 : 1));
        if (c < 3) CHECK(output->shape[0] == want.rows && output->shape[1] == want.width);
        check_fence(layout, block, c);
    }
    check_matrices(fix, configs, &want, lengths, rows, layout, block);
    CHECK_INT(layout->outputs[3].shape[0], want.segments + 1);
    for (int64_t s = 0; s <= want.segments; s++)
        CHECK_INT(((int32_t *)(void *)(block + layout->outputs[3].offset))[s], want.bounds[s]);
    CHECK(layout->outputs[4].is_number && layout->outputs[4].bytes == 0);
    CHECK_INT(layout->outputs[4].number, want.longest);
    free(block);
}

static void check_fixture(const ragged_fixture *fix, int64_t max_tokens, uint64_t *seed)
{
    fl_column_pack_config configs[OUTPUTS];
    fl_table *table;
    fl_layout layout = {0};
    configs_of(fix, max_tokens, configs);
    CHECK_INT(open_pack(configs, OUTPUTS, &table), FL_OK);
    for (int64_t count = 1; count <= MAX_ROWS; count += 9) {
        fl_rows rows = random_rows(seed, count);
        for (int32_t parts = 1; parts <= 3; parts++)
            check_batch(fix, configs, table, &rows, &layout, parts);
        fl_rows_close(&rows);
    }
    fl_rows empty = {.is_range = true, .first = 5, .count = 1}; /* a sequence of no elements */
    check_batch(fix, configs, table, &empty, &layout, 1);
    fl_layout_close(&layout);
    fl_table_close(table);
}

static void test_packed_rows(void)
{
    const fl_dtype dtypes[] = {{0, 32, 1}, {1, 16, 1}, {0, 64, 1}, {2, 32, 1}, {5, 128, 1}};
    uint64_t seed = 31;
    for (int d = 0; d < 5; d++) {
        ragged_fixture fix;
        open_ragged(&fix, &seed, dtypes[d], 20, d % 2);
        check_fixture(&fix, 0, &seed);
        check_fixture(&fix, 19, &seed); /* some rows are full to the last */
        check_fixture(&fix, 64, &seed);
        check_fixture(&fix, 5000, &seed);
        close_ragged(&fix);
    }
}

static void test_rows_that_are_full(void)
{
    fl_notes notes = {0};
    fl_packing *packing;
    const int64_t lengths[] = {4, 0, 2, 4, 2, 0};
    CHECK_INT(fl_packing_reserve(&notes, 6, &packing, NULL), FL_OK);
    for (int i = 0; i < 6; i++) packing->sequences[i].length = lengths[i];
    CHECK_INT(fl_packing_fit(packing, 6, 4, NULL), FL_OK);
    CHECK(packing->rows == 3 && packing->segments == 6 && packing->longest == 4);
    const int64_t starts[] = {0, 4, 4, 8, 6, 4}, segments[] = {0, 1, 3, 5, 4, 2};
    for (int i = 0; i < 6; i++) {
        CHECK_INT(packing->sequences[i].start, starts[i]);
        CHECK_INT(packing->sequences[i].segment, segments[i]);
        CHECK_INT(packing->sequences[i].padding, 0);
    }
    fl_free(notes.values);
}

static void test_values_of_a_mapped_file(void)
{
    uint64_t seed = 32;
    ragged_fixture fix;
    fl_column_pack_config configs[OUTPUTS];
    fl_table *table;
    fl_layout layout = {0};
    open_ragged(&fix, &seed, (fl_dtype){1, 16, 1}, 3000, true);
    mapped_file file = map_file(fix.values, fix.ragged.count * 2, MAP_SHARED);
    configs_of(&fix, 0, configs);
    for (int c = 0; c < 2; c++) {
        configs[c].ragged.values = file.data;
        configs[c].ragged.is_volatile = true;
    }
    CHECK_INT(open_pack(configs, OUTPUTS, &table), FL_OK);
    CHECK(fl_table_is_volatile(table));
    fl_rows rows = {.is_range = true, .count = SEQUENCES};
    check_batch(&fix, configs, table, &rows, &layout, 3);
    CHECK(ftruncate(file.fd, 8192) == 0);
    fl_err err;
    int64_t bad = 0;
    while (length_of(&fix, bad) == 0 || fix.wide[bad + 1] * 2 <= 8192) bad++;
    char *block = malloc((size_t)layout.bytes);
    CHECK_INT(fl_table_gather(table, &rows, 0, &layout, 0, 1, block, &err), FL_ESOURCE);
    CHECK(err.field == 0 && err.value == bad);
    CHECK_INT(fl_table_row_beyond(table, 1, 0, &rows, file.data + 8192), bad);
    CHECK_INT(fl_table_row_beyond(table, 2, 0, &rows, file.data + 8192), -1);
    free(block);
    fl_layout_close(&layout);
    fl_table_close(table);
    unmap_file(&file);
    close_ragged(&fix);
}

/* ---- threads */

typedef struct part {
    const fl_table *table;
    const fl_rows *rows;
    const fl_layout *layout;
    char *block;
    int32_t part;
} part;

enum { PARTS = 4 };

static void *gather_part_of(void *arg)
{
    const part *p = arg;
    CHECK_INT(fl_table_gather(p->table, p->rows, 0, p->layout, p->part, PARTS, p->block, NULL),
              FL_OK);
    return NULL;
}

/* Parts read one packing, and write disjoint memory. */
static void test_threads_gather_parts_at_once(void)
{
    uint64_t seed = 36;
    ragged_fixture fix;
    fl_column_pack_config configs[OUTPUTS];
    fl_table *table;
    fl_layout layout = {0};
    open_ragged(&fix, &seed, (fl_dtype){0, 32, 1}, 20, true);
    configs_of(&fix, 33, configs);
    CHECK_INT(open_pack(configs, OUTPUTS, &table), FL_OK);
    for (int round = 0; round < 20; round++) {
        fl_rows rows = random_rows(&seed, 50);
        CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_OK);
        char *alone = gather_all(table, &rows, &layout, 1);
        char *block = malloc((size_t)layout.bytes + FENCE);
        CHECK(block != NULL);
        memset(block, FENCE_BYTE, (size_t)layout.bytes + FENCE);
        pthread_t threads[PARTS];
        part parts[PARTS];
        for (int32_t p = 0; p < PARTS; p++) {
            parts[p] = (part){table, &rows, &layout, block, p};
            CHECK(pthread_create(&threads[p], NULL, gather_part_of, &parts[p]) == 0);
        }
        for (int p = 0; p < PARTS; p++) CHECK(pthread_join(threads[p], NULL) == 0);
        CHECK(memcmp(alone, block, (size_t)layout.bytes + FENCE) == 0);
        free(block);
        free(alone);
        fl_rows_close(&rows);
    }
    fl_layout_close(&layout);
    fl_table_close(table);
    close_ragged(&fix);
}

/* ---- what cannot be */

static void check_refused(const fl_column_pack_config *configs, int64_t count, const char *text)
{
    fl_table *table;
    fl_layout layout = {0};
    fl_err err = {0};
    fl_rows rows = {.is_range = true, .count = count};
    CHECK_INT(open_pack(configs, 2, &table), FL_OK);
    CHECK_INT(fl_table_layout(table, &rows, 0, &layout, &err), FL_EINVAL);
    if (strcmp(err.text, text) != 0) fprintf(stderr, "%s\n", err.text);
    CHECK(strcmp(err.text, text) == 0);
    CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_EINVAL);
    fl_layout_close(&layout);
    fl_table_close(table);
}

static void test_batches_that_cannot_be_packed(void)
{
    uint64_t seed = 33;
    ragged_fixture fix, other;
    fl_column_pack_config configs[OUTPUTS];
    open_ragged(&fix, &seed, (fl_dtype){0, 64, 1}, 9, true);
    other = fix;
    fix.wide[1] = fix.wide[0] + 3;
    fix.wide[2] = fix.wide[1] + 7;
    fix.wide[3] = fix.wide[2];
    memcpy(other.wide, fix.wide, sizeof fix.wide);
    fix.ragged.offsets = fix.wide;
    other.ragged.offsets = other.wide;
    configs_of(&fix, 6, configs);
    check_refused(configs, 0, "the batch has no samples");
    check_refused(configs, 2,
                  "sample 1 of the batch must have at most max_tokens=6 tokens, got 7 (cut the "
                  "sample, or pass a larger max_tokens)");
    configs_of(&fix, 0, configs);
    configs[1].ragged = other.ragged;
    other.wide[2]--;
    check_refused(configs, 2,
                  "'labels' of sample 1 must have 7 elements, as 'input_ids' has, got 6");
    other.wide[2] = -5;
    configs[1].ragged.count = 100;
    check_refused(configs, 2,
                  "field 1, row 1: sequence 1 lies from 6 to -5 of 100 values; the offsets have "
                  "been changed: make a new RaggedArray");
    close_ragged(&fix);
}

static void test_more_tokens_than_can_be_counted(void)
{
    fl_notes notes = {0};
    fl_packing *packing;
    fl_err err;
    CHECK_INT(fl_packing_reserve(&notes, INT64_MAX / 4, &packing, NULL), FL_EINVAL);
    CHECK_INT(fl_packing_reserve(&notes, 3, &packing, NULL), FL_OK);
    const int64_t many[] = {1 << 30, INT64_MAX - 2, INT64_MAX / 2};
    for (int m = 0; m < 3; m++)
        for (int i = 0; i < 3; i++) {
            packing->sequences[i].length = many[m];
            if (i < 2) continue;
            CHECK_INT(fl_packing_fit(packing, 3, 0, &err), FL_EINVAL);
            CHECK_INT(fl_packing_fit(packing, 3, many[m], &err), FL_EINVAL);
            CHECK_INT(fl_packing_fit(packing, 3, INT64_MAX, NULL), FL_EINVAL);
        }
    packing->sequences[0].length = INT32_MAX;
    CHECK_INT(fl_packing_fit(packing, 1, 0, NULL), FL_OK);
    CHECK_INT(fl_packing_fit(packing, 1, INT32_MAX, NULL), FL_OK);
    CHECK_INT(fl_packing_fit(packing, 1, INT32_MAX + (int64_t)1, &err), FL_EINVAL);
    CHECK(strcmp(err.text, "a batch must have at most 2147483647 tokens, as cu_seqlens counts, got "
                           "2147483648 (make batches smaller)") == 0);
    fl_free(notes.values);
}

/* Offsets that change between layout and gather write nowhere else. */
static void test_offsets_that_grow_are_cut(void)
{
    uint64_t seed = 34;
    ragged_fixture fix;
    fl_column_pack_config configs[OUTPUTS];
    fl_table *table;
    fl_layout layout = {0};
    open_ragged(&fix, &seed, (fl_dtype){0, 64, 1}, 9, true);
    configs_of(&fix, 0, configs);
    CHECK_INT(open_pack(configs, 1, &table), FL_OK);
    fl_rows rows = {.is_range = true, .first = SEQUENCES - 3, .count = 3};
    CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_OK);
    fix.wide[SEQUENCES] = fix.ragged.count;
    char *block = gather_all(table, &rows, &layout, 2);
    check_fence(&layout, block, 0);
    free(block);
    fl_layout_close(&layout);
    fl_table_close(table);
    close_ragged(&fix);
}

/* Missing elements become padding, not the old contents of the memory. */
static void test_offsets_that_fall_are_padded(void)
{
    uint64_t seed = 36;
    ragged_fixture fix;
    fl_column_pack_config configs[OUTPUTS];
    fl_table *table;
    fl_layout layout = {0};
    open_ragged(&fix, &seed, (fl_dtype){0, 64, 1}, 9, true);
    configs_of(&fix, 0, configs);
    CHECK_INT(open_pack(configs, 1, &table), FL_OK);
    fix.wide[2] = fix.wide[1] + 4;
    fl_rows rows = {.is_range = true, .first = 1, .count = 1};
    CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_OK);
    fix.wide[2] -= 3;
    char *block = gather_all(table, &rows, &layout, 1);
    CHECK(memcmp(block, fix.values + fix.wide[1] * 8, 8) == 0);
    for (int i = 1; i < 4; i++) CHECK(memcmp(block + i * 8, PADDING, 8) == 0);
    check_fence(&layout, block, 0);
    free(block);
    fl_layout_close(&layout);
    fl_table_close(table);
    close_ragged(&fix);
}

static int open_and_lay_out(void *arg)
{
    fl_column_pack_config configs[OUTPUTS];
    fl_table *table;
    fl_layout layout = {0};
    fl_rows rows = {.is_range = true, .count = 3};
    configs_of(arg, 0, configs);
    FL_TRY(open_pack(configs, OUTPUTS, &table));
    int status = fl_table_layout(table, &rows, 0, &layout, NULL);
    fl_layout_close(&layout);
    fl_table_close(table);
    return status;
}

static void test_every_refused_resource(void)
{
    uint64_t seed = 35;
    ragged_fixture fix;
    open_ragged(&fix, &seed, (fl_dtype){0, 64, 1}, 9, true);
    CHECK_INT(refuse_each(open_and_lay_out, &fix), OUTPUTS + 1 + 3);
    close_ragged(&fix);
}

int main(void)
{
    start_tests();
    RUN(test_packed_rows);
    RUN(test_rows_that_are_full);
    RUN(test_values_of_a_mapped_file);
    RUN(test_threads_gather_parts_at_once);
    RUN(test_batches_that_cannot_be_packed);
    RUN(test_more_tokens_than_can_be_counted);
    RUN(test_offsets_that_grow_are_cut);
    RUN(test_offsets_that_fall_are_padded);
    RUN(test_every_refused_resource);
    return 0;
}
