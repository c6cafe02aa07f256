/* Tests of fl_cpu_lanes: each instruction set this machine has, against arithmetic on single
 * elements, for all lengths, starts and kinds of numbers. */
#include "grad_fixture.h"

#include <float.h>

enum {
    LENGTHS = 258, /* each one up to 257 */
    GUARD = 64,    /* bytes before and after that must stay as they are */
    ROOM = 100003 * 8 + 64,
    PATTERN = 0xA5
};

static const int64_t large_lengths[] = {1000, 4096, 16384, 16385, 100003};
static const double factors[] = {0.5, 1.0 / 3, -3, 1.0 / 65536, 65536, 1e30, 0, INFINITY, NAN};
enum { FACTORS = sizeof factors / sizeof *factors };

static const fl_cpu_lanes *variants[VARIANTS];
static int variant_count;

/* A run of elements between guards. */
typedef struct run_of {
    char *memory; /* owned */
    char *data;   /* in memory */
    int64_t bytes;
} run_of;

static run_of make_run(void)
{
    run_of run = {.memory = fl_alloc(ROOM + 3 * GUARD)};
    CHECK(run.memory != NULL);
    return run;
}

static void place(run_of *run, const void *content, int64_t bytes, int64_t offset)
{
    CHECK(offset >= 0 && offset < 64 && bytes + offset <= ROOM);
    run->data = run->memory + GUARD + offset;
    run->bytes = bytes;
    memset(run->data - GUARD, PATTERN, GUARD);
    if (bytes > 0) memcpy(run->data, content, (size_t)bytes);
    memset(run->data + bytes, PATTERN, GUARD);
}

static void check_guards(const run_of *run)
{
    static const unsigned char zeros[GUARD];
    unsigned char guards[2 * GUARD];
    memcpy(guards, run->data - GUARD, GUARD);
    memcpy(guards + GUARD, run->data + run->bytes, GUARD);
    for (int i = 0; i < 2 * GUARD; i++) guards[i] ^= PATTERN;
    CHECK(memcmp(guards, zeros, GUARD) == 0 && memcmp(guards + GUARD, zeros, GUARD) == 0);
}

static void check_norms(const fl_cpu_lanes *lanes, int32_t type, run_of *run, const char *content,
                        int64_t count, int64_t offset)
{
    place(run, content, count * fl_float_bytes(type), offset);
    for (int32_t norm_type = 0; norm_type < FL_NORMS; norm_type++) {
        bool is_finite = count % 2, should_be;
        double norm = lanes->norm[norm_type][type](run->data, count, &is_finite);
        check_double(norm, ref_norm(norm_type, type, content, count, &should_be));
        CHECK_INT(is_finite, should_be);
    }
    check_elements(type, run->data, content, count);
    check_guards(run);
}

static void check_scaling(const fl_cpu_lanes *lanes, int32_t type, run_of *run, const char *content,
                          int64_t count, int64_t offset, double factor)
{
    static char expected[ROOM];
    int64_t bytes = count * fl_float_bytes(type);
    bool is_finite = count % 2, should_be;
    memcpy(expected, content, (size_t)bytes);
    ref_scale(type, expected, count, factor);
    place(run, content, bytes, offset);
    lanes->scale[type](run->data, count, factor);
    check_elements(type, run->data, expected, count);
    check_guards(run);
    place(run, content, bytes, offset);
    lanes->unscale[type](run->data, count, factor, &is_finite);
    check_elements(type, run->data, expected, count);
    check_guards(run);
    (void)ref_norm(FL_NORM_2, type, content, count, &should_be);
    CHECK_INT(is_finite, should_be);
}

