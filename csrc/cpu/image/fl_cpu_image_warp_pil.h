/* fl_cpu_image_warp_pil: turned, sheared and tilted images with the bits of Pillow.
 *
 * Each file that fills a table of fl_image_ops includes this file. Pixels are interleaved, so with
 * AVX2 one load and one vector have all channels of a pixel, and no instruction has to gather.
 * Otherwise the channels are computed one by one. Positions are computed for a piece of a row at a
 * time. Arithmetic is in doubles that are never fused, as in Pillow's wheels for x86-64. */
#ifndef FL_CPU_IMAGE_WARP_PIL_H
#define FL_CPU_IMAGE_WARP_PIL_H

#include "fl_cpu_image_warp.h"

enum { PIL_PIECE = 128 };

typedef struct pil_piece {
    int64_t row, first; /* of the first pixel */
    int count;
    double x[PIL_PIECE], y[PIL_PIECE]; /* the position, and later its rest beyond a whole number */
    int32_t column[PIL_PIECE], row_of[PIL_PIECE]; /* bicubic: the whole numbers, from -1 on */
    int32_t at[PIL_PIECE]; /* the pixel that is read; less than 0: outside of the image */
    int32_t right[PIL_PIECE], down[PIL_PIECE]; /* bilinear: how far its neighbours are, in pixels */
} pil_piece;

/* The image that is read. */
typedef struct pil_image {
    const uint8_t *data; /* borrowed */
    int32_t width, height;
} pil_image;

/* ---- nearest */

/* Returns the whole number in a double, and a negative number if it is negative or does not fit, as
 * x86-64 does. */
static inline int32_t pil_whole(double x)
{
    double within = x >= 0 ? x : -1;
    return (int32_t)(within < 0x1p31 ? within : -1);
}

static inline void take_pixels(const pil_image *from, pil_piece *p)
{
    const int32_t width = from->width, height = from->height;
    for (int i = 0; i < p->count; i++) {
        int32_t x = p->column[i], y = p->row_of[i];
        bool is_in = (x >= 0) & (x < width) & (y >= 0) & (y < height);
        p->at[i] = is_in ? (int32_t)((uint32_t)y * (uint32_t)width) + x : -1;
    }
}

static inline bool fits_fixed(const double *m, double columns, double rows)
{
    return fabs(columns * m[0] + rows * m[1] + m[2]) < 32768 &&
           fabs(columns * m[3] + rows * m[4] + m[5]) < 32768;
}

/* Returns true if Pillow computes positions as integers of 1/65536 pixels. */
static inline bool is_fixed(const fl_warp_pil *warp, const pil_image *from)
{
    const double *m = warp->m, w = from->width, h = from->height;
    if (warp->is_perspective || (m[1] == 0 && m[3] == 0)) return false;
    return fits_fixed(m, 0, 0) && fits_fixed(m, w, h) && fits_fixed(m, 0, h) && fits_fixed(m, w, 0);
}

static inline uint32_t pil_fix(double x)
{
    double whole = floor(x * 65536.0 + 0.5);
    return (uint32_t)(whole >= -0x1p31 && whole < 0x1p31 ? (int32_t)whole : INT32_MIN);
}

static inline void locate_fixed(const fl_warp_pil *warp, pil_piece *p)
{
    const double *m = warp->m;
    const uint32_t row = (uint32_t)p->row, step_x = pil_fix(m[0]), step_y = pil_fix(m[3]);
    const uint32_t x = pil_fix(m[2] + m[0] * 0.5 + m[1] * 0.5) + row * pil_fix(m[1]);
    const uint32_t y = pil_fix(m[5] + m[3] * 0.5 + m[4] * 0.5) + row * pil_fix(m[4]);
    for (int i = 0; i < p->count; i++) {
        uint32_t column = (uint32_t)p->first + (uint32_t)i;
        p->column[i] = (int32_t)(x + column * step_x) >> 16;
        p->row_of[i] = (int32_t)(y + column * step_y) >> 16;
    }
}

