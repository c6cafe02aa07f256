/* Tests of fl_cpu_image: each table this machine can run against arithmetic on single elements, for
 * all lengths, and with memory that ends where the data does. */
#include "check.h"

#include "fl_cpu_image.h"
#include "fl_cpu_level.h"

#include <fenv.h>
#include <math.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum {
    LENGTHS = 301,      /* each one up to 300 */
    FENCED = 64 * 4096, /* bytes between two pages that fault */
    PAGE = 4096,
    PATTERN = 0xA5,
    VARIANTS = FL_CPU_LEVELS
};

static const fl_image_ops *variants[VARIANTS];
static int variant_count;

static void find_variants(void)
{
    unsetenv("FASTLOOP_CPU");
    variants[variant_count++] = &fl_cpu_image_plain;
#if defined(__x86_64__)
    if (fl_cpu_level_find() >= FL_CPU_AVX2) variants[variant_count++] = &fl_cpu_image_avx2;
    if (fl_cpu_level_find() >= FL_CPU_AVX512) variants[variant_count++] = &fl_cpu_image_avx512;
#endif
}

#define EACH_VARIANT(ops)                                                      \
    for (const fl_image_ops **v = variants; v < variants + variant_count; v++) \
        for (const fl_image_ops *ops = *v; ops != NULL; ops = NULL)

/* ---- memory that faults on both sides */

typedef struct fence {
    uint8_t *data; /* owned, with a page before and one behind: FENCED bytes */
} fence;

static fence fences[3]; /* source, result, expected result */

static void make_fences(void)
{
    for (int i = 0; i < 3; i++) {
        uint8_t *memory =
            mmap(NULL, FENCED + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED);
        fences[i].data = memory + PAGE;
        CHECK(mprotect(fences[i].data, FENCED, PROT_READ | PROT_WRITE) == 0);
    }
}

/* `bytes` of it, at its end or its start. */
static uint8_t *part_of(const fence *from, int64_t bytes, bool is_at_end)
{
    CHECK(bytes >= 0 && bytes <= FENCED);
    return is_at_end ? from->data + FENCED - bytes : from->data;
}

/* Source, result and expected result of one call. */
typedef struct buffers {
    uint8_t *src, *dst, *expected; /* borrowed from `fences` */
    int64_t src_bytes, dst_bytes;
} buffers;

static buffers make_buffers(int64_t src_bytes, int64_t dst_bytes, bool is_at_end, uint64_t *state)
{
    buffers b = {.src = part_of(&fences[0], src_bytes, is_at_end),
                 .dst = part_of(&fences[1], dst_bytes, is_at_end),
                 .expected = part_of(&fences[2], dst_bytes, is_at_end),
                 .src_bytes = src_bytes,
                 .dst_bytes = dst_bytes};
    fill_random(state, (char *)b.src, src_bytes);
    memset(b.expected, PATTERN, (size_t)dst_bytes);
    return b;
}

static void clear_result(const buffers *b) { memset(b->dst, PATTERN, (size_t)b->dst_bytes); }

static void check_result(const buffers *b, const fl_image_ops *ops, const char *what, int64_t count)
{
    if (memcmp(b->dst, b->expected, (size_t)b->dst_bytes) == 0) return;
    int64_t at = 0;
    while (b->dst[at] == b->expected[at]) at++;
    fprintf(stderr, "\n%s of %s, %lld: byte %lld is %d, not %d\n", what, ops->name,
            (long long)count, (long long)at, b->dst[at], b->expected[at]);
    CHECK(false);
}

/* ---- layout */

static void
check_split(int64_t pixels, int32_t channels, int64_t gap, bool is_at_end, uint64_t *state)
{
    int64_t pitch = pixels + gap;
    buffers b = make_buffers(pixels * channels, pitch * channels - (pixels > 0 ? gap : 0),
                             is_at_end, state);
    for (int64_t i = 0; i < pixels; i++)
        for (int32_t c = 0; c < channels; c++) b.expected[c * pitch + i] = b.src[i * channels + c];
    EACH_VARIANT(ops)
    {
        clear_result(&b);
        ops->split(b.dst, pitch, b.src, pixels, channels);
        check_result(&b, ops, "split", pixels);
    }
}

