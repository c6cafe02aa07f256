/* Tests of fl_column_pad: every byte of every output is compared with sequences that are padded
 * element by element. */
#include "ragged_fixture.h"

static const char PADDING[16] = "\x5a\x4b\x3c\x2d\x1e\x0f\xf0\xe1\xd2\xc3\xb4\xa5\x96\x87\x78\x69";

static fl_column_pad_config config_of(const ragged_fixture *fix, fl_pad_output output)
{
    fl_column_pad_config config = {.ragged = fix->ragged,
                                   .output = output,
                                   .multiple = 1,
                                   .max_length = INT64_MAX,
                                   .ops = &fl_cpu_sequence_ops};
    memcpy(config.padding, PADDING, sizeof PADDING);
    return config;
}

static fl_table *open_pad(const fl_column_pad_config *config)
{
    fl_column *column;
    CHECK_INT(fl_column_pad_open(config, &column, NULL), FL_OK);
    return open_one(column);
}

static int64_t padded_length(const ragged_fixture *fix, const fl_column_pad_config *config,
                             const fl_rows *rows, int64_t i)
{
    return fl_min(length_of(fix, fl_row_at(rows, i)), config->max_length);
}

static int64_t
expect_width(const ragged_fixture *fix, const fl_column_pad_config *config, const fl_rows *rows)
{
    int64_t width = 0;
    for (int64_t i = 0; i < rows->count; i++)
        width = fl_max(width, padded_length(fix, config, rows, i));
    while (width % config->multiple != 0) width++;
    return width;
}

/* Element k of row i of values or mask. */
static void expect_element(const ragged_fixture *fix, const fl_column_pad_config *config,
                           const fl_rows *rows, int64_t i, int64_t k, int64_t width, char *out)
{
    int64_t length = padded_length(fix, config, rows, i);
    int64_t at = config->pad_left ? k - (width - length) : k;
    bool is_padding = at < 0 || at >= length;
    if (config->output == FL_PAD_MASK) {
        int64_t bit = !is_padding;
        memcpy(out, &bit, sizeof bit);
    } else if (is_padding) {
        memcpy(out, PADDING, 16);
    } else {
        put_value(fix, fl_row_at(rows, i), at, config->is_widened, out);
        bool is_ignored = config->has_ignored && memcmp(out, &config->ignored, 8) == 0;
        if (is_ignored) memcpy(out, PADDING, 16);
    }
}

static void check_matrix(const ragged_fixture *fix, const fl_column_pad_config *config,
                         const fl_rows *rows, const fl_output *output, const char *block)
{
    int64_t width = expect_width(fix, config, rows), bytes = fl_dtype_bytes(output->dtype);
    char expected[16];
    CHECK(output->ndim == 2 && output->shape[0] == rows->count && output->shape[1] == width);
    for (int64_t i = 0; i < rows->count; i++)
        for (int64_t k = 0; k < width; k++) {
            expect_element(fix, config, rows, i, k, width, expected);
            CHECK(memcmp(block + (i * width + k) * bytes, expected, (size_t)bytes) == 0);
        }
}

static void check_batch(const ragged_fixture *fix, const fl_column_pad_config *config,
                        const fl_table *table, const fl_rows *rows, int32_t parts)
{
    fl_layout layout = {0};
    CHECK_INT(fl_table_layout(table, rows, 0, &layout, NULL), FL_OK);
    char *block = gather_all(table, rows, &layout, parts);
    const fl_output *output = layout.outputs;
    bool is_int64 = config->output != FL_PAD_VALUES || config->is_widened;
    fl_dtype dtype = is_int64 ? (fl_dtype){0, 64, 1} : fix->ragged.dtype;
    CHECK(memcmp(&output->dtype, &dtype, sizeof dtype) == 0);
    CHECK(!output->is_whole && !output->is_number && output->is_contiguous);
    if (config->output == FL_PAD_LENGTHS) {
        CHECK(output->ndim == 1 && output->shape[0] == rows->count);
        for (int64_t i = 0; i < rows->count; i++)
            CHECK_INT(((int64_t *)(void *)block)[i], padded_length(fix, config, rows, i));
    } else {
        check_matrix(fix, config, rows, output, block);
    }
    check_fence(&layout, block, 0);
    free(block);
    fl_layout_close(&layout);
}

