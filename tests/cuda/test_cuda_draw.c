/* Random parameters that are drawn on the device: the maps of random plans, written by the kernel
 * compiled as C++, against fl_image_plan_map. */
#include "cuda_fixture.h"
#include "device_plan_fixture.h"

enum {
    PLANS = (IS_SANITIZED ? 40 : 300) / ONE_IN,
    MOST_IMAGES = 5,
    MOST_PLANS = 9,
    MANY = 200 / ONE_IN
};

static uint32_t random_epoch(uint64_t *seed)
{
    const uint32_t epochs[] = {0, 1, UINT32_MAX, (uint32_t)next_random(seed)};
    return epochs[random_below(seed, 4)];
}

/* Returns an index below 2^62, of any length. */
static int64_t random_row(uint64_t *seed)
{
    return (int64_t)(next_random(seed) >> (2 + random_below(seed, 62)));
}

/* Writes the maps as the CPU does; views: NULL: 0. */
static void write_expected(const fl_image_plan *plan, uint32_t epoch, const int64_t *rows,
                           const uint8_t *views, int64_t count, int32_t *maps)
{
    const fl_image_size in = fl_image_plan_in(plan);
    for (int64_t i = 0; i < count; i++, maps += fl_image_plan_map_length(plan)) {
        fl_image_params params[FL_MAX_IMAGE_OPS];
        const uint8_t view = views != NULL ? views[i] : 0;
        const fl_sample_key key = {fl_image_plan_seed(plan), rows[i], epoch, view};
        CHECK_INT(fl_image_plan_draw(plan, &key, in, params, NULL), FL_OK);
        fl_image_plan_map(plan, params, maps);
    }
}

static void check_maps(uint64_t *seed, const fl_image_plan *plan, int64_t images)
{
    const int64_t length = fl_image_plan_map_length(plan);
    const int64_t bytes = length * images * (int64_t)sizeof(int32_t);
    char *ops = allocate(fl_image_plan_ops_bytes(plan));
    int32_t *maps = (int32_t *)(void *)allocate(bytes);
    int32_t *expected = (int32_t *)(void *)allocate(bytes);
    int64_t *rows = (int64_t *)(void *)allocate(images * (int64_t)sizeof *rows);
    fl_map_batch batch;
    fl_image_plan_describe_maps(plan, &batch);
    fl_image_plan_write_ops(plan, ops);
    batch.ops = (fl_image_op *)(void *)ops;
    batch.epoch = random_epoch(seed);
    batch.maps = maps;
    batch.rows = rows;
    batch.images = images;
    uint8_t *views = (uint8_t *)allocate(images);
    fill_random(seed, (char *)views, images);
    batch.views = images % 2 == 1 ? views : NULL;
    for (int64_t i = 0; i < images; i++) rows[i] = i == 0 ? INT64_C(1) << 62 : random_row(seed);
    write_expected(plan, batch.epoch, rows, batch.views, images, expected);
    const int64_t before = fake_launches();
    const fl_gather gather = {.maps = &batch, .map_count = 1, .most_blocks = INT32_MAX};
    CHECK_INT(fl_cuda_gather(0, NULL, &gather, NULL), FL_OK);
    CHECK_INT(fake_launches() - before, images == 0 ? 0 : 1);
    fake_synchronize(NULL);
    CHECK(memcmp(maps, expected, (size_t)bytes) == 0);
    void *owned[] = {ops, maps, expected, rows, views};
    for (int i = 0; i < 5; i++) free(owned[i]);
}

/* Finds the lines of the image that a map reads, as the kernel of images reads it. */
static void find_span(const fl_image_plan *plan, const int32_t *map, int32_t *span)
{
    const fl_image_map *parts = fl_image_plan_get_map(plan);
    const int32_t height = fl_image_plan_out(plan).height, *run = map + parts->runs_at;
    const bool resizes = parts->resize < fl_image_plan_count(plan);
    span[0] = INT32_MAX, span[1] = 0;
    for (int32_t i = 0; i < (resizes ? run[0] : height); i++) {
        const int32_t line = resizes ? run[1] + i * run[2] : map[i];
        if (line < 0) continue;
        span[0] = (int32_t)fl_min(span[0], line);
        span[1] = (int32_t)fl_max(span[1], line + 1);
    }
}

