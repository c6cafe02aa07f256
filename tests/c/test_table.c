/* Tests of fl_table and the CPU's row copies: every gather is compared with a copy made element by
 * element, straight from shape and strides. */
#include "table_fixture.h"

enum { FENCE = 64, FENCE_BYTE = 0x3C, MAX_FIELDS = 4, PAGE = 4096 };

/* The ways in which a view lies over its memory. */
typedef enum view_kind {
    PLAIN,
    PADDED,
    BACK_ROWS,
    BACK_ITEMS,
    TRANSPOSED,
    STEPPED,
    ONE_ROW,
    ONE_ITEM
} view_kind;
enum { VIEW_KINDS = ONE_ITEM + 1 };

typedef struct source {
    char *memory; /* owned, NULL for a field that lies elsewhere */
    column_spec column;
} source;

/* Makes a view of `ndim` dimensions over fresh random memory that ends at the view's last possible
 * byte. */
static source
make_source(uint64_t *seed, view_kind how, int item, int32_t ndim, const int64_t *shape)
{
    source s = {.column.view = {.dtype = {1, 8, (uint16_t)item}, .ndim = ndim}};
    fl_tensor *view = &s.column.view;
    int64_t spread = how == STEPPED ? 2 : 1, bytes = item;
    for (int32_t k = 0; k < ndim; k++) {
        int32_t d = how == TRANSPOSED ? k : ndim - 1 - k;
        view->shape[d] = shape[d];
        if (how == PADDED && d == 0) bytes += 3;
        view->stride[d] = bytes * spread;
        bytes *= shape[d] * spread;
    }
    s.memory = malloc((size_t)fl_max(bytes, 1));
    CHECK(s.memory != NULL);
    fill_random(seed, s.memory, bytes);
    view->data = s.memory;
    for (int32_t d = 0; d < ndim; d++) {
        bool is_back = how == (d == 0 ? BACK_ROWS : BACK_ITEMS);
        if (is_back && shape[d] > 0) {
            view->data += (shape[d] - 1) * view->stride[d];
            view->stride[d] = -view->stride[d];
        }
    }
    if (how == ONE_ROW) view->stride[0] = 0;
    if (how == ONE_ITEM && ndim > 1) view->stride[ndim - 1] = 0;
    return s;
}

/* The reference: appends what lies under `src` from dimension `d` on. */
static char *copy_elements(const fl_tensor *view, int32_t d, const char *src, char *dst)
{
    int64_t item = fl_dtype_bytes(view->dtype);
    if (d == view->ndim) {
        memcpy(dst, src, (size_t)item);
        return dst + item;
    }
    for (int64_t i = 0; i < view->shape[d]; i++)
        dst = copy_elements(view, d + 1, src + i * view->stride[d], dst);
    return dst;
}

/* Computes where the fields of a batch begin, and returns the length of the block. The tensors must
 * have the shapes of the views, one after another. */
static int64_t lay_out(const fl_table *table, const column_spec *columns, int32_t count,
                       const fl_rows *rows, int64_t *offsets)
{
    fl_layout layout = layout_of(table, rows);
    int64_t end = 0;
    CHECK_INT(layout.count, count);
    CHECK_INT(fl_table_outputs(table), count);
    for (int32_t f = 0; f < count; f++) {
        const fl_output *output = &layout.outputs[f];
        const fl_tensor *view = &columns[f].view;
        int64_t step = 1;
        CHECK(output->is_contiguous && !output->is_cast && !output->is_whole);
        CHECK(memcmp(&output->dtype, &view->dtype, sizeof view->dtype) == 0);
        CHECK_INT(output->ndim, view->ndim);
        for (int32_t d = view->ndim - 1; d >= 0; d--) {
            CHECK_INT(output->shape[d], d == 0 ? rows->count : view->shape[d]);
            CHECK_INT(output->stride[d], step);
            step *= fl_max(view->shape[d], 1);
        }
        CHECK_INT(output->bytes, fl_tensor_bytes(output->dtype, output->ndim, output->shape));
        CHECK_INT(output->offset, (end + 63) / 64 * 64);
        CHECK_INT(fl_output_at(output), output->offset);
        offsets[f] = output->offset;
        end = output->offset + output->bytes;
    }
    int64_t bytes = layout.bytes;
    CHECK_INT(bytes, (end + 63) / 64 * 64);
    CHECK_INT(layout.delivered_bytes, bytes);
    fl_layout_close(&layout);
    return bytes;
}