static void
check_config(const ragged_fixture *fix, const fl_column_pad_config *config, uint64_t *seed)
{
    fl_table *table = open_pad(config);
    for (int64_t count = 1; count <= 9; count += 4) {
        fl_rows rows = random_rows(seed, count);
        for (int32_t parts = 1; parts <= 3; parts++) check_batch(fix, config, table, &rows, parts);
        fl_rows_close(&rows);
    }
    fl_rows range = {.is_range = true, .first = 0, .count = SEQUENCES};
    check_batch(fix, config, table, &range, 3);
    fl_rows empty = {.is_range = true, .first = 5, .count = 1}; /* a sequence of no elements */
    check_batch(fix, config, table, &empty, 1);
    fl_table_close(table);
}

static void check_outputs(const ragged_fixture *fix, bool is_widened, uint64_t *seed)
{
    const int64_t multiples[] = {1, 8, 7}, lengths[] = {INT64_MAX, 1, 10};
    for (int round = 0; round < 18; round++) {
        for (int output = FL_PAD_VALUES; output <= FL_PAD_LENGTHS; output++) {
            fl_column_pad_config config = config_of(fix, (fl_pad_output)output);
            config.pad_left = round % 2;
            config.multiple = multiples[round / 2 % 3];
            config.max_length = lengths[round / 6];
            config.is_widened = is_widened && output == FL_PAD_VALUES;
            check_config(fix, &config, seed);
        }
    }
}

static void test_padded_values_masks_and_lengths(void)
{
    const fl_dtype odd[] = {{6, 8, 1}, {2, 16, 1}, {2, 32, 1}, {2, 64, 1}, {5, 64, 1}, {5, 128, 1}};
    uint64_t seed = 21;
    for (int d = 0; d < 6; d++) {
        ragged_fixture fix;
        open_ragged(&fix, &seed, odd[d], 20, d % 2);
        check_outputs(&fix, false, &seed);
        close_ragged(&fix);
    }
}

static void test_integers_may_come_out_as_int64(void)
{
    uint64_t seed = 22;
    for (int d = 0; d < WIDENABLE; d++) {
        ragged_fixture fix;
        open_ragged(&fix, &seed, widenable[d], 30, d % 2);
        check_outputs(&fix, true, &seed);
        close_ragged(&fix);
    }
}

static void test_ignored_values_come_out_as_padding(void)
{
    uint64_t seed = 27;
    for (int d = 0; d < WIDENABLE; d++) {
        ragged_fixture fix;
        open_ragged(&fix, &seed, widenable[d], 30, d % 2);
        for (int64_t i = 0; i < fix.ragged.count; i += 3)
            memset(fix.values + i * fl_dtype_bytes(widenable[d]), 0,
                   (size_t)fl_dtype_bytes(widenable[d]));
        fl_column_pad_config config = config_of(&fix, FL_PAD_VALUES);
        config.is_widened = true;
        config.pad_left = d % 2;
        config.has_ignored = true; /* zeros */
        check_config(&fix, &config, &seed);
        close_ragged(&fix);
    }
}

static void test_pairs_of_beginnings_and_ends(void)
{
    uint64_t seed = 28;
    for (int is_wide = 0; is_wide < 2; is_wide++) {
        ragged_fixture fix;
        int64_t wide[2 * SEQUENCES];
        int32_t narrow[2 * SEQUENCES];
        open_ragged(&fix, &seed, (fl_dtype){0, 16, 1}, 30, is_wide);
        for (int64_t i = 0; i < 2 * SEQUENCES; i++) {
            wide[i] = fix.wide[i / 2 + i % 2];
            narrow[i] = (int32_t)wide[i];
        }
        fix.ragged.is_paired = true;
        fix.ragged.offsets = is_wide ? (const void *)wide : (const void *)narrow;
        check_outputs(&fix, true, &seed);
        close_ragged(&fix);
    }
}

/* A tensor over a buffer may begin at any byte. */
static void test_values_at_an_odd_address(void)
{
    uint64_t seed = 26;
    for (int d = 0; d < WIDENABLE; d++) {
        ragged_fixture fix;
        open_ragged(&fix, &seed, widenable[d], 30, d % 2);
        int64_t bytes = fix.ragged.count * fl_dtype_bytes(widenable[d]);
        char *odd = malloc((size_t)bytes + 1);
        CHECK(odd != NULL);
        memcpy(odd + 1, fix.values, (size_t)bytes);
        fix.ragged.values = odd + 1;
        check_outputs(&fix, true, &seed);
        check_outputs(&fix, false, &seed);
        free(odd);
        close_ragged(&fix);
    }
}

