/* fl_cpu_image_blur: operations that look at neighbours: sharpness and blur.
 *
 * Each file that fills a table of fl_image_ops includes this file. Torch's sums go tap by tap in
 * rows, one fma a tap. */
#ifndef FL_CPU_IMAGE_BLUR_H
#define FL_CPU_IMAGE_BLUR_H

#include "fl_cpu_image_tone.h"

#include "fl_blur.h"

enum { PIECE_COLUMNS = 64, SHARP_COLUMNS = 256 }; /* columns that are worked on at a time */

/* Rounds 0 <= x < 2^22 to an integer, half to even. */
static inline float round_even(float x) { return (x + 0x1p23f) - 0x1p23f; }

static inline void widen_row(float *restrict to, const uint8_t *restrict src, int64_t count)
{
    for (int64_t i = 0; i < count; i++) to[i] = src[i];
}

/* ---- sharpness */

enum { SHARP_COLUMNS_READ = SHARP_COLUMNS + 2 };

/* Returns torch's sum around column i + 1 of the middle row, rounded to a byte. */
static inline float smooth_as_torch(float (*rows)[SHARP_COLUMNS_READ], int64_t i)
{
    const float side = (float)(1.0 / 13.0), middle = (float)(5.0 / 13.0);
    float sum = rows[0][i] * side;
    sum = fmaf(rows[0][i + 1], side, sum);
    sum = fmaf(rows[0][i + 2], side, sum);
    sum = fmaf(rows[1][i], side, sum);
    sum = fmaf(rows[1][i + 1], middle, sum);
    sum = fmaf(rows[1][i + 2], side, sum);
    sum = fmaf(rows[2][i], side, sum);
    sum = fmaf(rows[2][i + 1], side, sum);
    sum = fmaf(rows[2][i + 2], side, sum);
    return round_even(sum);
}

/* Returns Pillow's sum, cut to a byte. The sum is 0.5 to 255.5. */
static inline float smooth_as_pil(float (*rows)[SHARP_COLUMNS_READ], int64_t i)
{
    const float side = (float)(1.0 / 13.0), middle = (float)(5.0 / 13.0);
    float sum = 0.5f;
    sum += (rows[2][i] * side + rows[2][i + 1] * side) + rows[2][i + 2] * side;
    sum += (rows[1][i] * side + rows[1][i + 1] * middle) + rows[1][i + 2] * side;
    sum += (rows[0][i] * side + rows[0][i + 1] * side) + rows[0][i + 2] * side;
    return (float)(int32_t)sum;
}

FL_FOR_EACH_ARITHMETIC void sharpen_row(uint8_t *restrict dst, const uint8_t *src, int64_t pitch,
                                        int64_t columns, double number, fl_image_arithmetic how)
{
    const float factor = (float)number, rest = (float)(1.0 - number);
    float rows[3][SHARP_COLUMNS_READ];
    for (int64_t at = 1; at < columns - 1; at += SHARP_COLUMNS) {
        int64_t count = fl_min(SHARP_COLUMNS, columns - 1 - at);
        for (int k = 0; k < 3; k++) widen_row(rows[k], src + (k - 1) * pitch + at - 1, count + 2);
        for (int64_t i = 0; i < count; i++) {
            float v = rows[1][i + 1];
            float smooth = how == FL_BY_PIL ? smooth_as_pil(rows, i) : smooth_as_torch(rows, i);
            dst[at + i] = how == FL_BY_TENSOR_V2 ? clamp_byte(fmaf(smooth - v, rest, v))
                                                 : blend(smooth, v, factor, rest, how);
        }
    }
}

/* Writes bytes at an edge, whose mean is the byte itself: v1 rounds their blend. */
FL_FOR_EACH_ARITHMETIC void keep_edge(uint8_t *restrict dst, const uint8_t *restrict src,
                                      int64_t count, double number, fl_image_arithmetic how)
{
    const float factor = (float)number, rest = (float)(1.0 - number);
    for (int64_t i = 0; i < count; i++)
        dst[i] = how == FL_BY_TENSOR_V1 ? blend(src[i], src[i], factor, rest, how) : src[i];
}