/* Returns the expected block; fields at `offsets`, FENCE_BYTE everywhere else. */
static char *expect_block(const column_spec *columns, int32_t count, const fl_rows *rows,
                          const int64_t *offsets, int64_t bytes)
{
    char *block = malloc((size_t)bytes + FENCE);
    CHECK(block != NULL);
    memset(block, FENCE_BYTE, (size_t)bytes + FENCE);
    for (int32_t f = 0; f < count; f++) {
        const fl_tensor *view = &columns[f].view;
        char *dst = block + offsets[f];
        for (int64_t i = 0; i < rows->count; i++)
            dst = copy_elements(view, 1, view->data + fl_row_at(rows, i) * view->stride[0], dst);
        CHECK(dst <= block + (f + 1 < count ? offsets[f + 1] : bytes));
    }
    return block;
}

/* Gathers in `parts` parts, last part first, and compares the block to the last byte: padding and
 * the memory after the block must be unchanged. */
static void check_gather(const fl_table *table, const column_spec *columns, int32_t count,
                         const fl_rows *rows, int32_t parts)
{
    int64_t offsets[MAX_FIELDS], bytes = lay_out(table, columns, count, rows, offsets);
    char *expected = expect_block(columns, count, rows, offsets, bytes);
    char *block = malloc((size_t)bytes + FENCE);
    CHECK(block != NULL);
    memset(block, FENCE_BYTE, (size_t)bytes + FENCE);
    for (int32_t part = parts - 1; part >= 0; part--)
        CHECK_INT(gather_part(table, rows, 0, part, parts, block, NULL), FL_OK);
    CHECK(memcmp(block, expected, (size_t)bytes + FENCE) == 0);
    free(block);
    free(expected);
}

/* A range and an index list over a table of `length` > 0 rows, `count` rows each. */
static void check_both_kinds(const fl_table *table, const column_spec *columns, int32_t fields,
                             int64_t count, int32_t parts, uint64_t *seed)
{
    int64_t length = fl_table_length(table);
    fl_rows list = {0};
    for (int64_t i = 0; i < count; i++) {
        int64_t row = random_below(seed, length);
        CHECK_INT(fl_rows_add(&list, &row, 1, NULL), FL_OK);
    }
    check_gather(table, columns, fields, &list, parts);
    fl_rows_close(&list);
    int64_t run = fl_min(count, length);
    fl_rows range = {.is_range = true, .count = run, .first = random_below(seed, length - run + 1)};
    check_gather(table, columns, fields, &range, parts);
}

/* Opens a table over the sources, calls check_both_kinds with some part counts, frees
 * everything. */
static void check_sources(source *sources, int32_t fields, int64_t count, uint64_t *seed)
{
    column_spec columns[MAX_FIELDS];
    fl_table *table;
    for (int32_t f = 0; f < fields; f++) columns[f] = sources[f].column;
    CHECK_INT(open_specs(columns, fields, &table, NULL), FL_OK);
    CHECK_INT(fl_table_length(table), columns[0].view.shape[0]);
    const int32_t parts[] = {1, 3, (int32_t)count, (int32_t)count + 2};
    for (int p = 0; p < 4; p++)
        if (parts[p] > 0) check_both_kinds(table, columns, fields, count, parts[p], seed);
    fl_table_close(table);
    for (int32_t f = 0; f < fields; f++) free(sources[f].memory);
}