/* Rows of other columns are filled beside, and more rows than are copied in one go. */
static void test_many_rows(void)
{
    uint64_t seed = 23;
    ragged_fixture fix;
    open_ragged(&fix, &seed, (fl_dtype){0, 32, 1}, 50, false);
    fl_column_pad_config config = config_of(&fix, FL_PAD_VALUES);
    config.is_widened = true;
    fl_table *table = open_pad(&config);
    fl_rows rows = random_rows(&seed, 300);
    check_batch(&fix, &config, table, &rows, 1);
    check_batch(&fix, &config, table, &rows, 2);
    fl_rows_close(&rows);
    fl_table_close(table);
    close_ragged(&fix);
}

/* ---- mapped files */

static void test_values_of_a_mapped_file(void)
{
    uint64_t seed = 24;
    const int64_t longest[] = {20, 9000}; /* many sequences a read, many reads a sequence */
    for (int round = 0; round < 4; round++) {
        ragged_fixture fix;
        open_ragged(&fix, &seed, (fl_dtype){0, 32, 1}, longest[round / 2], true);
        mapped_file file = map_file(fix.values, fix.ragged.count * 4, MAP_SHARED);
        fl_column_pad_config config = config_of(&fix, FL_PAD_VALUES);
        config.ragged.values = file.data;
        config.ragged.is_volatile = true;
        config.is_widened = round % 2;
        fl_table *table = open_pad(&config);
        CHECK(fl_table_is_volatile(table));
        fl_rows range = {.is_range = true, .first = 0, .count = SEQUENCES};
        check_batch(&fix, &config, table, &range, 1);
        check_batch(&fix, &config, table, &range, 3);
        fl_table_close(table);
        unmap_file(&file);
        close_ragged(&fix);
    }
}

static void test_a_cut_file_names_field_and_row(void)
{
    enum { PAGE = 4096 };
    uint64_t seed = 25;
    ragged_fixture fix;
    open_ragged(&fix, &seed, (fl_dtype){0, 64, 1}, 400, true);
    int64_t bytes = fix.ragged.count * 8, bad = 0;
    CHECK(bytes > 4 * PAGE);
    mapped_file file = map_file(fix.values, bytes, MAP_SHARED);
    CHECK(ftruncate(file.fd, 2 * PAGE) == 0);
    while (length_of(&fix, bad) == 0 || fix.wide[bad + 1] * 8 <= 2 * PAGE) bad++;
    fl_column_pad_config config = config_of(&fix, FL_PAD_VALUES);
    config.ragged.values = file.data;
    config.ragged.is_volatile = true;
    fl_table *table = open_pad(&config);
    fl_rows range = {.is_range = true, .first = 0, .count = SEQUENCES};
    fl_layout layout = {0};
    fl_err err = {0};
    CHECK_INT(fl_table_layout(table, &range, 0, &layout, NULL), FL_OK);
    char *block = malloc((size_t)layout.bytes);
    CHECK_INT(fl_table_gather(table, &range, 0, &layout, 0, 1, block, &err), FL_ESOURCE);
    CHECK(err.code == FL_ESOURCE && err.field == 0 && err.value == bad);
    CHECK_INT(fl_table_gather(table, &range, 0, &layout, 0, 1, block, NULL), FL_ESOURCE);
    CHECK_INT(fl_table_row_beyond(table, 0, 0, &range, file.data + 2 * PAGE), bad);
    CHECK_INT(fl_table_row_beyond(table, 0, 0, &range, file.data + bytes), -1);
    free(block);
    fl_layout_close(&layout);
    fl_table_close(table);
    unmap_file(&file);
    close_ragged(&fix);
}

/* ---- what cannot be */

static void test_a_batch_without_samples_is_refused(void)
{
    uint64_t seed = 26;
    ragged_fixture fix;
    open_ragged(&fix, &seed, (fl_dtype){0, 64, 1}, 9, true);
    for (int output = FL_PAD_VALUES; output <= FL_PAD_LENGTHS; output++) {
        fl_column_pad_config config = config_of(&fix, (fl_pad_output)output);
        fl_table *table = open_pad(&config);
        fl_rows none = {.is_range = true};
        fl_layout layout = {0};
        fl_err err;
        CHECK_INT(fl_table_layout(table, &none, 0, &layout, &err), FL_EINVAL);
        CHECK(strcmp(err.text, "the batch has no samples") == 0);
        fl_layout_close(&layout);
        fl_table_close(table);
    }
    close_ragged(&fix);
}