/* Compares maps, which may have spans, with maps that have none. */
static void
compare_maps(const fl_image_plan *plan, const fl_map_batch *made, const int32_t *expected)
{
    const int64_t length = fl_image_plan_map_length(plan);
    const int32_t *map = made->maps;
    for (int64_t i = 0; i < made->images; i++, map += made->parts.numbers, expected += length) {
        int32_t span[2];
        CHECK(memcmp(map, expected, (size_t)length * sizeof *map) == 0);
        find_span(plan, expected, span);
        CHECK(!made->has_spans || memcmp(map + length, span, sizeof span) == 0);
    }
}

/* The maps of several plans, and a column of 8 bytes a row, in one kernel; the rows come in its
 * argument, which a second kernel continues. */
static void check_many_maps(uint64_t *seed, int32_t plans, int64_t rows)
{
    fl_image_plan *plan[MOST_PLANS];
    fl_map_batch maps[MOST_PLANS];
    int32_t *expected[MOST_PLANS];
    char *ops[MOST_PLANS];
    int64_t here[FL_GATHER_OWN_ROWS], kept[FL_GATHER_OWN_ROWS], copied[FL_GATHER_OWN_ROWS];
    int64_t values[100];
    fill_random(seed, (char *)values, sizeof values);
    for (int64_t i = 0; i < rows; i++) here[i] = random_below(seed, 100);
    for (int32_t n = 0; n < plans; n++) {
        plan_case p;
        plan[n] = open_moving(seed, &p, 20, n % 4);
        ops[n] = allocate(fl_image_plan_ops_bytes(plan[n]));
        fl_image_plan_describe_maps(plan[n], &maps[n]);
        fl_image_plan_write_ops(plan[n], ops[n]);
        maps[n].has_spans = n % 3 == 1;
        maps[n].parts.numbers += maps[n].has_spans ? 2 : 0;
        const int64_t bytes = maps[n].parts.numbers * rows * (int64_t)sizeof(int32_t);
        maps[n].ops = (fl_image_op *)(void *)ops[n];
        maps[n].epoch = random_epoch(seed);
        maps[n].maps = (int32_t *)(void *)allocate(bytes);
        maps[n].images = rows;
        expected[n] = (int32_t *)(void *)allocate(bytes); /* without spans */
        write_expected(plan[n], maps[n].epoch, here, NULL, rows, expected[n]);
    }
    const fl_row_column column = {.from = (char *)values,
                                  .end = (char *)(values + 100),
                                  .to = (char *)copied,
                                  .bytes = 8,
                                  .pitch = 8};
    const fl_gather gather = {.columns = &column,
                              .column_count = 1,
                              .maps = maps,
                              .map_count = plans,
                              .here = here,
                              .kept = kept,
                              .row_count = rows,
                              .most_blocks = 3};
    const int64_t before = fake_launches();
    CHECK_INT(fl_cuda_gather(0, NULL, &gather, NULL), FL_OK);
    CHECK_INT(fake_launches() - before, (plans - 1) / 4 + 1);
    fake_synchronize(NULL);
    CHECK(memcmp(kept, here, (size_t)rows * sizeof *kept) == 0);
    for (int64_t i = 0; i < rows; i++) CHECK(copied[i] == values[here[i]]);
    for (int32_t n = 0; n < plans; n++) {
        compare_maps(plan[n], &maps[n], expected[n]);
        free(ops[n]);
        free(maps[n].maps);
        free(expected[n]);
        fl_image_plan_close(plan[n]);
    }
}

