/* Tests of the casts of fl_cpu_image: each table that this machine can run against lookups of
 * single elements, for all shapes of blocks, with memory that ends at the end of the data. */
#include "cpu_image_fixture.h"

#include <fenv.h>
#include <math.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* ---- casts */

static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Rounds by arithmetic in double, which holds every float and its rounding to 11 bits exactly. */
static uint16_t f16_of(float x)
{
    double size = fabs((double)x);
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (size >= 65520) return sign | 0x7C00;
    int exponent;
    (void)frexp(size, &exponent); /* size < 2^exponent */
    if (size == 0 || exponent < -13) exponent = -13;
    double unit = ldexp(1, exponent - 11);
    double units = nearbyint(size / unit); /* <= 2048 */
    return (uint16_t)(sign | (uint16_t)((exponent + 13) * 1024 + (int)units));
}

/* A table, and the numbers that the table comes from. */
typedef struct cast_case {
    _Alignas(64) uint8_t table[256 * 4];
    fl_image_cast cast;
} cast_case;

static int64_t element_bytes(fl_image_type type) { return fl_image_type_bytes(type); }

static void set_element(uint8_t *table, fl_image_type type, int v, float x)
{
    uint16_t half = type == FL_IMAGE_F16 ? f16_of(x) : bf16_of(x);
    if (type == FL_IMAGE_F32)
        memcpy(table + 4 * v, &x, 4);
    else
        memcpy(table + 2 * v, &half, 2);
}

/* Makes a table; returns true if the quotient by a product with the inverse equals a division for
 * all 256 bytes. */
static bool
make_line(cast_case *c, fl_image_type type, bool divides, float scale, float mean, float std)
{
    const float divisor = divides ? rintf(1 / scale) : 0, rescale = divides ? scale : 0;
    c->cast = (fl_image_cast){c->table, true, scale, mean, std, 1 / std, divisor, rescale, false};
    bool is_same = true;
    for (int v = 0; v < 256; v++) {
        float product = divides ? (float)v / divisor : (float)v * scale;
        float a = product - mean, q = a * c->cast.inverse;
        q = fmaf(fmaf(-q, std, a), c->cast.inverse, q);
        float exact = a / std;
        is_same = is_same && memcmp(&q, &exact, sizeof q) == 0;
        set_element(c->table, type, v, exact);
    }
    return is_same;
}

/* Casts the block over memory that holds nothing else, and compares with `expected`. */
static void check_block(const cast_case *c, fl_image_type type, const fl_image_block *shape,
                        int64_t gap, bool is_at_end, uint64_t *state)
{
    int64_t bytes = element_bytes(type), width = shape->before + shape->columns + shape->after;
    int64_t pitch = (width + gap) * bytes, rows = shape->rows, columns = shape->columns;
    int64_t high = fl_max(0, shape->step) * (columns - 1) + fl_max(0, shape->pitch) * (rows - 1);
    int64_t low = fl_min(0, shape->step) * (columns - 1) + fl_min(0, shape->pitch) * (rows - 1);
    buffers b = make_buffers(high - low + 1, rows * pitch - gap * bytes, is_at_end, state);
    for (int64_t v = 0; v < 256 && high - low >= 255; v++) b.src[v] = (uint8_t)v;
    fl_image_block block = *shape;
    block.src = b.src - low;
    for (int64_t y = 0; y < rows; y++)
        for (int64_t i = 0; i < width; i++) {
            int64_t x = i - block.before;
            uint8_t v = block.fill;
            if (x >= 0 && x < columns) v = block.src[y * block.pitch + x * block.step];
            const uint8_t *element = type == FL_IMAGE_U8 ? &v : c->table + v * bytes;
            memcpy(b.expected + y * pitch + i * bytes, element, (size_t)bytes);
        }
    EACH_VARIANT(ops) for (int streams = 0; streams < 2; streams++)
    {
        fl_image_cast cast = c->cast;
        cast.is_streamed = streams != 0;
        clear_result(&b);
        ops->cast[type](b.dst, pitch, &block, type == FL_IMAGE_U8 ? NULL : &cast);
        check_result(&b, ops, "cast", columns);
    }
}

