/* fl_blur: see fl_blur.h. Torch computes the weights of an axis as softmax(-(x / sigma)^2) in
 * float32. If torch rounds once, the code here says fmaf. */
#include "fl_blur.h"

#include <math.h>
#include <stdlib.h>

/* Computes Sleef's expf_u10 for x <= 0. */
static float exp_of(float x)
{
    static const float terms[] = {0.00139304355252534151077271f, 0.00833336077630519866943359f,
                                  0.0416664853692054748535156f, 0.166666671633720397949219f, 0.5f};
    if (x < -104) return 0;
    float n = rintf(x * 1.442695040888963407359924681001892137426645954152985934135449406931f);
    float r = fmaf(n, -0.693145751953125f, x), sum = 0.000198527617612853646278381f;
    r = fmaf(n, -1.428606765330187045e-06f, r);
    for (size_t k = 0; k < sizeof terms / sizeof *terms; k++) sum = fmaf(sum, r, terms[k]);
    return ldexpf(1.0f + fmaf(r * r, sum, r), (int)n);
}

/* Adds in the order of torch's softmax with AVX-512: 16 lanes at a time, the remainder into the
 * first lanes, then the upper half of the lanes onto the lower half. */
static float sum_of(const float *x, int32_t count)
{
    enum { LANES = 16 };
    float lane[LANES] = {0}, sum = x[0];
    if (count < LANES) {
        for (int32_t i = 1; i < count; i++) sum += x[i];
        return sum;
    }
    for (int32_t i = 0; i < count; i++) lane[i % LANES] = i < LANES ? x[i] : lane[i % LANES] + x[i];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++) lane[k] += lane[k + half];
    return lane[0];
}

/* Returns element i of torch.linspace(-limit, limit, count). */
static float line_at(float limit, int32_t count, int32_t i)
{
    float step = count > 1 ? (limit - -limit) / (float)(count - 1) : 0;
    if (i < count / 2) return fmaf(step, (float)i, -limit);
    return fmaf(-step, (float)(count - 1 - i), limit);
}

static void make_axis(float *weight, int32_t count, float sigma)
{
    float limit = (float)((count - 1) / (2.0 * sqrt(2.0))), most = -INFINITY;
    for (int32_t i = 0; i < count; i++) {
        float x = line_at(limit, count, i) / sigma;
        weight[i] = -(x * x);
        most = weight[i] > most ? weight[i] : most;
    }
    for (int32_t i = 0; i < count; i++) weight[i] = exp_of(weight[i] - most);
    float inverse = 1.0f / sum_of(weight, count);
    for (int32_t i = 0; i < count; i++) weight[i] *= inverse;
}

/* Returns a bound of the error of a sum of bytes with these weights. Each step of the sum either
 * rounds the sum so far, or adds next to nothing. */
static double bound_error(const float *weight, int32_t count, double roundings)
{
    double so_far = 0, error = 0;
    for (int32_t i = 0; i < count; i++) {
        so_far += (double)weight[i];
        error += fmin(roundings * 0x1p-24 * so_far, 2 * (double)weight[i]);
    }
    return 255 * (error + 2 * 0x1p-24 * so_far);
}

/* Returns how many taps on each side are too small to count, and sets *skipped to their sum. */
static int32_t skip_taps(const float *weight, int32_t count, double *skipped)
{
    int32_t skip = 0;
    *skipped = 0;
    while (skip < count / 2 && weight[skip] < 0x1p-25f && weight[count - 1 - skip] < 0x1p-25f) {
        *skipped += (double)weight[skip] + (double)weight[count - 1 - skip];
        skip++;
    }
    return skip;
}

int64_t fl_blur_floats(int32_t width, int32_t height)
{
    return (int64_t)width + height + (int64_t)width * height;
}

int32_t fl_blur_given(int32_t width, int32_t height)
{
    const int32_t x = width / 2 + 1, y = height / 2 + 1;
    return width == height ? x : x + y;
}

/* Writes all `count` weights. `half` has the weights from the middle to the right end. */
static void mirror(float *weight, int32_t count, const float *half)
{
    for (int32_t i = 0; i < count; i++) weight[i] = half[abs(i - count / 2)];
}

void fl_blur_make(fl_image_blur *out, int32_t width, int32_t height, float sigma,
                  const float *given, float *memory)
{
    float *x = memory, *y = x + width, *taps = y + height;
    if (given != NULL) {
        mirror(x, width, given);
        mirror(y, height, width == height ? given : given + width / 2 + 1);
    } else {
        make_axis(x, width, sigma);
        make_axis(y, height, sigma);
    }
    for (int32_t i = 0; i < height; i++)
        for (int32_t j = 0; j < width; j++) taps[i * width + j] = y[i] * x[j];
    double skipped[2];
    *out = (fl_image_blur){.width = width, .height = height, .x = x, .y = y, .taps = taps};
    out->x_skipped = skip_taps(x, width, &skipped[0]);
    out->y_skipped = skip_taps(y, height, &skipped[1]);
    double error = bound_error(taps, width * height, 1) + bound_error(x, width, 2) +
                   bound_error(y, height, 2) + 256 * (skipped[0] + skipped[1]);
    out->error = (float)(1.01 * error);
}
