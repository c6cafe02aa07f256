/* Images that are made on the device: random plans of operations that move pixels and change
 * colours, the kernels compiled as C++, against what the same plans make of single images on the
 * CPU. Of data that lie there, and of a batch that was sent with its maps. */
#include "table_fixture.h" /* before a fixture whose type `shape` its arguments would shadow */

#include "cuda_fixture.h"
#include "device_plan_fixture.h"

#include "fl_cuda_images.h"

enum { PLANS = (IS_SANITIZED ? 40 : 300) / ONE_IN, FEW_IMAGES = 5, MOST_IMAGES = 45 };

static fl_tensor view_of(const plan_case *p, const char *from, int64_t images, bool is_joined)
{
    const int64_t h = p->config.in.height, w = p->config.in.width, c = p->config.channels;
    fl_tensor view = {.data = from, .dtype = {1, 8, 1}, .ndim = 4, .shape = {images, c, h, w}};
    if (is_joined) memcpy(view.shape, (int64_t[]){images, h, w, c}, 4 * sizeof c);
    fl_tensor_strides(4, view.shape, view.stride);
    return view;
}

static fl_column *
open_sent(const plan_case *p, const fl_image_plan *plan, fl_tensor view, bool is_joined)
{
    const int64_t bytes = fl_image_type_bytes(p->config.type), channels = p->config.channels;
    const int64_t count = fl_image_plan_out_bytes(plan) / bytes;
    const bool is_hwc = p->config.layout == FL_HWC;
    fl_column *column;
    fl_column_image_config config = {.view = view,
                                     .layout = is_joined ? FL_HWC : FL_CHW,
                                     .is_volatile = view.shape[0] % 2 == 1,
                                     .plan = plan,
                                     .row_ops = &fl_cpu_row_ops,
                                     .cast = {.kind = FL_CAST_IMAGES,
                                              .count = count,
                                              .plane = is_hwc ? 1 : count / channels,
                                              .channels = (int32_t)channels,
                                              .bytes = (int32_t)bytes}};
    CHECK_INT(fl_column_image_open(&config, &column, NULL), FL_OK);
    return column;
}

/* Draws the maps of a batch that was sent without them, and sets what follows from it; owned. */
static int32_t *draw_sent(const fl_transfer_cast *cast, const char *slot, fl_image_batch *batch)
{
    if (cast->draws == NULL) return NULL;
    fl_map_batch maps = *cast->draws;
    maps.ops = (const fl_image_op *)(const void *)(slot + cast->values);
    maps.epoch = cast->epoch;
    maps.rows = (const int64_t *)(const void *)(slot + cast->maps);
    maps.images = cast->image_count;
    if (cast->has_views) maps.views = (const uint8_t *)(maps.rows + maps.images);
    maps.maps = (int32_t *)(void *)allocate(cast->drawn_bytes);
    const fl_gather gather = {.maps = &maps, .map_count = 1, .most_blocks = INT32_MAX};
    CHECK_INT(fl_cuda_gather(0, NULL, &gather, NULL), FL_OK);
    batch->maps = maps.maps;
    fl_image_batch_set_tables(batch, batch->table + maps.count * (int64_t)sizeof *maps.ops);
    return maps.maps;
}

/* Checks the same batch from a table that fills two parts, copied to the kernel's memory. views:
 * NULL: all 0. most: bytes that it may have. Returns true if the maps did not travel. */
