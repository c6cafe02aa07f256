/* tone_fixture.h: the effect of operations on colours on a picture, pixel by pixel. The code
 * follows the formulas of fl_image_ops.h, without tables: each byte is computed by itself. */
#ifndef TONE_FIXTURE_H
#define TONE_FIXTURE_H

#include "picture_fixture.h"

#include "fl_blur.h"
#include "fl_cpu_image.h"

#include <math.h>

static inline uint8_t cut_to_byte(float x) { return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x); }

static inline float grey_of_pixel(const uint8_t *byte, fl_image_arithmetic how)
{
    float r = byte[0], g = byte[1], b = byte[2];
    if (how == FL_BY_PIL)
        return (float)((byte[0] * 19595 + byte[1] * 38470 + byte[2] * 7471 + 0x8000) >> 16);
    if (how == FL_BY_TENSOR_V1) return floorf((r * 0.2989f + g * 0.587f) + b * 0.114f);
    return floorf(fmaf(b, 0.114f, fmaf(g, 0.587f, r * 0.2989f)));
}

static inline int64_t count_pixels(const picture *p)
{
    return (int64_t)p->size.height * p->size.width;
}

static inline void invert_from(picture *p, int32_t channels, float threshold)
{
    for (int64_t i = 0; i < count_pixels(p); i++)
        for (int32_t c = 0; c < channels; c++) {
            uint8_t *v = &p->pixels[i].byte[c];
            if ((float)*v >= threshold) *v = (uint8_t)(255 - *v);
        }
}

static inline void posterize_picture(picture *p, int32_t channels, int bits)
{
    for (int64_t i = 0; i < count_pixels(p); i++)
        for (int32_t c = 0; c < channels; c++) p->pixels[i].byte[c] &= (uint8_t)(255 << (8 - bits));
}

static inline uint8_t spread_of(int v, int low, int high, fl_image_arithmetic how)
{
    float span = (float)(high - low), above = (float)(v - low);
    double scale = 255.0 / (high - low), offset = -low * scale, at = trunc(v * scale + offset);
    if (how == FL_BY_PIL) return (uint8_t)fmin(fmax(at, 0), 255);
    if (how == FL_BY_TENSOR_V1) return cut_to_byte(above * (1 / span * 255));
    return cut_to_byte(above / (span * (float)(1 / 255.0)));
}

static inline void autocontrast_picture(picture *p, int32_t channels, fl_image_arithmetic how)
{
    for (int32_t c = 0; c < channels; c++) {
        int low = 255, high = 0;
        for (int64_t i = 0; i < count_pixels(p); i++) {
            low = (int)fl_min(low, p->pixels[i].byte[c]);
            high = (int)fl_max(high, p->pixels[i].byte[c]);
        }
        for (int64_t i = 0; i < count_pixels(p) && low < high; i++) {
            uint8_t *v = &p->pixels[i].byte[c];
            *v = spread_of(*v, low, high, how);
        }
    }
}

/* Equalizes: the table counts pixels with a byte below v, at most `limit`. */
static inline void equalize_picture(picture *p, int32_t channels)
{
    for (int32_t c = 0; c < channels; c++) {
        int64_t count[256] = {0}, below[257] = {0};
        int largest = 0;
        for (int64_t i = 0; i < count_pixels(p); i++) {
            count[p->pixels[i].byte[c]]++;
            largest = (int)fl_max(largest, p->pixels[i].byte[c]);
        }
        for (int v = 0; v < 256; v++) below[v + 1] = below[v] + count[v];
        int64_t step = (count_pixels(p) - count[largest]) / 255;
        for (int64_t i = 0; i < count_pixels(p) && step > 0; i++) {
            uint8_t *v = &p->pixels[i].byte[c];
            *v = *v == 0 ? 0 : (uint8_t)fl_min(255, (below[*v] + step / 2) / step);
        }
    }
}

