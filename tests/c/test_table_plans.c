/* Tests of fl_table over fields with a plan: each row of a batch is what draw and apply make of the
 * image in its row, keyed by row, epoch and view. */
#include "table_fixture.h"

#include "fl_cpu_image.h"
#include "fl_safe_read.h"

#include <pthread.h>
#include <stdatomic.h>

enum { ROWS = 23, HEIGHT = 9, WIDTH = 11, CHANNELS = 3, IMAGE = HEIGHT * WIDTH * CHANNELS };
enum { CROP_HEIGHT = 6, CROP_WIDTH = 7, OUT = CROP_HEIGHT * CROP_WIDTH * CHANNELS };
enum { PAGE = 4096, FENCE = 64, FENCE_BYTE = 0x3C };

/* Labels of 8 bytes and images; either may lie in a mapped file. */
typedef struct fixture {
    char *images; /* owned: ROWS * IMAGE bytes */
    int64_t labels[ROWS];
    float tables[CHANNELS][256];
    fl_image_plan *plan; /* owned */
    column_spec columns[2];
    fl_column *sent; /* of the images, made at the destination; NULL: none */
} fixture;

static const fl_image_op crop_and_flip[] = {
    {.kind = FL_OP_RANDOM_CROP, .size = {CROP_HEIGHT, CROP_WIDTH}},
    {.kind = FL_OP_HORIZONTAL_FLIP, .p = 0.5}};

static fl_image_config config_of(const fixture *fix)
{
    return (fl_image_config){.ops = crop_and_flip,
                             .count = 2,
                             .channels = CHANNELS,
                             .in = {HEIGHT, WIDTH},
                             .type = FL_IMAGE_F32,
                             .tables = fix->tables,
                             .seed = 77,
                             .image_ops = fl_cpu_image_ops_find()};
}

static void set_images(fixture *fix, const char *data, fl_image_layout layout)
{
    bool is_chw = layout == FL_CHW;
    fl_tensor view = {
        .data = data, .dtype = {1, 8, 1}, .ndim = 4, .shape = {ROWS}, .stride = {IMAGE}};
    const int64_t chw[] = {CHANNELS, HEIGHT, WIDTH}, hwc[] = {HEIGHT, WIDTH, CHANNELS};
    const int64_t *shape = is_chw ? chw : hwc;
    int64_t step = 1;
    for (int d = 3; d >= 1; d--) {
        view.shape[d] = shape[d - 1];
        view.stride[d] = step;
        step *= view.shape[d];
    }
    fix->columns[1] =
        (column_spec){.view = view, .plan = fix->plan, .layout = layout, .dtype = {2, 32, 1}};
}

static void open_fixture(fixture *fix, fl_image_layout layout)
{
    uint64_t seed = 5;
    fix->images = malloc(ROWS * IMAGE);
    CHECK(fix->images != NULL);
    fill_random(&seed, fix->images, ROWS * IMAGE);
    for (int64_t i = 0; i < ROWS; i++) fix->labels[i] = 1000 + i;
    for (int c = 0; c < CHANNELS; c++)
        for (int v = 0; v < 256; v++) fix->tables[c][v] = (float)(v * (c + 1)) * 0.37f - 5.0f;
    fl_image_config config = config_of(fix);
    CHECK_INT(fl_image_plan_open(&config, &fix->plan, NULL), FL_OK);
    fix->columns[0] = (column_spec){.view = {.data = (const char *)fix->labels,
                                             .dtype = {0, 64, 1},
                                             .ndim = 1,
                                             .shape = {ROWS},
                                             .stride = {8}}};
    set_images(fix, fix->images, layout);
}

static void close_fixture(fixture *fix)
{
    fl_image_plan_close(fix->plan);
    free(fix->images);
}

/* The reference: one image, by the plan's own functions. */
static void expect_image(const fixture *fix, int64_t row, uint32_t epoch, uint8_t view, float *out)
{
    bool is_chw = fix->columns[1].layout == FL_CHW;
    fl_image_source source = {.data = (const uint8_t *)fix->images + row * IMAGE,
                              .stride_y = is_chw ? WIDTH : WIDTH * CHANNELS,
                              .stride_x = is_chw ? 1 : CHANNELS,
                              .stride_c = is_chw ? HEIGHT * WIDTH : 1,
                              .size = {HEIGHT, WIDTH}};
    fl_sample_key key = {.seed = 77, .index = row, .epoch = epoch, .view = view};
    fl_image_params params[FL_MAX_IMAGE_OPS];
    CHECK_INT(fl_image_plan_draw(fix->plan, &key, source.size, params, NULL), FL_OK);
    CHECK_INT(fl_image_plan_apply(fix->plan, params, &source, out, NULL), FL_OK);
}

