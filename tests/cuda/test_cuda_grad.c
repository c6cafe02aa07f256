/* Tests of the kernels over lists of many shapes, compiled as C++: against the CPU's passes, bit
 * for bit but for norms. */
#include "cuda_rig.h"

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
    for (int which = 0; which < LISTS; which++) {
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
    fl_pass pass = {&m->list, queue};
    float found[3] = {0};
    double norm;
    CHECK_INT(cuda->norm_check(&pass, norm_type, (fl_divisor){NULL, 1}, &found[0], &norm), FL_OK);
    CHECK_INT(cuda->unscale(&pass, &(float){1}, &found[1]), FL_OK);
    CHECK_INT(cuda->combine(&pass, &m->list, 1, NULL, 0, &found[2]), FL_OK);
    CHECK(found[0] == found[1] && found[1] == found[2]);
    return found[0];
}

/* The sum of doubles may be infinite though each of them is finite, and the other way round. */
static void test_finite_is_said_of_elements(void)
{
    for (int32_t type = 0; type < FL_FLOATS; type++) {
        shape shapes[] = {{20000, type, 0}, {70, type, 1}};
        model m = make_model(shapes, 2, FINITE, 5);
        fl_cuda_queue queue = open_queue(&m.list, NULL);
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

static void check_bits(model *m, int32_t norm_type, double *norm)
{
    const int processors[] = {1, 2, 3, 7, 200};
    fl_cuda_queue queue = open_queue(&m->list, NULL);
    for (int i = 0; i < 5; i++) {
        float found = 0;
        double again;
        fake_set_devices(processors[i], true);
        CHECK_INT(cuda->norm_check(&(fl_pass){&m->list, &queue}, norm_type, (fl_divisor){NULL, 1},
                                   &found, &again),
                  FL_OK);
        if (i == 0 && *norm < 0) *norm = again;
        check_double(again, *norm);
    }
    fake_set_devices(2, true);
    close_queue(&queue);
}

/* For any number of blocks, in any order, wherever the tensors lie. */
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

/* ---- scale, unscale */

static void test_scale(void)
{
    const double factors[] = {1.0 / 3, -2, 0, INFINITY, 1 + 1e-12, 3e38};
    for (int which = 0; which < LISTS; which++) {
        model m = make_list(which, SAMPLE);
        fl_list mirror = list_of_copy(&m);
        fl_cuda_queue queue = open_queue(&m.list, NULL);
        CHECK_INT(cuda->scale(&(fl_pass){&m.list, &queue}, &factors[which]), FL_OK);
        cpu->scale(&(fl_pass){&mirror, NULL}, &factors[which]);
        check_model(&m);
        close_queue(&queue);
        fl_list_close(&mirror);
        free_model(&m);
    }
}

static void test_unscale(void)
{
    const float inverses[] = {1.0F / 3, -0.5F, 1.0F / 65536, 0.1F, 1, 3e38F};
    for (int which = 0; which < LISTS; which++) {
        model m = make_list(which, 3 * SAMPLE);
        fl_list mirror = list_of_copy(&m);
        fl_cuda_queue queue = open_queue(&m.list, NULL);
        for (int was = 0; was < 2; was++) {
            float found = (float)was, expected = found;
            CHECK_INT(cuda->unscale(&(fl_pass){&m.list, &queue}, &inverses[which], &found), FL_OK);
            cpu->unscale(&(fl_pass){&mirror, NULL}, &inverses[which], &expected);
            CHECK(found == expected);
            check_model(&m);
        }
        close_queue(&queue);
        fl_list_close(&mirror);
        free_model(&m);
    }
}

/* With a factor of 1, memory that cannot be written does. */
static void test_a_factor_of_one_writes_nothing(void)
{
    enum { BYTES = 1 << 17 };
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && mprotect(memory, BYTES, PROT_READ) == 0);
    for (int32_t type = 0; type < FL_FLOATS; type++) {
        fl_list list = {0};
        float found = 0;
        fl_list_begin(&list);
        CHECK_INT(fl_list_add(&list, memory, BYTES / fl_float_bytes(type), type, NULL), FL_OK);
        CHECK_INT(fl_list_end(&list, NULL), FL_OK);
        fl_cuda_queue queue = open_queue(&list, NULL);
        CHECK_INT(cuda->scale(&(fl_pass){&list, &queue}, &(double){1}), FL_OK);
        CHECK_INT(cuda->unscale(&(fl_pass){&list, &queue}, &(float){1}, &found), FL_OK);
        CHECK(found == 0);
        close_queue(&queue);
        fl_list_close(&list);
    }
    CHECK(munmap(memory, BYTES) == 0);
}

/* ---- combine */

/* Sizes around packs and chunks; the tensors of each list off by as many elements as it says. */
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
    fl_list mirror = list_of_copy(into);
    fl_cuda_queue queue = open_queue(&into->list, &from->list);
    for (int was = 0; was < 3; was++) {
        float found = (float)(was % 2), expected = found;
        bool is_checked = was < 2;
        for (int64_t i = 0; beta == 0 && i < mirror.count; i++) { /* not to be read: NaN */
            const fl_span *a = &into->list.spans[i], *b = &mirror.spans[i];
            memset(a->data, 0xff, (size_t)(a->count * fl_float_bytes(a->type)));
            memset(b->data, 0xff, (size_t)(b->count * fl_float_bytes(b->type)));
        }
        CHECK_INT(cuda->combine(&(fl_pass){&into->list, &queue}, &from->list, alpha, factor, beta,
                                is_checked ? &found : NULL),
                  FL_OK);
        cpu->combine(&(fl_pass){&mirror, NULL}, &from->list, alpha, factor, beta,
                     is_checked ? &expected : NULL);
        CHECK(found == expected);
        check_model(into);
        check_model(from);
    }
    close_queue(&queue);
    fl_list_close(&mirror);
}

