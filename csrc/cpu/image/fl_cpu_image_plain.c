/* fl_cpu_image_plain: fl_image_ops for any machine, and the reference for all further tables.
 *
 * The loops are plain, so that a compiler may vectorise them with instructions that every machine
 * has. */
#include "fl_cpu_image.h"

#include "fl_cpu_image_apart.h"
#include "fl_cpu_image_noise.h"

#include <string.h>

/* ---- layout */

static void
split_channels(uint8_t *dst, int64_t pitch, const uint8_t *src, int64_t pixels, int32_t channels)
{
    for (int32_t c = 0; c < channels; c++)
        for (int64_t i = 0; i < pixels; i++) dst[c * pitch + i] = src[i * channels + c];
}

static void join_channels(void *dst, const void *src, int64_t pitch, int64_t pixels,
                          int32_t channels, int32_t bytes)
{
    for (int32_t c = 0; c < channels; c++) {
        const char *from = (const char *)src + c * pitch;
        char *to = (char *)dst + c * bytes;
        int64_t step = (int64_t)channels * bytes;
        if (bytes == 1)
            for (int64_t i = 0; i < pixels; i++) to[i * step] = from[i];
        else if (bytes == 2)
            for (int64_t i = 0; i < pixels; i++) memcpy(to + i * step, from + i * 2, 2);
        else
            for (int64_t i = 0; i < pixels; i++) memcpy(to + i * step, from + i * 4, 4);
    }
}

/* ---- values */

/* Joins rows that follow each other in memory into one. */
static inline void join_rows(int64_t *rows, int64_t *columns)
{
    *columns *= *rows;
    *rows = 1;
}

static void
copy_bytes(void *dst, int64_t pitch, const fl_image_block *block, const fl_image_cast *cast)
{
    int64_t rows = block->rows, columns = block->columns, step = block->step;
    if (has_fill(block)) {
        cast_apart(&fl_cpu_image_plain, FL_IMAGE_U8, dst, pitch, block, cast);
        return;
    }
    if (columns < 1) return;
    if (step == 1 && pitch == columns && block->pitch == columns) join_rows(&rows, &columns);
    for (int64_t y = 0; y < rows; y++) {
        const uint8_t *src = block->src + y * block->pitch;
        uint8_t *to = (uint8_t *)dst + y * pitch;
        if (step == 1)
            memcpy(to, src, (size_t)columns);
        else if (step == -1)
            for (int64_t i = 0; i < columns; i++) to[i] = src[-i];
        else
            for (int64_t i = 0; i < columns; i++) to[i] = src[i * step];
    }
}

/* Looks up the elements of one row. `step` and `bytes` must be constants at compile time. */
static inline __attribute__((always_inline)) void
look_up_row(char *dst, const uint8_t *src, int64_t count, int64_t step, const char *table,
            size_t bytes)
{
    for (int64_t i = 0; i < count; i++)
        memcpy(dst + (size_t)i * bytes, table + src[i * step] * bytes, bytes);
}

static inline __attribute__((always_inline)) void
cast_to(fl_image_type type, void *to, int64_t pitch, const fl_image_block *block,
        const fl_image_cast *cast)
{
    char *dst = to;
    if (has_fill(block)) {
        cast_apart(&fl_cpu_image_plain, type, dst, pitch, block, cast);
        return;
    }
    size_t bytes = (size_t)fl_image_type_bytes(type);
    int64_t rows = block->rows, columns = block->columns, step = block->step;
    for (int64_t y = 0; y < rows; y++, dst += pitch) {
        const uint8_t *src = block->src + y * block->pitch;
        if (step == 1)
            look_up_row(dst, src, columns, 1, cast->table, bytes);
        else
            look_up_row(dst, src, columns, step, cast->table, bytes);
    }
}