static void check_batch(const fixture *fix, const fl_table *table, const fl_rows *rows,
                        uint32_t epoch, int32_t parts)
{
    fl_layout layout = layout_of(table, rows);
    int64_t bytes = layout.bytes, images = layout.outputs[1].offset;
    CHECK_INT(layout.outputs[1].bytes, rows->count * OUT * 4);
    CHECK(bytes >= images + rows->count * OUT * 4);
    fl_layout_close(&layout);
    char *block = malloc((size_t)bytes + FENCE);
    CHECK(block != NULL);
    memset(block, FENCE_BYTE, (size_t)bytes + FENCE);
    for (int32_t part = parts - 1; part >= 0; part--)
        CHECK_INT(gather_part(table, rows, epoch, part, parts, block, NULL), FL_OK);
    for (int64_t i = 0; i < rows->count; i++) {
        float expected[OUT];
        int64_t row = fl_row_at(rows, i);
        expect_image(fix, row, epoch, rows->has_views ? rows->view[i] : 0, expected);
        CHECK(memcmp(block + images + i * OUT * 4, expected, sizeof expected) == 0);
        CHECK(memcmp(block + i * 8, &fix->labels[row], 8) == 0);
    }
    for (int64_t at = images + rows->count * OUT * 4; at < bytes + FENCE; at++)
        CHECK_INT(block[at], FENCE_BYTE);
    free(block);
}

static void check_table(const fixture *fix, const fl_table *table)
{
    const int64_t few[] = {3, 3, 0, ROWS - 1, 8};
    const uint8_t views[] = {0, 1, 2, 255, 1};
    fl_rows range = {.is_range = true, .first = 2, .count = ROWS - 3}, list = {0}, viewed = {0};
    CHECK_INT(fl_rows_add(&list, few, 5, NULL), FL_OK);
    CHECK_INT(fl_rows_add_views(&viewed, few, views, 5, NULL), FL_OK);
    for (uint32_t epoch = 0; epoch < 3; epoch++)
        for (int32_t parts = 1; parts <= 7; parts += 3) {
            check_batch(fix, table, &range, epoch, parts);
            check_batch(fix, table, &list, epoch, parts);
            check_batch(fix, table, &viewed, epoch, parts);
        }
    fl_rows_close(&list);
    fl_rows_close(&viewed);
}

static void test_rows_are_what_their_plan_makes_of_them(void)
{
    for (int layout = 0; layout < FL_IMAGE_LAYOUTS; layout++) {
        fixture fix;
        fl_table *table;
        open_fixture(&fix, (fl_image_layout)layout);
        CHECK_INT(open_specs(fix.columns, 2, &table, NULL), FL_OK);
        check_table(&fix, table);
        fl_table_close(table);
        close_fixture(&fix);
    }
}

/* Rows of an image with gaps between its lines, the last image first. */
static void test_strides_of_any_sign(void)
{
    enum { LINE = WIDTH + 5, PLANE = LINE * HEIGHT, STEP = PLANE * CHANNELS };
    fixture fix;
    fl_table *table;
    open_fixture(&fix, FL_CHW);
    char *spread = calloc(ROWS, STEP);
    CHECK(spread != NULL);
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t line = 0; line < HEIGHT * CHANNELS; line++)
            memcpy(spread + (ROWS - 1 - row) * STEP + line * LINE,
                   fix.images + row * IMAGE + line * WIDTH, WIDTH);
    fl_tensor *view = &fix.columns[1].view;
    view->data = spread + (ROWS - 1) * STEP;
    view->stride[0] = -STEP;
    view->stride[1] = PLANE;
    view->stride[2] = LINE;
    CHECK_INT(open_specs(fix.columns, 2, &table, NULL), FL_OK);
    check_table(&fix, table);
    fl_table_close(table);
    free(spread);
    close_fixture(&fix);
}