static void test_combine(void)
{
    const double third = 1.0 / 3;
    int rounds = 0;
    for (int32_t a = 0; a < FL_FLOATS; a++)
        for (int32_t b = 0; b < FL_FLOATS; b++) {
            CHECK_INT(cuda->can_combine(a, b), cpu->can_combine(a, b));
            if (!cpu->can_combine(a, b)) continue;
            for (int64_t shift = 0; shift < 4; shift++, rounds++) {
                model into = make_pair(a, shift / 2, FINITE);
                model from = make_pair(b, shift % 2 * (1 + rounds % 7), rounds % 3);
                check_combine(&into, &from, 0.1, shift % 2 ? &third : NULL, rounds % 4 ? 0.9 : 0);
                free_model(&into);
                free_model(&from);
            }
        }
}

/* 4 GiB of halves, pages of zeros that take no memory. */
static void test_more_than_two_billion_elements(void)
{
    const int64_t count = ((int64_t)1 << 31) + 3 * FL_CHUNK + 5;
    char *memory = mmap(NULL, (size_t)(2 * count), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    fl_list list = {0};
    float found = 0;
    CHECK(memory != MAP_FAILED);
    (void)madvise(memory, (size_t)(2 * count), MADV_HUGEPAGE);
    set_value(FL_BF16, memory, count - 1, (double)INFINITY);
    fl_list_begin(&list);
    CHECK_INT(fl_list_add(&list, memory, count, FL_BF16, NULL), FL_OK);
    CHECK_INT(fl_list_end(&list, NULL), FL_OK);
    fl_cuda_queue queue = open_queue(&list, NULL);
    CHECK_INT(cuda->unscale(&(fl_pass){&list, &queue}, &(float){1}, &found), FL_OK);
    CHECK(found == 1);
    close_queue(&queue);
    fl_list_close(&list);
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
    RUN(test_scale);
    RUN(test_unscale);
    RUN(test_a_factor_of_one_writes_nothing);
    RUN(test_combine);
    if (!IS_SANITIZED) RUN(test_more_than_two_billion_elements);
    return 0;
}
