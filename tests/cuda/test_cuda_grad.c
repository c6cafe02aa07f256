/* Tests of the kernels over lists of many shapes, compiled as C++: against the CPU's passes, bit
 * for bit but for norms. */
#include "cuda_fixture.h"

enum { SIZES = 601, STARTS = 22 }; /* starts: 2 of doubles, 4 of floats, 8 of each kind of half */

/* ---- lists */

/* Every size of at most SIZES - 1 in steps of `step`, at every start. */
static model make_small(int64_t step, int mix)
{
    static shape shapes[SIZES * STARTS];
    int64_t count = 0;
    for (int32_t type = 0; type < FL_FLOATS; type++)
        for (int64_t shift = 0; shift < 16 / fl_float_bytes(type); shift++)
            for (int64_t size = (shift + type) % step; size < SIZES; size += step)
                shapes[count++] = (shape){size, type, shift};
    return make_model(shapes, count, mix, (uint64_t)step);
}

/* Around the borders of chunks, each tensor `shift` elements off, or as many as fit. */
static model make_borders(int64_t shift, int mix)
{
    shape shapes[BORDER_SHAPES];
    for (int i = 0; i < BORDER_SHAPES; i++) {
        shapes[i] = border_shapes[i];
        shapes[i].count = fl_min(shapes[i].count, 2 * FL_CHUNK + 1);
        shapes[i].shift = shift % (16 / fl_float_bytes(shapes[i].type));
    }
    return make_model(shapes, BORDER_SHAPES, mix, (uint64_t)shift + 1);
}

enum { LISTS = 6 };

static model make_list(int which, int64_t step)
{
    if (which < 3) return make_small(step, which); /* TAME, FINITE, ANY */
    return make_borders(which - 3, which - 3);
}

/* ---- norm_check */

static void test_norm_check(void)
{
    const float scales[] = {65536, -3, 0.1F};
    for (int which = 0; which < LISTS; which += ONE_IN) {
        model m = make_list(which, 13 * SAMPLE);
        fl_cuda_queue queue = open_queue(&m.list, NULL);
        for (int32_t norm_type = 0; norm_type < FL_NORMS; norm_type++) {
            const float *scale = which % 2 ? &scales[norm_type] : NULL;
            check_norm(&m, &queue, norm_type, (fl_divisor){scale, which > 2 ? -0.3 : 1}, 0);
            check_norm(&m, &queue, norm_type, (fl_divisor){scale, 1e300}, 1);
        }
        check_model(&m);
        close_queue(&queue);
        free_model(&m);
    }
}

static void test_norm_of_nothing(void)
{
    model m = make_many(0);
    fl_cuda_queue queue = open_queue(&m.list, NULL);
    check_norm(&m, &queue, FL_NORM_2, (fl_divisor){NULL, 3}, 0);
    check_norm(&m, &queue, FL_NORM_MAX, (fl_divisor){NULL, 0}, 1); /* 0 / 0 */
    close_queue(&queue);
    free_model(&m);
}

static float found_by_each(model *m, fl_cuda_queue *queue, int32_t norm_type)
{
    fl_grad_pass pass = {&m->list, queue};
    float found[3] = {0};
    double norm;
    CHECK_INT(cuda->norm_check(&pass, norm_type, (fl_divisor){NULL, 1}, &found[0], &norm), FL_OK);
    CHECK_INT(cuda->unscale(&pass, &(float){1}, &found[1]), FL_OK);
    CHECK_INT(cuda->combine(&pass, &m->list, 1, NULL, 0, &found[2]), FL_OK);
    CHECK(found[0] == found[1] && found[1] == found[2]);
    return found[0];
}

/* The sum of doubles may be infinite although each double is finite, and the other way round. */
static void check_finite_of_elements(bool is_fp64_slow)
{
    for (int32_t type = 0; type < FL_FLOATS; type += ONE_IN) {
        shape shapes[] = {{20000, type, 0}, {70, type, 1}};
        model m = make_model(shapes, 2, FINITE, 5);
        fl_cuda_queue queue = open_queue(&m.list, NULL);
        queue.processors = 2;
        queue.is_fp64_slow = is_fp64_slow;
        for (int32_t norm_type = 0; norm_type < FL_NORMS; norm_type++) {
            for (int32_t bad = 0; bad < 2; bad++) {
                const fl_span *span = &m.list.spans[bad];
                uint64_t was = bits_of(type, span->data, span->count - 1);
                CHECK(found_by_each(&m, &queue, norm_type) == 0);
                set_value(type, span->data, span->count - 1, (double)(bad ? NAN : -INFINITY));
                CHECK(found_by_each(&m, &queue, norm_type) == 1);
                set_bits(type, span->data, span->count - 1, was);
            }
        }
        close_queue(&queue);
        free_model(&m);
    }
}