static void test_a_batch_is_filled_in_its_epoch(void)
{
    fixture fix;
    fl_table *table;
    open_fixture(&fix, FL_CHW);
    CHECK_INT(open_specs(&fix.columns[1], 1, &table, NULL), FL_OK);
    char filled[4 * OUT * 4], expected[4 * OUT * 4];
    fl_batch batch = {.rows = {.is_range = true, .count = 4, .first = 1},
                      .source = table,
                      .data = filled,
                      .epoch = 9,
                      .parts = 2};
    batch.layout = layout_of(table, &batch.rows);
    for (int32_t part = 0; part < 2; part++) CHECK_INT(fl_table_fill(&batch, part, NULL), FL_OK);
    CHECK_INT(gather_part(table, &batch.rows, 9, 0, 1, expected, NULL), FL_OK);
    CHECK(memcmp(filled, expected, sizeof filled) == 0);
    CHECK_INT(gather_part(table, &batch.rows, 8, 0, 1, expected, NULL), FL_OK);
    CHECK(memcmp(filled, expected, sizeof filled) != 0);
    fl_layout_close(&batch.layout);
    fl_table_close(table);
    close_fixture(&fix);
}

/* Results of casts lie after the filled bytes, and the caller gives the strides of a result. */
static void test_a_layout_says_what_is_cast(void)
{
    fixture fix;
    fl_table *table;
    open_fixture(&fix, FL_CHW);
    fl_image_config bytes = config_of(&fix);
    fl_image_plan *plan;
    bytes.type = FL_IMAGE_U8;
    bytes.tables = NULL;
    CHECK_INT(fl_image_plan_open(&bytes, &plan, NULL), FL_OK);
    fl_column_image_config config = {
        .view = fix.columns[1].view,
        .plan = plan,
        .dtype = {2, 32, 1},
        .shape = {CHANNELS, CROP_HEIGHT, CROP_WIDTH},
        .stride = {1, CROP_WIDTH * CHANNELS, CHANNELS},
        .cast = {.count = OUT, .plane = 1, .channels = 3, .bytes = 4, .tables = fix.tables}};
    fl_column *columns[2];
    CHECK_INT(fl_column_image_open(&config, &columns[0], NULL), FL_OK);
    CHECK_INT(open_column(&fix.columns[0], &columns[1], NULL), FL_OK);
    CHECK_INT(fl_table_open(columns, 2, &table, NULL), FL_OK);
    fl_rows rows = {.is_range = true, .count = 5};
    fl_layout layout = layout_of(table, &rows);
    const fl_output *images = &layout.outputs[0], *labels = &layout.outputs[1];
    const int64_t stride[] = {OUT, 1, CROP_WIDTH * CHANNELS, CHANNELS};
    CHECK(images->is_cast && !images->is_contiguous && !labels->is_cast && labels->is_contiguous);
    CHECK(memcmp(images->stride, stride, sizeof stride) == 0 && images->shape[0] == 5);
    CHECK_INT(images->bytes, 5 * OUT);
    CHECK_INT(labels->offset, (5 * OUT + 63) / 64 * 64);
    CHECK_INT(layout.bytes, labels->offset + 64);
    CHECK_INT(fl_output_at(images), layout.bytes);
    CHECK_INT(fl_output_at(labels), labels->offset);
    CHECK(images->cast.from == 0 && images->cast.to == layout.bytes);
    CHECK(images->cast.count == 5 * OUT && images->cast.tables == fix.tables);
    CHECK_INT(layout.delivered_bytes, layout.bytes + (5 * OUT * 4 + 63) / 64 * 64);
    rows.count = INT64_MAX / OUT - 1; /* fits as bytes, not as elements */
    CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_EINVAL);
    fl_layout_close(&layout);
    fl_table_close(table);
    fl_image_plan_close(plan);
    close_fixture(&fix);
}

static int open_made_there(void *arg)
{
    fixture *fix = arg;
    fl_column *column = NULL;
    fl_column_image_config config = {.view = fix->columns[1].view,
                                     .plan = fix->plan,
                                     .dtype = {2, 32, 1},
                                     .row_ops = &fl_cpu_row_ops,
                                     .cast = {.kind = FL_CAST_IMAGES,
                                              .count = OUT,
                                              .plane = CROP_HEIGHT * CROP_WIDTH,
                                              .channels = CHANNELS,
                                              .bytes = 4}};
    FL_TRY(fl_column_image_open(&config, &column, NULL));
    CHECK_INT(column->outputs, 1);
    fl_column_close(fix->sent);
    fix->sent = column;
    return FL_OK;
}

