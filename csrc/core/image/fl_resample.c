/* fl_resample: see fl_resample.h. */
#include "fl_resample.h"

#include <math.h>

enum { ALIGNMENT = 64, MAX_PRECISION = 22, WEIGHT_BITS = 15, LOW_BITS = 8 };

/* The samples that make one sample of the result, before rounding. */
typedef struct window {
    int32_t first, count;
    double center;
} window;

/* A filter: its reach from its center in samples of the source, and its stretch. */
typedef struct filter {
    bool is_cubic;
    double scale, support, inverse_stretch;
} filter;

static inline bool is_pillow(fl_interpolation how) { return how >= FL_PILLOW_BILINEAR; }

static inline bool is_cubic_mode(fl_interpolation how)
{
    return how == FL_BICUBIC || how == FL_PILLOW_BICUBIC || how == FL_PILLOW_13_BICUBIC;
}

static filter make_filter(fl_interpolation how, int32_t in, int32_t out)
{
    double scale = (double)in / out, stretch = scale > 1 ? scale : 1;
    bool is_cubic = is_cubic_mode(how);
    return (filter){.is_cubic = is_cubic,
                    .scale = scale,
                    .support = (is_cubic ? 2 : 1) * stretch,
                    .inverse_stretch = 1 / stretch};
}

static window window_at(const filter *f, int32_t in, int32_t i)
{
    double center = f->scale * (i + 0.5);
    int64_t first = fl_max((int64_t)(center - f->support + 0.5), 0);
    int64_t end = fl_min((int64_t)(center + f->support + 0.5), in);
    return (window){(int32_t)first, (int32_t)(end - first), center};
}

static double cubic(double x)
{
    const double a = -0.5;
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

/* Returns the weight of sample `k` of a window, not yet divided by the sum of the window. */
static double weight_at(const filter *f, const window *w, int32_t k)
{
    double x = fabs((k + w->first - w->center + 0.5) * f->inverse_stretch);
    if (f->is_cubic) return cubic(x);
    return x < 1 ? 1 - x : 0;
}

static double sum_of_weights(const filter *f, const window *w)
{
    double sum = 0;
    for (int32_t k = 0; k < w->count; k++) sum += weight_at(f, w, k);
    return sum;
}

static double largest_weight(const filter *f, int32_t in, int32_t out)
{
    double largest = 0;
    for (int32_t i = 0; i < out; i++) {
        window w = window_at(f, in, i);
        double sum = sum_of_weights(f, &w);
        for (int32_t k = 0; k < w.count; k++) largest = fmax(largest, weight_at(f, &w, k) / sum);
    }
    return largest;
}

/* Returns how many fractional bits leave 15 bits for the largest weight. */
static int32_t find_precision(double largest)
{
    int32_t precision = 0;
    while (precision < MAX_PRECISION &&
           (int32_t)(0.5 + largest * (1 << (precision + 1))) < 1 << WEIGHT_BITS)
        precision++;
    return precision;
}

static int32_t round_weight(double weight, int32_t precision)
{
    double scaled = weight * (1 << precision);
    return (int32_t)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
}

static int32_t most_taps(const filter *f, int32_t in, int32_t out)
{
    int32_t most = 1;
    for (int32_t i = 0; i < out; i++) {
        int32_t count = window_at(f, in, i).count;
        most = count > most ? count : most;
    }
    return (most + 1) / 2 * 2;
}

static int64_t align_up(int64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* Sets the pointers of *axis into its memory, which only grows. */
static int place_arrays(fl_resample *axis, bool has_low, fl_err *err)
{
    int64_t ints = align_up(axis->out * (int64_t)sizeof(int32_t));
    bool has_weights = axis->taps > 1;
    int64_t weights = has_weights ? (int64_t)axis->out * axis->taps * 2 + ALIGNMENT : 0;
    int64_t bytes = 2 * ints + (has_low ? 2 * weights : weights);
    if (bytes > axis->capacity) {
        fl_free(axis->memory);
        axis->capacity = 0;
        axis->memory = fl_alloc(bytes);
        if (axis->memory == NULL)
            return fl_fail(err, FL_ENOMEM,
                           "out of memory for the weights of a resize from %d to %d", axis->in,
                           axis->out);
        axis->capacity = bytes;
    }
    char *memory = axis->memory;
    axis->first = (int32_t *)memory;
    axis->count = (int32_t *)(memory + ints);
    axis->weight = has_weights ? (int16_t *)(memory + 2 * ints) : NULL;
    axis->low = has_low ? (int16_t *)(memory + 2 * ints + weights) : NULL;
    return FL_OK;
}

/* Computes an index in float, because torch's nearest modes do. */
static int32_t nearest_index(fl_interpolation how, float scale, int32_t in, int32_t i)
{
    float place = how == FL_NEAREST ? (float)i * scale : (float)((i + 0.5) * scale);
    return (int32_t)fl_min((int64_t)floorf(place), in - 1);
}

static int make_nearest(fl_resample *axis, fl_interpolation how, fl_err *err)
{
    axis->taps = 1;
    axis->precision = 0;
    FL_TRY(place_arrays(axis, false, err));
    float scale = (float)axis->in / (float)axis->out;
    for (int32_t i = 0; i < axis->out; i++) {
        axis->first[i] = nearest_index(how, scale, axis->in, i);
        axis->count[i] = 1;
    }
    return FL_OK;
}

/* Sets weight k of the result; a weight past the result's samples is 0. */
static void set_weight(fl_resample *axis, int64_t k, double weight)
{
    int32_t whole = round_weight(weight, axis->precision);
    if (axis->low != NULL) {
        axis->low[k] = (int16_t)(whole & ((1 << LOW_BITS) - 1));
        whole >>= LOW_BITS;
    }
    axis->weight[k] = (int16_t)whole;
}

static inline bool is_nearest(fl_interpolation how)
{
    return how == FL_NEAREST || how == FL_NEAREST_EXACT;
}

int32_t fl_resample_most_taps(fl_interpolation how, int32_t in, int32_t out)
{
    return is_nearest(how) ? 1 : (int32_t)(2 * make_filter(how, in, out).support) + 1;
}

int fl_resample_make(fl_resample *axis, fl_interpolation how, int32_t in, int32_t out, fl_err *err)
{
    axis->in = in;
    axis->out = out;
    if (is_nearest(how)) return make_nearest(axis, how, err);
    filter f = make_filter(how, in, out);
    axis->taps = most_taps(&f, in, out);
    axis->precision = is_pillow(how) ? MAX_PRECISION : find_precision(largest_weight(&f, in, out));
    FL_TRY(place_arrays(axis, is_pillow(how), err));
    for (int32_t i = 0; i < out; i++) {
        window w = window_at(&f, in, i);
        double sum = sum_of_weights(&f, &w);
        axis->first[i] = w.first;
        axis->count[i] = w.count;
        for (int32_t k = 0; k < axis->taps; k++)
            set_weight(axis, (int64_t)i * axis->taps + k,
                       k < w.count ? weight_at(&f, &w, k) / sum : 0);
    }
    return FL_OK;
}

void fl_resample_close(fl_resample *axis)
{
    fl_free(axis->memory);
    *axis = (fl_resample){0};
}