static void
check_cast(const cast_case *c, fl_image_type type, int64_t count, bool is_at_end, uint64_t *state)
{
    if (count == 0) return;
    const fl_image_block row = {.pitch = count, .step = 1, .rows = 1, .columns = count};
    check_block(c, type, &row, 0, is_at_end, state);
}

static const float means[] = {0, 0.485F, 0.456F, 0.406F, 0.4914F, 0.5F, -1, 127.5F};
static const float stds[] = {1, 0.229F, 0.224F, 0.225F, 0.2023F, 0.5F, -3, 58.4F};
enum { LINES = sizeof means / sizeof *means };

static void test_casts_by_arithmetic(void)
{
    static cast_case c;
    uint64_t state = 5;
    for (fl_image_type type = FL_IMAGE_F16; type < FL_IMAGE_TYPES; type++)
        for (int64_t count = 0; count < LENGTHS; count++)
            for (int is_at_end = 0; is_at_end < 2; is_at_end++) {
                int64_t i = count % LINES;
                CHECK(make_line(&c, type, i % 2 > 0, i < 6 ? 1.0F / 255 : 1, means[i], stds[i]));
                check_cast(&c, type, count, is_at_end, &state);
            }
}

/* Casts from every position in a cache line, at lengths that are written past the caches. */
static void test_casts_that_are_streamed(void)
{
    static cast_case c;
    uint64_t state = 14;
    for (fl_image_type type = FL_IMAGE_F16; type < FL_IMAGE_TYPES; type++) {
        CHECK(make_line(&c, type, true, 1.0F / 255, 0.485F, 0.229F));
        for (int64_t count = 1000; count < 1100; count++) {
            check_cast(&c, type, count, true, &state);
            check_cast(&c, type, count, false, &state);
        }
    }
}

static void test_casts_to_odd_addresses(void)
{
    static cast_case c;
    static uint8_t src[2000], dst[2000 * 4 + 1];
    for (fl_image_type type = FL_IMAGE_F16; type < FL_IMAGE_TYPES; type++) {
        CHECK(make_line(&c, type, false, 1.0F / 255, 0.485F, 0.229F));
        c.cast.is_streamed = true;
        int64_t bytes = element_bytes(type);
        for (int v = 1; v < variant_count; v++) {
            const fl_image_block row = {.src = src, .step = 1, .rows = 1, .columns = 2000};
            variants[v]->cast[type](dst + 1, 0, &row, &c.cast);
            for (int64_t i = 0; i < 2000; i++)
                CHECK(memcmp(dst + 1 + i * bytes, c.table, (size_t)bytes) == 0);
        }
    }
}

/* Numbers without a pattern: results that lie between two halves, on them, below the normal ones
 * and above the largest. */
static void test_casts_are_rounded_to_even(void)
{
    static cast_case c;
    uint64_t state = 6;
    int64_t done = 0;
    for (int round = 0; round < 3000; round++) {
        fl_image_type type = round % 3 + FL_IMAGE_F16;
        int exponent = (int)random_below(&state, 40) - 30;
        float scale = ldexpf((float)(random_below(&state, 1 << 12) + 1), exponent);
        float mean = ldexpf((float)random_below(&state, 1 << 12), exponent);
        float std = ldexpf((float)(random_below(&state, round % 2 ? 1 << 20 : 1) + 1), -round % 8);
        if (!make_line(&c, type, false, scale, mean, std)) continue;
        check_cast(&c, type, 256 + round % 40, round % 2, &state);
        done++;
    }
    CHECK(done > 1000);
}