/* Images, their rows, operations and values are filled; the destination draws, and makes the batch
 * from them. */
static void test_a_layout_of_images_that_are_made_there(void)
{
    enum { MAP = (CROP_HEIGHT + CROP_WIDTH) * 4, VALUES = CHANNELS * (256 + 2) * 4 };
    enum { OPS = 2 * sizeof(fl_image_op), ROW = 8 };
    fixture fix = {0};
    fl_table *table;
    open_fixture(&fix, FL_CHW);
    CHECK_INT(refuse_each(open_made_there, &fix), 2);
    CHECK_INT(fl_table_open(&fix.sent, 1, &table, NULL), FL_OK);
    fl_rows rows = {.is_range = true, .count = 5};
    fl_layout layout = layout_of(table, &rows);
    const fl_output *output = &layout.outputs[0];
    const fl_transfer_cast *cast = &output->cast;
    CHECK(output->is_cast && output->shape[0] == 5);
    CHECK_INT(cast->maps, (5 * IMAGE + 15) / 16 * 16);
    CHECK_INT(cast->values, (cast->maps + 5 * ROW + 15) / 16 * 16);
    CHECK_INT(output->bytes, cast->values + OPS + VALUES);
    CHECK(cast->draws->count == 2 && cast->epoch == 0 && !cast->has_views);
    CHECK_INT(cast->drawn_bytes, 5 * MAP);
    CHECK_INT(cast->drawn, cast->to + (5 * OUT * 4 + 63) / 64 * 64);
    CHECK_INT(layout.delivered_bytes, cast->drawn + (5 * MAP + 63) / 64 * 64);
    CHECK(cast->count == 5 * OUT && cast->image_count == 5 && cast->to == layout.bytes);
    CHECK(cast->images->height == CROP_HEIGHT && !cast->images->resizes);
    CHECK_INT(cast->images->map_numbers * 4, MAP);
    const int64_t too_many[] = {INT64_MAX / IMAGE + 1, INT64_MAX / (IMAGE + ROW) + 1,
                                INT64_MAX / (IMAGE + ROW)};
    for (int i = 0; i < 3; i++) {
        rows.count = too_many[i];
        CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_EINVAL);
    }
    fl_layout_close(&layout);
    fl_table_close(table);
    close_fixture(&fix);
}

/* ---- what does not go together */

static void check_refused(const column_spec *columns)
{
    fl_table *table;
    fl_err err = {0};
    CHECK_INT(open_specs(columns, 2, &table, &err), FL_EINVAL);
    CHECK(table == NULL && strstr(err.text, "field 1 must hold the images of its plan") != NULL);
}

static void test_images_that_are_not_the_plans(void)
{
    fixture fix;
    open_fixture(&fix, FL_CHW);
    column_spec changed[2] = {fix.columns[0], fix.columns[1]};
    changed[1].view.dtype = (fl_dtype){0, 8, 1};
    check_refused(changed);
    changed[1] = fix.columns[1];
    changed[1].view.ndim = 3;
    check_refused(changed);
    for (int d = 1; d < 4; d++) {
        changed[1] = fix.columns[1];
        changed[1].view.shape[d]--;
        check_refused(changed);
        changed[1].view.shape[d] = 0;
        check_refused(changed);
    }
    changed[1] = fix.columns[1];
    changed[1].layout = FL_HWC;
    check_refused(changed);
    close_fixture(&fix);
}

static void test_work_counts_what_plans_read(void)
{
    fixture fix;
    fl_table *table;
    open_fixture(&fix, FL_CHW);
    CHECK_INT(open_specs(fix.columns, 2, &table, NULL), FL_OK);
    int64_t row_work = 8 + IMAGE + OUT * 4, small = FL_LAYOUT_SMALL_BYTES / row_work;
    fl_rows rows = {.is_range = true, .count = small};
    fl_layout layout = layout_of(table, &rows);
    CHECK_INT(layout.work_bytes, small * row_work);
    CHECK_INT(layout.parts, 1);
    rows.count++;
    CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_OK);
    CHECK(layout.parts > 1);
    rows.count = INT64_MAX / 8;
    CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_EINVAL);
    fl_layout_close(&layout);
    fl_table_close(table);
    close_fixture(&fix);
}