/* Adds the steps of positions one by one, because each sum is rounded. `now` is the position of the
 * next pixel. */
static inline void add_steps(const double *m, double now[2], pil_piece *p)
{
    for (int i = 0; i < p->count; i++, now[0] += m[0], now[1] += m[3])
        p->x[i] = now[0], p->y[i] = now[1];
}

static inline void cut_positions(pil_piece *p)
{
    for (int i = 0; i < p->count; i++) {
        p->column[i] = pil_whole(p->x[i]);
        p->row_of[i] = pil_whole(p->y[i]);
    }
}

/* ---- positions in doubles */

static inline void locate_middles(const fl_warp_pil *warp, pil_piece *p)
{
    const double *m = warp->m, y = (double)p->row + 0.5;
    const double row_x = m[1] * y, row_y = m[4] * y, row_z = m[7] * y;
    for (int i = 0; i < p->count; i++) {
        double x = (double)((int32_t)p->first + i) + 0.5;
        p->x[i] = m[0] * x + row_x + m[2];
        p->y[i] = m[3] * x + row_y + m[5];
    }
    for (int i = 0; warp->is_perspective && i < p->count; i++) {
        double z = m[6] * ((double)((int32_t)p->first + i) + 0.5) + row_z + 1;
        p->x[i] /= z;
        p->y[i] /= z;
    }
}

typedef double pil_doubles __attribute__((vector_size(TONE_BYTES)));
typedef int64_t pil_longs __attribute__((vector_size(TONE_BYTES)));
typedef int32_t pil_pixels __attribute__((vector_size(TONE_BYTES / 2)));
enum { PIL_DOUBLES = TONE_BYTES / 8, PIL_OUTSIDE = -2 };

static inline pil_doubles pil_choose(pil_longs mask, pil_doubles ones, pil_doubles others)
{
    return (pil_doubles)((mask & (pil_longs)ones) | (~mask & (pil_longs)others));
}

/* gcc would convert the halves of a register one by one. */
static inline pil_doubles doubles_of(pil_pixels v)
{
#if defined(FL_VECTOR_BYTES) && FL_VECTOR_BYTES == 64
    return (pil_doubles)_mm512_cvtepi32_pd((__m256i)v);
#else
    return __builtin_convertvector(v, pil_doubles);
#endif
}

static inline pil_pixels cut_doubles(pil_doubles v)
{
#if defined(FL_VECTOR_BYTES) && FL_VECTOR_BYTES == 64
    return (pil_pixels)_mm512_cvttpd_epi32((__m512d)v);
#else
    return __builtin_convertvector(v, pil_pixels);
#endif
}

/* Splits the positions of an axis into pixels, from -1 on, and rests. NaN is inside of the image,
 * and its rest is NaN. The pixel of a position outside is PIL_OUTSIDE. Compilers make branches of
 * these choices, so vectors are written out. */
static inline void split_axis(double *position, int32_t *pixel, int32_t length, int count)
{
    const pil_doubles zeros = {0};
    for (int i = 0; i < count; i += PIL_DOUBLES) {
        pil_doubles x, moved, whole;
        memcpy(&x, position + i, sizeof x);
        pil_longs is_out = (x < 0) | (x >= (double)length);
        moved = x - 0.5;
        whole = pil_choose(moved >= 0, moved, zeros - 1);
        whole = pil_choose(is_out, zeros + PIL_OUTSIDE, whole);
        pil_pixels pixels = cut_doubles(whole);
        moved -= doubles_of(pixels);
        memcpy(pixel + i, &pixels, sizeof pixels);
        memcpy(position + i, &moved, sizeof moved);
    }
}

