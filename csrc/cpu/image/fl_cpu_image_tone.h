/* fl_cpu_image_tone: operations on colours.
 *
 * Each file that fills a table of fl_image_ops includes this file, and compiles it for its
 * instructions: plain loops that the compiler vectorises. Every float is rounded exactly where
 * torch rounds, so no operation may be fused but the written ones (-ffp-contract=off), and all
 * tables have the same bits. */
#ifndef FL_CPU_IMAGE_TONE_H
#define FL_CPU_IMAGE_TONE_H

#include "fl_image_ops.h"
#ifdef FL_VECTOR_BYTES
#include "fl_cpu_image_vector.h"
#endif

#include <math.h>
#include <string.h>

/* Joins rows that follow each other in memory into one. */
static inline fl_image_planes as_one_row(const fl_image_planes *planes)
{
    fl_image_planes p = *planes;
    if (p.pitch == p.columns) p.columns *= p.rows, p.rows = 1;
    return p;
}

static void look_up_bytes(uint8_t *row, int64_t count, const uint8_t *table)
{
    for (int64_t i = 0; i < count; i++) row[i] = table[row[i]];
}

#if defined(FL_VECTOR_BYTES) && FL_VECTOR_BYTES == 64
/* Looks up with the table in four registers: two permutations of a pair each, and the highest bit
 * of a byte chooses between them. Returns how many bytes are done. */
__attribute__((target("avx512vbmi"))) static int64_t
look_up_vectors(uint8_t *row, int64_t count, const uint8_t *table)
{
    int64_t i = 0;
    __m512i t0 = _mm512_loadu_si512(table), t1 = _mm512_loadu_si512(table + 64);
    __m512i t2 = _mm512_loadu_si512(table + 128), t3 = _mm512_loadu_si512(table + 192);
    for (; i + 64 <= count; i += 64) {
        __m512i v = _mm512_loadu_si512(row + i);
        __m512i low = _mm512_permutex2var_epi8(t0, v, t1);
        __m512i high = _mm512_permutex2var_epi8(t2, v, t3);
        _mm512_storeu_si512(row + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(v), low, high));
    }
    return i;
}
#endif

static void tone_look_up(const fl_image_planes *planes, const uint8_t *table)
{
    const fl_image_planes p = as_one_row(planes);
    for (int64_t y = 0; y < p.rows; y++) {
        uint8_t *row = p.data + y * p.pitch;
        int64_t done = 0;
#if defined(FL_VECTOR_BYTES) && FL_VECTOR_BYTES == 64
        if (__builtin_cpu_supports("avx512vbmi")) done = look_up_vectors(row, p.columns, table);
#endif
        look_up_bytes(row + done, p.columns - done, table);
    }
}

static void tone_range(const fl_image_planes *planes, uint8_t *least, uint8_t *largest)
{
    const fl_image_planes p = as_one_row(planes);
    uint8_t low = 255, high = 0;
    for (int64_t y = 0; y < p.rows; y++) {
        const uint8_t *row = p.data + y * p.pitch;
        for (int64_t i = 0; i < p.columns; i++) {
            low = row[i] < low ? row[i] : low;
            high = row[i] > high ? row[i] : high;
        }
    }
    *least = low;
    *largest = high;
}

/* Equal bytes in a row would wait for each other's counts, so neighbours use separate counts. */
static void tone_count(const fl_image_planes *planes, int64_t *count)
{
    enum { APART = 4 };
    const fl_image_planes p = as_one_row(planes);
    uint32_t counts[APART][256];
    memset(counts, 0, sizeof counts);
    for (int64_t y = 0; y < p.rows; y++) {
        const uint8_t *row = p.data + y * p.pitch;
        int64_t i = 0;
        for (; i + APART <= p.columns; i += APART)
            for (int k = 0; k < APART; k++) counts[k][row[i + k]]++;
        for (; i < p.columns; i++) counts[0][row[i]]++;
    }
    for (int v = 0; v < 256; v++)
        for (int k = 0; k < APART; k++) count[v] += counts[k][v];
}

