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

static inline uint8_t clamp_byte(float x)
{
    x = x < 0 ? 0 : x;
    x = x > 255 ? 255 : x;
    return (uint8_t)(int32_t)x;
}

/* Functions with this mark are compiled into each caller, whose arithmetic is a constant. */
#define FL_FOR_EACH_ARITHMETIC static inline __attribute__((always_inline))

FL_FOR_EACH_ARITHMETIC int32_t grey_of(int32_t red, int32_t green, int32_t blue,
                                       fl_image_arithmetic how)
{
    if (how == FL_BY_PIL) return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16;
    float r = (float)red, g = (float)green, b = (float)blue;
    if (how == FL_BY_TENSOR_V1) return (int32_t)((r * 0.2989f + g * 0.587f) + b * 0.114f);
    return (int32_t)fmaf(b, 0.114f, fmaf(g, 0.587f, r * 0.2989f));
}

/* rest: 1 - factor, computed as double. */
FL_FOR_EACH_ARITHMETIC uint8_t blend(float other, float v, float factor, float rest,
                                     fl_image_arithmetic how)
{
    if (how == FL_BY_PIL) return clamp_byte(other + factor * (v - other));
    if (how == FL_BY_TENSOR_V1) return clamp_byte(v * factor + other * rest);
    return clamp_byte(fmaf(other, rest, v * factor));
}

FL_FOR_EACH_ARITHMETIC void
make_grey(uint8_t *dst, const fl_image_planes *planes, fl_image_arithmetic how)
{
    const fl_image_planes p = as_one_row(planes);
    for (int64_t y = 0; y < p.rows; y++) {
        const uint8_t *red = p.data + y * p.pitch;
        const uint8_t *green = red + p.plane, *blue = green + p.plane;
        uint8_t *restrict to = dst + y * p.columns;
        for (int64_t i = 0; i < p.columns; i++)
            to[i] = (uint8_t)grey_of(red[i], green[i], blue[i], how);
    }
}

