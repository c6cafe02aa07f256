/* fl_cuda_colors: changes the colours of images whose bytes have been made, for the kernel of
 * fl_cuda_images. A program of steps has been drawn for each image; products and sums are rounded
 * exactly where fl_tone rounds, so the bits equal the CPU's.
 *
 * One block changes an image. Its bytes lie at the end of the result's own memory, in the order of
 * the elements, so writing from the beginning on never overtakes reading. As on the CPU, changes of
 * single bytes are collected in tables. The next step that mixes channels looks these tables up, or
 * the cast does. */
#ifndef FL_CUDA_COLORS_CUH
#define FL_CUDA_COLORS_CUH

#include "fl_image_ops.h"

#include <cuda_runtime.h>

static constexpr uint32_t COLOR_THREADS = 512; /* of a block */
static constexpr uint32_t CAST_AHEAD = 4;      /* elements that a thread makes before storing one */
/* A sum repeats fl_tone's sum_as_torch: LANES by REGISTERS places take bytes in turn. */
static constexpr uint32_t LANES = 8, REGISTERS = 4, PLACES = LANES * REGISTERS;
static_assert(COLOR_THREADS % PLACES == 0, "bytes of a thread are all of one place");

/* The memory that the threads of a block share. */
struct work {
    uint8_t table[FL_MAX_CHANNELS][256]; /* the current value of bytes in memory */
    uint32_t count[FL_MAX_CHANNELS][256];
    unsigned long long sum[PLACES];
    uint8_t rest[PLACES]; /* grey pixels after the pixels in `sum` */
    float mean;
};

/* Byte (channel, pixel) of an image is at channel * plane + pixel * step. */
struct byte_image {
    uint8_t *bytes;
    uint32_t pixels, plane, step;
    int32_t channels;
};

struct pixel {
    int32_t of[FL_MAX_CHANNELS];
};

/* Clamps as fl_tone does; x is not NaN. */
static __device__ int32_t clamp_byte(float x) { return (int32_t)(x < 0 ? 0 : x > 255 ? 255 : x); }

static __device__ float clamp_unit(float x) { return x > 1 ? 1 : x < 0 ? 0 : x; }

static __device__ int32_t load(const byte_image &from, const work *at, int32_t channel,
                               uint32_t pixel)
{
    return at->table[channel][from.bytes[channel * from.plane + pixel * from.step]];
}

/* ---- across channels, with the arithmetic of fl_cpu_image_tone */

static __device__ float grey_of(const pixel &x)
{
    const float green = fmaf((float)x.of[1], 0.587f, __fmul_rn((float)x.of[0], 0.2989f));
    return truncf(fmaf((float)x.of[2], 0.114f, green));
}

static __device__ void saturate(pixel *x, float factor)
{
    const float grey = grey_of(*x), rest = 1.0f - factor;
#pragma unroll
    for (int32_t c = 0; c < 3; c++)
        x->of[c] = clamp_byte(fmaf(grey, rest, __fmul_rn((float)x->of[c], factor)));
}

/* Returns a colour's position on the circle of hues, from 0 to 1, after turning. */
static __device__ float turned_hue(const float *color, float most, float spread, float turns)
{
    const float r = (most - color[0]) / spread, g = (most - color[1]) / spread;
    const float b = (most - color[2]) / spread;
    float hue = most == color[0] ? b - g : most == color[1] ? (r + 2.0f) - b : (g + 4.0f) - r;
    hue = __fadd_rn(__fmul_rn(hue, (float)(1.0 / 6.0)), 1.0f);
    hue -= hue >= 1 ? 1.0f : 0.0f;
    hue += turns;
    hue -= hue >= 1 ? 1.0f : 0.0f;
    return hue + (hue < 0 ? 1.0f : 0.0f);
}

