/* Tests of the passes over gradients on the CPU: lists of many shapes, pools of several sizes,
 * against arithmetic on single elements. */
#include "grad_model.h"

#include "fl_thread_pool.h"

#include <float.h>

enum { TINY = 5000, POOLS = 5 };

static const fl_grad_ops *const cpu = &fl_cpu_grad_ops;
static fl_thread_pool *pools[POOLS]; /* of no, 1, 2, 3 and 8 threads */

/* ---- the lists that passes are tried on */

static const shape one_element[] = {{1, FL_F16, 0}};
static const shape nothing[] = {{0, FL_F32, 0}};

typedef struct recipe {
    const shape *shapes;
    int64_t count;
    int mix;
} recipe;

enum { RECIPES = 6 };

static shape tiny_shapes[TINY]; /* set before the tests */

static model cook(int which)
{
    static const shape large[] = {{300001, FL_F32, 0}};
    const recipe recipes[RECIPES] = {{border_shapes, BORDER_SHAPES, FINITE},
                                     {border_shapes, BORDER_SHAPES, ANY},
                                     {one_element, 1, TAME},
                                     {nothing, 1, TAME},
                                     {tiny_shapes, TINY, TAME},
                                     {large, 1, TAME}};
    return make_model(recipes[which].shapes, recipes[which].count, recipes[which].mix,
                      (uint64_t)which + 100);
}

static void test_the_lists_are_worth_a_pool(void)
{
    int64_t large = 0;
    for (int which = 0; which < RECIPES; which++) {
        model m = cook(which);
        large += m.list.bytes > 1 << 20 && m.list.chunks > 16;
        free_model(&m);
    }
    CHECK(large >= 3);
}

static void check_norm(model *m, fl_thread_pool *pool, int32_t norm_type, fl_divisor divisor,
                       double norm, bool is_finite)
{
    static const float was[] = {0, 1};
    float before = was[norm_type % 2], found = before;
    double actual = -1;
    fl_grad_pass pass = {&m->list, pool};
    cpu->norm_check(&pass, norm_type, divisor, &found, &actual);
    check_double(actual, norm);
    CHECK(found == (is_finite ? before : 1));
}

static void test_norm_check(void)
{
    const float scales[] = {65536, -3, 0.1F, 1, 7};
    for (int which = 0; which < RECIPES; which++) {
        model m = cook(which);
        for (int32_t norm_type = 0; norm_type < FL_NORMS; norm_type++) {
            bool is_finite;
            double norm = ref_model_norm(&m, norm_type, &is_finite);
            CHECK_INT(is_finite, which != 1);
            for (int t = 0; t < POOLS; t++) {
                fl_divisor divisor = {t % 2 ? &scales[t] : NULL, t > 2 ? -0.3 : 1};
                double by = fabs((t % 2 ? (double)scales[t] : 1) * divisor.constant);
                check_norm(&m, pools[t], norm_type, divisor, norm / by, is_finite);
            }
        }
        check_model(&m);
        free_model(&m);
    }
}

/* The sum of doubles may be infinite although each double is finite, and the other way round. */
static void test_finite_is_said_of_elements(void)
{
    shape shapes[] = {{20000, FL_F64, 0}, {300000, FL_F32, 0}};
    model m = make_model(shapes, 2, TAME, 5);
    float found = 0;
    double norm;
    fl_grad_pass pass = {&m.list, pools[2]};
    ((double *)(void *)m.list.spans[0].data)[19999] = 1e200;
    ((float *)(void *)m.list.spans[1].data)[250000] = FLT_MAX;
    cpu->norm_check(&pass, FL_NORM_2, (fl_divisor){NULL, 1}, &found, &norm);
    CHECK(found == 0 && isinf(norm));
    cpu->unscale(&pass, &(float){1}, &found);
    CHECK(found == 0);
    cpu->unscale(&pass, &(float){0.5F}, &found);
    CHECK(found == 0);
    ((float *)(void *)m.list.spans[1].data)[299999] = -INFINITY;
    cpu->norm_check(&pass, FL_NORM_MAX, (fl_divisor){NULL, 1}, &found, &norm);
    CHECK(found == 1 && isinf(norm));
    free_model(&m);
}