static inline uint8_t blend_of(float other, float v, double factor, fl_image_arithmetic how)
{
    float share = (float)factor, rest = (float)(1 - factor);
    if (how == FL_BY_PIL) return cut_to_byte(other + share * (v - other));
    if (how == FL_BY_TENSOR_V1) return cut_to_byte(share * v + rest * other);
    return cut_to_byte(fmaf(other, rest, v * share));
}

static inline void
blend_pixel(pixel *at, int32_t channels, float other, double factor, fl_image_arithmetic how)
{
    for (int32_t c = 0; c < channels; c++) at->byte[c] = blend_of(other, at->byte[c], factor, how);
}

/* Changes the contrast; only for images whose sum is exact. */
static inline void
contrast_picture(picture *p, int32_t channels, double factor, fl_image_arithmetic how)
{
    double sum = 0;
    for (int64_t i = 0; i < count_pixels(p); i++) {
        const uint8_t *byte = p->pixels[i].byte;
        sum += channels == 3 ? (double)grey_of_pixel(byte, how) : byte[0];
    }
    CHECK(sum < 1 << 24);
    float mean = (float)sum / (float)count_pixels(p);
    if (how == FL_BY_PIL) mean = (float)floor(sum / (double)count_pixels(p) + 0.5);
    for (int64_t i = 0; i < count_pixels(p); i++)
        blend_pixel(&p->pixels[i], channels, mean, factor, how);
}

/* Pillow's steps one by one, through bytes of hue, saturation and value. */
static inline void turn_pixel_of_pil(uint8_t *byte, float turns)
{
    int low = (int)fl_min(fl_min(byte[0], byte[1]), byte[2]);
    int high = (int)fl_max(fl_max(byte[0], byte[1]), byte[2]);
    float span = (float)(high - low), away[3], hue;
    if (high == low) return;
    for (int c = 0; c < 3; c++) away[c] = (float)(high - byte[c]) / span;
    if (high == byte[0])
        hue = away[2] - away[1];
    else if (high == byte[1])
        hue = (float)(2.0 + (double)away[0] - (double)away[2]);
    else
        hue = (float)(4.0 + (double)away[1] - (double)away[0]);
    hue = (float)fmod((double)hue / 6.0 + 1.0, 1.0);
    int h = (int)((double)hue * 255.0) + (int)((double)turns * 255.0);
    int s = (int)((double)(span / (float)high) * 255.0);
    double six = (h & 255) * 6.0 / 255.0, v = high;
    int sector = (int)floor(six);
    float place = (float)(six - sector), part = (float)(s / 255.0), both = part * place;
    uint8_t top = (uint8_t)high, p = (uint8_t)round(v * (1.0 - (double)part));
    uint8_t q = (uint8_t)round(v * (1.0 - (double)both));
    uint8_t t = (uint8_t)round(v * (1.0 - (double)part * (1.0 - (double)place)));
    const uint8_t becomes[6][3] = {{top, t, p}, {q, top, p}, {p, top, t},
                                   {p, q, top}, {t, p, top}, {top, p, q}};
    for (int c = 0; c < 3; c++) byte[c] = becomes[sector % 6][c];
}

/* torchvision's steps one by one, with the C library's fmod. */
static inline void turn_pixel(uint8_t *byte, float turns, fl_image_arithmetic how)
{
    const bool is_v1 = how == FL_BY_TENSOR_V1;
    float v[3], low = 1, high = 0;
    if (how == FL_BY_PIL) {
        turn_pixel_of_pil(byte, turns);
        return;
    }
    for (int c = 0; c < 3; c++) {
        v[c] = is_v1 ? (float)byte[c] / 255 : (float)byte[c] * (float)(1 / 255.0);
        low = fminf(low, v[c]), high = fmaxf(high, v[c]);
    }
    bool is_grey = low == high;
    float part = (high - low) / (is_grey ? 1 : high), by = is_grey ? 1 : high - low, away[3], hue;
    for (int c = 0; c < 3; c++) away[c] = (high - v[c]) / by;
    if (high == v[0])
        hue = away[2] - away[1];
    else if (high == v[1])
        hue = (away[0] + 2) - away[2];
    else
        hue = (away[1] + 4) - away[0];
    hue = is_v1 ? hue / 6 : hue * (float)(1 / 6.0);
    hue = fmodf(hue + 1, 1) + turns;
    hue = fmodf(hue, 1);
    if (hue < 0) hue += 1;
    float six = hue * 6, sector = floorf(six), place = six - sector;
    float with_place = part * place, rest = 1 - part;
    float p = fminf(fmaxf(rest * high, 0), 1), q = fminf(fmaxf((1 - with_place) * high, 0), 1);
    float share = is_v1 ? 1 - part * (1 - place) : with_place + rest;
    float t = fminf(fmaxf(share * high, 0), 1);
    const float becomes[6][3] = {{high, t, p}, {q, high, p}, {p, high, t},
                                 {p, q, high}, {t, p, high}, {high, p, q}};
    for (int c = 0; c < 3; c++) byte[c] = (uint8_t)(becomes[(int)sector % 6][c] * 255.999f);
}

