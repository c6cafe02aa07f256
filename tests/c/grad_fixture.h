/* grad_fixture.h: elements of the four types, and the expected result of each pass for each
 * element. */
#ifndef GRAD_FIXTURE_H
#define GRAD_FIXTURE_H

#include "check.h"

#include "fl_cpu_grad.h"
#include "fl_cpu_lanes.h"

#include <math.h>

enum { REF_LANES = 32, VARIANTS = 3 };

/* Finds the tables that this machine can run. */
static inline int find_variants(const fl_cpu_lanes *found[VARIANTS])
{
    int count = 0;
    found[count++] = &fl_cpu_lanes_plain;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
        found[count++] = &fl_cpu_lanes_avx2;
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        found[count++] = &fl_cpu_lanes_avx512;
#elif defined(__aarch64__)
    found[count++] = &fl_cpu_lanes_neon;
#endif
    return count;
}

/* ---- single elements */

typedef struct format {
    int exponent_bits, mantissa_bits;
} format;

static const format formats[FL_FLOATS] = {
    [FL_F64] = {11, 52}, [FL_F32] = {8, 23}, [FL_F16] = {5, 10}, [FL_BF16] = {8, 7}};

static inline uint64_t bits_of(int32_t type, const void *data, int64_t at)
{
    uint64_t bits = 0; /* little-endian */
    int64_t bytes = fl_float_bytes(type);
    memcpy(&bits, (const char *)data + at * bytes, (size_t)bytes);
    return bits;
}

static inline void set_bits(int32_t type, void *data, int64_t at, uint64_t bits)
{
    int64_t bytes = fl_float_bytes(type);
    memcpy((char *)data + at * bytes, &bits, (size_t)bytes);
}

/* Computes the value of bits from the definition of a binary float. */
static inline double value_of_bits(int32_t type, uint64_t bits)
{
    int e = formats[type].exponent_bits, m = formats[type].mantissa_bits;
    int bias = (1 << (e - 1)) - 1, most = (1 << e) - 1;
    int exponent = (int)(bits >> m & (uint64_t)most);
    uint64_t mantissa = bits & (((uint64_t)1 << m) - 1);
    double size;
    if (exponent == most)
        size = mantissa != 0 ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        size = ldexp((double)mantissa, 1 - bias - m);
    else
        size = ldexp((double)(mantissa | (uint64_t)1 << m), exponent - bias - m);
    return bits >> (e + m) & 1 ? -size : size;
}

static inline double value_of(int32_t type, const void *data, int64_t at)
{
    return value_of_bits(type, bits_of(type, data, at));
}

/* Rounds to nearest, ties to even. `value` is a float for all types but double. */
static inline uint64_t bits_of_value(int32_t type, double value)
{
    int e = formats[type].exponent_bits, m = formats[type].mantissa_bits;
    uint64_t infinity = (((uint64_t)1 << e) - 1) << m, bits;
    int least = 2 - (1 << (e - 1)), exponent;
    double size = fabs(value);
    if (type == FL_F64) {
        memcpy(&bits, &value, sizeof bits);
        return bits;
    }
    if (isnan(value))
        bits = infinity | (uint64_t)1 << (m - 1);
    else if (isinf(value))
        bits = infinity;
    else {
        (void)frexp(size, &exponent);
        exponent = size == 0 || exponent - 1 < least ? least : exponent - 1;
        double units = rint(ldexp(size, m - exponent)); /* of the last place; exact but for rint */
        bits = ((uint64_t)(exponent - least) << m) + (uint64_t)units;
        bits = bits < infinity ? bits : infinity;
    }
    return bits | (uint64_t)(signbit(value) != 0) << (e + m);
}

static inline void set_value(int32_t type, void *data, int64_t at, double value)
{
    set_bits(type, data, at, bits_of_value(type, value));
}

static inline bool is_nan_bits(int32_t type, uint64_t bits)
{
    return isnan(value_of_bits(type, bits));
}