static void test_rows_of_every_size(void)
{
    uint64_t seed = 6;
    for (int64_t size = 0; size <= 300; size++) {
        for (int how = PLAIN; how <= BACK_ROWS; how++) {
            source s = make_source(&seed, how, 1, 2, (int64_t[]){50, size});
            s.column.is_volatile = (size + how) % 4 == 3;
            check_sources(&s, 1, 31, &seed);
        }
    }
}

static void test_long_rows(void)
{
    const int64_t sizes[] = {3072, 4096, 65536 - 16, 65536, 150528, 262144};
    uint64_t seed = 7;
    for (int i = 0; i < 6; i++) {
        for (int is_volatile = 0; is_volatile < 2; is_volatile++) {
            source s =
                make_source(&seed, i % 2 ? PADDED : PLAIN, 16, 2, (int64_t[]){5, sizes[i] / 16});
            s.column.is_volatile = is_volatile;
            check_sources(&s, 1, 6, &seed);
        }
    }
}

static void test_single_items_for_rows(void)
{
    const int items[] = {1, 2, 3, 4, 8, 16};
    uint64_t seed = 8;
    for (int i = 0; i < 6; i++) {
        for (int how = 0; how < VIEW_KINDS; how++) {
            source s = make_source(&seed, how, items[i], 1, (int64_t[]){40});
            s.column.is_volatile = how % 2;
            check_sources(&s, 1, 29, &seed);
        }
    }
}

static void test_strides_of_every_kind(void)
{
    const int items[] = {1, 2, 4, 8, 3};
    uint64_t seed = 9;
    for (int round = 0; round < 60 * VIEW_KINDS; round++) {
        int64_t shape[5] = {1 + random_below(&seed, 20)};
        int32_t ndim = 1 + (int32_t)random_below(&seed, 5);
        for (int32_t d = 1; d < ndim; d++) shape[d] = 1 + random_below(&seed, 6);
        if (round % 50 == 49) shape[ndim - 1] = ndim > 1 ? 0 : shape[0];
        source s = make_source(&seed, round % VIEW_KINDS, items[round % 5], ndim, shape);
        s.column.is_volatile = round / VIEW_KINDS % 2;
        check_sources(&s, 1, random_below(&seed, 25), &seed);
    }
}

static void test_several_fields(void)
{
    uint64_t seed = 10;
    for (int round = 0; round < 120; round++) {
        source sources[MAX_FIELDS];
        int32_t fields = 1 + round % MAX_FIELDS;
        int64_t length = 1 + random_below(&seed, 40);
        for (int32_t f = 0; f < fields; f++) {
            int64_t shape[] = {length, random_below(&seed, 9), 1 + random_below(&seed, 4)};
            sources[f] = make_source(&seed, (int)random_below(&seed, VIEW_KINDS),
                                     1 << random_below(&seed, 4),
                                     1 + (int32_t)random_below(&seed, 3), shape);
            sources[f].column.is_volatile = random_below(&seed, 3) == 0;
        }
        check_sources(sources, fields, random_below(&seed, 50), &seed);
    }
}

/* One part writes each byte of a batch, and no part writes padding. A part is run over a block of
 * zeroes and a block of ones: bytes that are equal afterwards are the bytes it wrote. */