static inline void
grey_picture(picture *p, int32_t before, int32_t channels, fl_image_arithmetic how)
{
    for (int64_t i = 0; i < count_pixels(p); i++) {
        uint8_t *byte = p->pixels[i].byte;
        if (before == 3) byte[0] = (uint8_t)grey_of_pixel(byte, how);
        for (int32_t c = 1; c < channels; c++) byte[c] = byte[0];
    }
}

static inline void permute_picture(picture *p, int32_t channels, const int8_t *order)
{
    for (int64_t i = 0; i < count_pixels(p); i++) {
        pixel before = p->pixels[i];
        for (int32_t c = 0; c < channels; c++) p->pixels[i].byte[c] = before.byte[order[c]];
    }
}

/* Brightness, contrast, saturation or hue. */
static inline void jitter_by(picture *p, const fl_image_op *ops, fl_image_arithmetic how,
                             int32_t channels, int which, double number)
{
    if (isnan(number) || (which >= 2 && channels != 3)) return;
    settle(p, ops);
    if (which == 1) contrast_picture(p, channels, number, how);
    for (int64_t i = 0; i < count_pixels(p); i++) {
        pixel *at = &p->pixels[i];
        for (int32_t c = 0; which == 0 && c < channels; c++)
            at->byte[c] = cut_to_byte((float)at->byte[c] * (float)number);
        if (which == 2) blend_pixel(at, channels, grey_of_pixel(at->byte, how), number, how);
        if (which == 3) turn_pixel(at->byte, (float)number, how);
    }
}

static inline void distort_picture(picture *p, const fl_image_op *ops, int32_t i, int32_t channels,
                                   const fl_image_params *at)
{
    static const int early[] = {0, 1, 2, 3}, late[] = {0, 2, 3, 1};
    for (int k = 0; k < 4; k++) {
        int which = (at->is_early ? early : late)[k];
        jitter_by(p, ops, ops[i].arithmetic, channels, which, (double)at->number[which]);
    }
    if (at->order[0] < 0) return;
    settle(p, ops);
    permute_picture(p, channels, at->order);
}

/* Returns the smoothed byte at row y, column x. */
static inline float
smooth_of(const picture *p, int32_t y, int32_t x, int32_t c, fl_image_arithmetic how)
{
    float sum = how == FL_BY_PIL ? 0.5f : 0;
    for (int32_t k = 0; k < 9 && how != FL_BY_PIL; k++)
        sum = fmaf(pixel_at(p, y + k / 3 - 1, x + k % 3 - 1)->byte[c],
                   k == 4 ? (float)(5 / 13.0) : (float)(1 / 13.0), sum);
    for (int32_t row = y + 1; row >= y - 1 && how == FL_BY_PIL; row--) {
        float middle = row == y ? (float)(5 / 13.0) : (float)(1 / 13.0), side = (float)(1 / 13.0);
        sum += (pixel_at(p, row, x - 1)->byte[c] * side + pixel_at(p, row, x)->byte[c] * middle) +
               pixel_at(p, row, x + 1)->byte[c] * side;
    }
    return how == FL_BY_PIL ? floorf(sum) : rintf(sum);
}

