/* Tests of fl_column_segments: every gather is compared with a copy that is made row by row from
 * each segment. */
#include "check.h"

#include "fl_column_segments.h"
#include "fl_cpu_convert.h"
#include "fl_cpu_rows.h"
#include "fl_table.h"

#include <math.h>

enum { MAX_SEGMENTS = 5, MAX_ROWS = 700, PAGE = 4096 };

static const fl_dtype UINT16 = {1, 16, 1}, INT64 = {0, 64, 1};

/* Arrays of rows of `items` elements of 2 bytes, and the column over them. */
typedef struct fixture {
    fl_segment segments[MAX_SEGMENTS];
    char *memory[MAX_SEGMENTS];   /* owned; NULL: the array lies in memory of a different segment */
    int64_t *index[MAX_SEGMENTS]; /* owned; NULL: the segment is a whole array */
    const char *rows[2 * MAX_ROWS]; /* the address of each row of the column */
    int64_t length, items, item_stride;
    int32_t count;
    fl_convert *convert; /* of uint16 to int64 */
} fixture;

static void add_segment(fixture *fix, char *data, int64_t rows, int64_t stride)
{
    fl_segment *segment = &fix->segments[fix->count++];
    *segment = (fl_segment){.count = rows, .view = {.data = data, .dtype = {1, 16, 1}, .ndim = 2}};
    segment->view.shape[0] = rows;
    segment->view.shape[1] = fix->items;
    segment->view.stride[0] = stride;
    segment->view.stride[1] = fix->item_stride;
}

static void note_rows(fixture *fix, const fl_segment *segment)
{
    for (int64_t i = 0; i < segment->count; i++) {
        int64_t row = segment->index != NULL ? segment->index[i] : i;
        fix->rows[fix->length++] = segment->view.data + row * segment->view.stride[0];
    }
}

/* Makes a segment of `rows` rows, backwards if the stride is negative. With an index, the index
 * repeats rows and leaves rows out. */
static void make_segment(fixture *fix, uint64_t *seed, int64_t rows, bool is_back, bool has_index)
{
    int32_t at = fix->count;
    int64_t stride = fix->items * fix->item_stride + 2, bytes = fl_max(1, rows * stride);
    char *memory = malloc((size_t)bytes);
    CHECK(memory != NULL);
    fill_random(seed, memory, bytes);
    char *first = is_back && rows > 0 ? memory + (rows - 1) * stride : memory;
    add_segment(fix, first, rows, is_back ? -stride : stride);
    fix->memory[at] = memory;
    if (has_index && rows > 0) {
        fl_segment *segment = &fix->segments[at];
        segment->count = rows + 3;
        fix->index[at] = malloc((size_t)segment->count * sizeof *fix->index[at]);
        CHECK(fix->index[at] != NULL);
        for (int64_t i = 0; i < segment->count; i++) fix->index[at][i] = random_below(seed, rows);
        segment->index = fix->index[at];
    }
    note_rows(fix, &fix->segments[at]);
}

static void close_fixture(fixture *fix)
{
    for (int32_t i = 0; i < fix->count; i++) {
        free(fix->memory[i]);
        free(fix->index[i]);
    }
}

static int open_table(const fixture *fix, bool is_volatile, fl_table **out, fl_err *err)
{
    fl_column *column;
    *out = NULL;
    fl_column_segments_config config = {.segments = fix->segments,
                                        .count = fix->count,
                                        .is_volatile = is_volatile,
                                        .row_ops = &fl_cpu_row_ops,
                                        .convert = fix->convert,
                                        .dtype = INT64};
    FL_TRY(fl_column_segments_open(&config, &column, err));
    int status = fl_table_open(&column, 1, out, err);
    if (status != FL_OK) fl_column_close(column);
    return status;
}

static int gather(const fl_table *table, const fl_rows *rows, int32_t parts, char *block,
                  fl_layout *layout, fl_err *err)
{
    CHECK_INT(fl_table_layout(table, rows, 0, layout, NULL), FL_OK);
    for (int32_t part = parts - 1; part >= 0; part--)
        FL_TRY(fl_table_gather(table, rows, 0, layout, part, parts, block, err));
    return FL_OK;
}

/* Returns true if the elements of a row lie at `row`, packed and, if the column converts,
 * widened. */
static bool is_row(const fixture *fix, const char *row, const char *from)
{
    for (int64_t k = 0; k < fix->items; k++) {
        uint16_t value;
        memcpy(&value, from + k * fix->item_stride, sizeof value);
        int64_t wide = value;
        bool is_same = fix->convert != NULL ? memcmp(row + k * 8, &wide, 8) == 0
                                            : memcmp(row + k * 2, &value, 2) == 0;
        if (!is_same) return false;
    }
    return true;
}