/* Finds the four pixels that are mixed. */
static inline void find_neighbours(const pil_image *from, pil_piece *p)
{
    const int32_t width = from->width, height = from->height;
    for (int i = 0; i < p->count; i++) {
        int32_t column = p->column[i], row = p->row_of[i];
        int32_t x = column < 0 ? 0 : column, y = row < 0 ? 0 : row;
        bool is_out = (column == PIL_OUTSIDE) | (row == PIL_OUTSIDE);
        p->at[i] = is_out ? -1 : y * width + x;
        p->right[i] = (column >= 0) & (column + 1 < width);
        p->down[i] = (row >= 0) & (row + 1 < height) ? width : 0;
    }
}

/* ---- pixels */

#if defined(__x86_64__) && defined(FL_VECTOR_BYTES)
/* All channels of a pixel. */
typedef double pil_pixel __attribute__((vector_size(32)));
enum { PIL_CHANNELS = 4 };

static inline pil_pixel load_pixel(const uint8_t *src)
{
    int32_t word;
    memcpy(&word, src, sizeof word);
    return (pil_pixel)_mm256_cvtepi32_pd(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(word)));
}

/* Stores numbers cut to bytes, from 0 to 255; NaN becomes 0: as int32, NaN is negative. */
static inline void store_pixel(uint8_t *dst, pil_pixel v)
{
    __m128i ints = _mm256_cvttpd_epi32((__m256d)v), words = _mm_packus_epi32(ints, ints);
    int32_t word = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
    memcpy(dst, &word, sizeof word);
}
#else
/* One channel of a pixel. */
typedef double pil_pixel;
enum { PIL_CHANNELS = 1 };

static inline pil_pixel load_pixel(const uint8_t *src) { return *src; }

static inline void store_pixel(uint8_t *dst, pil_pixel v)
{
    *dst = v >= 255 ? 255 : v > 0 ? (uint8_t)v : 0;
}
#endif

static inline void
mix_4_pixels(const pil_piece *p, int i, const uint8_t *data, int64_t channels, uint8_t *dst)
{
    const uint8_t *upper = data + p->at[i] * channels, *lower = upper + p->down[i] * channels;
    const int64_t right = p->right[i] * channels;
    for (int64_t c = 0; c < channels; c += PIL_CHANNELS) {
        pil_pixel a = load_pixel(upper + c), b = load_pixel(lower + c);
        a += (load_pixel(upper + right + c) - a) * p->x[i];
        b += (load_pixel(lower + right + c) - b) * p->x[i];
        store_pixel(dst + c, a + (b - a) * p->y[i]);
    }
}

static inline pil_pixel cubic_of(const pil_pixel v[4], double part)
{
    pil_pixel p2 = -v[0] + v[2], p3 = 2 * (v[0] - v[1]) + v[2] - v[3];
    pil_pixel p4 = -v[0] + v[1] - v[2] + v[3];
    return v[1] + part * (p2 + part * (p3 + part * p4));
}

static inline int64_t clamp_to(int32_t x, int32_t length)
{
    return x < 0 ? 0 : x < length ? x : length - 1;
}

static inline void
mix_16_pixels(const pil_piece *p, int i, const pil_image *from, int64_t channels, uint8_t *dst)
{
    int64_t at[4];
    const uint8_t *row[4];
    for (int k = 0; k < 4; k++) {
        at[k] = clamp_to(p->column[i] + k - 1, from->width) * channels;
        row[k] = from->data + clamp_to(p->row_of[i] + k - 1, from->height) * from->width * channels;
    }
    for (int64_t c = 0; c < channels; c += PIL_CHANNELS) {
        pil_pixel v[4], of_row[4];
        for (int n = 0; n < 4; n++) {
            for (int k = 0; k < 4; k++) v[k] = load_pixel(row[n] + at[k] + c);
            of_row[n] = cubic_of(v, p->x[i]);
        }
        store_pixel(dst + c, cubic_of(of_row, p->y[i]));
    }
}

/* Mixes four pixels of a line, if the rest of the other axis is 0: that axis then gives the number
 * of its own pixel, as in shears and translations. */