static void test_finite_is_said_of_elements(void)
{
    check_finite_of_elements(false);
    check_finite_of_elements(true);
}

static double norm_of(model *m, fl_cuda_queue *queue, int32_t norm_type)
{
    float found = 0;
    double norm;
    CHECK_INT(cuda->norm_check(&(fl_grad_pass){&m->list, queue}, norm_type, (fl_divisor){NULL, 1},
                               &found, &norm),
              FL_OK);
    return norm;
}

static void check_bits(model *m, int32_t norm_type, double *norm)
{
    const int processors[] = {1, 2, 3, 7, 200};
    fl_cuda_queue queue = open_queue(&m->list, NULL);
    for (int i = 0; i < 5; i += ONE_IN) {
        queue.processors = processors[i];
        double again = norm_of(m, &queue, norm_type);
        if (i == 0 && *norm < 0) *norm = again;
        check_double(again, *norm);
    }
    close_queue(&queue);
}

/* The bits are the same for any number of blocks, in any order, for tensors at any address. */
static void test_norms_have_the_same_bits(void)
{
    for (int32_t norm_type = 0; norm_type < FL_NORMS; norm_type++) {
        model m = make_borders(0, TAME), shifted = make_borders(1, TAME),
              many = make_many(600 / SAMPLE);
        double norm = -1, norm_of_many = -1;
        for (int64_t i = 0; i < m.list.count; i++) {
            const fl_span *from = &m.list.spans[i];
            memcpy(shifted.list.spans[i].data, from->data,
                   (size_t)(from->count * fl_float_bytes(from->type)));
        }
        check_bits(&m, norm_type, &norm);
        check_bits(&shifted, norm_type, &norm);
        check_bits(&many, norm_type, &norm_of_many);
        free_model(&m);
        free_model(&shifted);
        free_model(&many);
    }
}

/* Makes tensors of a type, each this many elements off; longer than a thread's loads, with ends of
 * all kinds. */
static model make_shifted(int32_t type, int64_t shift)
{
    const int64_t sizes[] = {3, 2057, 5003, FL_CHUNK - 1, FL_CHUNK, FL_CHUNK + 1, FL_CHUNK + 9};
    shape shapes[7];
    for (int i = 0; i < 7; i++) shapes[i] = (shape){sizes[i], type, shift};
    return make_model(shapes, 7, TAME, 3);
}

static void test_norms_at_every_start_have_the_same_bits(void)
{
    for (int32_t type = 0; type < FL_FLOATS; type++) {
        double norms[FL_NORMS + 1] = {-1, -1, -1, -1}; /* the last: FL_NORM_2 in groups */
        for (int64_t shift = 0; shift < 16 / fl_float_bytes(type); shift += ONE_IN) {
            model m = make_shifted(type, shift);
            fl_cuda_queue queue = open_queue(&m.list, NULL);
            queue.processors = 1 + (int32_t)shift % 3;
            for (int32_t i = 0; i <= FL_NORMS; i++) {
                queue.is_fp64_slow = i == FL_NORMS;
                double norm = norm_of(&m, &queue, i < FL_NORMS ? i : FL_NORM_2);
                if (shift == 0) norms[i] = norm;
                check_double(norm, norms[i]);
            }
            check_model(&m);
            close_queue(&queue);
            free_model(&m);
        }
    }
}

/* ---- norm_check with slow arithmetic in double */

enum { RANDOM, HUGE, TINY, DENORMAL, MIXED, MIXES };

/* Numbers of every size that `type` has, in the parts of its range that this mix is about. */
static void fill_sizes(int32_t type, const fl_span *span, int mix, uint64_t *random)
{
    const int lowest[] = {-20, 58, -75, -149, -149}, highest[] = {4, 128, -45, -126, 128};
    int least = type == FL_F16 ? -24 : -133, most = type == FL_F16 ? 15 : 127;
    if (type == FL_F32) least = -149;
    for (int64_t i = 0; i < span->count; i++) {
        int64_t exponent = lowest[mix] + random_below(random, (int64_t)highest[mix] - lowest[mix]);
        double digits = 1 + (double)random_below(random, 1 << 23) / (1 << 23);
        bool is_zero = random_below(random, 8) == 0;
        exponent = fl_max(least, fl_min(most, exponent));
        set_value(type, span->data, i, is_zero ? 0 : (double)(float)ldexp(digits, (int)exponent));
        if (!isfinite(value_of(type, span->data, i))) set_value(type, span->data, i, 1);
    }
}