static void
check_rows(const fixture *fix, const fl_table *table, const fl_rows *rows, int32_t parts)
{
    int64_t row_bytes = fix->items * (fix->convert != NULL ? 8 : 2);
    int64_t bytes = rows->count * row_bytes;
    char *block = malloc((size_t)bytes + 1);
    CHECK(block != NULL);
    block[bytes] = 0x3C;
    fl_layout layout = {0};
    CHECK_INT(gather(table, rows, parts, block, &layout, NULL), FL_OK);
    CHECK(block[bytes] == 0x3C);
    const fl_output *output = &layout.outputs[0];
    CHECK(output->bytes == bytes && output->ndim == 2 && output->is_contiguous);
    CHECK(output->shape[0] == rows->count && output->shape[1] == fix->items);
    CHECK_INT(output->dtype.bits, fix->convert != NULL ? 64 : 16);
    for (int64_t i = 0; i < rows->count; i++)
        CHECK(is_row(fix, block + i * row_bytes, fix->rows[fl_row_at(rows, i)]));
    fl_layout_close(&layout);
    free(block);
}

static void check_fixture(const fixture *fix, bool is_volatile, uint64_t *seed)
{
    fl_table *table;
    CHECK_INT(open_table(fix, is_volatile, &table, NULL), FL_OK);
    CHECK_INT(fl_table_length(table), fix->length);
    fl_rows rows = {.is_range = true, .count = fix->length};
    check_rows(fix, table, &rows, 1);
    check_rows(fix, table, &rows, 3);
    int64_t index[MAX_ROWS];
    for (int32_t parts = 1; parts < 4 && fix->length > 0; parts++) {
        fl_rows picked = {.index = index, .count = random_below(seed, MAX_ROWS)};
        for (int64_t i = 0; i < picked.count; i++) index[i] = random_below(seed, fix->length);
        check_rows(fix, table, &picked, parts);
    }
    fl_table_close(table);
}

static void test_rows_of_all_segments_in_any_order(void)
{
    uint64_t seed = 1;
    for (int trial = 0; trial < 120; trial++) {
        fixture fix = {.items = trial % 7, .item_stride = trial % 3 == 0 ? 4 : 2};
        int64_t segments = 1 + random_below(&seed, MAX_SEGMENTS);
        for (int64_t i = 0; i < segments; i++) {
            int64_t rows = random_below(&seed, trial % 4 == 0 ? 3 : MAX_ROWS / MAX_SEGMENTS);
            make_segment(&fix, &seed, rows, random_below(&seed, 2), random_below(&seed, 2));
        }
        check_fixture(&fix, trial % 2 == 1, &seed);
        fix.convert = fl_cpu_find_convert(UINT16, INT64);
        check_fixture(&fix, trial % 2 == 1, &seed);
        close_fixture(&fix);
    }
}

static void test_a_cut_file_names_row_and_array(void)
{
    uint64_t seed = 2;
    static char bytes[4 * PAGE];
    fill_random(&seed, bytes, sizeof bytes);
    mapped_file file = map_file(bytes, sizeof bytes, MAP_SHARED);
    fixture fix = {.items = 512, .item_stride = 2}; /* rows of 1024 bytes */
    make_segment(&fix, &seed, 5, false, false);
    add_segment(&fix, file.data, 16, 1024);
    note_rows(&fix, &fix.segments[1]);
    make_segment(&fix, &seed, 5, false, false);
    check_fixture(&fix, true, &seed);
    fl_table *table;
    CHECK_INT(open_table(&fix, true, &table, NULL), FL_OK);
    CHECK_INT(ftruncate(file.fd, PAGE), 0);
    const int64_t bad = 5 + 4; /* the first row after the end of the file */
    int64_t index[] = {22, 0, 8, bad, 5};
    static char block[5 * 1024];
    fl_rows rows = {.index = index, .count = 3};
    fl_err err;
    fl_layout layout = {0};
    CHECK_INT(gather(table, &rows, 1, block, &layout, &err), FL_OK);
    rows.count = 5;
    CHECK_INT(gather(table, &rows, 1, block, &layout, &err), FL_ESOURCE);
    CHECK(err.field == 0 && err.value == bad && err.position == 1);
    CHECK_INT(gather(table, &rows, 1, block, &layout, NULL), FL_ESOURCE);
    CHECK_INT(fl_table_row_beyond(table, 0, 1, &rows, file.data + PAGE), bad);
    CHECK_INT(fl_table_row_beyond(table, 0, 1, &rows, file.data + 4 * PAGE), -1);
    CHECK_INT(fl_table_row_beyond(table, 0, 0, &rows, fix.memory[0] + (1 << 20)), -1);
    CHECK_INT(fl_table_row_beyond(table, 0, 2, &rows, NULL), 22);
    fl_layout_close(&layout);
    fl_table_close(table);
    unmap_file(&file);
    close_fixture(&fix);
}

/* Opens the fixture, which must be refused with this text, and nothing left. */
static void check_refused(fixture *fix, const char *text)
{
    fl_table *table;
    fl_err err = {0};
    CHECK_INT(open_table(fix, false, &table, &err), FL_EINVAL);
    CHECK(strstr(err.text, text) != NULL);
    CHECK_INT(open_table(fix, false, &table, NULL), FL_EINVAL);
    close_fixture(fix);
}