static void test_parts_write_disjoint_memory(void)
{
    uint64_t seed = 11;
    source a = make_source(&seed, PLAIN, 4, 2, (int64_t[]){30, 5});
    source b = make_source(&seed, TRANSPOSED, 1, 3, (int64_t[]){30, 3, 7});
    column_spec columns[] = {a.column, b.column};
    fl_table *table;
    CHECK_INT(open_specs(columns, 2, &table, NULL), FL_OK);
    fl_rows rows = {.is_range = true, .count = 29, .first = 1};
    int64_t offsets[2], bytes = lay_out(table, columns, 2, &rows, offsets);
    char zeroes[4096], ones[4096];
    CHECK(bytes <= (int64_t)sizeof zeroes);
    for (int32_t parts = 1; parts <= 32; parts++) {
        int written[4096] = {0};
        for (int32_t part = 0; part < parts; part++) {
            memset(zeroes, 0, sizeof zeroes);
            memset(ones, 0xFF, sizeof ones);
            CHECK_INT(gather_part(table, &rows, 0, part, parts, zeroes, NULL), FL_OK);
            CHECK_INT(gather_part(table, &rows, 0, part, parts, ones, NULL), FL_OK);
            for (int64_t i = 0; i < bytes; i++) written[i] += zeroes[i] == ones[i];
        }
        for (int64_t i = 0; i < bytes; i++) {
            bool is_field = i < 29 * 20 || (i >= offsets[1] && i < offsets[1] + 29 * 21);
            CHECK_INT(written[i], is_field);
        }
    }
    fl_table_close(table);
    free(a.memory);
    free(b.memory);
}

/* A ring's threads call the gather, which writes to the batch's memory. */
static void test_a_batch_is_filled_from_its_table(void)
{
    uint64_t seed = 12;
    source a = make_source(&seed, PLAIN, 4, 2, (int64_t[]){30, 5});
    fl_table *table;
    CHECK_INT(open_specs(&a.column, 1, &table, NULL), FL_OK);
    char filled[1024] = {0}, gathered[1024] = {0};
    fl_batch batch = {.rows = {.is_range = true, .count = 29, .first = 1},
                      .source = table,
                      .data = filled,
                      .parts = 3};
    batch.layout = layout_of(table, &batch.rows);
    for (int32_t part = 0; part < 3; part++) {
        CHECK_INT(fl_table_fill(&batch, part, NULL), FL_OK);
        CHECK_INT(gather_part(table, &batch.rows, 0, part, 3, gathered, NULL), FL_OK);
        CHECK(memcmp(filled, gathered, sizeof filled) == 0);
    }
    fl_layout_close(&batch.layout);
    fl_table_close(table);
    free(a.memory);
}

/* ---- refused resources */

static int open_and_gather(void *arg)
{
    const source *sources = arg;
    column_spec columns[] = {sources[0].column, sources[1].column};
    fl_rows rows = {.is_range = true, .count = 20};
    fl_table *table;
    char block[4096];
    FL_TRY(open_specs(columns, 2, &table, NULL));
    int status = gather_part(table, &rows, 0, 0, 1, block, NULL);
    fl_table_close(table);
    return status;
}

static void test_every_refused_resource(void)
{
    uint64_t seed = 12;
    source sources[] = {make_source(&seed, PLAIN, 4, 2, (int64_t[]){20, 3}),
                        make_source(&seed, STEPPED, 4, 2, (int64_t[]){20, 3})};
    sources[0].column.is_volatile = sources[1].column.is_volatile = true;
    CHECK(refuse_each(open_and_gather, sources) >= 1);
    free(sources[0].memory);
    free(sources[1].memory);
}

/* ---- files cut short */

/* Field 1 of 2 lies in a mapped file cut to `kept` bytes; `view` describes the field. Each part
 * must name the first of its rows that reaches beyond the cut, or copy all its rows. */