/* All lengths, starting somewhere; some lengths, starting everywhere. */
static void check_lengths(int32_t type, int mix)
{
    run_of run = make_run();
    char *content = fl_alloc(ROOM);
    int64_t bytes = fl_float_bytes(type), starts = 64 / bytes;
    uint64_t state = 10 + (uint64_t)type;
    for (int64_t count = 0; count < LENGTHS; count++) {
        bool is_special = count < 3 || (count >= 31 && count <= 33) || count == 65;
        fill_elements(type, content, count, count % 5 == 0 ? mix : FINITE, &state);
        for (int64_t i = 0; i < (is_special ? starts : 1); i++) {
            int64_t offset = is_special ? i * bytes : count % starts * bytes;
            double factor = factors[random_below(&state, FACTORS)];
            for (int v = 0; v < variant_count; v++) {
                check_norms(variants[v], type, &run, content, count, offset);
                check_scaling(variants[v], type, &run, content, count, offset, factor);
            }
        }
    }
    fl_free(content);
    fl_free(run.memory);
}

static void test_every_length_of_any_numbers(void)
{
    for (int32_t type = 0; type < FL_FLOATS; type++) check_lengths(type, ANY);
}

static void test_large_runs(void)
{
    run_of run = make_run();
    char *content = fl_alloc(ROOM);
    uint64_t state = 20;
    for (size_t i = 0; i < sizeof large_lengths / sizeof *large_lengths; i++) {
        int64_t count = large_lengths[i];
        for (int32_t type = 0; type < FL_FLOATS; type++) {
            fill_elements(type, content, count, i % 2 ? TAME : FINITE, &state);
            int64_t offset = random_below(&state, 64 / fl_float_bytes(type)) * fl_float_bytes(type);
            for (int v = 0; v < variant_count; v++) {
                check_norms(variants[v], type, &run, content, count, offset);
                check_scaling(variants[v], type, &run, content, count, offset, 1.0 / 3);
            }
        }
    }
    fl_free(content);
    fl_free(run.memory);
}

static void check_combine(const fl_cpu_lanes *lanes, int32_t into, int32_t from, run_of *runs,
                          char *const *content, int64_t count, double alpha, double beta)
{
    static char expected[ROOM];
    int64_t dst_bytes = count * fl_float_bytes(into), src_bytes = count * fl_float_bytes(from);
    bool is_finite = count % 2, should_be;
    memcpy(expected, content[0], (size_t)dst_bytes);
    ref_combine(into, expected, from, content[1], count, alpha, beta, &should_be);
    place(&runs[0], content[0], dst_bytes, count * 8 % 64);
    place(&runs[1], content[1], src_bytes, count * 24 % 64);
    lanes->combine[into][from](runs[0].data, runs[1].data, count, alpha, beta, &is_finite);
    CHECK_INT(is_finite, should_be);
    check_elements(into, runs[0].data, expected, count);
    CHECK(count == 0 || memcmp(runs[1].data, content[1], (size_t)src_bytes) == 0);
    check_guards(&runs[0]);
    check_guards(&runs[1]);
}

static void check_combines(int32_t into, int32_t from)
{
    const double betas[] = {0, 1, 0.9, -2, INFINITY};
    run_of runs[2] = {make_run(), make_run()};
    char *content[2] = {fl_alloc(ROOM), fl_alloc(ROOM)};
    uint64_t state = 30;
    for (int64_t step = 0; step < LENGTHS + 2; step++) {
        int64_t count = step < LENGTHS ? step : large_lengths[2 + step % 2];
        double beta = betas[random_below(&state, 5)],
               alpha = factors[random_below(&state, FACTORS)];
        fill_elements(from, content[1], count, step % 3 == 0 ? ANY : FINITE, &state);
        if (beta == 0) /* all NaN: it must not be read */
            memset(content[0], 0xff, (size_t)(count * fl_float_bytes(into)));
        else
            fill_elements(into, content[0], count, step % 6 == 1 ? ANY : FINITE, &state);
        for (int v = 0; v < variant_count; v++) {
            check_combine(variants[v], into, from, runs, content, count, alpha, beta);
            check_combine(variants[v], into, from, runs, content, count, 0.7, beta);
        }
    }
    for (int i = 0; i < 2; i++) {
        fl_free(content[i]);
        fl_free(runs[i].memory);
    }
}

static void test_combine_every_pair(void)
{
    for (int32_t into = 0; into < FL_FLOATS; into++)
        for (int32_t from = 0; from < FL_FLOATS; from++) {
            for (int v = 0; v < variant_count; v++)
                CHECK_INT(variants[v]->combine[into][from] != NULL, is_offered(into, from));
            if (is_offered(into, from)) check_combines(into, from);
        }
}