/* Offsets may change unexpectedly: before layout, and between layout and gather. */
static void test_changed_offsets_name_field_and_row(void)
{
    uint64_t seed = 27;
    ragged_fixture fix;
    open_ragged(&fix, &seed, (fl_dtype){0, 64, 1}, 9, true);
    fl_column_pad_config config = config_of(&fix, FL_PAD_VALUES);
    fl_table *table = open_pad(&config);
    fl_rows rows = {.is_range = true, .first = 0, .count = 4};
    fl_layout layout = {0};
    fl_err err;
    char block[4096];
    const int64_t wrong[] = {-1, fix.ragged.count + 1, INT64_MIN, INT64_MAX};
    int64_t right = fix.wide[3];
    for (int w = 0; w < 4; w++) {
        fix.wide[3] = right;
        CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_OK);
        CHECK(layout.bytes <= (int64_t)sizeof block);
        fix.wide[3] = wrong[w];
        CHECK_INT(fl_table_gather(table, &rows, 0, &layout, 0, 1, block, &err), FL_EINVAL);
        CHECK(strstr(err.text, "field 0, row 2: sequence 2 lies from") == err.text);
        CHECK_INT(fl_table_layout(table, &rows, 0, &layout, &err), FL_EINVAL);
        CHECK(strstr(err.text, "field 0, row 2: sequence 2 lies from") == err.text);
        CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_EINVAL);
    }
    fix.wide[3] = right;
    right = fix.wide[0];
    fix.wide[0] = -1;
    CHECK_INT(fl_table_layout(table, &rows, 0, &layout, &err), FL_EINVAL);
    CHECK(strstr(err.text, "field 0, row 0: sequence 0 lies from -1") == err.text);
    fix.wide[0] = right; /* longer than the layout knows, but within the values */
    CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_OK);
    fix.wide[3] = fix.ragged.count;
    memset(block, FENCE_BYTE, sizeof block);
    CHECK_INT(fl_table_gather(table, &rows, 0, &layout, 0, 3, block, NULL), FL_OK);
    fix.wide[4] = fix.ragged.count;
    CHECK_INT(fl_table_gather(table, &rows, 0, &layout, 0, 1, block, NULL), FL_OK);
    check_fence(&layout, block, 0);
    fl_layout_close(&layout);
    fl_table_close(table);
    close_ragged(&fix);
}

static void test_a_batch_that_overflows_is_refused(void)
{
    int64_t offsets[] = {0, INT64_MAX / 2};
    fl_column_pad_config config = {
        .ragged = {.count = INT64_MAX / 2, .offsets = offsets, .is_wide = true, .length = 1},
        .multiple = 1,
        .max_length = INT64_MAX,
        .is_widened = true,
        .ops = &fl_cpu_sequence_ops};
    fl_table *table = open_pad(&config);
    fl_rows rows = {.is_range = true, .count = 1};
    fl_layout layout = {0};
    CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_EINVAL);
    fl_table_close(table);
    config.multiple = INT64_MAX;
    table = open_pad(&config);
    CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_EINVAL);
    fl_table_close(table);
    fl_layout_close(&layout);
}

static int open_and_lay_out(void *arg)
{
    const ragged_fixture *fix = arg;
    fl_column_pad_config config = config_of(fix, FL_PAD_VALUES);
    fl_column *column;
    fl_table *table;
    fl_layout layout = {0};
    fl_rows rows = {.is_range = true, .count = 3};
    FL_TRY(fl_column_pad_open(&config, &column, NULL));
    int status = fl_table_open(&column, 1, &table, NULL);
    if (status != FL_OK) {
        fl_column_close(column);
        return status;
    }
    status = fl_table_layout(table, &rows, 0, &layout, NULL);
    fl_layout_close(&layout);
    fl_table_close(table);
    return status;
}

static void test_every_refused_resource(void)
{
    uint64_t seed = 28;
    ragged_fixture fix;
    open_ragged(&fix, &seed, (fl_dtype){0, 64, 1}, 9, true);
    CHECK_INT(refuse_each(open_and_lay_out, &fix), 4);
    close_ragged(&fix);
}

int main(void)
{
    start_tests();
    RUN(test_padded_values_masks_and_lengths);
    RUN(test_integers_may_come_out_as_int64);
    RUN(test_ignored_values_come_out_as_padding);
    RUN(test_pairs_of_beginnings_and_ends);
    RUN(test_values_at_an_odd_address);
    RUN(test_many_rows);
    RUN(test_values_of_a_mapped_file);
    RUN(test_a_cut_file_names_field_and_row);
    RUN(test_a_batch_without_samples_is_refused);
    RUN(test_changed_offsets_name_field_and_row);
    RUN(test_a_batch_that_overflows_is_refused);
    RUN(test_every_refused_resource);
    return 0;
}