static void tone_sum(const uint8_t *src, int64_t bytes, int64_t *sum)
{
    enum { PLACES = 32, STEPS = 1 << 16 }; /* this many bytes fit 32 bits */
    while (bytes >= PLACES) {
        uint32_t part[PLACES] = {0};
        int64_t steps = fl_min(bytes / PLACES, STEPS);
        for (int64_t n = 0; n < steps; n++, src += PLACES)
            for (int k = 0; k < PLACES; k++) part[k] += src[k];
        for (int k = 0; k < PLACES; k++) sum[k] += part[k];
        bytes -= steps * PLACES;
    }
    for (int64_t k = 0; k < bytes; k++) sum[k] += src[k];
}

static inline float grey_of(float red, float green, float blue)
{
    return fmaf(blue, 0.114f, fmaf(green, 0.587f, red * 0.2989f));
}

static void tone_grey(uint8_t *dst, const fl_image_planes *planes)
{
    const fl_image_planes p = as_one_row(planes);
    for (int64_t y = 0; y < p.rows; y++) {
        const uint8_t *red = p.data + y * p.pitch;
        const uint8_t *green = red + p.plane, *blue = green + p.plane;
        uint8_t *restrict to = dst + y * p.columns;
        for (int64_t i = 0; i < p.columns; i++)
            to[i] = (uint8_t)(int32_t)grey_of(red[i], green[i], blue[i]);
    }
}

static inline uint8_t clamp_byte(float x)
{
    x = x < 0 ? 0 : x;
    x = x > 255 ? 255 : x;
    return (uint8_t)(int32_t)x;
}

static void tone_saturate(const fl_image_planes *planes, float factor, float rest)
{
    const fl_image_planes p = as_one_row(planes);
    for (int64_t y = 0; y < p.rows; y++) {
        uint8_t *restrict red = p.data + y * p.pitch;
        uint8_t *restrict green = p.data + y * p.pitch + p.plane;
        uint8_t *restrict blue = p.data + y * p.pitch + 2 * p.plane;
        for (int64_t i = 0; i < p.columns; i++) {
            float r = red[i], g = green[i], b = blue[i];
            float grey = (float)(int32_t)grey_of(r, g, b);
            red[i] = clamp_byte(fmaf(grey, rest, r * factor));
            green[i] = clamp_byte(fmaf(grey, rest, g * factor));
            blue[i] = clamp_byte(fmaf(grey, rest, b * factor));
        }
    }
}

/* ---- hue: compilers do not vectorise so many choices, so vectors are written out */

#ifdef FL_VECTOR_BYTES
enum { TONE_BYTES = FL_VECTOR_BYTES };
#else
enum { TONE_BYTES = 16 };
#endif
enum { TONE_FLOATS = TONE_BYTES / 4 };

typedef float tone_floats __attribute__((vector_size(TONE_BYTES)));
typedef int32_t tone_mask __attribute__((vector_size(TONE_BYTES)));
typedef uint8_t tone_bytes __attribute__((vector_size(TONE_FLOATS)));

static inline tone_floats tone_load(const uint8_t *src)
{
    tone_bytes bytes;
    memcpy(&bytes, src, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, tone_mask), tone_floats);
}

static inline void tone_store(uint8_t *dst, tone_floats x)
{
    tone_bytes bytes = __builtin_convertvector(__builtin_convertvector(x, tone_mask), tone_bytes);
    memcpy(dst, &bytes, sizeof bytes);
}

/* Returns `ones` if the mask has ones, else `others`, element by element. */
static inline tone_floats tone_choose(tone_mask mask, tone_floats ones, tone_floats others)
{
    return (tone_floats)((mask & (tone_mask)ones) | (~mask & (tone_mask)others));
}

static inline tone_floats clamp_unit(tone_floats x)
{
    const tone_floats zeros = {0}, ones = zeros + 1;
    return tone_choose(x > ones, ones, tone_choose(x < zeros, zeros, x));
}