/* A tensor may be added to itself. */
static void test_combine_in_place(void)
{
    char content[100 * 8], expected[100 * 8];
    run_of run = make_run();
    uint64_t state = 40;
    for (int32_t type = 0; type < FL_FLOATS; type++)
        for (int64_t count = 1; count <= 100; count += 9) {
            bool is_finite, should_be;
            fill_elements(type, content, count, FINITE, &state);
            for (int v = 0; v < variant_count; v++) {
                place(&run, content, count * fl_float_bytes(type), 16);
                memcpy(expected, content, sizeof expected);
                ref_combine(type, expected, type, content, count, 0.3, 0.9, &should_be);
                variants[v]->combine[type][type](run.data, run.data, count, 0.3, 0.9, &is_finite);
                check_elements(type, run.data, expected, count);
            }
        }
    fl_free(run.memory);
}

/* Each pattern of 16 bits, as a float and back, and multiplied. */
enum { ALL = 1 << 16 };

static void check_halves_as_floats(int32_t type, const uint16_t *halves)
{
    static uint16_t back[ALL];
    static float floats[ALL], expected[ALL];
    for (int i = 0; i < ALL; i++) expected[i] = (float)value_of_bits(type, halves[i]);
    for (int v = 0; v < variant_count; v++) {
        const fl_cpu_lanes *lanes = variants[v];
        bool is_finite;
        lanes->combine[FL_F32][type](floats, halves, ALL, 1, 0, &is_finite);
        CHECK(!is_finite);
        check_elements(FL_F32, floats, expected, ALL);
        lanes->combine[type][FL_F32](back, floats, ALL, 1, 0, &is_finite);
        CHECK(!is_finite);
        check_elements(type, back, halves, ALL);
        for (int i = 0; i < ALL; i++) {
            double size = lanes->norm[i % FL_NORMS][type](&halves[i], 1, &is_finite);
            CHECK_INT(is_finite, isfinite(expected[i]) != 0);
            double x = expected[i];
            check_double(size, i % FL_NORMS == FL_NORM_2 ? x * x : fabs(x));
        }
    }
}

static void check_halves_scaled(int32_t type, const uint16_t *halves)
{
    static uint16_t actual[ALL], expected[ALL];
    for (int f = 0; f < FACTORS; f++) {
        memcpy(expected, halves, sizeof expected);
        ref_scale(type, expected, ALL, factors[f]);
        for (int v = 0; v < variant_count; v++) {
            memcpy(actual, halves, sizeof actual);
            variants[v]->scale[type](actual, ALL, factors[f]);
            check_elements(type, actual, expected, ALL);
        }
    }
}

static void test_all_halves(void)
{
    static uint16_t halves[ALL];
    for (int i = 0; i < ALL; i++) halves[i] = (uint16_t)i;
    for (int32_t type = FL_F16; type <= FL_BF16; type++) {
        check_halves_as_floats(type, halves);
        check_halves_scaled(type, halves);
    }
}

/* Floats just below, at and just above each half and each middle between two halves. */
static void check_rounding(int32_t type)
{
    enum { STEPS = 6 };
    static float floats[STEPS << 15];
    static uint16_t expected[STEPS << 15], actual[STEPS << 15];
    int64_t count = 0;
    for (uint64_t half = 0; half < 0x7f80; half++) {
        float here = (float)value_of_bits(type, half);
        double next = value_of_bits(type, half + 1);
        if (isinf(here)) break;
        if (isinf(next)) next = ldexp(1, type == FL_F16 ? 16 : 128);
        float middle = (float)((here + next) / 2); /* exact */
        float sign = half % 3 == 0 ? -1 : 1;
        floats[count++] = sign * nextafterf(here, 0);
        floats[count++] = sign * nextafterf(here, INFINITY);
        floats[count++] = sign * nextafterf(middle, 0);
        floats[count++] = sign * middle;
        floats[count++] = sign * nextafterf(middle, INFINITY);
    }
    for (int64_t i = 0; i < count; i++)
        expected[i] = (uint16_t)bits_of_value(type, (double)floats[i]);
    for (int v = 0; v < variant_count; v++) {
        bool is_finite;
        memset(actual, 0x55, sizeof actual);
        variants[v]->combine[type][FL_F32](actual, floats, count, 1, 0, &is_finite);
        check_elements(type, actual, expected, count);
    }
}