static void check_spans(uint64_t *seed, const fl_image_plan *plan, int64_t images)
{
    const int64_t length = fl_image_plan_map_length(plan), step = length + 2;
    char *ops = allocate(fl_image_plan_ops_bytes(plan));
    int32_t *maps = (int32_t *)(void *)allocate(step * images * (int64_t)sizeof *maps);
    int32_t *expected = (int32_t *)(void *)allocate(length * images * (int64_t)sizeof *maps);
    int64_t rows[MOST_IMAGES];
    for (int64_t i = 0; i < images; i++) rows[i] = random_row(seed);
    fl_map_batch batch;
    fl_image_plan_describe_maps(plan, &batch);
    fl_image_plan_write_ops(plan, ops);
    batch.ops = (fl_image_op *)(void *)ops;
    batch.maps = maps;
    batch.rows = rows;
    batch.images = images;
    batch.has_spans = true;
    batch.parts.numbers = (int32_t)step;
    write_expected(plan, 0, rows, NULL, images, expected);
    const fl_gather gather = {.maps = &batch, .map_count = 1, .most_blocks = 2};
    CHECK_INT(fl_cuda_gather(0, NULL, &gather, NULL), FL_OK);
    fake_synchronize(NULL);
    compare_maps(plan, &batch, expected);
    void *owned[] = {ops, maps, expected};
    for (int i = 0; i < 3; i++) free(owned[i]);
}

static void test_lines_that_maps_read(void)
{
    uint64_t seed = 4;
    for (int n = 0; n < PLANS; n++) {
        plan_case p;
        fl_image_plan *plan = open_moving(&seed, &p, n % 7 == 0 ? 300 : 20, n % 4);
        check_spans(&seed, plan, MOST_IMAGES);
        fl_image_plan_close(plan);
    }
}

static void test_maps_and_rows_in_one_kernel(void)
{
    uint64_t seed = 8;
    for (int32_t plans = 1; plans <= MOST_PLANS; plans++) check_many_maps(&seed, plans, 7);
    check_many_maps(&seed, 1, FL_GATHER_OWN_ROWS);
}

static void test_maps_are_those_of_the_cpu(void)
{
    uint64_t seed = 1;
    for (int n = 0; n < 4 * PLANS; n++) {
        plan_case p;
        fl_image_plan *plan = open_moving(&seed, &p, n % 7 == 0 ? 150 : 20, n % 4);
        check_maps(&seed, plan, n % (MOST_IMAGES + 1));
        fl_image_plan_close(plan);
    }
}

/* Checks the maps of many images. An operation of kind FL_OP_KINDS ends the array. */
static void check_ops(const fl_image_op *ops, fl_image_size in)
{
    uint64_t seed = 5;
    plan_case p = {.config = {.channels = 3, .in = in, .seed = 9, .ops = p.ops}};
    p.config.image_ops = &fl_cpu_image_plain;
    while (ops[p.config.count].kind != FL_OP_KINDS) {
        p.ops[p.config.count] = ops[p.config.count];
        p.config.count++;
    }
    set_occurrences(&p);
    fl_image_plan *plan;
    CHECK_INT(fl_image_plan_open(&p.config, &plan, NULL), FL_OK);
    CHECK(fl_image_plan_map_length(plan) > 0);
    check_maps(&seed, plan, MANY);
    fl_image_plan_close(plan);
}