static inline void
sharpen_picture(picture *p, int32_t channels, double factor, fl_image_arithmetic how)
{
    picture before = make_picture(p->size.height, p->size.width);
    memcpy(before.pixels, p->pixels, (size_t)count_pixels(p) * sizeof(pixel));
    for (int32_t y = 0; y < p->size.height; y++)
        for (int32_t x = 0; x < p->size.width; x++)
            for (int32_t c = 0; c < channels; c++) {
                bool is_inner = y > 0 && x > 0 && y + 1 < p->size.height && x + 1 < p->size.width;
                float v = pixel_at(&before, y, x)->byte[c];
                float smooth = is_inner ? smooth_of(&before, y, x, c, how) : v;
                pixel_at(p, y, x)->byte[c] =
                    how == FL_BY_TENSOR_V2 ? cut_to_byte(fmaf(smooth - v, (float)(1 - factor), v))
                                           : blend_of(smooth, v, factor, how);
            }
    free(before.pixels);
}

static inline int32_t reflected(int32_t i, int32_t length)
{
    return i < 0 ? -i : i < length ? i : 2 * (length - 1) - i;
}

/* Every tap of every pixel, in order. */
static inline void
blur_picture(picture *p, int32_t channels, int32_t width, int32_t height, float sigma)
{
    fl_image_blur blur;
    picture before = make_picture(p->size.height, p->size.width);
    memcpy(before.pixels, p->pixels, (size_t)count_pixels(p) * sizeof(pixel));
    float *memory = malloc((size_t)fl_blur_floats(width, height) * sizeof *memory);
    fl_blur_make(&blur, width, height, sigma, NULL, memory);
    for (int32_t y = 0; y < p->size.height; y++)
        for (int32_t x = 0; x < p->size.width; x++)
            for (int32_t c = 0; c < channels; c++) {
                float sum = 0;
                for (int32_t k = 0; k < width * height; k++) {
                    int32_t i = reflected(y + k / width - height / 2, p->size.height);
                    int32_t j = reflected(x + k % width - width / 2, p->size.width);
                    sum = fmaf(pixel_at(&before, i, j)->byte[c], blur.taps[k], sum);
                }
                pixel_at(p, y, x)->byte[c] = (uint8_t)rintf(sum);
            }
    free(memory);
    free(before.pixels);
}

/* Adds noise by the plain kernel, on all channels at once; tests in Python compute its numbers
 * independently. */
static inline void
add_noise_to_picture(picture *p, int32_t channels, const fl_image_op *op, uint64_t key)
{
    int64_t count = count_pixels(p);
    uint8_t *bytes = malloc((size_t)(count * channels) + 1);
    const fl_image_noise noise = {key, (float)(op->number[0] * 255), (float)(op->number[1] * 255),
                                  op->number[2] != 0};
    for (int64_t i = 0; i < count * channels; i++) bytes[i] = p->pixels[i % count].byte[i / count];
    fl_image_planes planes = {bytes, count * channels, 0, 1, count * channels};
    fl_cpu_image_plain.tone.add_noise(&planes, 0, &noise);
    for (int64_t i = 0; i < count * channels; i++) p->pixels[i % count].byte[i / count] = bytes[i];
    free(bytes);
}

/* Applies an operation to a picture without fills; the operation must be applied. */
static inline void
change_tone(picture *p, const fl_image_op *op, const fl_image_params *at, int32_t channels)
{
    if (op->kind == FL_OP_INVERT || op->kind == FL_OP_SOLARIZE)
        invert_from(p, channels, op->kind == FL_OP_INVERT ? 0 : (float)op->number[0]);
    else if (op->kind == FL_OP_POSTERIZE)
        posterize_picture(p, channels, (int)op->number[0]);
    else if (op->kind == FL_OP_AUTOCONTRAST)
        autocontrast_picture(p, channels, op->arithmetic);
    else if (op->kind == FL_OP_EQUALIZE)
        equalize_picture(p, channels);
    else if (op->kind == FL_OP_SHARPNESS)
        sharpen_picture(p, channels, op->number[0], op->arithmetic);
    else if (op->kind == FL_OP_BLUR)
        blur_picture(p, channels, op->size.width, op->size.height, at->number[0]);
    else if (op->kind == FL_OP_NOISE)
        add_noise_to_picture(p, channels, op, at->seed);
    else if (op->kind == FL_OP_CHANNEL_PERMUTATION)
        permute_picture(p, channels, at->order);
    else
        CHECK(false);
}