static void
fill_rows(void *dst, int64_t pitch, int64_t rows, int64_t count, const void *value, int32_t bytes)
{
    if (pitch == count * bytes) join_rows(&rows, &count);
    for (int64_t y = 0; y < rows; y++) {
        char *to = (char *)dst + y * pitch;
        if (bytes == 1)
            for (int64_t i = 0; i < count; i++) to[i] = *(const char *)value;
        else if (bytes == 2)
            for (int64_t i = 0; i < count; i++) memcpy(to + 2 * i, value, 2);
        else
            for (int64_t i = 0; i < count; i++) memcpy(to + 4 * i, value, 4);
    }
}

/* ---- resampling */

static inline uint8_t clamp_u8(int32_t value)
{
    return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
}

static void pick_x(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch,
                   int64_t rows, const fl_resample *axis)
{
    for (int64_t row = 0; row < rows; row++)
        for (int32_t i = 0; i < axis->out; i++)
            dst[row * dst_pitch + i] = src[row * src_pitch + axis->first[i]];
}

/* Computes result i of each row. Inlined for a known count, because the loop over samples then
 * disappears. */
static inline void
sum_column(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch, int64_t rows,
           const fl_resample *axis, int32_t i, int32_t count)
{
    int32_t precision = axis->precision, half = (1 << precision) >> 1;
    int64_t at = (int64_t)i * axis->taps;
    const int16_t *weight = axis->weight + at, *low = axis->low != NULL ? axis->low + at : NULL;
    src += axis->first[i];
    for (int64_t row = 0; row < rows; row++) {
        int32_t sum = 0, low_sum = half;
        for (int32_t k = 0; k < count; k++) sum += weight[k] * src[row * src_pitch + k];
        if (low != NULL) {
            for (int32_t k = 0; k < count; k++) low_sum += low[k] * src[row * src_pitch + k];
            sum *= 256;
        }
        dst[row * dst_pitch + i] = clamp_u8((sum + low_sum) >> precision);
    }
}

static void resample_x(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch,
                       int64_t rows, const fl_resample *axis)
{
    if (axis->weight == NULL) {
        pick_x(dst, dst_pitch, src, src_pitch, rows, axis);
        return;
    }
    for (int32_t i = 0; i < axis->out; i++) {
        int32_t count = axis->count[i];
        if (count == 2)
            sum_column(dst, dst_pitch, src, src_pitch, rows, axis, i, 2);
        else if (count == 3)
            sum_column(dst, dst_pitch, src, src_pitch, rows, axis, i, 3);
        else if (count == 4)
            sum_column(dst, dst_pitch, src, src_pitch, rows, axis, i, 4);
        else
            sum_column(dst, dst_pitch, src, src_pitch, rows, axis, i, count);
    }
}

/* Columns in a piece of a row, which is summed over its samples one row at a time. */
enum { PIECE = 256 };

static void sum_rows(uint8_t *dst, const uint8_t *src, int64_t src_pitch, int64_t width,
                     const fl_resample *axis, int32_t i)
{
    int32_t sums[PIECE];
    int32_t half = (1 << axis->precision) >> 1;
    for (int64_t x = 0; x < width; x++) sums[x] = half;
    for (int32_t k = 0; k < axis->count[i]; k++) {
        int32_t weight = fl_resample_weight(axis, (int64_t)i * axis->taps + k);
        for (int64_t x = 0; x < width; x++) sums[x] += weight * src[k * src_pitch + x];
    }
    for (int64_t x = 0; x < width; x++) dst[x] = clamp_u8(sums[x] >> axis->precision);
}

static void resample_y(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch,
                       int64_t width, const fl_resample *axis)
{
    for (int32_t i = 0; i < axis->out; i++) {
        uint8_t *to = dst + i * dst_pitch;
        const uint8_t *from = src + axis->first[i] * src_pitch;
        if (axis->weight == NULL) {
            if (width > 0) memcpy(to, from, (size_t)width);
            continue;
        }
        for (int64_t x = 0; x < width; x += PIECE)
            sum_rows(to + x, from + x, src_pitch, fl_min(PIECE, width - x), axis, i);
    }
}

#define FL_IMAGE_OPS fl_cpu_image_plain
#define FL_IMAGE_OPS_NAME "plain"
#include "fl_cpu_image_table.h"