static bool check_sent(fl_column *column, const int64_t *rows, const uint8_t *views, int64_t count,
                       const char *expected, int64_t most)
{
    fl_table *table;
    fl_rows list = {0};
    CHECK_INT(fl_table_open(&column, 1, &table, NULL), FL_OK);
    if (views != NULL)
        CHECK_INT(fl_rows_add_views(&list, rows, views, count, NULL), FL_OK);
    else
        CHECK_INT(fl_rows_add(&list, rows, count, NULL), FL_OK);
    fl_layout layout = {0};
    CHECK_INT(fl_table_layout(table, &list, 3, &layout, NULL), FL_OK);
    const fl_transfer_cast *cast = &layout.outputs->cast;
    CHECK(layout.outputs->bytes <= most);
    char *slot = allocate(layout.outputs->bytes);
    for (int32_t part = 1; part >= 0; part--)
        CHECK_INT(fl_table_gather(table, &list, 3, &layout, part, 2, slot, NULL), FL_OK);
    char *to = allocate(cast->count * cast->bytes);
    fl_image_batch batch = *cast->images;
    batch.from = (uint8_t *)slot;
    batch.to = to;
    batch.maps = (int32_t *)(void *)(slot + cast->maps);
    batch.table = slot + cast->values;
    int32_t *drawn = draw_sent(cast, slot, &batch);
    CHECK_INT(fl_cuda_queue_images(NULL, &batch, NULL, cast->image_count), cudaSuccess);
    fake_synchronize(NULL);
    CHECK(memcmp(to, expected, (size_t)(cast->count * cast->bytes)) == 0);
    free(slot);
    free(to);
    free(drawn);
    fl_layout_close(&layout);
    fl_rows_close(&list);
    fl_table_close(table);
    return drawn != NULL;
}

/* Any bytes, or few that are not the same. */
static void fill_images(uint64_t *seed, char *from, int64_t bytes, bool is_even)
{
    fill_random(seed, from, bytes);
    for (int64_t i = 0; is_even && i < bytes; i++) from[i] = (char)(126 + (from[i] == 0));
}

static int64_t map_bytes(const fl_image_plan *plan)
{
    return (fl_image_plan_map_length(plan) + fl_image_plan_own_taps(plan)) * 4;
}

/* Returns the bytes of maps and values, which a resized batch may not exceed, with two gaps. */
static int64_t most_sent(const fl_image_plan *plan, int32_t images)
{
    const int64_t ops = fl_image_plan_taps_bytes(plan) > 0 ? 0 : fl_image_plan_all_bytes(plan);
    return images * map_bytes(plan) + fl_image_plan_values_bytes(plan) + 2 * 15 + ops;
}

/* The destination draws if the taps of all lengths are short, beside the maps too. */
static bool may_draw(const fl_image_plan *plan, int32_t images)
{
    const int64_t taps = fl_image_plan_taps_bytes(plan), ops = fl_image_plan_ops_bytes(plan);
    return taps == 0 || (taps <= 512 << 10 && images * (map_bytes(plan) - 9) > ops + taps);
}