static void check_join(int64_t pixels, int32_t channels, int32_t bytes, int64_t gap, bool is_at_end,
                       uint64_t *state)
{
    int64_t pitch = (pixels + gap) * bytes, row = (int64_t)channels * bytes;
    buffers b = make_buffers(pitch * channels - gap * bytes, pixels * row, is_at_end, state);
    for (int64_t i = 0; i < pixels; i++)
        for (int32_t c = 0; c < channels; c++)
            memcpy(b.expected + i * row + c * bytes, b.src + c * pitch + i * bytes, (size_t)bytes);
    EACH_VARIANT(ops)
    {
        clear_result(&b);
        ops->join(b.dst, b.src, pitch, pixels, channels, bytes);
        check_result(&b, ops, "join", pixels);
    }
}

static void test_split_and_join(void)
{
    uint64_t state = 1;
    for (int64_t pixels = 0; pixels < LENGTHS; pixels++)
        for (int32_t channels = 2; channels <= FL_MAX_CHANNELS; channels++)
            for (int is_at_end = 0; is_at_end < 2; is_at_end++) {
                int64_t gap = pixels % 3 == 0 ? 0 : random_below(&state, 70);
                check_split(pixels, channels, gap, is_at_end, &state);
                for (int32_t bytes = 1; bytes <= 4; bytes *= 2)
                    check_join(pixels, channels, bytes, gap, is_at_end, &state);
            }
}

static void test_planes_in_reverse_order(void)
{
    enum { PIXELS = 100, CHANNELS = 3 };
    uint64_t state = 2;
    buffers b = make_buffers(PIXELS * CHANNELS, PIXELS * CHANNELS, true, &state);
    for (int i = 0; i < PIXELS * CHANNELS; i++)
        b.expected[(CHANNELS - 1 - i % CHANNELS) * PIXELS + i / CHANNELS] = b.src[i];
    EACH_VARIANT(ops)
    {
        clear_result(&b);
        ops->split(b.dst + 2 * PIXELS, -PIXELS, b.src, PIXELS, CHANNELS);
        check_result(&b, ops, "split", PIXELS);
        uint8_t back[PIXELS * CHANNELS];
        ops->join(back, b.dst + 2 * PIXELS, -PIXELS, PIXELS, CHANNELS, 1);
        CHECK(memcmp(back, b.src, sizeof back) == 0);
    }
}

/* A fill of rows that lie `gap` elements apart. */
static void
check_fill(int64_t rows, int64_t count, int64_t gap, int32_t bytes, bool is_at_end, uint64_t *state)
{
    int64_t pitch = (count + gap) * bytes, size = rows * pitch - gap * bytes;
    buffers b = make_buffers(bytes, fl_max(0, size), is_at_end, state);
    for (int64_t y = 0; y < rows; y++)
        for (int64_t i = 0; i < count * bytes; i++) b.expected[y * pitch + i] = b.src[i % bytes];
    EACH_VARIANT(ops)
    {
        clear_result(&b);
        ops->fill(b.dst, pitch, rows, count, b.src, bytes);
        check_result(&b, ops, "fill", count);
    }
}

static void test_fill(void)
{
    uint64_t state = 4;
    for (int64_t count = 0; count < LENGTHS; count++)
        for (int32_t bytes = 1; bytes <= 4; bytes *= 2)
            for (int is_at_end = 0; is_at_end < 2; is_at_end++) {
                check_fill(1, count, 0, bytes, is_at_end, &state);
                check_fill(1 + count % 4, count, count % 3, bytes, is_at_end, &state);
            }
}

/* ---- casts */

static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* By arithmetic in double, which holds every float and its rounding to 11 bits exactly. */
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

/* A table and the numbers it comes from. */
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

/* Whether the quotient by a product with the inverse is that of a division, for all 256. */
static bool make_line(cast_case *c, fl_image_type type, float scale, float mean, float std)
{
    c->cast = (fl_image_cast){c->table, true, scale, mean, std, 1 / std, false};
    bool is_same = true;
    for (int v = 0; v < 256; v++) {
        float a = (float)v * scale - mean, q = a * c->cast.inverse;
        q = fmaf(fmaf(-q, std, a), c->cast.inverse, q);
        float exact = a / std;
        is_same = is_same && memcmp(&q, &exact, sizeof q) == 0;
        set_element(c->table, type, v, exact);
    }
    return is_same;
}

/* The block over memory that holds nothing but it, as `expected` has it. */
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
                CHECK(make_line(&c, type, i < 6 ? 1.0F / 255 : 1, means[i], stds[i]));
                check_cast(&c, type, count, is_at_end, &state);
            }
}