FL_FOR_EACH_ARITHMETIC void sharpen(uint8_t *dst, int64_t dst_pitch, const fl_image_planes *planes,
                                    double factor, fl_image_arithmetic how)
{
    const fl_image_planes p = *planes;
    for (int64_t y = 0; y < p.rows; y++, dst += dst_pitch) {
        const uint8_t *row = p.data + y * p.pitch;
        bool is_inner = y > 0 && y + 1 < p.rows && p.columns > 2;
        int64_t last = p.columns - 1;
        keep_edge(dst, row, is_inner ? 1 : p.columns, factor, how);
        if (!is_inner) continue;
        sharpen_row(dst, row, p.pitch, p.columns, factor, how);
        keep_edge(dst + last, row + last, 1, factor, how);
    }
}

#define FL_SHARPEN_BY(name, how)                                                  \
    static void tone_sharpen_##name(uint8_t *dst, int64_t dst_pitch,              \
                                    const fl_image_planes *planes, double factor) \
    {                                                                             \
        sharpen(dst, dst_pitch, planes, factor, how);                             \
    }
FL_SHARPEN_BY(v2, FL_BY_TENSOR_V2)
FL_SHARPEN_BY(v1, FL_BY_TENSOR_V1)
FL_SHARPEN_BY(pil, FL_BY_PIL)

/* ---- blur
 *
 * The sum in torch's order takes width * height steps a pixel. Two sums, in x and then in y, take
 * width + height steps and differ by at most `error`, so they round to the same byte unless the sum
 * is very close to a half: only these few pixels are summed in order. */

enum { EXACT_LIST = 1024, FEW_TAPS = 9 };

/* Pixels whose sums are in doubt, as positions in the padded plane and in the result. */
typedef struct doubtful {
    int32_t count;
    int64_t from[EXACT_LIST], to[EXACT_LIST];
} doubtful;

/* Adds one product to sums: fused, or rounded twice if bits do not matter and fusing is slow. */
static inline tone_floats
add_product(tone_floats a, tone_floats b, tone_floats sum, bool is_in_order)
{
#if defined(__x86_64__) && defined(FL_VECTOR_BYTES)
    (void)is_in_order;
    return FL_V(fmadd_ps)(a, b, sum);
#elif defined(__aarch64__) && defined(FL_VECTOR_BYTES)
    (void)is_in_order;
    return (tone_floats)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
    if (!is_in_order) return a * b + sum;
    for (int k = 0; k < TONE_FLOATS; k++) sum[k] = fmaf(a[k], b[k], sum[k]);
    return sum;
#endif
}

/* Gathers the four bytes at base + at[k], as numbers whose lowest byte is the first. */
static inline tone_mask gather_words(const uint8_t *base, const int32_t *at)
{
    tone_mask words;
#if defined(__x86_64__) && defined(FL_VECTOR_BYTES) && FL_VECTOR_BYTES == 64
    words = (tone_mask)_mm512_i32gather_epi32(_mm512_loadu_si512(at), base, 1);
#else
    for (int k = 0; k < TONE_FLOATS; k++) {
        const uint8_t *from = base + at[k];
        words[k] = (int32_t)(from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
                             (uint32_t)from[3] << 24);
    }
#endif
    return words;
}

/* Adds `count` taps to the sums of pixels; the pixels' bytes are the bytes of `words` from `first`
 * on. */
static inline tone_floats
add_taps(tone_floats sum, tone_mask words, int32_t first, int32_t count, const float *tap)
{
    for (int32_t k = 0; k < count; k++) {
        tone_mask bytes = words >> 8 * (first + k) & 255;
        tone_floats value = __builtin_convertvector(bytes, tone_floats);
        sum = add_product(value, (tone_floats){0} + tap[k], sum, true);
    }
    return sum;
}

/* Sums TONE_FLOATS pixels in order, side by side, because each step of a pixel's sum waits for the
 * last step. Four taps are read at once, so a row of taps must be at least 4 long. */
static inline tone_floats
sum_pixels(const int32_t *at, const uint8_t *data, int64_t pitch, const fl_image_blur *blur)
{
    const int32_t rest = blur->width % 4, whole = blur->width - rest;
    const float *tap = blur->taps;
    tone_floats sum = {0};
    for (int32_t i = 0; i < blur->height; i++, data += pitch) {
        for (int32_t j = 0; j < whole; j += 4, tap += 4)
            sum = add_taps(sum, gather_words(data + j, at), 0, 4, tap);
        if (rest > 0)
            sum = add_taps(sum, gather_words(data + blur->width - 4, at), 4 - rest, rest, tap);
        tap += rest;
    }
    return sum;
}

static float sum_pixel(const uint8_t *at, int64_t pitch, const fl_image_blur *blur)
{
    float sum = 0;
    for (int32_t i = 0; i < blur->height; i++)
        for (int32_t j = 0; j < blur->width; j++)
            sum = fmaf(at[i * pitch + j], blur->taps[i * blur->width + j], sum);
    return sum;
}