static __device__ void turn_hue(pixel *x, float turns)
{
    const float unit = (float)(1.0 / 255);
    const float v[] = {__fmul_rn((float)x->of[0], unit), __fmul_rn((float)x->of[1], unit),
                       __fmul_rn((float)x->of[2], unit)};
    const float most = fmaxf(fmaxf(v[0], v[1]), v[2]), least = fminf(fminf(v[0], v[1]), v[2]);
    const bool is_grey = most == least;
    const float spread = is_grey ? 1.0f : most - least;
    const float part = is_grey ? 0.0f : (most - least) / most;
    const float hue = __fmul_rn(turned_hue(v, most, spread, turns), 6.0f);
    const int32_t found = (int32_t)hue, sector = found == 6 ? 0 : found;
    const float with_place = __fmul_rn(part, hue - (float)found), rest = 1.0f - part;
    const float p = clamp_unit(__fmul_rn(rest, most));
    const float q = clamp_unit(__fmul_rn(__fadd_rn(1.0f, -with_place), most));
    const float t = clamp_unit(__fmul_rn(__fadd_rn(with_place, rest), most));
    const float made[] = {sector == 0 || sector == 5 ? most
                          : sector == 1              ? q
                          : sector == 4              ? t
                                                     : p,
                          sector == 1 || sector == 2 ? most
                          : sector == 0              ? t
                          : sector == 3              ? q
                                                     : p,
                          sector == 3 || sector == 4 ? most
                          : sector == 2              ? t
                          : sector == 5              ? q
                                                     : p};
#pragma unroll
    for (int32_t c = 0; c < 3; c++) x->of[c] = (int32_t)__fmul_rn(made[c], 255.999f);
}

static __device__ void start_tables(work *at)
{
#pragma unroll 1
    for (uint32_t n = threadIdx.x; n < 256 * FL_MAX_CHANNELS; n += COLOR_THREADS)
        at->table[n / 256][n % 256] = (uint8_t)n;
}

/* Looks up and changes all pixels. */
static __device__ void change_pixels(const byte_image &of, work *at, const fl_color_step &step)
{
    const bool permutes = step.tone == FL_TONE_PERMUTE;
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < of.pixels; i += COLOR_THREADS) {
        pixel x;
#pragma unroll
        for (int32_t c = 0; c < FL_MAX_CHANNELS; c++)
            x.of[c] = c < of.channels ? load(of, at, permutes ? step.order[c] : c, i) : 0;
        if (step.tone == FL_TONE_SATURATION) saturate(&x, step.number);
        if (step.tone == FL_TONE_HUE) turn_hue(&x, step.number);
        if (step.tone == FL_TONE_GREY) x.of[0] = x.of[1] = x.of[2] = (int32_t)grey_of(x);
#pragma unroll
        for (int32_t c = 0; c < FL_MAX_CHANNELS; c++)
            if (c < of.channels) of.bytes[c * of.plane + i * of.step] = (uint8_t)x.of[c];
    }
    __syncthreads();
    start_tables(at);
}

/* ---- single bytes */

/* Counts each byte in each channel. */
static __device__ void count_bytes(const byte_image &of, work *at)
{
    __syncthreads();
#pragma unroll 1
    for (uint32_t n = threadIdx.x; n < 256 * FL_MAX_CHANNELS; n += COLOR_THREADS)
        at->count[n / 256][n % 256] = 0;
    __syncthreads();
#pragma unroll 1
    for (int32_t c = 0; c < of.channels; c++)
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < of.pixels; i += COLOR_THREADS)
            atomicAdd(&at->count[c][load(of, at, c, i)], 1U);
    __syncthreads();
}

/* Adds up grey pixels in fl_tone's order, by one thread. */
static __device__ float add_places(const work &at, uint32_t left)
{
    const uint32_t rows = left / LANES * LANES;
    float total = 0;
#pragma unroll 1
    for (uint32_t i = rows; i < left; i++) total += (float)at.rest[i];
#pragma unroll 1
    for (uint32_t k = 0; k < LANES; k++) {
        float lane = (float)at.sum[k];
#pragma unroll 1
        for (uint32_t i = k; i < rows; i += LANES) lane += (float)at.rest[i];
        for (uint32_t r = 1; r < REGISTERS; r++) lane += (float)at.sum[r * LANES + k];
        total += lane;
    }
    return total;
}

