/* Images that are made on the device: random plans of operations that move pixels, the kernel
 * compiled as C++, against what the same plans make of single images on the CPU. */
#include "cuda_fixture.h"
#include "image_fixture.h"

#include "fl_cuda_images.h"
#include "fl_image_plan.h"

enum { PLANS = IS_SANITIZED ? 40 : 300, MOST_IMAGES = 5, MOST_OPS = 5, GUARD = 0x5A };

static const fl_image_op_kind moving[] = {FL_OP_PAD,           FL_OP_CENTER_CROP,
                                          FL_OP_RANDOM_CROP,   FL_OP_HORIZONTAL_FLIP,
                                          FL_OP_VERTICAL_FLIP, FL_OP_ERASE};

/* Owned memory that ends where its contents do. */
static char *allocate(int64_t bytes)
{
    void *data;
    CHECK(posix_memalign(&data, 64, (size_t)fl_max(bytes, 1)) == 0);
    memset(data, GUARD, (size_t)fl_max(bytes, 1));
    return data;
}

static fl_image_plan *open_moving(uint64_t *seed, plan_case *p, int32_t longest)
{
    fl_image_plan *plan = NULL;
    while (plan == NULL) {
        random_case(seed, p, 0, longest);
        p->config.count = 1 + (int32_t)random_below(seed, MOST_OPS);
        for (int32_t i = 0; i < p->config.count; i++) {
            int64_t kind = random_below(seed, sizeof moving / sizeof *moving);
            p->ops[i] = random_op(seed, moving[kind], longest);
        }
        set_occurrences(p);
        make_fills(seed, p);
        (void)fl_image_plan_open(&p->config, &plan, NULL);
    }
    CHECK(fl_image_plan_map_length(plan) > 0);
    return plan;
}

/* A batch of some of the images, in memory as `is_joined` says. */
static void check_batch(uint64_t *seed, const plan_case *p, const fl_image_plan *plan,
                        int32_t images, bool is_joined)
{
    const fl_image_size in = p->config.in, out = fl_image_plan_out(plan);
    const int64_t channels = p->config.channels, bytes = fl_image_type_bytes(p->config.type);
    const int64_t each = in.height * in.width * channels, made = fl_image_plan_out_bytes(plan);
    const int64_t length = fl_image_plan_map_length(plan), values = fl_image_plan_values(plan);
    char *from = allocate(each * images), *to = allocate(made * images);
    char *expected = allocate(made * images), *table = allocate(values * channels * bytes);
    int32_t *maps = (int32_t *)allocate(length * images * (int64_t)sizeof *maps);
    int64_t rows[MOST_IMAGES];
    fill_random(seed, from, each * images);
    fl_image_plan_write_values(plan, table);
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
        const fl_sample_key key = {p->config.seed, rows[i], 3, 0};
        CHECK_INT(fl_image_plan_draw(plan, &key, in, params, NULL), FL_OK);
        fl_image_plan_map(plan, params, maps + i * length);
        source.data = (uint8_t *)from + rows[i] * each;
        CHECK_INT(fl_image_plan_apply(plan, params, &source, expected + i * made, NULL), FL_OK);
    }
    fl_image_batch batch = {
        .from = (uint8_t *)from,
        .to = to,
        .from_steps = {each, source.stride_c, source.stride_y, source.stride_x},
        .to_steps = {made / bytes, (int64_t)out.height * out.width, out.width, 1},
        .channels = (int32_t)channels,
        .height = out.height,
        .width = out.width,
        .element_bytes = (int32_t)bytes,
        .maps = maps,
        .erased = (int32_t)(length - out.height - out.width) / FL_ERASED_NUMBERS,
        .values = (int32_t)values,
        .table = table};
    if (p->config.layout == FL_HWC) {
        batch.to_steps[1] = 1;
        batch.to_steps[2] *= channels;
        batch.to_steps[3] = channels;
    }
    const int64_t before = fake_launches();
    CHECK_INT(fl_cuda_gather_images(0, NULL, &batch, rows, images, NULL), FL_OK);
    CHECK_INT(fake_launches() - before, images > 0);
    fake_synchronize(NULL);
    CHECK(memcmp(to, expected, (size_t)(made * images)) == 0);
    void *owned[] = {from, to, expected, table, maps};
    for (int i = 0; i < 5; i++) free(owned[i]);
}

static void check_plans(uint64_t seed, int count, int32_t longest)
{
    for (int n = 0; n < count; n++) {
        plan_case p;
        fl_image_plan *plan = open_moving(&seed, &p, longest);
        check_batch(&seed, &p, plan, n % (MOST_IMAGES + 1), n % 2 == 0);
        fl_image_plan_close(plan);
    }
}

static void test_batches_are_what_the_plan_makes_on_the_cpu(void) { check_plans(1, PLANS, 20); }

/* Of several blocks, the last of which is not full. */
static void test_images_of_several_blocks(void) { check_plans(2, PLANS / 10, 70); }

static void test_plans_that_compute_pixels_have_no_map(void)
{
    uint64_t seed = 3;
    int found = 0;
    for (int n = 0; n < 200; n++) {
        plan_case p;
        fl_image_plan *plan;
        random_case(&seed, &p, 3, 20);
        if (fl_image_plan_open(&p.config, &plan, NULL) != FL_OK) continue;
        bool computes = fl_image_plan_resizes(plan);
        CHECK((fl_image_plan_map_length(plan) == 0) == computes);
        found += computes;
        fl_image_plan_close(plan);
    }
    CHECK(found > 20);
}

/* Blocks of a launch are counted in 31 bits; nothing is launched. */
static void test_batches_that_are_too_large(void)
{
    fl_err err;
    fl_image_batch batch = {.height = 1 << 16, .width = 1 << 15, .element_bytes = 1};
    CHECK_INT(fl_cuda_gather_images(0, NULL, &batch, NULL, 1, &err), FL_EDEVICE);
    CHECK(strstr(err.text, "cudaErrorInvalidValue") != NULL);
    batch.height = 1 << 10;
    CHECK_INT(fl_cuda_gather_images(0, NULL, &batch, NULL, 1 << 16, &err), FL_EDEVICE);
}

int main(void)
{
    start_tests();
    choose_device_0();
    CHECK_INT(fl_cuda_load_kernels(NULL), FL_OK);
    RUN(test_batches_are_what_the_plan_makes_on_the_cpu);
    RUN(test_images_of_several_blocks);
    RUN(test_plans_that_compute_pixels_have_no_map);
    RUN(test_batches_that_are_too_large);
    return 0;
}
