/* Tests of fl_image_plan: whole plans, drawn at random, against a reference that moves pixels one
 * by one, with each table of kernels that this machine has. */
#include "image_fixture.h"

#include <pthread.h>

/* ThreadSanitizer takes 20 times as long, and one thread at a time tells it nothing. */
#if defined(__SANITIZE_THREAD__)
enum { PLANS = 60, LARGE_PLANS = 3 };
#else
enum { PLANS = 600, LARGE_PLANS = 24 };
#endif
enum { GUARD = 64, GUARD_BYTE = 0x5C, SAMPLES = 3, THREADS = 6 };

static const fl_image_ops *tables[MAX_TABLES];
static int table_count;

static fl_image_plan *open_plan(const plan_case *p)
{
    fl_image_plan *plan;
    fl_err err;
    int status = fl_image_plan_open(&p->config, &plan, &err);
    CHECK((status == FL_OK) == (plan != NULL));
    CHECK(status == FL_OK || (status == FL_EINVAL && err.text[0] != 0));
    return plan;
}

/* Applies a plan and compares; nothing around the output is written. */
static void check_apply(const plan_case *p, const fl_image_plan *plan,
                        const fl_image_params *params, const fl_image_source *source)
{
    size_t bytes = (size_t)fl_image_plan_out_bytes(plan);
    char *room = malloc(bytes + 2 * GUARD);
    CHECK(room != NULL);
    memset(room, GUARD_BYTE, bytes + 2 * GUARD);
    CHECK_INT(fl_image_plan_apply(plan, params, source, room + GUARD, NULL), FL_OK);
    for (size_t i = 0; i < GUARD; i++)
        CHECK(room[i] == GUARD_BYTE && room[GUARD + bytes + i] == GUARD_BYTE);
    char *expected = expected_output(&p->config, params, source);
    CHECK(memcmp(room + GUARD, expected, bytes) == 0);
    free(expected);
    free(room);
}

static void
check_sample(uint64_t *seed, const plan_case *p, const fl_image_plan *plan, int64_t index)
{
    char *memory;
    fl_image_params params[FL_MAX_IMAGE_OPS];
    fl_image_source source = make_source(seed, (lying)random_below(seed, WAYS_TO_LIE), p->config.in,
                                         p->config.channels, &memory);
    fl_sample_key key = {p->config.seed, index, 7, 0};
    CHECK_INT(fl_image_plan_draw(plan, &key, source.size, params, NULL), FL_OK);
    check_apply(p, plan, params, &source);
    free(memory);
}

static int check_plans(uint64_t seed, int count, int32_t most_ops, int32_t longest)
{
    int opened = 0;
    for (int n = 0; n < count; n++) {
        plan_case p;
        random_case(&seed, &p, most_ops, longest);
        for (int t = 0; t < table_count; t++) {
            p.config.image_ops = tables[t];
            fl_image_plan *plan = open_plan(&p);
            for (int i = 0; plan != NULL && i < SAMPLES; i++) check_sample(&seed, &p, plan, i);
            opened += plan != NULL;
            fl_image_plan_close(plan);
        }
    }
    return opened / table_count;
}

/* For impossible plans, an error gives the reason; test_image_plan_open checks these errors. */
static void test_plans_equal_the_reference(void)
{
    CHECK(check_plans(1, PLANS, 6, 40) > PLANS / 3);
}

static void test_plans_of_one_operation_equal_the_reference(void)
{
    CHECK(check_plans(2, PLANS, 1, 40) > PLANS / 2);
}

/* Longer than a band of rows and than the widest step of a kernel. */
static void test_plans_of_larger_images_equal_the_reference(void)
{
    CHECK(check_plans(3, LARGE_PLANS, 4, 200) > 0);
}

/* ---- a crop of a resized image */