/* From every place in a line of the caches, at lengths where results are written past them. */
static void test_casts_that_are_streamed(void)
{
    static cast_case c;
    uint64_t state = 14;
    for (fl_image_type type = FL_IMAGE_F16; type < FL_IMAGE_TYPES; type++) {
        CHECK(make_line(&c, type, 1.0F / 255, 0.485F, 0.229F));
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
        CHECK(make_line(&c, type, 1.0F / 255, 0.485F, 0.229F));
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
        if (!make_line(&c, type, scale, mean, std)) continue;
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

/* What a thread has set for its own arithmetic does not change a result. */
static void test_casts_under_other_rounding(void)
{
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    static cast_case c;
    uint64_t state = 8;
    for (fl_image_type type = FL_IMAGE_F16; type < FL_IMAGE_TYPES; type++)
        for (int i = 0; i < 3; i++) {
            CHECK(make_line(&c, type, 1.0F / 255, 0.485F, 0.229F));
            CHECK(fesetround(modes[i]) == 0);
            check_cast(&c, type, 300, true, &state);
            CHECK(fesetround(FE_TONEAREST) == 0);
        }
}

#if defined(__x86_64__)
static void test_casts_where_denormal_numbers_are_flushed(void)
{
    static cast_case c;
    uint64_t state = 13;
    unsigned own = _mm_getcsr();
    CHECK(make_line(&c, FL_IMAGE_F32, 0x1p-140F, 0, 1));
    _mm_setcsr(own | 0x8040); /* flush to zero, denormals are zeros */
    check_cast(&c, FL_IMAGE_F32, 300, true, &state);
    _mm_setcsr(own);
}
#endif

/* Of every width, with rows that lie apart in either direction, from the last element to the first
 * and with steps between elements, with fills on either side or none. */
static void test_blocks(void)
{
    static const int64_t steps[] = {1, 1, 1, -1, -1, 0, 2, -3};
    static cast_case c;
    uint64_t state = 15;
    for (fl_image_type type = FL_IMAGE_U8; type < FL_IMAGE_TYPES; type++)
        for (int64_t columns = 1; columns < LENGTHS; columns++)
            for (int n = 0; n < 24; n++) {
                if (type != FL_IMAGE_U8) CHECK(make_line(&c, type, 1.0F / 255, 0.485F, 0.229F));
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

/* ---- resampling */

/* Weights of any size, as long as no sum leaves int32; `taps` of them at most. */
static fl_resample random_axis(int32_t in, int32_t out, int32_t taps, uint64_t *state)
{
    fl_resample axis = {.in = in, .out = out, .taps = taps};
    axis.precision = 1 + (int32_t)random_below(state, 22);
    axis.first = fl_alloc(out * 4);
    axis.count = fl_alloc(out * 4);
    axis.weight = fl_alloc((int64_t)out * taps * 2 + 64);
    CHECK(axis.first != NULL && axis.count != NULL && axis.weight != NULL);
    int64_t most = fl_min(32768, (INT32_MAX - (1 << 22)) / 255 / taps);
    int64_t spread = random_below(state, 3), start = random_below(state, in), end = start;
    for (int32_t i = 0; i < out; i++) {
        /* Samples do not go back from a result to the next. */
        int64_t room = in - start, steps = spread == 0 ? room : 2 * room / (out - i) + 1;
        start += random_below(state, fl_min(steps, room));
        end = fl_min(in, fl_max(fl_max(end, start + 1), start + random_below(state, taps + 1)));
        if (end > start + taps) start = end - taps;
        int64_t count = end - start;
        axis.first[i] = (int32_t)start;
        axis.count[i] = (int32_t)count;
        for (int64_t k = 0; k < count; k++) {
            int64_t weight = random_below(state, 2 * most) - most;
            if (spread == 2 && k < 2) weight = k == 0 ? most - 1 : -most;
            axis.weight[i * (int64_t)taps + k] = (int16_t)weight;
        }
    }
    return axis;
}

static void free_axis(fl_resample *axis)
{
    fl_free(axis->first);
    fl_free(axis->count);
    fl_free(axis->weight);
}

/* The weights of torch's bilinear interpolation with antialias. */
static fl_resample bilinear_axis(int32_t in, int32_t out)
{
    double scale = (double)in / out, support = fmax(scale, 1), most = 0;
    int32_t taps = ((int32_t)ceil(support) * 2 + 1 + 1) / 2 * 2;
    fl_resample axis = {.in = in, .out = out, .taps = taps, .precision = 0};
    axis.first = fl_alloc(out * 4);
    axis.count = fl_alloc(out * 4);
    axis.weight = fl_alloc((int64_t)out * taps * 2 + 64);
    double *weights = fl_alloc((int64_t)out * taps * 8);
    for (int32_t i = 0; i < out; i++) {
        double center = scale * (i + 0.5), sum = 0, *w = weights + (int64_t)i * taps;
        axis.first[i] = (int32_t)fmax(0, (int32_t)(center - support + 0.5));
        axis.count[i] = (int32_t)fmin(in, (int32_t)(center + support + 0.5)) - axis.first[i];
        for (int32_t k = 0; k < axis.count[i]; k++)
            sum += w[k] = fmax(0, 1 - fabs((k + axis.first[i] - center + 0.5) / support));
        for (int32_t k = 0; k < axis.count[i]; k++) most = fmax(most, w[k] /= sum);
    }
    while (axis.precision < 22 && (int32_t)(0.5 + most * (1 << (axis.precision + 1))) < 1 << 15)
        axis.precision++;
    for (int64_t k = 0; k < (int64_t)out * taps; k++)
        axis.weight[k] = (int16_t)(weights[k] * (1 << axis.precision) + 0.5);
    fl_free(weights);
    return axis;
}

static uint8_t
expected_sample(const fl_resample *axis, int32_t i, const uint8_t *from, int64_t step)
{
    if (axis->weight == NULL) return from[axis->first[i] * step];
    int64_t sum = axis->precision > 0 ? (int64_t)1 << (axis->precision - 1) : 0;
    for (int32_t k = 0; k < axis->count[i]; k++)
        sum +=
            (int64_t)axis->weight[i * (int64_t)axis->taps + k] * from[(axis->first[i] + k) * step];
    CHECK(sum >= INT32_MIN && sum <= INT32_MAX);
    return (uint8_t)fl_max(0, fl_min(255, sum >> axis->precision));
}

/* A picture in memory: rows from the first to the last, or from the last to the first. */
typedef struct rows_of {
    int64_t pitch, bytes, start; /* offset of row 0 */
} rows_of;

static rows_of lay_rows(int64_t rows, int64_t width, int64_t gap, bool is_upside_down)
{
    int64_t pitch = width + gap;
    rows_of r = {.pitch = pitch, .bytes = rows > 0 ? (rows - 1) * pitch + width : 0};
    if (is_upside_down && rows > 0) {
        r.start = (rows - 1) * pitch;
        r.pitch = -pitch;
    }
    return r;
}

/* Along x: `across` rows; along y: `across` columns. */
static void check_resample(const fl_resample *axis, int64_t across, bool is_x, uint64_t *state)
{
    int64_t random = random_below(state, 256);
    int64_t gap = random & 1 ? random_below(state, 40) : 0;
    /* What lies before the first sample is not there. */
    int64_t lead = axis->first[0], in = axis->in - lead;
    rows_of from = lay_rows(is_x ? across : in, is_x ? in : across, gap, random & 2);
    from.start -= lead * (is_x ? 1 : from.pitch);
    rows_of to = lay_rows(is_x ? across : axis->out, is_x ? axis->out : across, gap, random & 4);
    buffers b = make_buffers(from.bytes, to.bytes, random & 8, state);
    if (random % 5 == 0) memset(b.src, random & 16 ? 255 : 0, (size_t)b.src_bytes);
    for (int64_t row = 0; row < across; row++)
        for (int32_t i = 0; i < axis->out; i++) {
            const uint8_t *src = b.src + from.start + row * (is_x ? from.pitch : 1);
            uint8_t *dst = b.expected + to.start + row * (is_x ? to.pitch : 1);
            dst[i * (is_x ? 1 : to.pitch)] = expected_sample(axis, i, src, is_x ? 1 : from.pitch);
        }
    EACH_VARIANT(ops)
    {
        clear_result(&b);
        (is_x ? ops->resample_x : ops->resample_y)(b.dst + to.start, to.pitch, b.src + from.start,
                                                   from.pitch, across, axis);
        check_result(&b, ops, is_x ? "resample_x" : "resample_y", across);
    }
}

static void test_resampling_by_any_weights(void)
{
    uint64_t state = 9;
    for (int round = 0; round < 6000; round++) {
        int32_t in = 1 + (int32_t)random_below(&state, round % 4 ? 300 : 40);
        int32_t out = 1 + (int32_t)random_below(&state, round % 4 ? 120 : 40);
        int32_t taps = 2 + 2 * (int32_t)random_below(&state, round % 3 ? 6 : 40);
        fl_resample axis = random_axis(in, out, taps, &state);
        check_resample(&axis, random_below(&state, 12), true, &state);
        if (round % 8 == 0) check_resample(&axis, random_below(&state, 150), false, &state);
        free_axis(&axis);
    }
}

static void test_resampling_as_torch_does(void)
{
    static const int32_t lengths[] = {1, 2, 3, 7, 15, 16, 17, 28, 32, 64, 100, 224, 256, 375, 500};
    enum { COUNT = sizeof lengths / sizeof *lengths };
    uint64_t state = 10;
    for (int i = 0; i < COUNT; i++)
        for (int o = 0; o < COUNT; o++) {
            fl_resample axis = bilinear_axis(lengths[i], lengths[o]);
            check_resample(&axis, 1 + (i + o) % 9, true, &state);
            check_resample(&axis, 60 + (i * o) % 90, false, &state);
            free_axis(&axis);
        }
}

static void test_every_count_of_rows_and_columns(void)
{
    uint64_t state = 11;
    fl_resample axis = bilinear_axis(50, 37), steep = bilinear_axis(200, 19);
    for (int64_t across = 0; across < LENGTHS; across++) { /* more than one band of rows, too */
        check_resample(&axis, across, true, &state);
        check_resample(&axis, across, false, &state);
        check_resample(&steep, across, true, &state);
        check_resample(&steep, across, false, &state);
    }
    free_axis(&axis);
    free_axis(&steep);
}

static void test_nearest(void)
{
    uint64_t state = 12;
    for (int round = 0; round < 500; round++) {
        fl_resample axis = random_axis(1 + (int32_t)random_below(&state, 200),
                                       1 + (int32_t)random_below(&state, 100), 1, &state);
        fl_free(axis.weight);
        axis.weight = NULL;
        check_resample(&axis, random_below(&state, 12), true, &state);
        check_resample(&axis, random_below(&state, 150), false, &state);
        free_axis(&axis);
    }
}

/* ---- which table */

static void test_the_environment_chooses(void)
{
    CHECK(fl_cpu_image_ops_find() == variants[variant_count - 1]);
    for (int v = 0; v < variant_count; v++) {
        CHECK(setenv("FASTLOOP_CPU", variants[v]->name, 1) == 0);
        CHECK(fl_cpu_image_ops_find() == variants[v] && fl_cpu_level_check(NULL) == FL_OK);
        CHECK(strcmp(fl_cpu_level_name(fl_cpu_level_find()), variants[v]->name) == 0);
    }
    CHECK(setenv("FASTLOOP_CPU", "", 1) == 0);
    CHECK(fl_cpu_image_ops_find() == variants[variant_count - 1]);
    CHECK_INT(fl_cpu_level_check(NULL), FL_OK);
    CHECK(setenv("FASTLOOP_CPU", "avx", 1) == 0);
    fl_err err;
    CHECK_INT(fl_cpu_level_check(&err), FL_EINVAL);
    CHECK(strcmp(err.text, "FASTLOOP_CPU=avx: it is plain, avx2 or avx512, or not set") == 0);
    CHECK(unsetenv("FASTLOOP_CPU") == 0);
    for (int v = 0; v < variant_count; v++) printf(" %s", variants[v]->name);
}

int main(void)
{
    start_tests();
    find_variants();
    make_fences();
    RUN(test_the_environment_chooses);
    RUN(test_split_and_join);
    RUN(test_planes_in_reverse_order);
    RUN(test_fill);
    RUN(test_casts_by_arithmetic);
    RUN(test_casts_that_are_streamed);
    RUN(test_casts_to_odd_addresses);
    RUN(test_casts_are_rounded_to_even);
    RUN(test_casts_by_any_table);
    RUN(test_casts_under_other_rounding);
#if defined(__x86_64__)
    RUN(test_casts_where_denormal_numbers_are_flushed);
#endif
    RUN(test_blocks);
    RUN(test_resampling_by_any_weights);
    RUN(test_resampling_as_torch_does);
    RUN(test_every_count_of_rows_and_columns);
    RUN(test_nearest);
    return 0;
}