/* ---- mapped files */

static void test_images_of_a_mapped_file(void)
{
    for (int layout = 0; layout < FL_IMAGE_LAYOUTS; layout++) {
        fixture fix;
        fl_table *table;
        open_fixture(&fix, (fl_image_layout)layout);
        mapped_file file = map_file(fix.images, ROWS * IMAGE, MAP_SHARED);
        set_images(&fix, file.data, (fl_image_layout)layout);
        fix.columns[1].is_volatile = true;
        CHECK_INT(open_specs(fix.columns, 2, &table, NULL), FL_OK);
        check_table(&fix, table);
        fl_table_close(table);
        unmap_file(&file);
        close_fixture(&fix);
    }
}

static void test_a_cut_file_names_field_and_row(void)
{
    fixture fix;
    fl_table *table;
    fl_err err = {0};
    open_fixture(&fix, FL_HWC);
    mapped_file file = map_file(fix.images, ROWS * IMAGE, MAP_SHARED);
    CHECK(ROWS * IMAGE > PAGE && ftruncate(file.fd, PAGE) == 0);
    set_images(&fix, file.data, FL_HWC);
    fix.columns[1].is_volatile = true;
    CHECK_INT(open_specs(fix.columns, 2, &table, NULL), FL_OK);
    const int64_t indices[] = {0, PAGE / IMAGE - 1, PAGE / IMAGE, ROWS - 1};
    fl_rows rows = {0};
    CHECK_INT(fl_rows_add(&rows, indices, 4, NULL), FL_OK);
    char block[8192];
    CHECK_INT(gather_part(table, &rows, 0, 0, 2, block, &err), FL_OK);
    CHECK_INT(gather_part(table, &rows, 0, 1, 2, block, &err), FL_ESOURCE);
    CHECK(err.code == FL_ESOURCE && err.field == 1 && err.value == PAGE / IMAGE);
    CHECK_INT(gather_part(table, &rows, 0, 1, 2, block, NULL), FL_ESOURCE);
    CHECK_INT(fl_table_row_beyond(table, 1, 0, &rows, file.data + PAGE), PAGE / IMAGE);
    fl_rows_close(&rows);
    fl_table_close(table);
    unmap_file(&file);
    close_fixture(&fix);
}

/* ---- refused resources */

typedef struct attempt {
    const fixture *fix;
    fl_err err;
} attempt;

static int open_and_gather(void *arg)
{
    attempt *a = arg;
    fl_rows rows = {.is_range = true, .count = 5, .first = 3};
    fl_table *table;
    fl_layout layout = {0};
    char block[8192];
    a->err = (fl_err){0};
    FL_TRY(open_specs(a->fix->columns, 2, &table, &a->err));
    int status = fl_table_layout(table, &rows, 0, &layout, &a->err);
    bool is_laid_out = status == FL_OK;
    if (is_laid_out) status = fl_table_gather(table, &rows, 0, &layout, 0, 1, block, &a->err);
    if (is_laid_out && status != FL_OK) CHECK(strstr(a->err.text, "field 1, row ") == a->err.text);
    if (status != FL_OK) CHECK_INT(gather_part(table, &rows, 0, 0, 1, block, NULL), FL_OK);
    fl_layout_close(&layout);
    fl_table_close(table);
    return status;
}

/* Makes a new plan each time, because a used plan has all the memory that it needs. */
static int with_new_plan(void *arg)
{
    fixture *fix = arg;
    fl_image_config config = config_of(fix);
    fl_image_plan *plan;
    FL_TRY(fl_image_plan_open(&config, &plan, NULL));
    fix->columns[1].plan = plan;
    attempt a = {.fix = fix};
    int status = open_and_gather(&a);
    fl_image_plan_close(plan);
    return status;
}