static void test_a_crop_of_a_resized_image_is_that_of_the_whole(void)
{
    uint64_t seed = 4;
    for (int n = 0; n < 200; n++) {
        plan_case p;
        do random_case(&seed, &p, 0, 30);
        while (p.config.in.height < 2 || p.config.in.width < 2);
        p.config.count = 4;
        p.ops[0] = random_op(&seed, FL_OP_RESIZE, 60);
        p.ops[0].size = (fl_image_size){20 + n % 41, 20 + n % 37};
        p.ops[1] = random_op(&seed, FL_OP_RANDOM_CROP, 1);
        p.ops[1].size = (fl_image_size){1 + n % 13, 1 + n % 17};
        for (int i = 0; i < 4; i++) p.ops[1].padding[i] = n % 2 ? 0 : 3;
        p.ops[2] = random_op(&seed, FL_OP_RESIZE, 40);
        p.ops[3] = random_op(&seed, FL_OP_RANDOM_CROP, 1);
        set_occurrences(&p);
        make_fills(&seed, &p);
        p.config.image_ops = tables[n % table_count];
        fl_image_plan *plan = open_plan(&p);
        for (int i = 0; plan != NULL && i < SAMPLES; i++) check_sample(&seed, &p, plan, i);
        fl_image_plan_close(plan);
    }
}

/* The image that is left is only padding, so the resize before is not run. */
static void test_a_crop_that_is_padding_alone_reads_nothing(void)
{
    uint64_t seed = 5;
    plan_case p;
    random_case(&seed, &p, 0, 20);
    p.config.count = 3;
    p.ops[0] = (fl_image_op){.kind = FL_OP_RESIZE, .size = {40, 40}, .interpolation = FL_BICUBIC};
    p.ops[1] = (fl_image_op){.kind = FL_OP_PAD, .padding = {90, 0, 0, 0}};
    p.ops[2] = (fl_image_op){.kind = FL_OP_RANDOM_CROP, .size = {40, 3}};
    fl_image_plan *plan = open_plan(&p);
    for (int i = 0; i < 100; i++) check_sample(&seed, &p, plan, i);
    fl_image_plan_close(plan);
}

/* Reflections that add nothing do not add to what an axis is made of. */
static void test_paddings_of_nothing_do_not_count(void)
{
    for (int32_t width = 0; width < 2; width++) {
        plan_case p;
        uint64_t seed = 10;
        random_case(&seed, &p, 0, 20);
        p.config.in = (fl_image_size){20, 20};
        p.config.count = 8;
        for (int i = 0; i < 8; i++)
            p.ops[i] = (fl_image_op){.kind = FL_OP_PAD,
                                     .padding_mode = FL_PAD_REFLECT,
                                     .padding = {width, width, width, width}};
        fl_image_plan *plan = open_plan(&p);
        CHECK((plan != NULL) == (width == 0));
        if (plan != NULL) check_sample(&seed, &p, plan, 0);
        fl_image_plan_close(plan);
    }
}

/* ---- many threads, forked children, no memory */

/* Crops of many sizes, from interleaved floats to interleaved floats. */
static fl_image_plan *open_shared(plan_case *p)
{
    uint64_t seed = 6;
    random_case(&seed, p, 0, 20);
    p->config.in = (fl_image_size){37, 41};
    p->config.channels = 3;
    p->config.type = FL_IMAGE_F32;
    p->config.layout = FL_HWC;
    p->config.image_ops = fl_cpu_image_ops_find();
    p->config.count = 3;
    p->ops[0] = random_op(&seed, FL_OP_RANDOM_RESIZED_CROP, 1);
    p->ops[0].size = (fl_image_size){24, 25};
    p->ops[0].interpolation = FL_BILINEAR;
    p->ops[1] = (fl_image_op){.kind = FL_OP_HORIZONTAL_FLIP, .p = 0.5};
    p->ops[2] = random_op(&seed, FL_OP_ERASE, 1);
    make_tables(&seed, p);
    make_fills(&seed, p);
    return open_plan(p);
}

typedef struct worker {
    const plan_case *p;
    fl_image_plan *plan;
    uint64_t seed;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    for (int i = 0; i < 60; i++) check_sample(&w->seed, w->p, w->plan, random_below(&w->seed, 30));
    return NULL;
}