/* Elements must have the same bits, or both be NaN. */
static inline void
check_elements(int32_t type, const void *actual, const void *expected, int64_t count)
{
    if (count == 0 || memcmp(actual, expected, (size_t)(count * fl_float_bytes(type))) == 0) return;
    for (int64_t i = 0; i < count; i++) {
        uint64_t a = bits_of(type, actual, i), b = bits_of(type, expected, i);
        if (a == b || (is_nan_bits(type, a) && is_nan_bits(type, b))) continue;
        fprintf(stderr, "\ntype %d, element %lld of %lld: %llx, not %llx\n", (int)type,
                (long long)i, (long long)count, (unsigned long long)a, (unsigned long long)b);
        _exit(1);
    }
}

static inline void check_double(double actual, double expected)
{
    bool is_same = memcmp(&actual, &expected, sizeof actual) == 0;
    if (!is_same && !(isnan(actual) && isnan(expected)))
        fprintf(stderr, "\n%.17g, not %.17g\n", actual, expected);
    CHECK(is_same || (isnan(actual) && isnan(expected)));
}

/* ---- what to fill tensors with */

enum { TAME, FINITE, ANY }; /* near 1; with denormals, zeros and the largest; with inf and NaN */

static inline uint64_t random_element(int32_t type, int mix, uint64_t *state)
{
    int e = formats[type].exponent_bits, m = formats[type].mantissa_bits;
    uint64_t word = next_random(state), most = ((uint64_t)1 << e) - 1;
    uint64_t mantissa = word & (((uint64_t)1 << m) - 1), sign = word >> 63 << (e + m);
    uint64_t near_one = (most >> 1) - 4 + (word >> 60 & 7);
    uint64_t kind = mix == TAME ? 15 : word >> 56 & 15;
    if (kind >= 8) return sign | near_one << m | mantissa;
    if (kind >= 4) return sign | (word >> 40) % most << m | mantissa;
    if (kind == 3) return sign | mantissa; /* denormal */
    if (kind == 2) return sign;
    if (kind == 1 || mix == FINITE) return sign | ((most << m) - 1);
    return sign | most << m | (word >> 55 & 1 ? mantissa : 0);
}

static inline void fill_elements(int32_t type, void *data, int64_t count, int mix, uint64_t *state)
{
    for (int64_t i = 0; i < count; i++) set_bits(type, data, i, random_element(type, mix, state));
}

/* ---- the functions of fl_cpu_lanes, element by element */

static inline double
ref_norm(int32_t norm_type, int32_t type, const void *data, int64_t count, bool *is_finite)
{
    double lanes[REF_LANES] = {0};
    *is_finite = true;
    for (int64_t i = 0; i < count; i++) {
        double x = fabs(value_of(type, data, i)), *lane = &lanes[i % REF_LANES];
        if (!isfinite(x)) *is_finite = false;
        if (norm_type == FL_NORM_2)
            *lane += x * x;
        else if (norm_type == FL_NORM_1)
            *lane += x;
        else if (!(x <= *lane) && !isnan(*lane))
            *lane = x;
    }
    for (int half = REF_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) {
            double other = lanes[i + half];
            if (norm_type != FL_NORM_MAX)
                lanes[i] += other;
            else if (!(other <= lanes[i]) && !isnan(lanes[i]))
                lanes[i] = other;
        }
    return lanes[0];
}

static inline void ref_scale(int32_t type, void *data, int64_t count, double factor)
{
    for (int64_t i = 0; i < count; i++) {
        double x = value_of(type, data, i);
        set_value(type, data, i, type == FL_F64 ? x * factor : (float)x * (float)factor);
    }
}

static inline void ref_combine(int32_t into, void *dst, int32_t from, const void *src,
                               int64_t count, double alpha, double beta, bool *is_finite)
{
    *is_finite = true;
    for (int64_t i = 0; i < count; i++) {
        double x = value_of(from, src, i), y = value_of(into, dst, i);
        if (!isfinite(x)) *is_finite = false;
        if (into == FL_F64) {
            set_value(into, dst, i, beta == 0 ? x * alpha : x * alpha + y * beta);
            continue;
        }
        float sum = (float)x * (float)alpha;
        if (beta != 0) sum += (float)y * (float)beta;
        set_value(into, dst, i, sum);
    }
}

static inline bool is_offered(int32_t into, int32_t from)
{
    bool is_half = into == FL_F16 || into == FL_BF16;
    return into == from || (is_half && from == FL_F32) || (into == FL_F32 && from != FL_F64);
}

#endif