static void test_every_refused_resource(void)
{
    for (int is_volatile = 0; is_volatile < 2; is_volatile++) {
        fixture fix;
        open_fixture(&fix, FL_HWC);
        fix.columns[1].is_volatile = is_volatile == 1;
        CHECK(refuse_each(with_new_plan, &fix) >= 7);
        close_fixture(&fix);
    }
}

static void test_a_used_table_asks_for_nothing(void)
{
    /* Volatile memory is read through a memfd if the kernel has no process_vm_readv. */
    int kinds = strcmp(fl_safe_read_method(), "process_vm") == 0 ? 2 : 1;
    for (int is_volatile = 0; is_volatile < kinds; is_volatile++) {
        fixture fix;
        fl_table *table;
        char block[8192];
        fl_rows rows = {.is_range = true, .count = 5, .first = 3};
        open_fixture(&fix, FL_HWC);
        fix.columns[1].is_volatile = is_volatile == 1;
        CHECK_INT(open_specs(fix.columns, 2, &table, NULL), FL_OK);
        fl_layout layout = layout_of(table, &rows);
        CHECK_INT(fl_table_gather(table, &rows, 0, &layout, 0, 1, block, NULL), FL_OK);
        fl_fault_arm(1);
        for (uint32_t epoch = 0; epoch < 50; epoch++) {
            CHECK_INT(fl_table_layout(table, &rows, epoch, &layout, NULL), FL_OK);
            CHECK_INT(fl_table_gather(table, &rows, epoch, &layout, 0, 1, block, NULL), FL_OK);
        }
        CHECK_INT(fl_fault_asked(), 0);
        fl_fault_arm(0);
        fl_layout_close(&layout);
        fl_table_close(table);
        close_fixture(&fix);
    }
}

/* ---- threads, forks */

typedef struct crowd {
    const fixture *fix;
    const fl_table *table;
    _Atomic int32_t next_epoch;
} crowd;

static void *gather_epochs(void *arg)
{
    crowd *c = arg;
    fl_rows range = {.is_range = true, .first = 0, .count = ROWS};
    int32_t epoch;
    while ((epoch = atomic_fetch_add(&c->next_epoch, 1)) < 60)
        check_batch(c->fix, c->table, &range, (uint32_t)epoch, 3);
    return NULL;
}

static void test_threads_share_a_table(void)
{
    for (int is_volatile = 0; is_volatile < 2; is_volatile++) {
        fixture fix;
        fl_table *table;
        open_fixture(&fix, FL_CHW);
        fix.columns[1].is_volatile = is_volatile == 1;
        CHECK_INT(open_specs(fix.columns, 2, &table, NULL), FL_OK);
        crowd c = {.fix = &fix, .table = table};
        pthread_t threads[4];
        for (int t = 0; t < 4; t++)
            CHECK(pthread_create(&threads[t], NULL, gather_epochs, &c) == 0);
        for (int t = 0; t < 4; t++) CHECK(pthread_join(threads[t], NULL) == 0);
        fl_table_close(table);
        close_fixture(&fix);
    }
}

static int gather_in_child(void *arg)
{
    crowd *c = arg;
    gather_epochs(c);
    return 7;
}

static void test_a_forked_child_gathers_too(void)
{
    fixture fix;
    fl_table *table;
    open_fixture(&fix, FL_CHW);
    fix.columns[1].is_volatile = true;
    CHECK_INT(open_specs(fix.columns, 2, &table, NULL), FL_OK);
    check_table(&fix, table);
    crowd c = {.fix = &fix, .table = table};
    CHECK_INT(run_child(gather_in_child, &c), 7);
    fl_table_close(table);
    close_fixture(&fix);
}

int main(void)
{
    start_tests();
    RUN(test_rows_are_what_their_plan_makes_of_them);
    RUN(test_strides_of_any_sign);
    RUN(test_a_batch_is_filled_in_its_epoch);
    RUN(test_a_layout_says_what_is_cast);
    RUN(test_a_layout_of_images_that_are_made_there);
    RUN(test_images_that_are_not_the_plans);
    RUN(test_work_counts_what_plans_read);
    RUN(test_images_of_a_mapped_file);
    RUN(test_a_cut_file_names_field_and_row);
    RUN(test_every_refused_resource);
    RUN(test_a_used_table_asks_for_nothing);
    RUN(test_threads_share_a_table);
    RUN(test_a_forked_child_gathers_too);
    return 0;
}