/* A batch of some of the images, in memory as `is_joined` says. */
static void check_batch(uint64_t *seed, const plan_case *p, const fl_image_plan *plan,
                        int32_t images, bool is_joined, bool is_even)
{
    const fl_image_size in = p->config.in, out = fl_image_plan_out(plan);
    const int64_t channels = p->config.channels, bytes = fl_image_type_bytes(p->config.type);
    const int64_t each = in.height * in.width * channels, made = fl_image_plan_out_bytes(plan);
    const int64_t length = fl_image_plan_map_length(plan);
    const int64_t values = fl_image_plan_values_bytes(plan);
    char *from = allocate(each * images), *to = allocate(made * images);
    char *expected = allocate(made * images);
    char *table = allocate(values + fl_image_plan_taps_bytes(plan));
    int32_t *maps = (int32_t *)allocate(length * images * (int64_t)sizeof *maps);
    int64_t rows[MOST_IMAGES];
    uint8_t views[MOST_IMAGES];
    fill_images(seed, from, each * images, is_even);
    fl_image_plan_write_values(plan, table);
    CHECK_INT(fl_image_plan_write_taps(plan, (int32_t *)(void *)(table + values), NULL), FL_OK);
    fl_image_source source = {.size = in, .stride_y = in.width, .stride_x = 1};
    source.stride_c = (int64_t)in.height * in.width;
    if (is_joined) {
        source.stride_y *= channels;
        source.stride_x = channels;
        source.stride_c = 1;
    }
    for (int32_t i = 0; i < images; i++) {
        fl_image_params params[FL_MAX_IMAGE_OPS];
        rows[i] = random_below(seed, images);
        views[i] = images % 2 == 1 ? (uint8_t)next_random(seed) : 0;
        const fl_sample_key key = {p->config.seed, rows[i], 3, views[i]};
        CHECK_INT(fl_image_plan_draw(plan, &key, in, params, NULL), FL_OK);
        fl_image_plan_map(plan, params, maps + i * length);
        source.data = (uint8_t *)from + rows[i] * each;
        CHECK_INT(fl_image_plan_apply(plan, params, &source, expected + i * made, NULL), FL_OK);
    }
    fl_image_batch batch;
    fl_image_plan_describe(plan, &batch);
    batch.from = (uint8_t *)from;
    batch.to = to;
    memcpy(batch.from_steps, (int64_t[]){each, source.stride_c, source.stride_y, source.stride_x},
           4 * sizeof each);
    memcpy(batch.to_steps, (int64_t[]){made / bytes, (int64_t)out.height * out.width, out.width, 1},
           4 * sizeof each);
    batch.maps = maps;
    batch.table = table;
    if (batch.resizes) {
        batch.row_taps = (int32_t *)(void *)(table + values);
        batch.column_taps = batch.row_taps + fl_image_taps_numbers(&batch.rows);
    }
    if (p->config.layout == FL_HWC) {
        batch.to_steps[1] = 1;
        batch.to_steps[2] *= channels;
        batch.to_steps[3] = channels;
    }
    const int64_t before = fake_launches();
    CHECK_INT(fl_cuda_gather_images(0, NULL, &batch, rows, images, NULL), FL_OK);
    CHECK_INT(fake_launches() - before, images == 0 ? 0 : 1);
    fake_synchronize(NULL);
    CHECK(memcmp(to, expected, (size_t)(made * images)) == 0);
    fl_column *sent = open_sent(p, plan, view_of(p, from, fl_max(images, 1), is_joined), is_joined);
    const bool is_drawn = check_sent(sent, rows, images % 2 == 1 ? views : NULL, images, expected,
                                     images * each + most_sent(plan, images));
    CHECK(is_drawn == may_draw(plan, images));
    void *owned[] = {from, to, expected, table, maps};
    for (int i = 0; i < 5; i++) free(owned[i]);
}

static void check_plans(uint64_t seed, int count, int32_t longest, int does)
{
    for (int n = 0; n < count; n++) {
        plan_case p;
        fl_image_plan *plan = open_moving(&seed, &p, longest, does);
        const int32_t few = n % (FEW_IMAGES + 1);
        const int32_t images = few < FEW_IMAGES ? few : MOST_IMAGES - n / (FEW_IMAGES + 1) % 2;
        check_batch(&seed, &p, plan, images, n % 2 == 0, false);
        fl_image_plan_close(plan);
    }
}

static void test_batches_are_what_the_plan_makes_on_the_cpu(void)
{
    check_plans(1, PLANS, 20, 0);
    check_plans(5, PLANS, 20, RESIZES);
    check_plans(8, PLANS, 20, COLORS);
    check_plans(9, PLANS, 20, COLORS | RESIZES);
}

/* Each image has several blocks, and the last block is not full. */
static void test_images_of_several_blocks(void)
{
    check_plans(2, PLANS / 10, 70, 0);
    check_plans(6, PLANS / 10, 70, RESIZES);
    check_plans(10, PLANS / 10, 70, COLORS | RESIZES);
}

/* The taps of all lengths are too long to travel, though no longer than the maps. */
static void test_maps_with_taps_of_their_own(void)
{
    uint64_t seed = 13;
    for (int32_t n = 0; n < 3; n++) {
        plan_case p;
        fl_image_plan *plan;
        random_case(&seed, &p, 0, 1);
        p.config.channels = 1 + n;
        p.config.in = (fl_image_size){44, 40};
        p.config.count = 1;
        p.ops[0] = (fl_image_op){.kind = FL_OP_RANDOM_RESIZED_CROP,
                                 .size = {1000, 4},
                                 .interpolation = FL_BILINEAR,
                                 .scale = {0.1, 1},
                                 .ratio = {0.7, 1.4}};
        make_fills(&seed, &p);
        CHECK_INT(fl_image_plan_open(&p.config, &plan, NULL), FL_OK);
        CHECK(fl_image_plan_taps_bytes(plan) > 512 << 10);
        CHECK(fl_image_plan_all_bytes(plan) < MOST_IMAGES * (map_bytes(plan) - 9));
        check_batch(&seed, &p, plan, MOST_IMAGES, n % 2 == 0, false);
        fl_image_plan_close(plan);
    }
}