static __device__ void find_mean(const byte_image &of, work *at)
{
    const uint32_t whole = of.pixels / PLACES * PLACES;
    uint32_t sum = 0;
    __syncthreads();
    if (threadIdx.x < PLACES) at->sum[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < of.pixels; i += COLOR_THREADS) {
        int32_t grey = load(of, at, 0, i);
        if (of.channels == 3)
            grey = (int32_t)grey_of({{grey, load(of, at, 1, i), load(of, at, 2, i)}});
        if (i < whole)
            sum += (uint32_t)grey;
        else
            at->rest[i - whole] = (uint8_t)grey;
    }
    atomicAdd(&at->sum[threadIdx.x % PLACES], (unsigned long long)sum);
    __syncthreads();
    if (threadIdx.x == 0) at->mean = add_places(*at, of.pixels - whole) / (float)of.pixels;
    __syncthreads();
}

static __device__ int32_t spread(const uint32_t *count, int32_t v)
{
    int32_t least = 0, largest = 255;
#pragma unroll 1
    while (count[least] == 0) least++;
#pragma unroll 1
    while (count[largest] == 0) largest--;
    const float step = __fmul_rn((float)(largest - least), (float)(1.0 / 255));
    return least == largest ? v : clamp_byte((float)(v - least) / step);
}

static __device__ int32_t equalize(const uint32_t *count, uint32_t pixels, int32_t v)
{
    int32_t largest = 255;
    uint32_t below = 0;
#pragma unroll 1
    while (count[largest] == 0) largest--;
    const uint32_t step = (pixels - count[largest]) / 255;
    if (step == 0) return v;
    if (v == 0) return 0;
#pragma unroll 1
    for (int32_t n = 0; n < v; n++) below += count[n];
    const uint32_t made = (below + step / 2) / step;
    return made < 255 ? (int32_t)made : 255;
}

static __device__ int32_t change_byte(const byte_image &of, const work *at,
                                      const fl_color_step &step, uint32_t channel, int32_t v)
{
    const int32_t dropped = 8 - (int32_t)step.number;
    switch (step.tone) {
    case FL_TONE_INVERT:
        return 255 - v;
    case FL_TONE_SOLARIZE:
        return (float)v >= step.number ? 255 - v : v;
    case FL_TONE_POSTERIZE:
        return v >> dropped << dropped;
    case FL_TONE_BRIGHTNESS:
        return clamp_byte(__fmul_rn((float)v, step.number));
    case FL_TONE_CONTRAST:
        return clamp_byte(fmaf(at->mean, 1.0f - step.number, __fmul_rn((float)v, step.number)));
    case FL_TONE_AUTOCONTRAST:
        return spread(at->count[channel], v);
    default:
        return equalize(at->count[channel], of.pixels, v);
    }
}

/* Changes the tables; each thread changes different entries. */
static __device__ void change_tables(const byte_image &of, work *at, const fl_color_step &step)
{
    if (step.tone == FL_TONE_CONTRAST) find_mean(of, at);
    if (step.tone == FL_TONE_AUTOCONTRAST || step.tone == FL_TONE_EQUALIZE) count_bytes(of, at);
#pragma unroll 1
    for (uint32_t n = threadIdx.x; n < 256 * (uint32_t)of.channels; n += COLOR_THREADS) {
        uint8_t *entry = &at->table[n / 256][n % 256];
        *entry = (uint8_t)change_byte(of, at, step, n / 256, *entry);
    }
}

static __device__ void run_step(const byte_image &of, work *at, const fl_color_step &step)
{
    const bool mixes = step.tone == FL_TONE_SATURATION || step.tone == FL_TONE_HUE;
    if (mixes && of.channels != 3) return;
    if (mixes || step.tone == FL_TONE_GREY || step.tone == FL_TONE_PERMUTE)
        change_pixels(of, at, step);
    else
        change_tables(of, at, step);
}