static void
sum_in_order(doubtful *list, uint8_t *dst, const fl_image_planes *p, const fl_image_blur *blur)
{
    int32_t first = 0;
    for (; blur->width >= 4 && first < list->count; first += TONE_FLOATS) {
        int32_t at[TONE_FLOATS], count = (int32_t)fl_min(TONE_FLOATS, list->count - first);
        for (int k = 0; k < TONE_FLOATS; k++)
            at[k] = (int32_t)list->from[first + (k < count ? k : 0)];
        tone_floats sum = sum_pixels(at, p->data, p->pitch, blur);
        for (int32_t k = 0; k < count; k++)
            dst[list->to[first + k]] = (uint8_t)(int32_t)round_even(sum[k]);
    }
    for (; first < list->count; first++)
        dst[list->to[first]] =
            (uint8_t)(int32_t)round_even(sum_pixel(p->data + list->from[first], p->pitch, blur));
    list->count = 0;
}

/* Sums of height * width taps for `columns` positions; rows are width - 1 longer. */
typedef struct weighing {
    const float *rows[FL_MAX_BLUR];
    const float *taps; /* [height][width] */
    int32_t height, width;
    int64_t columns;
    bool is_in_order;
} weighing;

/* Weighs `vectors` vectors from column `at` on. `vectors` must be constant at compile time. */
static inline __attribute__((always_inline)) void
weigh_vectors(float *to, const weighing *w, int64_t at, int vectors)
{
    tone_floats sum[4] = {{0}}, value;
    const float *tap = w->taps;
    for (int32_t i = 0; i < w->height; i++) {
        const float *row = w->rows[i] + at;
        for (int32_t j = 0; j < w->width; j++, tap++, row++)
            for (int v = 0; v < vectors; v++) {
                memcpy(&value, row + v * TONE_FLOATS, sizeof value);
                sum[v] = add_product(value, (tone_floats){0} + *tap, sum[v], w->is_in_order);
            }
    }
    memcpy(to + at, sum, (size_t)vectors * sizeof *sum);
}

/* Weighs a whole row. The last step ends at the end of the row, and does some positions twice. */
static void weigh(float *to, const weighing *w)
{
    int64_t at = 0, columns = w->columns;
    for (; at + 4 * TONE_FLOATS <= columns; at += 4 * TONE_FLOATS) weigh_vectors(to, w, at, 4);
    for (; at + TONE_FLOATS <= columns; at += TONE_FLOATS) weigh_vectors(to, w, at, 1);
    if (at == columns) return;
    if (columns >= TONE_FLOATS) {
        weigh_vectors(to, w, columns - TONE_FLOATS, 1);
        return;
    }
    for (; at < columns; at++) {
        float sum = 0;
        for (int32_t i = 0; i < w->height; i++)
            for (int32_t j = 0; j < w->width; j++)
                sum = fmaf(w->rows[i][at + j], w->taps[i * w->width + j], sum);
        to[at] = sum;
    }
}

/* Rounds a row of sums, and lists sums in doubt. */
static void round_row(uint8_t *restrict dst, const float *sums, int64_t columns, float error,
                      doubtful *list, int64_t from, int64_t to)
{
    for (int64_t at = 0; at < columns; at += PIECE_COLUMNS) {
        int64_t length = fl_min(PIECE_COLUMNS, columns - at);
        uint8_t in_doubt[PIECE_COLUMNS];
        uint32_t any = 0;
        for (int64_t i = 0; i < length; i++) {
            float sum = sums[at + i], away = sum - (float)(int32_t)sum - 0.5f;
            dst[at + i] = (uint8_t)(int32_t)round_even(sum);
            in_doubt[i] = fabsf(away) <= error;
            any |= in_doubt[i];
        }
        for (int64_t i = 0; any != 0 && i < length; i++) {
            list->from[list->count] = from + at + i;
            list->to[list->count] = to + at + i;
            list->count += in_doubt[i];
        }
    }
}

/* Points w to the rows of a ring of `size` rows that end with row `last`. */
static void take_ring(weighing *w, const float *ring, int64_t pitch, int32_t size, int64_t last)
{
    int64_t first = last + 1 - w->height;
    for (int32_t i = 0; i < w->height; i++) w->rows[i] = ring + (first + i) % size * pitch;
}