static inline void
mix_4_in_line(const pil_piece *p, int i, const pil_image *from, int64_t channels, uint8_t *dst)
{
    const bool is_row = p->y[i] == 0;
    const int64_t pitch = is_row ? channels : from->width * channels;
    const int32_t own = is_row ? p->column[i] : p->row_of[i];
    const int32_t length = is_row ? from->width : from->height;
    const uint8_t *first =
        from->data + (is_row ? p->row_of[i] * from->width * channels : p->column[i] * channels);
    for (int64_t c = 0; c < channels; c += PIL_CHANNELS) {
        pil_pixel v[4];
        for (int k = 0; k < 4; k++)
            v[k] = load_pixel(first + clamp_to(own + k - 1, length) * pitch + c);
        store_pixel(dst + c, cubic_of(v, is_row ? p->x[i] : p->y[i]));
    }
}

/* Writes the pixels of a piece; `channels` is a constant. */
FL_FOR_EACH_ARITHMETIC void write_pixels(const fl_warp_pil *warp, const pil_piece *p,
                                         const pil_image *from, int64_t channels, uint8_t *dst)
{
    for (int i = 0; i < p->count; i++, dst += channels) {
        if (p->at[i] < 0)
            memcpy(dst, warp->fill, 4);
        else if (warp->how == FL_NEAREST)
            memcpy(dst, from->data + p->at[i] * channels, 4);
        else if (warp->how == FL_BILINEAR)
            mix_4_pixels(p, i, from->data, channels, dst);
        else if (p->y[i] == 0 || p->x[i] == 0)
            mix_4_in_line(p, i, from, channels, dst);
        else
            mix_16_pixels(p, i, from, channels, dst);
    }
}

#if defined(__x86_64__) && defined(FL_VECTOR_BYTES)
#include "fl_cpu_image_warp_line.h"
#else
static inline bool
try_lines(uint8_t *dst, const pil_image *from, int64_t channels, const fl_warp_pil *warp)
{
    (void)dst, (void)from, (void)channels, (void)warp;
    return false;
}
#endif

/* ---- all */

/* Finds the pixels of a piece. `now` is the position of the next pixel as the sum of all steps. */
static inline void locate_pixels(const fl_warp_pil *warp, const pil_image *from, bool has_integers,
                                 double now[2], pil_piece *p)
{
    if (warp->how != FL_NEAREST) {
        locate_middles(warp, p);
        split_axis(p->x, p->column, from->width, p->count);
        split_axis(p->y, p->row_of, from->height, p->count);
        find_neighbours(from, p);
        return;
    }
    if (has_integers)
        locate_fixed(warp, p);
    else if (warp->is_perspective)
        locate_middles(warp, p);
    else
        add_steps(warp->m, now, p);
    if (!has_integers) cut_positions(p);
    take_pixels(from, p);
}

static void tone_warp_pil(uint8_t *dst, const uint8_t *src, int32_t width, int32_t height,
                          int32_t channels, const fl_warp_pil *warp)
{
    const double *m = warp->m;
    const pil_image from = {src, width, height};
    const bool has_integers = is_fixed(warp, &from);
    if (try_lines(dst, &from, channels, warp)) return;
    double row_x = m[2] + m[1] * 0.5 + m[0] * 0.5, row_y = m[5] + m[4] * 0.5 + m[3] * 0.5;
    pil_piece p;
    for (p.row = 0; p.row < height; p.row++, row_x += m[1], row_y += m[4]) {
        double now[2] = {row_x, row_y};
        for (p.first = 0; p.first < width; p.first += PIL_PIECE) {
            p.count = (int)fl_min(PIL_PIECE, width - p.first);
            locate_pixels(warp, &from, has_integers, now, &p);
            if (channels == 1)
                write_pixels(warp, &p, &from, 1, dst);
            else if (channels == 3)
                write_pixels(warp, &p, &from, 3, dst);
            else
                write_pixels(warp, &p, &from, 4, dst);
            dst += p.count * channels;
        }
    }
}

#endif