static void test_casts_by_any_table(void)
{
    static cast_case c;
    uint64_t state = 7;
    fill_random(&state, (char *)c.table, sizeof c.table);
    c.cast = (fl_image_cast){.table = c.table};
    for (fl_image_type type = FL_IMAGE_F16; type < FL_IMAGE_TYPES; type++)
        for (int64_t count = 0; count < LENGTHS; count++)
            for (int is_at_end = 0; is_at_end < 2; is_at_end++)
                check_cast(&c, type, count, is_at_end, &state);
}

/* The rounding that a thread has set for its own arithmetic does not change a result. */
static void test_casts_under_other_rounding(void)
{
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    static cast_case c;
    uint64_t state = 8;
    for (fl_image_type type = FL_IMAGE_F16; type < FL_IMAGE_TYPES; type++)
        for (int i = 0; i < 3; i++) {
            CHECK(make_line(&c, type, false, 1.0F / 255, 0.485F, 0.229F));
            CHECK(fesetround(modes[i]) == 0);
            check_cast(&c, type, 300, true, &state);
            CHECK(fesetround(FE_TONEAREST) == 0);
        }
}

#if defined(__x86_64__)
static void flush_denormal_numbers(bool flushes)
{
    unsigned own = _mm_getcsr() & ~0x8040U;
    _mm_setcsr(flushes ? own | 0x8040 : own); /* flush to zero, denormals are zeros */
}
#elif defined(__aarch64__)
static void flush_denormal_numbers(bool flushes)
{
    uint64_t control = flushes ? 1 << 24 : 0;
    __asm__ volatile("msr fpcr, %0" : : "r"(control));
}
#endif

#if defined(__x86_64__) || defined(__aarch64__)
static void test_casts_where_denormal_numbers_are_flushed(void)
{
    static cast_case c;
    uint64_t state = 13;
    CHECK(make_line(&c, FL_IMAGE_F32, false, 0x1p-140F, 0, 1));
    flush_denormal_numbers(true);
    check_cast(&c, FL_IMAGE_F32, 300, true, &state);
    flush_denormal_numbers(false);
}
#endif

/* Blocks have every width, rows that lie apart in either direction, elements in reverse or with
 * steps between, and fills on either side or none. */
static void test_blocks(void)
{
    static const int64_t steps[] = {1, 1, 1, -1, -1, 0, 2, -3};
    static cast_case c;
    uint64_t state = 15;
    for (fl_image_type type = FL_IMAGE_U8; type < FL_IMAGE_TYPES; type++)
        for (int64_t columns = 1; columns < LENGTHS; columns++)
            for (int n = 0; n < 24; n++) {
                if (type != FL_IMAGE_U8)
                    CHECK(make_line(&c, type, n % 2 > 0, 1.0F / 255, 0.485F, 0.229F));
                if (n % 8 == 7) c.cast.is_linear = false;
                fl_image_block b = {.step = steps[random_below(&state, 8)],
                                    .rows = 1 + random_below(&state, 12),
                                    .columns = columns,
                                    .fill = (uint8_t)next_random(&state)};
                b.pitch = (columns - 1) * llabs(b.step) + 1 + random_below(&state, 3);
                if (n % 4 == 3) b.pitch = -b.pitch;
                if (n % 3 > 0) b.before = random_below(&state, 20);
                if (n % 3 > 1) b.after = random_below(&state, 20);
                check_block(&c, type, &b, n % 2 * random_below(&state, 9), n / 2 % 2, &state);
            }
}

int main(void)
{
    start_tests();
    find_variants();
    make_fences();
    RUN(test_casts_by_arithmetic);
    RUN(test_casts_that_are_streamed);
    RUN(test_casts_to_odd_addresses);
    RUN(test_casts_are_rounded_to_even);
    RUN(test_casts_by_any_table);
    RUN(test_casts_under_other_rounding);
#if defined(__x86_64__) || defined(__aarch64__)
    RUN(test_casts_where_denormal_numbers_are_flushed);
#endif
    RUN(test_blocks);
    return 0;
}