static void blur_in_steps(uint8_t *dst, int64_t dst_pitch, const fl_image_planes *p,
                          const fl_image_blur *blur, float *memory)
{
    int64_t columns = p->columns - blur->width + 1;
    float *wide = memory, *sums = wide + p->columns, *ring = sums + columns;
    const int32_t left = blur->x_skipped, upper = blur->y_skipped;
    weighing x = {{wide + left}, blur->x + left, 1, blur->width - 2 * left, columns, false};
    weighing y = {{NULL}, blur->y + upper, blur->height - 2 * upper, 1, columns, false};
    doubtful list = {.count = 0};
    for (int64_t row = 0; row < p->rows; row++) {
        int64_t to = row - blur->height + 1;
        widen_row(wide, p->data + row * p->pitch, p->columns);
        weigh(ring + row % blur->height * columns, &x);
        if (to < 0) continue;
        take_ring(&y, ring, columns, blur->height, row - upper);
        weigh(sums, &y);
        for (int64_t at = 0; at < columns; at += EXACT_LIST / 2) {
            int64_t length = fl_min(EXACT_LIST / 2, columns - at);
            if (list.count + length >= EXACT_LIST) sum_in_order(&list, dst, p, blur);
            round_row(dst + to * dst_pitch + at, sums + at, length, blur->error, &list,
                      to * p->pitch + at, to * dst_pitch + at);
        }
    }
    sum_in_order(&list, dst, p, blur);
}

/* Blurs with few taps, summing in order at once. */
static void blur_in_order(uint8_t *dst, int64_t dst_pitch, const fl_image_planes *p,
                          const fl_image_blur *blur, float *memory)
{
    int64_t columns = p->columns - blur->width + 1;
    float *sums = memory, *ring = sums + columns;
    weighing all = {{NULL}, blur->taps, blur->height, blur->width, columns, true};
    for (int64_t row = 0; row < p->rows; row++) {
        int64_t to = row - blur->height + 1;
        widen_row(ring + row % blur->height * p->columns, p->data + row * p->pitch, p->columns);
        if (to < 0) continue;
        take_ring(&all, ring, p->columns, blur->height, row);
        weigh(sums, &all);
        for (int64_t i = 0; i < columns; i++)
            dst[to * dst_pitch + i] = (uint8_t)(int32_t)round_even(sums[i]);
    }
}

static void tone_blur(uint8_t *dst, int64_t dst_pitch, const fl_image_planes *padded,
                      const fl_image_blur *blur, float *memory)
{
    if (blur->width * blur->height <= FEW_TAPS)
        blur_in_order(dst, dst_pitch, padded, blur, memory);
    else
        blur_in_steps(dst, dst_pitch, padded, blur, memory);
}

/* ---- means */

/* Returns a row of a strip; rows above and below repeat its first and its last row. */
static inline const uint8_t *box_row(const uint8_t *src, int64_t row, int64_t rows)
{
    return src + (row < 0 ? 0 : row < rows ? row : rows - 1) * FL_BOX_COLUMNS;
}

/* Takes the means of a row: each sum is the sum of the row above, without a byte of `left` and with
 * a byte of `last`. A function of its own, because compilers would rather merge two rows than
 * vectorise one. */
static __attribute__((noinline)) void
box_means(uint8_t *restrict dst, uint32_t *restrict sum, const uint8_t *left, const uint8_t *last,
          const uint8_t *right, uint32_t whole, uint32_t part)
{
    for (int i = 0; i < FL_BOX_COLUMNS; i++) {
        uint32_t next = sum[i] + last[i] - left[i], ends = (uint32_t)left[i] + right[i];
        sum[i] = next;
        dst[i] = (uint8_t)((next * whole + ends * part + (1U << 23)) >> 24);
    }
}

static void
tone_box(uint8_t *restrict dst, const uint8_t *restrict src, int64_t rows, const fl_box *box)
{
    const int64_t radius = box->radius;
    uint32_t sum[FL_BOX_COLUMNS] = {0};
    for (int64_t y = -radius - 1; y < radius; y++) {
        const uint8_t *row = box_row(src, y, rows);
        for (int i = 0; i < FL_BOX_COLUMNS; i++) sum[i] += row[i];
    }
    for (int64_t y = 0; y < rows; y++)
        box_means(dst + y * FL_BOX_COLUMNS, sum, box_row(src, y - radius - 1, rows),
                  box_row(src, y + radius, rows), box_row(src, y + radius + 1, rows), box->whole,
                  box->part);
}

#endif