/* Follows the operations, and sets *channels to the channels of the result. */
static inline void follow_tone(picture *p, const fl_image_op *ops, int32_t i,
                               const fl_image_params *at, int32_t *channels)
{
    const fl_image_op *op = &ops[i];
    bool is_small = op->kind == FL_OP_SHARPNESS && (p->size.height <= 2 || p->size.width <= 2);
    if (!at->is_applied || is_small) return;
    if (op->kind == FL_OP_GRAYSCALE || op->kind == FL_OP_RANDOM_GRAYSCALE) {
        int32_t after = op->kind == FL_OP_GRAYSCALE ? (int32_t)op->number[0] : *channels;
        if (*channels > 1 || after > 1) settle(p, ops);
        grey_picture(p, *channels, after, op->arithmetic);
        *channels = after;
    } else if (op->kind == FL_OP_COLOR_JITTER) {
        for (int k = 0; k < 4; k++)
            jitter_by(p, ops, ops[i].arithmetic, *channels, at->order[k],
                      (double)at->number[at->order[k]]);
    } else if (op->kind == FL_OP_PHOTOMETRIC_DISTORT) {
        distort_picture(p, ops, i, *channels, at);
    } else {
        settle(p, ops);
        change_tone(p, op, at, *channels);
    }
}

static inline bool is_color(fl_image_op_kind kind)
{
    return kind == FL_OP_AUTOCONTRAST || kind == FL_OP_GRAYSCALE ||
           kind == FL_OP_RANDOM_GRAYSCALE || kind == FL_OP_COLOR_JITTER ||
           kind == FL_OP_PHOTOMETRIC_DISTORT || kind == FL_OP_SHARPNESS;
}

/* Numbers of an operation of this kind. */
static inline void random_numbers(uint64_t *seed, fl_image_op *op)
{
    if (op->kind >= FL_OP_INVERT && op->kind <= FL_OP_SHARPNESS)
        op->arithmetic = (fl_image_arithmetic)random_below(seed, FL_IMAGE_ARITHMETICS);
    if (op->kind == FL_OP_SOLARIZE) op->number[0] = (double)random_below(seed, 511) / 2;
    if (op->kind == FL_OP_POSTERIZE) op->number[0] = (double)random_below(seed, 9);
    if (op->kind == FL_OP_NOISE) {
        op->number[0] = (double)random_below(seed, 3) / 4 - 0.25;
        op->number[1] = (double)random_below(seed, 9) / 8;
        op->number[2] = (double)random_below(seed, 2);
    }
    if (op->kind == FL_OP_SHARPNESS) op->number[0] = (double)random_below(seed, 30) / 10;
    if (op->kind == FL_OP_BLUR) {
        op->size.width = 1 + 2 * (int32_t)random_below(seed, 7);
        op->size.height = 1 + 2 * (int32_t)random_below(seed, 7);
        op->number[0] = 0.1, op->number[1] = 6;
    }
    if (op->kind == FL_OP_GRAYSCALE) op->number[0] = random_below(seed, 2) ? 3 : 1;
    for (int n = 0;
         n < 4 && (op->kind == FL_OP_COLOR_JITTER || op->kind == FL_OP_PHOTOMETRIC_DISTORT); n++) {
        bool is_hue = n == 3, stays = random_below(seed, 4) == 0;
        op->number[2 * n] = stays ? (double)NAN : is_hue ? -0.4 : 0.3;
        op->number[2 * n + 1] = stays ? (double)NAN : is_hue ? 0.5 : 1.9;
    }
}

#endif