static void test_scale(void)
{
    const double factors[] = {1.0 / 3, -2, 0, INFINITY, 1 + 1e-12};
    for (int which = 0; which < RECIPES; which++) {
        model m = cook(which);
        for (int t = which % 2; t < POOLS; t += 2) {
            fl_grad_pass pass = {&m.list, pools[t]};
            cpu->scale(&pass, &factors[t]);
            ref_model_scale(&m, factors[t]);
            check_model(&m);
        }
        free_model(&m);
    }
}

static void test_unscale(void)
{
    const float inverses[] = {1.0F / 3, -0.5F, 1, 0.1F, 3e38F};
    for (int which = 0; which < RECIPES; which++) {
        model m = cook(which);
        for (int t = which % 2; t < POOLS; t += 2) {
            fl_grad_pass pass = {&m.list, pools[t]};
            float before = (float)(t % 2), found = before;
            bool is_finite;
            (void)ref_model_norm(&m, FL_NORM_2, &is_finite);
            cpu->unscale(&pass, &inverses[t], &found);
            CHECK(found == (is_finite ? before : 1));
            ref_model_scale(&m, (double)inverses[t]);
            check_model(&m);
        }
        free_model(&m);
    }
}

/* With a factor of 1, a pass over read-only memory succeeds. */
static void test_a_factor_of_one_writes_nothing(void)
{
    enum { BYTES = 1200000 };
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t state = 6;
    CHECK(memory != MAP_FAILED);
    for (int32_t type = 0; type < FL_FLOATS; type++) {
        int64_t count = BYTES / fl_float_bytes(type);
        CHECK(mprotect(memory, BYTES, PROT_READ | PROT_WRITE) == 0);
        memset(memory, 0, 8000);
        fill_elements(type, memory, 1000, FINITE, &state);
        CHECK(mprotect(memory, BYTES, PROT_READ) == 0);
        fl_tensor_list list = {0};
        fl_tensor_list_begin(&list);
        CHECK_INT(fl_tensor_list_add(&list, memory, count, type, NULL), FL_OK);
        CHECK_INT(fl_tensor_list_end(&list, NULL), FL_OK);
        for (int t = 0; t < POOLS; t++) {
            fl_grad_pass pass = {&list, pools[t]};
            float found = 0;
            cpu->scale(&pass, &(double){1});
            cpu->unscale(&pass, &(float){1}, &found);
            CHECK(found == 0);
        }
        fl_tensor_list_close(&list);
    }
    CHECK(munmap(memory, BYTES) == 0);
}

static void check_combine(int32_t shift, int mix, double alpha, const double *factor, double beta)
{
    shape shapes[2][BORDER_SHAPES];
    for (int i = 0; i < BORDER_SHAPES; i++) {
        int32_t into = border_shapes[i].type, from = (into + shift) % FL_FLOATS;
        bool is_offered_here = cpu->can_combine(into, from);
        shapes[0][i] = border_shapes[i];
        shapes[1][i] = (shape){border_shapes[i].count, is_offered_here ? from : into, 0};
    }
    model into = make_model(shapes[0], BORDER_SHAPES, FINITE, 7),
          from = make_model(shapes[1], BORDER_SHAPES, mix, 8);
    bool is_finite = true;
    for (int64_t i = 0; i < into.list.count; i++) {
        const fl_span *a = &into.list.spans[i], *b = &from.list.spans[i];
        bool is_span_finite;
        if (beta == 0) memset(a->data, 0xff, (size_t)(a->count * fl_float_bytes(a->type)));
        ref_combine(a->type, copy_of(&into, a), b->type, copy_of(&from, b), a->count,
                    factor != NULL ? alpha * *factor : alpha, beta, &is_span_finite);
        is_finite &= is_span_finite;
    }
    char *before = fl_alloc(into.bytes);
    memcpy(before, into.memory, (size_t)into.bytes);
    for (int t = 0; t < POOLS; t++) {
        float was = (float)(t % 2), found = was;
        memcpy(into.memory, before, (size_t)into.bytes);
        fl_grad_pass pass = {&into.list, pools[t]};
        cpu->combine(&pass, &from.list, alpha, factor, beta, t == 2 ? NULL : &found);
        CHECK(found == (is_finite || t == 2 ? was : 1));
        check_model(&into);
        check_model(&from);
    }
    fl_free(before);
    free_model(&into);
    free_model(&from);
}