static double exact_norm(const model *m)
{
    long double sum = 0;
    for (int64_t i = 0; i < m->list.count; i++) {
        const fl_span *span = &m->list.spans[i];
        for (int64_t at = 0; at < span->count; at++) {
            long double x = value_of(span->type, span->data, at);
            sum += x * x;
        }
    }
    return (double)sqrtl(sum);
}

/* Checks the bound that docs/internals/cuda.md derives, plus the error of a double. */
static void check_exact(model *m, bool is_fp64_slow)
{
    const double bound = is_fp64_slow ? 1.5 / (1 << 24) + 1e-12 : 4 * DBL_EPSILON;
    fl_cuda_queue queue = open_queue(&m->list, NULL);
    queue.processors = 2;
    queue.is_fp64_slow = is_fp64_slow;
    double norm = norm_of(m, &queue, FL_NORM_2), exact = exact_norm(m);
    CHECK(isfinite(norm) && fabs(norm - exact) <= bound * exact);
    if (norm < FLT_MAX && norm > FLT_MIN)
        CHECK(fabs((double)(float)norm - exact) <= 4 * ldexp(FLT_EPSILON, ilogb(exact)));
    close_queue(&queue);
}

static void test_norms_are_near_the_exact_one(void)
{
    const int32_t types[] = {FL_F32, FL_F16, FL_BF16};
    uint64_t random = 11;
    for (int i = 0; i < 3; i++)
        for (int mix = 0; mix < MIXES; mix += ONE_IN)
            for (int64_t count = 1; count < 3 * FL_CHUNK; count = 5 * count + 2) {
                shape shapes[] = {{count, types[i], count % 3}};
                model m = make_model(shapes, 1, TAME, 1);
                fill_sizes(types[i], &m.list.spans[0], mix, &random);
                check_exact(&m, false);
                check_exact(&m, true);
                free_model(&m);
            }
}

/* All elements are equal, so that all roundings go the same way; sums lie around the limits at
 * which a sum is computed again. */
static void test_norms_of_equal_elements(void)
{
    for (int exponent = -149; exponent < 128; exponent += exponent < -75 || exponent > 55 ? 1 : 7)
        for (int digits = 0; digits < 3; digits += ONE_IN) {
            model m = make_model(&(shape){4100, FL_F32, exponent & 1}, 1, TAME, 1);
            double x = ldexp(digits == 0 ? 1 : digits == 1 ? 1 + ldexp(1, -12) : 1.99, exponent);
            for (int64_t i = 0; i < 4100; i++)
                set_value(FL_F32, m.list.spans[0].data, i, (double)(float)x);
            check_exact(&m, true);
            free_model(&m);
        }
}

/* 1 + 2^-12, whose square a float does not hold. */
static model make_unround(int32_t second_type)
{
    model m = make_model((shape[]){{1000, FL_F32, 0}, {1, second_type, 0}}, 2, TAME, 1);
    for (int64_t i = 0; i < 1000; i++)
        set_value(FL_F32, m.list.spans[0].data, i, 1 + ldexp(1, -12));
    set_value(second_type, m.list.spans[1].data, 0, 0);
    return m;
}

static void test_the_device_says_how_squares_are_summed(void)
{
    const int ratios[] = {2, 4, 32, 64};
    for (int i = 0; i < 4; i++)
        for (int32_t type = 0; type < 2; type++) {
            model m = make_unround(type);
            fl_cuda_queue queue = open_queue(&m.list, NULL);
            fake_set_fp64_ratio(ratios[i]);
            bool is_exact = norm_of(&m, &queue, FL_NORM_2) == exact_norm(&m);
            CHECK(is_exact == (ratios[i] <= 4 || type == FL_F64));
            fake_set_fp64_ratio(2); /* asked once */
            CHECK((norm_of(&m, &queue, FL_NORM_2) == exact_norm(&m)) == is_exact);
            close_queue(&queue);
            free_model(&m);
        }
}

/* ---- scale, unscale */

static void test_scale(void)
{
    const double factors[] = {1.0 / 3, -2, 0, INFINITY, 1 + 1e-12, 3e38};
    for (int which = 0; which < LISTS; which += ONE_IN) {
        model m = make_list(which, SAMPLE);
        fl_tensor_list mirror = list_of_copy(&m);
        fl_cuda_queue queue = open_queue(&m.list, NULL);
        CHECK_INT(cuda->scale(&(fl_grad_pass){&m.list, &queue}, &factors[which]), FL_OK);
        cpu->scale(&(fl_grad_pass){&mirror, NULL}, &factors[which]);
        check_model(&m);
        close_queue(&queue);
        fl_tensor_list_close(&mirror);
        free_model(&m);
    }
}