/* Runs two operations on images of three heights. */
static void check_ops(uint64_t seed, fl_image_op first, fl_image_op second, int32_t channels,
                      fl_image_size in, bool is_even)
{
    for (int32_t n = 0; n < 3; n++) {
        plan_case p;
        fl_image_plan *plan;
        random_case(&seed, &p, 0, 1);
        p.config.channels = channels;
        p.config.in = (fl_image_size){in.height + n, in.width};
        p.config.count = 2;
        p.ops[0] = first;
        p.ops[1] = second;
        make_fills(&seed, &p);
        CHECK_INT(fl_image_plan_open(&p.config, &plan, NULL), FL_OK);
        check_batch(&seed, &p, plan, FEW_IMAGES, n % 2 == 0, is_even);
        fl_image_plan_close(plan);
    }
}

static void check_colors(fl_image_op op, int32_t channels, fl_image_size in, bool is_even)
{
    const fl_image_op flip = {.kind = FL_OP_HORIZONTAL_FLIP, .p = 0.5};
    check_ops(11, flip, op, channels, in, is_even);
}

/* Pixels that are erased afterwards are counted as they are. */
static void test_erases_follow_colors(void)
{
    const fl_image_op equalize = {.kind = FL_OP_EQUALIZE, .p = 1};
    const fl_image_op erase = {.kind = FL_OP_ERASE, .p = 1, .scale = {0.2, 0.4}, .ratio = {0.5, 2}};
    check_ops(12, equalize, erase, 3, (fl_image_size){40, 50}, false);
}

static void test_the_last_block_of_an_image_changes_its_colors(void)
{
    const fl_image_op jitter = {.kind = FL_OP_COLOR_JITTER,
                                .jitter = {{0.5, 2}, {0.5, 2}, {0, 2}, {-0.5, 0.5}}};
    check_colors(jitter, 3, (fl_image_size){61, 83}, false); /* 3 blocks */
}

/* Images are large enough for the rare roundings. If is_even, float32 cannot count the sums one by
 * one, so a contrast shows the last bit. */
static void check_large(fl_image_op op, int32_t channels, bool is_even)
{
    check_colors(op, channels, (fl_image_size){401, is_even ? 603 : 305}, is_even);
}

static void test_large_images(void)
{
    const double stays = NAN;
    const fl_image_op jitter = {.kind = FL_OP_COLOR_JITTER};
    fl_image_op contrast = jitter, saturation = jitter, hue = jitter;
    for (int k = 0; k < 8; k++) contrast.number[k] = saturation.number[k] = hue.number[k] = stays;
    contrast.jitter[1][0] = 1e4, contrast.jitter[1][1] = 6e4;
    saturation.jitter[2][0] = 0, saturation.jitter[2][1] = 2;
    hue.jitter[3][0] = -0.5, hue.jitter[3][1] = 0.5;
    check_large(contrast, 1, true);
    check_large(saturation, 3, false);
    check_large(hue, 3, false);
    check_large((fl_image_op){.kind = FL_OP_GRAYSCALE, .grey_channels = 3}, 3, false);
    check_large((fl_image_op){.kind = FL_OP_EQUALIZE, .p = 1}, 4, false);
    check_large((fl_image_op){.kind = FL_OP_AUTOCONTRAST, .p = 1}, 1, true);
}