static void test_combine(void)
{
    for (int32_t shift = 0; shift < FL_FLOATS; shift++) {
        check_combine(shift, FINITE, 0.25, NULL, 1);
        check_combine(shift, ANY, 1, &(double){1.0 / 3}, shift % 2 ? 0 : 0.9);
    }
    for (int32_t into = 0; into < FL_FLOATS; into++)
        for (int32_t from = 0; from < FL_FLOATS; from++)
            CHECK_INT(cpu->can_combine(into, from), is_offered(into, from));
    model empty = cook(3);
    fl_grad_pass pass = {&empty.list, pools[2]};
    float found = 0;
    cpu->combine(&pass, &empty.list, 1, NULL, 0, &found);
    CHECK(found == 0);
    free_model(&empty);
}

/* Several callers share a pool; each gets its own sums. */
static void *norm_again_and_again(void *arg)
{
    model m = cook(5);
    bool is_finite;
    double norm = ref_model_norm(&m, FL_NORM_2, &is_finite);
    for (int i = 0; i < 20; i++) check_norm(&m, arg, FL_NORM_2, (fl_divisor){NULL, 1}, norm, true);
    free_model(&m);
    return NULL;
}

static void test_passes_of_several_threads(void)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK_INT(fl_thread_start(&threads[i], norm_again_and_again, pools[3], NULL), FL_OK);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* too slow there */
/* The test has 4 GiB of halves, mostly pages of zeros that take no memory. */
static void test_more_than_two_billion_elements(void)
{
    const int64_t count = ((int64_t)1 << 31) + 3 * FL_CHUNK + 5, bytes = 2 * count;
    char *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    (void)madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
    set_value(FL_F16, memory, count - 1, -3);
    set_value(FL_F16, memory, 1, 4);
    fl_tensor_list list = {0};
    fl_tensor_list_begin(&list);
    CHECK_INT(fl_tensor_list_add(&list, memory, count, FL_F16, NULL), FL_OK);
    CHECK_INT(fl_tensor_list_end(&list, NULL), FL_OK);
    fl_grad_pass pass = {&list, pools[2]};
    float found = 0;
    double norm;
    cpu->norm_check(&pass, FL_NORM_2, (fl_divisor){NULL, 1}, &found, &norm);
    check_double(norm, 5);
    CHECK(found == 0);
    fl_tensor_list_close(&list);
    CHECK(munmap(memory, (size_t)bytes) == 0);
}
#endif

int main(void)
{
    start_tests();
    for (int64_t i = 0; i < TINY; i++)
        tiny_shapes[i] = (shape){1 + i * 7 % 130, (int32_t)(i % FL_FLOATS), 0};
    const int32_t threads[POOLS] = {0, 1, 2, 3, 8};
    for (int t = 1; t < POOLS; t++)
        CHECK_INT(fl_thread_pool_open(threads[t], NULL, &pools[t], NULL), FL_OK);
    RUN(test_the_lists_are_worth_a_pool);
    RUN(test_norm_check);
    RUN(test_finite_is_said_of_elements);
    RUN(test_scale);
    RUN(test_unscale);
    RUN(test_a_factor_of_one_writes_nothing);
    RUN(test_combine);
    RUN(test_passes_of_several_threads);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    RUN(test_more_than_two_billion_elements);
#endif
    for (int t = 1; t < POOLS; t++) fl_thread_pool_close(pools[t]);
    return 0;
}