/* ---- the cast, and erased rectangles */

static __device__ int32_t find_value(const fl_image_batch &batch, const int32_t *erased,
                                     uint32_t pixel, int32_t byte)
{
    if (batch.erased == 0) return byte;
    const int32_t y = (int32_t)(pixel / (uint32_t)batch.width);
    const int32_t x = (int32_t)(pixel % (uint32_t)batch.width);
#pragma unroll 1
    for (int32_t i = 0; i < batch.erased; i++, erased += FL_ERASED_NUMBERS)
        if (y >= erased[0] && x >= erased[1] && y < erased[2] && x < erased[3])
            byte = 255 - erased[4];
    return byte;
}

static __device__ uint32_t load_element(const char *from, int32_t bytes, uint32_t n)
{
    if (bytes == 1) return ((const uint8_t *)from)[n];
    if (bytes == 2) return ((const uint16_t *)from)[n];
    return ((const uint32_t *)from)[n];
}

static __device__ void store_element(char *to, int32_t bytes, uint32_t n, uint32_t element)
{
    if (bytes == 1) ((uint8_t *)to)[n] = (uint8_t)element;
    if (bytes == 2) ((uint16_t *)to)[n] = (uint16_t)element;
    if (bytes == 4) ((uint32_t *)to)[n] = element;
}

/* Writes the elements of an image, from the first on. */
static __device__ void cast_image(const fl_image_batch &batch, const byte_image &of, const work *at,
                                  const int32_t *erased, char *to)
{
    const uint32_t elements = of.pixels * (uint32_t)of.channels;
    const bool is_joined = of.plane == 1;
    const uint32_t each = is_joined ? (uint32_t)of.channels : of.pixels;
    __syncthreads();
#pragma unroll 1
    for (uint32_t from = 0; from < elements; from += CAST_AHEAD * COLOR_THREADS) {
        uint32_t made[CAST_AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < CAST_AHEAD; i++) {
            const uint32_t n = from + i * COLOR_THREADS + threadIdx.x;
            if (n >= elements) break;
            const uint32_t whole = n / each, rest = n % each;
            const uint32_t channel = is_joined ? rest : whole, pixel = is_joined ? whole : rest;
            const int32_t value = find_value(batch, erased, pixel, at->table[channel][of.bytes[n]]);
            made[i] = load_element(batch.table, batch.element_bytes,
                                   channel * (uint32_t)batch.values + (uint32_t)value);
        }
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < CAST_AHEAD; i++) {
            const uint32_t n = from + i * COLOR_THREADS + threadIdx.x;
            if (n < elements) store_element(to, batch.element_bytes, n, made[i]);
        }
    }
}

/* Makes the result of an image from its bytes, which are written. All threads of a block call
 * this. */
static __device__ void change_colors(const fl_image_batch &batch, uint32_t image, work *at)
{
    const uint32_t pixels = (uint32_t)batch.height * (uint32_t)batch.width;
    const int64_t elements = (int64_t)pixels * batch.channels, bytes = batch.element_bytes;
    char *to = batch.to + image * elements * bytes;
    const bool is_joined = batch.to_steps[1] == 1;
    const byte_image of = {(uint8_t *)to + (bytes - 1) * elements, pixels, is_joined ? 1 : pixels,
                           is_joined ? (uint32_t)batch.channels : 1, batch.channels};
    const int32_t *erased = batch.maps + image * batch.map_numbers + batch.height + batch.width;
    const fl_color_step *step = (const fl_color_step *)(erased + FL_ERASED_NUMBERS * batch.erased);
    start_tables(at);
#pragma unroll 1
    for (int32_t n = 0; n < batch.steps && step->tone != FL_TONE_NONE; n++, step++)
        run_step(of, at, *step);
    cast_image(batch, of, at, erased, to);
}

#endif