/* A different order of the two operations' steps would give different pixels. */
static void test_colors_in_a_random_order(void)
{
    const fl_image_op branch = {.kind = FL_OP_BRANCH, .span = 1};
    const fl_image_op ops[] = {
        {.kind = FL_OP_ORDER, .span = 10},
        branch,
        {.kind = FL_OP_SOLARIZE, .p = 0.7, .tone = 90},
        {.kind = FL_OP_BRANCH, .span = 5},
        {.kind = FL_OP_ORDER, .span = 4},
        branch,
        {.kind = FL_OP_COLOR_JITTER, .jitter = {{0.2, 2}, {0.2, 2}, {0, 2}, {-0.3, 0.3}}},
        branch,
        {.kind = FL_OP_INVERT, .p = 0.7},
        branch,
        {.kind = FL_OP_POSTERIZE, .p = 1, .tone = 3}};
    uint64_t seed = 12;
    for (int n = 0; n < 20; n++) {
        plan_case p;
        fl_image_plan *plan;
        random_case(&seed, &p, 0, 20);
        p.config.channels = 3;
        p.config.count = sizeof ops / sizeof *ops;
        memcpy(p.ops, ops, sizeof ops);
        set_occurrences(&p);
        CHECK_INT(fl_image_plan_open(&p.config, &plan, NULL), FL_OK);
        check_batch(&seed, &p, plan, FEW_IMAGES, n % 2 == 0, false);
        fl_image_plan_close(plan);
    }
}

static void test_weights_that_find_no_memory(void)
{
    uint64_t seed = 7;
    plan_case p;
    fl_image_plan *plan = open_moving(&seed, &p, 20, RESIZES);
    fl_image_params params[FL_MAX_IMAGE_OPS];
    int32_t *out = (int32_t *)(void *)allocate(fl_image_plan_taps_bytes(plan));
    const int64_t length = fl_image_plan_map_length(plan) + fl_image_plan_own_taps(plan);
    int32_t *map = (int32_t *)(void *)allocate(length * (int64_t)sizeof *map);
    CHECK_INT(fl_image_plan_draw(plan, &(fl_sample_key){.index = 1}, p.config.in, params, NULL),
              FL_OK);
    fl_image_plan_map(plan, params, map);
    fl_fault_arm(1);
    CHECK_INT(fl_image_plan_write_taps(plan, out, NULL), FL_ENOMEM);
    fl_fault_arm(1);
    CHECK_INT(fl_image_plan_write_own_taps(plan, map, NULL), FL_ENOMEM);
    fl_fault_arm(0);
    free(out);
    free(map);
    fl_image_plan_close(plan);
}

static bool is_moved_or_colored(fl_image_op_kind kind)
{
    return kind <= FL_OP_PHOTOMETRIC_DISTORT || is_gate(kind);
}

/* The plan of up to three operations has a map as told. */
static void check_map(fl_image_size in, fl_image_type type, const fl_image_op *ops, bool has_map)
{
    static _Alignas(64) const char tables[FL_MAX_CHANNELS * 256 * 4] = {1};
    fl_image_config config = {.ops = ops, .channels = 3, .in = in, .type = type};
    fl_image_plan *plan;
    while (config.count < 3 && ops[config.count].kind != FL_OP_KINDS) config.count++;
    config.image_ops = &fl_cpu_image_plain;
    if (type != FL_IMAGE_U8) config.tables = tables;
    CHECK_INT(fl_image_plan_open(&config, &plan, NULL), FL_OK);
    CHECK((fl_image_plan_map_length(plan) > 0) == has_map);
    fl_image_plan_close(plan);
}