static void test_what_is_no_column_is_refused(void)
{
    uint64_t seed = 3;
    for (int what = 0; what < 7; what++) {
        fixture fix = {.items = 4, .item_stride = 2};
        make_segment(&fix, &seed, 5, false, false);
        make_segment(&fix, &seed, 5, false, true);
        fl_segment *last = &fix.segments[1];
        const char *text[] = {"dtype or shape", "dtype or shape", "dtype or shape",  "in strides",
                              "no row 5",       "no row -1",      "must have 6 rows"};
        if (what == 0) last->view.dtype.bits = 32;
        if (what == 1) last->view.shape[1] = 3;
        if (what == 2) last->view.ndim = 1;
        if (what == 3) last->view.stride[1] = 1;
        if (what == 4) fix.index[1][7] = 5;
        if (what == 5) fix.index[1][0] = -1;
        if (what == 6) fix.segments[0].count = 6;
        check_refused(&fix, text[what]);
    }
    fixture none = {0};
    check_refused(&none, "no segment");
    fixture flat = {.count = 1};
    check_refused(&flat, "no dimension");
}

static int open_and_close(void *fix)
{
    fl_table *table;
    int status = open_table(fix, false, &table, NULL);
    fl_table_close(table);
    return status;
}

/* Scratch memory that is missing is an error of the batch. */
static int open_and_gather(void *fix)
{
    fl_table *table;
    FL_TRY(open_table(fix, false, &table, NULL));
    char block[3 * 4 * 8];
    fl_rows rows = {.is_range = true, .count = 3};
    fl_layout layout = {0};
    int status = fl_table_layout(table, &rows, 0, &layout, NULL);
    if (status == FL_OK) status = fl_table_gather(table, &rows, 0, &layout, 0, 1, block, NULL);
    fl_layout_close(&layout);
    fl_table_close(table);
    return status;
}

static void test_refused_memory(void)
{
    fixture fix = {.items = 4, .item_stride = 2};
    uint64_t seed = 4;
    make_segment(&fix, &seed, 5, false, true);
    CHECK_INT(refuse_each(open_and_close, &fix), 2);
    fix.convert = fl_cpu_find_convert(UINT16, INT64);
    CHECK(refuse_each(open_and_gather, &fix) > 4);
    close_fixture(&fix);
}

static void test_rows_longer_than_scratch_for_many(void)
{
    uint64_t seed = 5;
    fixture fix = {.items = 9001, .item_stride = 2};
    make_segment(&fix, &seed, 4, true, false);
    make_segment(&fix, &seed, 3, false, true);
    fix.convert = fl_cpu_find_convert(UINT16, INT64);
    fl_table *table;
    CHECK_INT(open_table(&fix, true, &table, NULL), FL_OK);
    check_rows(&fix, table, &(fl_rows){.is_range = true, .count = fix.length}, 3);
    fl_table_close(table);
    close_fixture(&fix);
}

static void test_what_is_converted(void)
{
    const double value[3] = {0.1, -1e300, 1.0 + 1e-9};
    const float expected[3] = {0.1f, -INFINITY, 1.0f};
    float out[3];
    fl_dtype float64 = {2, 64, 1}, float32 = {2, 32, 1};
    char shifted[sizeof value + 1];
    memcpy(shifted + 1, value, sizeof value);
    fl_cpu_find_convert(float64, float32)(out, shifted + 1, 3, float64);
    CHECK(memcmp(out, expected, sizeof out) == 0);
    const int64_t wide[2] = {(1LL << 54) + 3, -(1LL << 24) - 1}; /* no float has these values */
    double doubles[2];
    fl_cpu_find_convert(INT64, float64)(doubles, wide, 2, INT64);
    CHECK(doubles[0] == 18014398509481988.0 && doubles[1] == -16777217.0);
    fl_cpu_find_convert(INT64, float32)(out, wide, 2, INT64);
    CHECK(out[0] == 18014398509481984.0f && out[1] == -16777216.0f);
    fl_cpu_find_convert(float32, float64)(doubles, expected, 2, float32);
    CHECK(doubles[0] == (double)0.1f && doubles[1] == -INFINITY);
    CHECK(fl_cpu_find_convert(float32, float32) == NULL);
    CHECK(fl_cpu_find_convert(float32, INT64) == NULL);
    CHECK(fl_cpu_find_convert(INT64, INT64) == NULL);
}

int main(void)
{
    start_tests();
    RUN(test_rows_of_all_segments_in_any_order);
    RUN(test_a_cut_file_names_row_and_array);
    RUN(test_what_is_no_column_is_refused);
    RUN(test_refused_memory);
    RUN(test_rows_longer_than_scratch_for_many);
    RUN(test_what_is_converted);
    return 0;
}