static void test_rounding_to_nearest_even(void)
{
    check_rounding(FL_F16);
    check_rounding(FL_BF16);
    const float f32[] = {65504, 65519.996F, 65520, 65536, 0x1p-24F, 0x1p-25F, 0x1.8p-25F, FLT_MAX};
    const uint16_t f16[] = {0x7bff, 0x7bff, 0x7c00, 0x7c00, 1, 0, 1, 0x7c00};
    const uint16_t bf16[] = {0x4780, 0x4780, 0x4780, 0x4780, 0x3380, 0x3300, 0x3340, 0x7f80};
    for (int v = 0; v < variant_count; v++) {
        uint16_t half[8];
        bool is_finite;
        variants[v]->combine[FL_F16][FL_F32](half, f32, 8, 1, 0, &is_finite);
        check_elements(FL_F16, half, f16, 8);
        variants[v]->combine[FL_BF16][FL_F32](half, f32, 8, 1, 0, &is_finite);
        check_elements(FL_BF16, half, bf16, 8);
    }
}

/* Products and their sum are floats; then comes the one rounding to a half. */
static void test_random_bits_are_rounded_once(void)
{
    enum { COUNT = 20000 };
    static float src[COUNT], dst[COUNT];
    static uint16_t halves[COUNT], expected[COUNT];
    uint64_t state = 50;
    for (int32_t type = FL_F16; type <= FL_BF16; type++) {
        for (int64_t i = 0; i < COUNT; i++) {
            set_bits(FL_F32, src, i, next_random(&state) >> 32);
            if (i % 2) src[i] = ldexpf((float)random_below(&state, 1 << 24), -24);
        }
        fill_elements(type, halves, COUNT, TAME, &state);
        bool is_finite, should_be;
        uint16_t *actual = (uint16_t *)(void *)dst;
        memcpy(expected, halves, sizeof expected);
        ref_combine(type, expected, FL_F32, src, COUNT, 1.0 / 3, 0.1, &should_be);
        for (int v = 0; v < variant_count; v++) {
            memcpy(actual, halves, sizeof halves);
            variants[v]->combine[type][FL_F32](actual, src, COUNT, 1.0 / 3, 0.1, &is_finite);
            CHECK_INT(is_finite, should_be);
            check_elements(type, actual, expected, COUNT);
        }
    }
}

/* Squares of floats that are infinite as floats; a sum of squares that is infinite as a double. */
static void test_large_numbers_are_finite(void)
{
    const float large[] = {1.9e19F, -3e19F, FLT_MAX, -FLT_MAX, 1, 2e38F, FLT_MAX};
    const double huge[] = {1e200, -DBL_MAX, DBL_MAX, 1, DBL_MAX};
    const uint16_t half[] = {0x7f7f, 0xff7f, 0x7f7f}; /* bf16 */
    for (int v = 0; v < variant_count; v++) {
        for (int32_t norm_type = 0; norm_type < FL_NORMS; norm_type++) {
            bool is_finite = false;
            CHECK(isfinite(variants[v]->norm[norm_type][FL_F32](large, 7, &is_finite)));
            CHECK(is_finite);
            is_finite = false;
            CHECK(isfinite(variants[v]->norm[norm_type][FL_BF16](half, 3, &is_finite)));
            CHECK(is_finite);
            is_finite = false;
            double norm = variants[v]->norm[norm_type][FL_F64](huge, 5, &is_finite);
            CHECK(is_finite && (isinf(norm) != 0) == (norm_type != FL_NORM_MAX));
        }
        double copy[5];
        bool is_finite = false;
        memcpy(copy, huge, sizeof huge);
        variants[v]->unscale[FL_F64](copy, 5, 0.5, &is_finite);
        CHECK(is_finite);
        check_double(copy[1], -DBL_MAX / 2);
    }
}