static void test_gates_that_hold_gates(void)
{
    const fl_image_op end = {.kind = FL_OP_KINDS}, invert = {.kind = FL_OP_INVERT, .p = 0.7};
    const fl_image_op jitter = {.kind = FL_OP_COLOR_JITTER,
                                .jitter = {{0, 2}, {0, 2}, {NAN, NAN}, {-0.1, 0.1}}};
    const fl_image_op distort = {.kind = FL_OP_PHOTOMETRIC_DISTORT,
                                 .p = 0.5,
                                 .jitter = {{0, 2}, {0, 2}, {0, 2}, {-0.1, 0.1}}};
    const fl_image_op flip = {.kind = FL_OP_HORIZONTAL_FLIP, .p = 0.5};
    const fl_image_op posterize = {.kind = FL_OP_POSTERIZE, .p = 1, .tone = 3};
    const fl_image_op apply = {.kind = FL_OP_APPLY, .p = 0.5};
#define HOLDING(op, held) ((fl_image_op){.kind = (op), .span = (held), .p = 0.5, .branch_end = 0.4})
    const fl_image_op branch = HOLDING(FL_OP_BRANCH, 1);
    const fl_image_op both = {.kind = FL_OP_APPLY, .span = 2, .p = 0.6};
    fl_image_op one = apply;
    one.span = 1;
    const fl_image_op nested[] = {HOLDING(FL_OP_ORDER, 12),
                                  HOLDING(FL_OP_BRANCH, 2),
                                  one,
                                  jitter,
                                  HOLDING(FL_OP_BRANCH, 5),
                                  HOLDING(FL_OP_ORDER, 4),
                                  branch,
                                  invert,
                                  branch,
                                  distort,
                                  HOLDING(FL_OP_BRANCH, 2),
                                  posterize,
                                  flip,
                                  flip,
                                  end};
    check_ops(nested, (fl_image_size){20, 30});
    const fl_image_op choices[] = {both,
                                   one,
                                   invert,
                                   jitter,
                                   HOLDING(FL_OP_CHOICE, 9),
                                   HOLDING(FL_OP_BRANCH, 2),
                                   one,
                                   posterize,
                                   HOLDING(FL_OP_BRANCH, 5),
                                   HOLDING(FL_OP_CHOICE, 4),
                                   branch,
                                   distort,
                                   branch,
                                   flip,
                                   end};
    check_ops(choices, (fl_image_size){20, 30});
#undef HOLDING
}

static void test_a_plan_without_operations(void)
{
    check_ops(&(fl_image_op){.kind = FL_OP_KINDS}, (fl_image_size){3, 99});
}

/* Areas whose tries fail, often or always, so that the middle is cropped or nothing erased. */
static void test_areas_that_do_not_fit(void)
{
    const fl_image_op end = {.kind = FL_OP_KINDS};
    const double scales[][2] = {{0.02, 0.4}, {0.9, 1}, {2, 3}, {1e-6, 1e-5}};
    const double ratios[][2] = {{0.3, 3.3}, {1, 1}, {1e-3, 2e-3}, {500, 1000}};
    for (int n = 0; n < 16; n++) {
        fl_image_op crop = {.kind = FL_OP_RANDOM_RESIZED_CROP, .size = {9, 7}};
        fl_image_op erase = {.kind = FL_OP_ERASE, .p = 0.9};
        memcpy(crop.scale, scales[n / 4], sizeof crop.scale);
        memcpy(crop.ratio, ratios[n % 4], sizeof crop.ratio);
        memcpy(erase.scale, scales[n / 4], sizeof erase.scale);
        memcpy(erase.ratio, ratios[n % 4], sizeof erase.ratio);
        check_ops((fl_image_op[]){crop, end}, (fl_image_size){33, 47});
        if (erase.scale[1] <= 1)
            check_ops((fl_image_op[]){erase, erase, end}, (fl_image_size){33, 47});
    }
}

static void test_a_launch_that_fails(void)
{
    fl_err err;
    const int64_t row = 0;
    fl_map_batch batch = {.rows = &row, .images = 1};
    const fl_gather gather = {.maps = &batch, .map_count = 1, .most_blocks = INT32_MAX};
    fake_fail_at(1, cudaErrorLaunchFailure, false);
    CHECK_INT(fl_cuda_gather(0, NULL, &gather, &err), FL_EDEVICE);
    fake_fail_at(0, cudaSuccess, false);
    CHECK(strstr(err.text, "cudaErrorLaunchFailure") != NULL);
    batch.images = INT64_C(1) << 31;
    CHECK_INT(fl_cuda_gather(0, NULL, &gather, &err), FL_EDEVICE);
    CHECK(strstr(err.text, "cudaErrorInvalidValue") != NULL);
    CHECK_INT(cudaGetLastError(), cudaSuccess);
}

int main(void)
{
    start_tests();
    choose_device_0();
    CHECK_INT(fl_cuda_load_kernels(NULL), FL_OK);
    RUN(test_maps_are_those_of_the_cpu);
    RUN(test_maps_and_rows_in_one_kernel);
    RUN(test_lines_that_maps_read);
    RUN(test_gates_that_hold_gates);
    RUN(test_a_plan_without_operations);
    RUN(test_areas_that_do_not_fit);
    RUN(test_a_launch_that_fails);
    return 0;
}
