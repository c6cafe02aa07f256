/* fl_cpu_image_tone: operations on colours.
 *
 * Included by each file that fills a table of fl_image_ops, and compiled for its instructions:
 * plain loops that the compiler vectorises. Every float is rounded where torch rounds it, so no
 * operation may be fused but those written (-ffp-contract=off), and all tables have the same bits.
 */
#ifndef FL_CPU_IMAGE_TONE_H
#define FL_CPU_IMAGE_TONE_H

#include "fl_image_ops.h"

#include <math.h>
#include <string.h>

/* Rows that follow each other in memory are one. */
static inline fl_image_planes as_one_row(const fl_image_planes *planes)
{
    fl_image_planes p = *planes;
    if (p.pitch == p.columns) p.columns *= p.rows, p.rows = 1;
    return p;
}

static void tone_look_up(const fl_image_planes *planes, const uint8_t *table)
{
    const fl_image_planes p = as_one_row(planes);
    for (int64_t y = 0; y < p.rows; y++) {
        uint8_t *row = p.data + y * p.pitch;
        for (int64_t i = 0; i < p.columns; i++) row[i] = table[row[i]];
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

/* Equal bytes in a row would wait for each other's counts, so neighbours have counts of their own.
 */
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
    enum { PLACES = 32, STEPS = 1 << 16 }; /* as many bytes fit 32 bits */
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

/* ---- hue */

static inline float clamp_unit(float x)
{
    x = x < 0 ? 0 : x;
    return x > 1 ? 1 : x;
}

/* Where a colour lies on the circle of hues, from 0 to 1, after it is turned. */
static inline float
turned_hue(float red, float green, float blue, float most, float spread, float turns)
{
    float r = (most - red) / spread, g = (most - green) / spread, b = (most - blue) / spread;
    float in_blue = (g + 4.0f) - r, in_green = (r + 2.0f) - b, in_red = b - g;
    float hue = most == green ? in_green : in_blue;
    hue = most == red ? in_red : hue;
    hue = hue * (float)(1.0 / 6.0) + 1.0f; /* from 5/6 to 11/6 */
    hue = hue >= 1 ? hue - 1 : hue;        /* exact, as fmod is */
    hue += turns;
    hue = hue >= 1 ? hue - 1 : hue;
    return hue < 0 ? hue + 1 : hue;
}

static inline uint8_t byte_of_unit(float x) { return (uint8_t)(int32_t)(x * 255.999f); }

static void turn_row(uint8_t *restrict red, uint8_t *restrict green, uint8_t *restrict blue,
                     int64_t count, float turns)
{
    const float unit = (float)(1.0 / 255);
    for (int64_t i = 0; i < count; i++) {
        float r = (float)red[i] * unit, g = (float)green[i] * unit, b = (float)blue[i] * unit;
        float most = r > g ? r : g, least = r < g ? r : g;
        most = most > b ? most : b;
        least = least < b ? least : b;
        bool is_grey = most == least;
        float spread = most - least, part = spread / (is_grey ? 1.0f : most);
        float hue = turned_hue(r, g, b, most, is_grey ? 1.0f : spread, turns) * 6.0f;
        float sector = floorf(hue), place = hue - sector, rest = 1.0f - part;
        sector = sector == 6 ? 0 : sector;
        float with_place = part * place;
        float q = clamp_unit((1.0f - with_place) * most);
        float t = clamp_unit((with_place + rest) * most);
        float p = clamp_unit(rest * most);
        float to_red = sector == 1 ? q : sector == 4 ? t : p;
        float to_green = sector == 0 ? t : sector == 3 ? q : p;
        float to_blue = sector == 2 ? t : sector == 5 ? q : p;
        to_red = sector == 0 || sector == 5 ? most : to_red;
        to_green = sector == 1 || sector == 2 ? most : to_green;
        to_blue = sector == 3 || sector == 4 ? most : to_blue;
        red[i] = byte_of_unit(to_red);
        green[i] = byte_of_unit(to_green);
        blue[i] = byte_of_unit(to_blue);
    }
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