static void test_what_may_stand_beside_colors(void)
{
    const fl_image_size small = {20, 20}, large = {300, 300};
    const fl_image_op end = {.kind = FL_OP_KINDS}, invert = {.kind = FL_OP_INVERT, .p = 1};
    const fl_image_op flip = {.kind = FL_OP_HORIZONTAL_FLIP, .p = 0.5};
    const fl_image_op pad = {.kind = FL_OP_PAD, .padding = {1, 1, 1, 1}, .out_fill = {1}};
    const fl_image_op crop = {.kind = FL_OP_CENTER_CROP, .size = small, .out_fill = {1}};
    const fl_image_op resize = {.kind = FL_OP_RESIZE, .size = small};
    const fl_image_op blur = {.kind = FL_OP_BLUR, .size = {3, 3}, .blur_sigma = {1, 1}};
    const fl_image_op one = {.kind = FL_OP_GRAYSCALE, .grey_channels = 1};
    const fl_image_op three = {.kind = FL_OP_GRAYSCALE, .grey_channels = 3};
    const fl_image_op gate = {.kind = FL_OP_APPLY, .span = 1, .p = 0.5};
    fl_image_op erase = {.kind = FL_OP_ERASE, .p = 1, .scale = {0.1, 0.2}, .ratio = {1, 1}};
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){flip, invert, erase}, true);
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){erase, invert, end}, false);
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){invert, flip, end}, true);
    check_map(large, FL_IMAGE_U8, (fl_image_op[]){invert, flip, end}, false); /* sums are rounded */
    check_map(large, FL_IMAGE_U8, (fl_image_op[]){flip, invert, end}, true);
    check_map(large, FL_IMAGE_U8, (fl_image_op[]){invert, crop, end}, false);
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){resize, invert, end}, true);
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){invert, resize, end}, false);
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){invert, pad, end}, false);
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){pad, end}, true);
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){invert, blur, end}, false);
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){three, end}, true);
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){one, end}, false);
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){one, three, end}, false);
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){gate, invert, end}, true);
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){gate, flip, erase}, true);
    check_map(small, FL_IMAGE_U8, (fl_image_op[]){gate, blur, end}, false);
    /* Filled with what byte 0 becomes, and with what none does. */
    check_map(small, FL_IMAGE_F16, (fl_image_op[]){crop, invert, end}, true);
    fl_image_op typed = crop;
    typed.out_fill[1] = 1;
    check_map(small, FL_IMAGE_F16, (fl_image_op[]){typed, end}, true);
    check_map(small, FL_IMAGE_F16, (fl_image_op[]){typed, invert, end}, false);
}

static void test_plans_that_compute_pixels_have_no_map(void)
{
    uint64_t seed = 3;
    int found = 0;
    for (int n = 0; n < 400; n++) {
        plan_case p;
        fl_image_plan *plan;
        random_case(&seed, &p, 3, 20);
        if (fl_image_plan_open(&p.config, &plan, NULL) != FL_OK) continue;
        bool has_map = fl_image_plan_map_length(plan) > 0;
        CHECK(has_map || fl_image_plan_resizes(plan));
        for (int32_t i = 0; i < p.config.count; i++)
            CHECK(!has_map || is_moved_or_colored(p.config.ops[i].kind));
        found += !has_map;
        fl_image_plan_close(plan);
    }
    CHECK(found > 20);
}

/* Blocks of a launch are counted in 31 bits; nothing is launched. */
static void test_batches_that_are_too_large(void)
{
    fl_err err;
    fl_image_batch batch = {.channels = 1, .height = 1 << 16, .width = 1 << 15, .element_bytes = 1};
    CHECK_INT(fl_cuda_gather_images(0, NULL, &batch, NULL, 1, &err), FL_EDEVICE);
    CHECK(strstr(err.text, "cudaErrorInvalidValue") != NULL);
    batch.height = 1 << 10;
    CHECK_INT(fl_cuda_gather_images(0, NULL, &batch, NULL, 1 << 16, &err), FL_EDEVICE);
    /* The product has more than 32 bits and wraps to few blocks. */
    CHECK_INT(fl_cuda_gather_images(0, NULL, &batch, NULL, (1 << 17) + 1, &err), FL_EDEVICE);
}

int main(void)
{
    start_tests();
    choose_device_0();
    CHECK_INT(fl_cuda_load_kernels(NULL), FL_OK);
    RUN(test_batches_are_what_the_plan_makes_on_the_cpu);
    RUN(test_images_of_several_blocks);
    RUN(test_maps_with_taps_of_their_own);
    RUN(test_erases_follow_colors);
    RUN(test_the_last_block_of_an_image_changes_its_colors);
    if (!IS_SANITIZED) RUN(test_large_images);
    RUN(test_colors_in_a_random_order);
    RUN(test_weights_that_find_no_memory);
    RUN(test_what_may_stand_beside_colors);
    RUN(test_plans_that_compute_pixels_have_no_map);
    RUN(test_batches_that_are_too_large);
    return 0;
}