FL_FOR_EACH_ARITHMETIC void
saturate(const fl_image_planes *planes, double number, fl_image_arithmetic how)
{
    const fl_image_planes p = as_one_row(planes);
    const float factor = (float)number, rest = (float)(1.0 - number);
    for (int64_t y = 0; y < p.rows; y++) {
        uint8_t *restrict red = p.data + y * p.pitch;
        uint8_t *restrict green = p.data + y * p.pitch + p.plane;
        uint8_t *restrict blue = p.data + y * p.pitch + 2 * p.plane;
        for (int64_t i = 0; i < p.columns; i++) {
            float grey = (float)grey_of(red[i], green[i], blue[i], how);
            red[i] = blend(grey, red[i], factor, rest, how);
            green[i] = blend(grey, green[i], factor, rest, how);
            blue[i] = blend(grey, blue[i], factor, rest, how);
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
FL_FOR_EACH_ARITHMETIC tone_floats turned_hue(const tone_floats *color, tone_floats most,
                                              tone_floats spread, float turns,
                                              fl_image_arithmetic how)
{
    const tone_floats zeros = {0}, ones = zeros + 1;
    tone_floats r = (most - color[0]) / spread, g = (most - color[1]) / spread;
    tone_floats b = (most - color[2]) / spread;
    tone_floats hue = tone_choose(most == color[1], (r + 2.0f) - b, (g + 4.0f) - r);
    hue = tone_choose(most == color[0], b - g, hue);
    hue = how == FL_BY_TENSOR_V1 ? hue / 6.0f : hue * (float)(1.0 / 6.0);
    hue += 1.0f;                                  /* from 5/6 to 11/6 */
    hue -= tone_choose(hue >= ones, ones, zeros); /* exact, like fmod */
    hue += turns;
    hue -= tone_choose(hue >= ones, ones, zeros);
    return hue + tone_choose(hue < zeros, ones, zeros);
}

/* Writes pixels of a sector of the circle of hues, 0 to 6, from the numbers that their channels may
 * have. */
static inline void store_sector(uint8_t *const rgb[3], tone_mask sector, tone_floats most,
                                tone_floats p, tone_floats q, tone_floats t)
{
    sector &= sector != 6;
    tone_floats to_red = tone_choose(sector == 1, q, tone_choose(sector == 4, t, p));
    tone_floats to_green = tone_choose(sector == 0, t, tone_choose(sector == 3, q, p));
    tone_floats to_blue = tone_choose(sector == 2, t, tone_choose(sector == 5, q, p));
    tone_store(rgb[0], tone_choose((sector == 0) | (sector == 5), most, to_red));
    tone_store(rgb[1], tone_choose((sector == 1) | (sector == 2), most, to_green));
    tone_store(rgb[2], tone_choose((sector == 3) | (sector == 4), most, to_blue));
}

static inline tone_floats least_of(tone_floats a, tone_floats b)
{
    return tone_choose(a < b, a, b);
}
static inline tone_floats most_of(tone_floats a, tone_floats b) { return tone_choose(a > b, a, b); }

/* Turns TONE_FLOATS pixels as torchvision turns tensors. */
FL_FOR_EACH_ARITHMETIC void turn_tensor(uint8_t *const rgb[3], float turns, fl_image_arithmetic how)
{
    const tone_floats ones = (tone_floats){0} + 1;
    const float unit = (float)(1.0 / 255);
    tone_floats v[3];
    for (int c = 0; c < 3; c++)
        v[c] = how == FL_BY_TENSOR_V1 ? tone_load(rgb[c]) / 255.0f : tone_load(rgb[c]) * unit;
    tone_floats most = most_of(most_of(v[0], v[1]), v[2]);
    tone_floats least = least_of(least_of(v[0], v[1]), v[2]);
    tone_mask is_grey = most == least;
    tone_floats spread = most - least, part = spread / tone_choose(is_grey, ones, most);
    spread = tone_choose(is_grey, ones, spread);
    tone_floats hue = turned_hue(v, most, spread, turns, how) * 6.0f;
    tone_mask sector = __builtin_convertvector(hue, tone_mask); /* hue >= 0 */
    tone_floats place = hue - __builtin_convertvector(sector, tone_floats);
    tone_floats with_place = part * place, rest = ones - part, p = clamp_unit(rest * most);
    tone_floats q = clamp_unit((ones - with_place) * most);
    tone_floats to_t = how == FL_BY_TENSOR_V1 ? ones - part * (ones - place) : with_place + rest;
    tone_floats t = clamp_unit(to_t * most);
    store_sector(rgb, sector, most * 255.999f, p * 255.999f, q * 255.999f, t * 255.999f);
}

/* Turns TONE_FLOATS pixels as Pillow does by way of bytes for hue and saturation. Pillow computes
 * in double in places; for all bytes, the float32 numbers here give the same bytes. */
FL_FOR_EACH_ARITHMETIC void turn_pil(uint8_t *const rgb[3], int32_t by)
{
    const tone_floats zeros = {0}, ones = zeros + 1;
    tone_floats r = tone_load(rgb[0]), g = tone_load(rgb[1]), b = tone_load(rgb[2]);
    tone_floats most = most_of(most_of(r, g), b), least = least_of(least_of(r, g), b);
    tone_floats spread = most - least, middle = (r + g + b) - most - least;
    tone_floats part = spread / tone_choose(most == zeros, ones, most);
    tone_floats away = (most - middle) / tone_choose(spread == zeros, ones, spread);
    tone_mask is_blue_least = b == least;
    tone_floats of_red = tone_choose(is_blue_least, ones - away, away - ones);
    tone_floats of_green = tone_choose(is_blue_least, ones + away, 3.0f - away);
    tone_floats of_blue = tone_choose(r == least, 3.0f + away, 5.0f - away);
    tone_floats hue = tone_choose(r == most, of_red, tone_choose(g == most, of_green, of_blue));
    hue /= 6.0f;
    hue += tone_choose(hue < zeros, ones, zeros);
    tone_mask turned = (__builtin_convertvector(hue * 255.0f, tone_mask) + by) & 255;
    tone_mask six = turned * 6, sector = (six + 1 + (six >> 8)) >> 8; /* six / 255 */
    tone_floats place = __builtin_convertvector(six - sector * 255, tone_floats) / 255.0f;
    tone_mask saturation = __builtin_convertvector(part * 255.0f, tone_mask);
    part = __builtin_convertvector(saturation, tone_floats) / 255.0f;
    tone_floats p = most * (ones - part) + 0.5f, q = most * (ones - part * place) + 0.5f;
    store_sector(rgb, sector, most, p, q, most * (ones - part * (ones - place)) + 0.5f);
}

FL_FOR_EACH_ARITHMETIC void turn_pixels(uint8_t *const rgb[3], float turns, fl_image_arithmetic how)
{
    if (how == FL_BY_PIL)
        turn_pil(rgb, (int32_t)((double)turns * 255));
    else
        turn_tensor(rgb, turns, how);
}

FL_FOR_EACH_ARITHMETIC void
turn_hue(const fl_image_planes *planes, float turns, fl_image_arithmetic how)
{
    const fl_image_planes p = as_one_row(planes);
    for (int64_t y = 0; y < p.rows; y++) {
        uint8_t *rgb[3] = {p.data + y * p.pitch};
        rgb[1] = rgb[0] + p.plane, rgb[2] = rgb[1] + p.plane;
        int64_t i = 0;
        for (; i + TONE_FLOATS <= p.columns; i += TONE_FLOATS) {
            turn_pixels(rgb, turns, how);
            for (int c = 0; c < 3; c++) rgb[c] += TONE_FLOATS;
        }
        if (i == p.columns) continue;
        size_t left = (size_t)(p.columns - i);
        uint8_t last[3][TONE_FLOATS] = {{0}};
        for (int c = 0; c < 3; c++) memcpy(last[c], rgb[c], left);
        turn_pixels((uint8_t *const[]){last[0], last[1], last[2]}, turns, how);
        for (int c = 0; c < 3; c++) memcpy(rgb[c], last[c], left);
    }
}

/* ---- the functions of tables, for each arithmetic */

#define FL_TONES_BY(name, how)                                                     \
    static void tone_grey_##name(uint8_t *dst, const fl_image_planes *planes)      \
    {                                                                              \
        make_grey(dst, planes, how);                                               \
    }                                                                              \
    static void tone_saturate_##name(const fl_image_planes *planes, double factor) \
    {                                                                              \
        saturate(planes, factor, how);                                             \
    }                                                                              \
    static void tone_turn_hue_##name(const fl_image_planes *planes, float turns)   \
    {                                                                              \
        turn_hue(planes, turns, how);                                              \
    }
FL_TONES_BY(v2, FL_BY_TENSOR_V2)
FL_TONES_BY(v1, FL_BY_TENSOR_V1)
FL_TONES_BY(pil, FL_BY_PIL)

#endif