static void test_unscale(void)
{
    const float inverses[] = {1.0F / 3, -0.5F, 1.0F / 65536, 0.1F, 1, 3e38F};
    for (int which = 0; which < LISTS; which += ONE_IN) {
        model m = make_list(which, 3 * SAMPLE);
        fl_tensor_list mirror = list_of_copy(&m);
        fl_cuda_queue queue = open_queue(&m.list, NULL);
        for (int was = 0; was < 2; was++) {
            float found = (float)was, expected = found;
            CHECK_INT(cuda->unscale(&(fl_grad_pass){&m.list, &queue}, &inverses[which], &found),
                      FL_OK);
            cpu->unscale(&(fl_grad_pass){&mirror, NULL}, &inverses[which], &expected);
            CHECK(found == expected);
            check_model(&m);
        }
        close_queue(&queue);
        fl_tensor_list_close(&mirror);
        free_model(&m);
    }
}

static void test_scale_at_every_start(void)
{
    for (int32_t type = 0; type < FL_FLOATS; type++)
        for (int64_t shift = 0; shift < 16 / fl_float_bytes(type); shift++) {
            model m = make_shifted(type, shift);
            fl_tensor_list mirror = list_of_copy(&m);
            fl_cuda_queue queue = open_queue(&m.list, NULL);
            CHECK_INT(cuda->scale(&(fl_grad_pass){&m.list, &queue}, &(double){1.0 / 3}), FL_OK);
            cpu->scale(&(fl_grad_pass){&mirror, NULL}, &(double){1.0 / 3});
            check_model(&m);
            close_queue(&queue);
            fl_tensor_list_close(&mirror);
            free_model(&m);
        }
}

/* With a factor of 1, a pass over read-only memory succeeds. */
static void test_a_factor_of_one_writes_nothing(void)
{
    enum { BYTES = 1 << 17 };
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && mprotect(memory, BYTES, PROT_READ) == 0);
    for (int32_t type = 0; type < FL_FLOATS; type++) {
        fl_tensor_list list = {0};
        float found = 0;
        fl_tensor_list_begin(&list);
        CHECK_INT(fl_tensor_list_add(&list, memory, BYTES / fl_float_bytes(type), type, NULL),
                  FL_OK);
        CHECK_INT(fl_tensor_list_end(&list, NULL), FL_OK);
        fl_cuda_queue queue = open_queue(&list, NULL);
        CHECK_INT(cuda->scale(&(fl_grad_pass){&list, &queue}, &(double){1}), FL_OK);
        CHECK_INT(cuda->unscale(&(fl_grad_pass){&list, &queue}, &(float){1}, &found), FL_OK);
        CHECK(found == 0);
        close_queue(&queue);
        fl_tensor_list_close(&list);
    }
    CHECK(munmap(memory, BYTES) == 0);
}

/* ---- combine */

/* Makes tensors with sizes around packs and chunks; the tensors of each list are off by the list's
 * shift. */
static model make_pair(int32_t type, int64_t shift, int mix)
{
    shape shapes[SIZES / 7 + 2];
    int64_t count = 0;
    shift %= 16 / fl_float_bytes(type);
    for (int64_t size = 1; size < SIZES; size += 7 + SAMPLE)
        shapes[count++] = (shape){size, type, shift};
    shapes[count++] = (shape){FL_CHUNK + 1, type, shift};
    shapes[count++] = (shape){FL_CHUNK, type, shift};
    return make_model(shapes, count, mix, (uint64_t)(type + shift));
}

static void check_combine(model *into, model *from, double alpha, const double *factor, double beta)
{
    fl_tensor_list mirror = list_of_copy(into);
    fl_cuda_queue queue = open_queue(&into->list, &from->list);
    for (int was = 0; was < 3; was++) {
        float found = (float)(was % 2), expected = found;
        bool is_checked = was < 2;
        for (int64_t i = 0; beta == 0 && i < mirror.count; i++) { /* not to be read: NaN */
            const fl_span *a = &into->list.spans[i], *b = &mirror.spans[i];
            memset(a->data, 0xff, (size_t)(a->count * fl_float_bytes(a->type)));
            memset(b->data, 0xff, (size_t)(b->count * fl_float_bytes(b->type)));
        }
        CHECK_INT(cuda->combine(&(fl_grad_pass){&into->list, &queue}, &from->list, alpha, factor,
                                beta, is_checked ? &found : NULL),
                  FL_OK);
        cpu->combine(&(fl_grad_pass){&mirror, NULL}, &from->list, alpha, factor, beta,
                     is_checked ? &expected : NULL);
        CHECK(found == expected);
        check_model(into);
        check_model(from);
    }
    close_queue(&queue);
    fl_tensor_list_close(&mirror);
}