static void check_cut_table(fl_tensor view, int64_t kept, const fl_rows *rows, int32_t parts)
{
    uint64_t seed = 13;
    int64_t length = view.shape[0], file_bytes = length * view.stride[0], reach, row_bytes;
    reach = row_bytes = fl_dtype_bytes(view.dtype);
    for (int32_t d = 1; d < view.ndim; d++) {
        reach += (view.shape[d] - 1) * view.stride[d];
        row_bytes *= view.shape[d];
    }
    char *content = malloc((size_t)file_bytes);
    CHECK(content != NULL);
    fill_random(&seed, content, file_bytes);
    mapped_file file = map_file(content, file_bytes, MAP_SHARED);
    CHECK(ftruncate(file.fd, kept) == 0);
    source label = make_source(&seed, PLAIN, 8, 1, &length);
    view.data = file.data;
    column_spec columns[] = {label.column, {.view = view, .is_volatile = true}};
    fl_table *table;
    CHECK_INT(open_specs(columns, 2, &table, NULL), FL_OK);
    CHECK(fl_table_is_volatile(table));
    int64_t offsets[2], bytes = lay_out(table, columns, 2, rows, offsets);
    columns[1].view.data = content; /* what could be read of the file */
    char *expected = expect_block(columns, 2, rows, offsets, bytes), *block = malloc((size_t)bytes);
    CHECK(block != NULL);
    for (int32_t part = 0; part < parts; part++) {
        int64_t from = rows->count * part / parts, to = rows->count * (part + 1) / parts,
                bad = from;
        while (bad < to && fl_row_at(rows, bad) * view.stride[0] + reach <= kept) bad++;
        fl_err err = {0};
        int status = gather_part(table, rows, 0, part, parts, block, &err);
        CHECK_INT(status, bad < to ? FL_ESOURCE : FL_OK);
        CHECK_INT(gather_part(table, rows, 0, part, parts, block, NULL), status);
        if (bad < to)
            CHECK(err.code == FL_ESOURCE && err.field == 1 && err.value == fl_row_at(rows, bad));
        int64_t at = offsets[1] + from * row_bytes;
        CHECK(memcmp(block + at, expected + at, (size_t)((bad - from) * row_bytes)) == 0);
    }
    fl_table_close(table);
    unmap_file(&file);
    free(label.memory);
    free(content);
    free(expected);
    free(block);
}

static void check_cut_both_kinds(fl_tensor view, int64_t kept)
{
    uint64_t seed = 14;
    fl_rows range = {.is_range = true, .count = view.shape[0] - 1, .first = 1}, list = {0};
    for (int64_t i = 0; i < view.shape[0]; i++) {
        int64_t row = random_below(&seed, view.shape[0]);
        CHECK_INT(fl_rows_add(&list, &row, 1, NULL), FL_OK);
    }
    for (int32_t parts = 1; parts <= 4; parts++) {
        check_cut_table(view, kept, &range, parts);
        check_cut_table(view, kept, &list, parts);
    }
    fl_rows_close(&list);
}

static void test_cut_file_names_field_and_row(void)
{
    const fl_dtype byte = {1, 8, 1}, line = {1, 8, 16};
    const fl_tensor small = {.dtype = byte, .ndim = 2, .shape = {2000, 16}, .stride = {16, 1}};
    const fl_tensor odd = {.dtype = byte, .ndim = 2, .shape = {700, 37}, .stride = {41, 1}};
    const fl_tensor large = {.dtype = line, .ndim = 2, .shape = {12, 4375}, .stride = {70001, 16}};
    const fl_tensor page = {.dtype = line, .ndim = 2, .shape = {12, 4096}, .stride = {65536, 16}};
    const fl_tensor stepped = {
        .dtype = byte, .ndim = 3, .shape = {40, 8, 100}, .stride = {PAGE / 2, 256, 2}};
    check_cut_both_kinds(small, 5 * PAGE);
    check_cut_both_kinds(small, 0);
    check_cut_both_kinds(odd, 3 * PAGE);
    check_cut_both_kinds(large, 70 * PAGE);
    check_cut_both_kinds(page, 65536 * 5);
    check_cut_both_kinds(page, 65536 * 11 + PAGE);
    check_cut_both_kinds(stepped, 11 * PAGE);
}

int main(void)
{
    start_tests();
    RUN(test_rows_of_every_size);
    RUN(test_long_rows);
    RUN(test_single_items_for_rows);
    RUN(test_strides_of_every_kind);
    RUN(test_several_fields);
    RUN(test_parts_write_disjoint_memory);
    RUN(test_a_batch_is_filled_from_its_table);
    RUN(test_every_refused_resource);
    RUN(test_cut_file_names_field_and_row);
    return 0;
}
