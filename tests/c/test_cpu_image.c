/* Tests of fl_cpu_image: each table that this machine can run against arithmetic on single
 * elements, for all lengths, with memory that ends at the end of the data. */
#include "cpu_image_fixture.h"

#include <math.h>

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

/* ---- resampling */

static void set_random_weight(fl_resample *axis, int64_t k, int64_t weight, uint64_t *state)
{
    axis->weight[k] = (int16_t)weight;
    if (axis->low == NULL) return;
    axis->low[k] = (int16_t)random_below(state, 256);
    axis->weight[k] = (int16_t)(weight / 256);
}

/* Draws weights of any size for which no sum leaves int32, of at most `taps` taps, in two halves or
 * not. */
static fl_resample random_axis(int32_t in, int32_t out, int32_t taps, uint64_t *state)
{
    fl_resample axis = {.in = in, .out = out, .taps = taps};
    axis.precision = 1 + (int32_t)random_below(state, 22);
    axis.first = fl_alloc(out * 4);
    axis.count = fl_alloc(out * 4);
    axis.weight = fl_alloc((int64_t)out * taps * 2 + 64);
    CHECK(axis.first != NULL && axis.count != NULL && axis.weight != NULL);
    bool has_low = random_below(state, 2) == 1;
    if (has_low) axis.low = fl_alloc((int64_t)out * taps * 2 + 64);
    CHECK(!has_low || axis.low != NULL);
    int64_t most = fl_min(has_low ? 1 << 23 : 1 << 15, (INT32_MAX - (1 << 22)) / 255 / taps - 256);
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
            set_random_weight(&axis, i * (int64_t)taps + k, weight, state);
        }
    }
    return axis;
}

static void free_axis(fl_resample *axis)
{
    fl_free(axis->first);
    fl_free(axis->count);
    fl_free(axis->weight);
    fl_free(axis->low);
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
        sum += (int64_t)fl_resample_weight(axis, i * (int64_t)axis->taps + k) *
               from[(axis->first[i] + k) * step];
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
    /* Memory before the first sample does not exist. */
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
    for (int64_t across = 0; across < LENGTHS; across++) { /* also more than one band of rows */
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
        fl_free(axis.low);
        axis.weight = axis.low = NULL;
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
#if defined(__aarch64__)
    CHECK(strcmp(err.text, "FASTLOOP_CPU must be plain or neon, or unset, got avx") == 0);
#else
    CHECK(strcmp(err.text, "FASTLOOP_CPU must be plain, avx2 or avx512, or unset, got avx") == 0);
#endif
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
    RUN(test_resampling_by_any_weights);
    RUN(test_resampling_as_torch_does);
    RUN(test_every_count_of_rows_and_columns);
    RUN(test_nearest);
    return 0;
}