/* One element that is not finite, at each place of a run. */
static void test_one_bad_element_is_found_anywhere(void)
{
    enum { COUNT = 101 };
    double content[COUNT], dst[COUNT];
    uint64_t state = 60;
    for (int32_t type = 0; type < FL_FLOATS; type++) {
        int m = formats[type].mantissa_bits, e = formats[type].exponent_bits;
        uint64_t infinity = (((uint64_t)1 << e) - 1) << m, sign = (uint64_t)1 << (e + m);
        const uint64_t bad[] = {infinity,
                                infinity | sign,
                                infinity | 1,
                                infinity | sign | 2,
                                infinity | (uint64_t)1 << (m - 1),
                                sign | (sign - 1)};
        for (int at = 0; at < COUNT; at++)
            for (int v = 0; v < variant_count; v++) {
                bool is_finite = true;
                fill_elements(type, content, COUNT, TAME, &state);
                set_bits(type, content, at, bad[at % 6]);
                for (int32_t norm_type = 0; norm_type < FL_NORMS; norm_type++) {
                    double norm = variants[v]->norm[norm_type][type](content, COUNT, &is_finite);
                    CHECK(!is_finite && (isnan(norm) != 0) == (at % 6 > 1));
                }
                memset(dst, 0, sizeof dst);
                is_finite = true;
                variants[v]->combine[type][type](dst, content, COUNT, 1, 1, &is_finite);
                CHECK(!is_finite);
                is_finite = true;
                variants[v]->combine[type][type](dst, content, 0, 1, 1, &is_finite);
                CHECK(is_finite); /* of no elements, all are */
                variants[v]->unscale[type](content, COUNT, 0.5, &is_finite);
                CHECK(!is_finite);
            }
    }
}

/* Runs begin or end at the edge of memory. */
static void test_nothing_beyond_a_run_is_touched(void)
{
    enum { PAGE = 4096 };
    char *memory = mmap(NULL, 5 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (int i = 0; i < 5; i += 2) CHECK(mprotect(memory + i * PAGE, PAGE, PROT_NONE) == 0);
    for (int32_t type = 0; type < FL_FLOATS; type++)
        for (int64_t count = 0; count <= 100; count++) {
            int64_t bytes = count * fl_float_bytes(type);
            for (int at = 0; at < 2; at++)
                for (int v = 0; v < variant_count; v++) {
                    const fl_cpu_lanes *lanes = variants[v];
                    char *a = memory + (at ? 2 * PAGE - bytes : PAGE), *b = a + 2 * PAGE;
                    bool is_finite = true;
                    for (int32_t norm_type = 0; norm_type < FL_NORMS; norm_type++)
                        check_double(lanes->norm[norm_type][type](a, count, &is_finite), 0);
                    lanes->scale[type](a, count, 3);
                    lanes->unscale[type](a, count, 3, &is_finite);
                    lanes->combine[type][type](a, b, count, 3, 0, &is_finite);
                    lanes->combine[type][type](a, b, count, 3, 1, &is_finite);
                    CHECK(is_finite);
                }
        }
    CHECK(munmap(memory, 5 * PAGE) == 0);
}

static void test_the_best_variant_is_found(void)
{
    CHECK(fl_cpu_lanes_find() == variants[variant_count - 1]);
    for (int v = 0; v < variant_count; v++) printf(" %s", variants[v]->name);
}

int main(void)
{
    start_tests();
    variant_count = find_variants(variants);
    RUN(test_the_best_variant_is_found);
    RUN(test_every_length_of_any_numbers);
    RUN(test_large_runs);
    RUN(test_combine_every_pair);
    RUN(test_combine_in_place);
    RUN(test_all_halves);
    RUN(test_rounding_to_nearest_even);
    RUN(test_random_bits_are_rounded_once);
    RUN(test_large_numbers_are_finite);
    RUN(test_one_bad_element_is_found_anywhere);
    RUN(test_nothing_beyond_a_run_is_touched);
    return 0;
}