static void test_combine(void)
{
    const double third = 1.0 / 3;
    int rounds = 0;
    for (int32_t a = 0; a < FL_FLOATS; a++)
        for (int32_t b = 0; b < FL_FLOATS; b++) {
            CHECK_INT(cuda->can_combine(a, b), cpu->can_combine(a, b));
            if (!cpu->can_combine(a, b)) continue;
            for (int64_t shift = 0; shift < 4; shift += ONE_IN, rounds++) {
                model into = make_pair(a, shift / 2, FINITE);
                model from = make_pair(b, shift % 2 * (1 + rounds % 7), rounds % 3);
                check_combine(&into, &from, 0.1, shift % 2 ? &third : NULL, rounds % 4 ? 0.9 : 0);
                free_model(&into);
                free_model(&from);
            }
        }
}

/* Each list has each start, and both may have different starts. */
static void test_combine_at_every_start(void)
{
    for (int32_t a = 0; a < FL_FLOATS; a++)
        for (int32_t b = 0; b < FL_FLOATS; b++)
            for (int64_t i = 0; cuda->can_combine(a, b) && i < 16 / fl_float_bytes(a); i++)
                for (int64_t j = i % SAMPLE; j < 16 / fl_float_bytes(b); j += SAMPLE) {
                    model into = make_model(&(shape){FL_CHUNK + 3, a, i}, 1, TAME, 1);
                    model from = make_model(&(shape){FL_CHUNK + 3, b, j}, 1, TAME, 2);
                    fl_tensor_list mirror = list_of_copy(&into);
                    fl_cuda_queue queue = open_queue(&into.list, &from.list);
                    CHECK_INT(cuda->combine(&(fl_grad_pass){&into.list, &queue}, &from.list, 0.1,
                                            NULL, (double)(j % 2), NULL),
                              FL_OK);
                    cpu->combine(&(fl_grad_pass){&mirror, NULL}, &from.list, 0.1, NULL,
                                 (double)(j % 2), NULL);
                    check_model(&into);
                    check_model(&from);
                    close_queue(&queue);
                    fl_tensor_list_close(&mirror);
                    free_model(&into);
                    free_model(&from);
                }
}

/* The test has 4 GiB of halves, pages of zeros that take no memory. */
static void test_more_than_two_billion_elements(void)
{
    const int64_t count = ((int64_t)1 << 31) + 3 * FL_CHUNK + 5;
    char *memory = mmap(NULL, (size_t)(2 * count), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    fl_tensor_list list = {0};
    float found = 0;
    CHECK(memory != MAP_FAILED);
    (void)madvise(memory, (size_t)(2 * count), MADV_HUGEPAGE);
    set_value(FL_BF16, memory, count - 1, (double)INFINITY);
    fl_tensor_list_begin(&list);
    CHECK_INT(fl_tensor_list_add(&list, memory, count, FL_BF16, NULL), FL_OK);
    CHECK_INT(fl_tensor_list_end(&list, NULL), FL_OK);
    fl_cuda_queue queue = open_queue(&list, NULL);
    CHECK_INT(cuda->unscale(&(fl_grad_pass){&list, &queue}, &(float){1}, &found), FL_OK);
    CHECK(found == 1);
    close_queue(&queue);
    fl_tensor_list_close(&list);
    CHECK(munmap(memory, (size_t)(2 * count)) == 0);
}

int main(void)
{
    start_tests();
    choose_device_0();
    RUN(test_norm_check);
    RUN(test_norm_of_nothing);
    RUN(test_finite_is_said_of_elements);
    RUN(test_norms_have_the_same_bits);
    RUN(test_norms_at_every_start_have_the_same_bits);
    RUN(test_norms_are_near_the_exact_one);
    RUN(test_norms_of_equal_elements);
    RUN(test_the_device_says_how_squares_are_summed);
    RUN(test_scale);
    RUN(test_scale_at_every_start);
    RUN(test_unscale);
    RUN(test_a_factor_of_one_writes_nothing);
    RUN(test_combine);
    RUN(test_combine_at_every_start);
    if (!IS_SANITIZED) RUN(test_more_than_two_billion_elements);
    return 0;
}