/* Returns a colour's position on the circle of hues, from 0 to 1, after turning. */
static inline tone_floats
turned_hue(const tone_floats *color, tone_floats most, tone_floats spread, float turns)
{
    const tone_floats zeros = {0}, ones = zeros + 1;
    tone_floats r = (most - color[0]) / spread, g = (most - color[1]) / spread;
    tone_floats b = (most - color[2]) / spread;
    tone_floats hue = tone_choose(most == color[1], (r + 2.0f) - b, (g + 4.0f) - r);
    hue = tone_choose(most == color[0], b - g, hue);
    hue = hue * (float)(1.0 / 6.0) + 1.0f;        /* from 5/6 to 11/6 */
    hue -= tone_choose(hue >= ones, ones, zeros); /* exact, like fmod */
    hue += turns;
    hue -= tone_choose(hue >= ones, ones, zeros);
    return hue + tone_choose(hue < zeros, ones, zeros);
}

/* Turns TONE_FLOATS pixels. */
static inline void turn_pixels(uint8_t *red, uint8_t *green, uint8_t *blue, float turns)
{
    const tone_floats ones = (tone_floats){0} + 1;
    const float unit = (float)(1.0 / 255);
    tone_floats v[3] = {tone_load(red) * unit, tone_load(green) * unit, tone_load(blue) * unit};
    tone_floats most = tone_choose(v[0] > v[1], v[0], v[1]);
    tone_floats least = tone_choose(v[0] < v[1], v[0], v[1]);
    most = tone_choose(most > v[2], most, v[2]);
    least = tone_choose(least < v[2], least, v[2]);
    tone_mask is_grey = most == least;
    tone_floats spread = most - least, part = spread / tone_choose(is_grey, ones, most);
    spread = tone_choose(is_grey, ones, spread);
    tone_floats hue = turned_hue(v, most, spread, turns) * 6.0f;
    tone_mask sector = __builtin_convertvector(hue, tone_mask); /* hue >= 0 */
    tone_floats with_place = part * (hue - __builtin_convertvector(sector, tone_floats));
    tone_floats rest = ones - part, p = clamp_unit(rest * most);
    tone_floats q = clamp_unit((ones - with_place) * most);
    tone_floats t = clamp_unit((with_place + rest) * most);
    sector &= sector != 6;
    tone_floats to_red = tone_choose(sector == 1, q, tone_choose(sector == 4, t, p));
    tone_floats to_green = tone_choose(sector == 0, t, tone_choose(sector == 3, q, p));
    tone_floats to_blue = tone_choose(sector == 2, t, tone_choose(sector == 5, q, p));
    to_red = tone_choose((sector == 0) | (sector == 5), most, to_red);
    to_green = tone_choose((sector == 1) | (sector == 2), most, to_green);
    to_blue = tone_choose((sector == 3) | (sector == 4), most, to_blue);
    tone_store(red, to_red * 255.999f);
    tone_store(green, to_green * 255.999f);
    tone_store(blue, to_blue * 255.999f);
}

static void turn_row(uint8_t *red, uint8_t *green, uint8_t *blue, int64_t count, float turns)
{
    int64_t i = 0;
    for (; i + TONE_FLOATS <= count; i += TONE_FLOATS)
        turn_pixels(red + i, green + i, blue + i, turns);
    if (i == count) return;
    size_t left = (size_t)(count - i);
    uint8_t rest[3][TONE_FLOATS] = {{0}};
    memcpy(rest[0], red + i, left);
    memcpy(rest[1], green + i, left);
    memcpy(rest[2], blue + i, left);
    turn_pixels(rest[0], rest[1], rest[2], turns);
    memcpy(red + i, rest[0], left);
    memcpy(green + i, rest[1], left);
    memcpy(blue + i, rest[2], left);
}

static void tone_turn_hue(const fl_image_planes *planes, float turns)
{
    const fl_image_planes p = as_one_row(planes);
    for (int64_t y = 0; y < p.rows; y++) {
        uint8_t *row = p.data + y * p.pitch;
        turn_row(row, row + p.plane, row + 2 * p.plane, p.columns, turns);
    }
}

#endif
