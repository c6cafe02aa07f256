/* fl_cpu_image_noise: normal random numbers added to bytes.
 *
 * Each file that fills a table of fl_image_ops includes this file. Logarithm, sine and cosine are
 * written out, with every product and sum rounded, so that all tables and machines give the same
 * numbers. docs/internals/augmentations.md also defines these functions. */
#ifndef FL_CPU_IMAGE_NOISE_H
#define FL_CPU_IMAGE_NOISE_H

#include "fl_cpu_image_warp_pil.h"

#include "fl_philox.h"

enum { NOISE_NUMBERS = 4 * TONE_FLOATS }; /* made at a time: a block for each float */

static inline tone_floats tone_sqrt(tone_floats x)
{
#if defined(__x86_64__) && defined(FL_VECTOR_BYTES)
    return FL_V(sqrt_ps)(x);
#else
    for (int k = 0; k < TONE_FLOATS; k++) x[k] = sqrtf(x[k]);
    return x;
#endif
}

/* Computes the logarithm of numbers from 2^-24 to 1. */
static inline tone_floats tone_log(tone_floats x)
{
    static const float terms[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                  -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                  2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
    tone_mask bits = (tone_mask)x, exponent = (bits >> 23) - 127;
    tone_floats part = (tone_floats)((bits & 0x7FFFFF) | 0x3F800000), zeros = {0};
    tone_mask is_large = part > zeros + 1.41421356f;
    part = tone_choose(is_large, part * 0.5f, part) - 1.0f;
    tone_floats e = __builtin_convertvector(exponent - is_large, tone_floats),
                sum = zeros + terms[0];
    for (int k = 1; k < 9; k++) sum = sum * part + terms[k];
    tone_floats square = part * part;
    sum = sum * (part * square) + e * -2.12194440e-4f;
    sum = part + (sum - square * 0.5f);
    return sum + e * 0.693359375f;
}

/* Computes cosine and sine for a part of the circle, from 0 to 1. */
static inline void tone_circle(tone_floats part, tone_floats *cosine, tone_floats *sine)
{
    tone_floats quarters = part * 4.0f;
    tone_mask quadrant = __builtin_convertvector(quarters + 0.5f, tone_mask);
    tone_floats t = (quarters - __builtin_convertvector(quadrant, tone_floats)) * 1.57079633f;
    tone_floats square = t * t;
    tone_floats s = square * -1.9515295891e-4f + 8.3321608736e-3f;
    s = (s * square + -1.6666654611e-1f) * (square * t) + t;
    tone_floats c = square * 2.443315711809948e-5f + -1.388731625493765e-3f;
    c = (c * square + 4.166664568298827e-2f) * (square * square) + (1.0f - square * 0.5f);
    tone_mask is_odd = (quadrant & 1) != 0;
    tone_floats x = tone_choose(is_odd, s, c), y = tone_choose(is_odd, c, s);
    tone_mask turns_x = ((quadrant + 1) & 2) != 0, turns_y = (quadrant & 2) != 0;
    *cosine = tone_choose(turns_x, -x, x);
    *sine = tone_choose(turns_y, -y, y);
}

/* Makes the words of TONE_FLOATS blocks from `first` on: word w of block k is words[w][k]. */
static inline void make_words(uint64_t key, uint64_t first, uint32_t words[4][TONE_FLOATS])
{
    for (int k = 0; k < TONE_FLOATS; k++) {
        uint64_t at = first + (uint64_t)k;
        words[0][k] = (uint32_t)at;
        words[1][k] = (uint32_t)(at >> 32);
        words[2][k] = words[3][k] = 0;
    }
    for (int round = 0; round < FL_PHILOX_ROUNDS; round++)
        for (int k = 0; k < TONE_FLOATS; k++)
            fl_philox_round(key, (uint32_t)round, &words[0][k], &words[1][k], &words[2][k],
                            &words[3][k]);
}

static inline tone_floats units_of(const uint32_t *words, int32_t more)
{
    tone_mask bits;
    memcpy(&bits, words, sizeof bits);
    bits = (bits >> 8 & 0xFFFFFF) + more;
    return __builtin_convertvector(bits, tone_floats) * 0x1p-24f;
}

/* Makes the normal numbers 4 * first to 4 * first + NOISE_NUMBERS - 1. */
static void make_normal(uint64_t key, uint64_t first, float *out)
{
    uint32_t words[4][TONE_FLOATS];
    tone_floats numbers[4];
    make_words(key, first, words);
    for (int pair = 0; pair < 4; pair += 2) {
        tone_floats length = tone_sqrt(tone_log(units_of(words[pair], 1)) * -2.0f), x, y;
        tone_circle(units_of(words[pair + 1], 0), &x, &y);
        numbers[pair] = length * x;
        numbers[pair + 1] = length * y;
    }
    for (int k = 0; k < TONE_FLOATS; k++)
        for (int w = 0; w < 4; w++) out[4 * k + w] = numbers[w][k];
}

static void
tone_add_noise(const fl_image_planes *planes, int64_t first, const fl_image_noise *noise)
{
    const fl_image_planes p = as_one_row(planes);
    float normal[NOISE_NUMBERS];
    for (int64_t y = 0; y < p.rows; y++) {
        uint8_t *row = p.data + y * p.pitch;
        for (int64_t x = 0; x < p.columns;) {
            int64_t at = first + y * p.columns + x, skipped = at % 4;
            int64_t count = fl_min(NOISE_NUMBERS - skipped, p.columns - x);
            make_normal(noise->key, (uint64_t)at / 4, normal);
            for (int64_t i = 0; i < count; i++) {
                int32_t v =
                    row[x + i] + (int32_t)(normal[skipped + i] * noise->scale + noise->mean);
                int32_t low = v < 0 ? 0 : v, within = low > 255 ? 255 : low;
                row[x + i] = (uint8_t)(noise->clips ? within : v);
            }
            x += count;
        }
    }
}

/* ---- mixtures */

static void
tone_add_weighted(float *sums, const fl_image_planes *planes, float weight, bool is_first)
{
    const fl_image_planes p = as_one_row(planes);
    for (int64_t y = 0; y < p.rows; y++) {
        const uint8_t *row = p.data + y * p.pitch;
        float *restrict to = sums + y * p.columns;
        if (is_first)
            for (int64_t i = 0; i < p.columns; i++) to[i] = (float)row[i] * weight;
        else
            for (int64_t i = 0; i < p.columns; i++) to[i] += (float)row[i] * weight;
    }
}

static void tone_cut_sums(uint8_t *restrict dst, const float *restrict sums, int64_t count)
{
    for (int64_t i = 0; i < count; i++) dst[i] = (uint8_t)(int32_t)sums[i];
}

/* The functions of fl_image_ops.tone, as an initializer. */
/* clang-format off */
#define FL_TONE_OPS                                                              \
    {.look_up = tone_look_up,   .range = tone_range,                             \
     .count = tone_count,       .sum = tone_sum,                                 \
     .grey = {tone_grey_v2, tone_grey_v1, tone_grey_pil},                        \
     .saturate = {tone_saturate_v2, tone_saturate_v1, tone_saturate_pil},        \
     .turn_hue = {tone_turn_hue_v2, tone_turn_hue_v1, tone_turn_hue_pil},        \
     .sharpen = {tone_sharpen_v2, tone_sharpen_v1, tone_sharpen_pil},            \
     .blur = tone_blur,         .warp = tone_warp,  .warp_pil = tone_warp_pil,   \
     .add_noise = tone_add_noise, .add_weighted = tone_add_weighted,             \
     .cut_sums = tone_cut_sums,   .box = tone_box}
/* clang-format on */

#endif