static void test_many_threads_apply_one_plan(void)
{
    plan_case p;
    fl_image_plan *plan = open_shared(&p);
    pthread_t threads[THREADS];
    worker workers[THREADS];
    for (int t = 0; t < THREADS; t++) {
        workers[t] = (worker){&p, plan, (uint64_t)t};
        CHECK(pthread_create(&threads[t], NULL, work, &workers[t]) == 0);
    }
    for (int t = 0; t < THREADS; t++) CHECK(pthread_join(threads[t], NULL) == 0);
    fl_image_plan_close(plan);
}

static int work_in_child(void *arg)
{
    work(arg);
    fl_image_plan_close(((worker *)arg)->plan);
    return 0;
}

static void test_a_forked_child_applies_and_closes(void)
{
    plan_case p;
    fl_image_plan *plan = open_shared(&p);
    worker w = {&p, plan, 1};
    work(&w);
    CHECK_INT(run_child(work_in_child, &w), 0);
    work(&w);
    fl_image_plan_close(plan);
}

static int open_draw_apply(void *arg)
{
    const plan_case *p = arg;
    uint64_t seed = 7;
    fl_image_params params[FL_MAX_IMAGE_OPS];
    fl_image_plan *plan;
    FL_TRY(fl_image_plan_open(&p->config, &plan, NULL));
    char *memory, *out = malloc((size_t)fl_image_plan_out_bytes(plan));
    fl_image_source source = make_source(&seed, AS_HWC, p->config.in, p->config.channels, &memory);
    int status = FL_OK;
    for (int64_t i = 0; status == FL_OK && i < 3; i++) {
        fl_sample_key key = {p->config.seed, i, 0, 0};
        CHECK_INT(fl_image_plan_draw(plan, &key, source.size, params, NULL), FL_OK);
        status = fl_image_plan_apply(plan, params, &source, out, NULL);
    }
    free(memory);
    free(out);
    fl_image_plan_close(plan);
    return status;
}

static void test_each_allocation_may_fail(void)
{
    uint64_t seed = 8;
    int64_t most = 0;
    for (int n = 0; n < 150; n++) {
        plan_case p;
        random_case(&seed, &p, 5, 30);
        fl_image_plan *plan = open_plan(&p);
        fl_image_plan_close(plan);
        if (plan != NULL) most = fl_max(most, refuse_each(open_draw_apply, &p));
    }
    CHECK(most > 15);
}

/* The test begins once crops of all sizes have been seen. */
static void test_a_warm_plan_allocates_nothing(void)
{
    plan_case p;
    fl_image_plan *plan = open_shared(&p);
    uint64_t seed = 9;
    for (int i = 0; i < 400; i++) check_sample(&seed, &p, plan, i);
    char *memory, *out = malloc((size_t)fl_image_plan_out_bytes(plan));
    fl_image_source source = make_source(&seed, AS_HWC, p.config.in, 3, &memory);
    fl_image_params params[FL_MAX_IMAGE_OPS];
    fl_fault_arm(0);
    for (int64_t i = 0; i < 400; i++) {
        fl_sample_key key = {p.config.seed, i, 7, 0};
        CHECK_INT(fl_image_plan_draw(plan, &key, source.size, params, NULL), FL_OK);
        CHECK_INT(fl_image_plan_apply(plan, params, &source, out, NULL), FL_OK);
    }
    CHECK_INT(fl_fault_asked(), 0);
    free(out);
    free(memory);
    fl_image_plan_close(plan);
}

int main(void)
{
    start_tests();
    table_count = find_tables(tables);
    RUN(test_plans_equal_the_reference);
    RUN(test_plans_of_one_operation_equal_the_reference);
    RUN(test_plans_of_larger_images_equal_the_reference);
    RUN(test_a_crop_of_a_resized_image_is_that_of_the_whole);
    RUN(test_a_crop_that_is_padding_alone_reads_nothing);
    RUN(test_paddings_of_nothing_do_not_count);
    RUN(test_many_threads_apply_one_plan);
    RUN(test_a_forked_child_applies_and_closes);
    RUN(test_each_allocation_may_fail);
    RUN(test_a_warm_plan_allocates_nothing);
    return 0;
}
