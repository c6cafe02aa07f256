/* fl_cpu_image_plain: fl_image_ops for any machine: the reference for the others.
 *
 * The loops are plain C that a compiler may vectorise for what every machine of its kind has. */
#include "fl_cpu_image.h"

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

static void reverse_bytes(uint8_t *dst, const uint8_t *src, int64_t count)
{
    for (int64_t i = 0; i < count; i++) dst[i] = src[count - 1 - i];
}

/* ---- values */

static void cast_16(void *dst, const uint8_t *src, int64_t count, const fl_image_cast *cast)
{
    const uint16_t *table = cast->table;
    uint16_t *to = dst;
    for (int64_t i = 0; i < count; i++) to[i] = table[src[i]];
}

static void cast_f32(void *dst, const uint8_t *src, int64_t count, const fl_image_cast *cast)
{
    const float *table = cast->table;
    float *to = dst;
    for (int64_t i = 0; i < count; i++) to[i] = table[src[i]];
}

static void fill_elements(void *dst, const void *value, int64_t count, int32_t bytes)
{
    if (bytes == 1) {
        uint8_t element;
        memcpy(&element, value, 1);
        if (count > 0) memset(dst, element, (size_t)count);
    } else if (bytes == 2) {
        uint16_t element, *to = dst;
        memcpy(&element, value, 2);
        for (int64_t i = 0; i < count; i++) to[i] = element;
    } else {
        uint32_t element, *to = dst;
        memcpy(&element, value, 4);
        for (int64_t i = 0; i < count; i++) to[i] = element;
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

/* One result of each row. Inlined for a count that is known, as the loop over samples goes away. */
static inline void
sum_column(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch, int64_t rows,
           const int16_t *weight, int32_t count, int32_t precision)
{
    int32_t half = (1 << precision) >> 1;
    for (int64_t row = 0; row < rows; row++) {
        int32_t sum = half;
        for (int32_t k = 0; k < count; k++) sum += weight[k] * src[row * src_pitch + k];
        dst[row * dst_pitch] = clamp_u8(sum >> precision);
    }
}

static void resample_x(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch,
                       int64_t rows, const fl_resample *axis)
{
    if (axis->weight == NULL) {
        pick_x(dst, dst_pitch, src, src_pitch, rows, axis);
        return;
    }
    int32_t precision = axis->precision;
    for (int32_t i = 0; i < axis->out; i++) {
        const uint8_t *x = src + axis->first[i];
        const int16_t *w = axis->weight + (int64_t)i * axis->taps;
        int32_t count = axis->count[i];
        if (count == 2)
            sum_column(dst + i, dst_pitch, x, src_pitch, rows, w, 2, precision);
        else if (count == 3)
            sum_column(dst + i, dst_pitch, x, src_pitch, rows, w, 3, precision);
        else if (count == 4)
            sum_column(dst + i, dst_pitch, x, src_pitch, rows, w, 4, precision);
        else
            sum_column(dst + i, dst_pitch, x, src_pitch, rows, w, count, precision);
    }
}

/* A piece of a row: sums over its samples, one row at a time. */
enum { PIECE = 256 };

static void sum_rows(uint8_t *dst, const uint8_t *src, int64_t src_pitch, int64_t width,
                     const int16_t *weight, int32_t count, int32_t precision)
{
    int32_t sums[PIECE];
    int32_t half = (1 << precision) >> 1;
    for (int64_t x = 0; x < width; x++) sums[x] = half;
    for (int32_t k = 0; k < count; k++)
        for (int64_t x = 0; x < width; x++) sums[x] += weight[k] * src[k * src_pitch + x];
    for (int64_t x = 0; x < width; x++) dst[x] = clamp_u8(sums[x] >> precision);
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
        const int16_t *weight = axis->weight + (int64_t)i * axis->taps;
        for (int64_t x = 0; x < width; x += PIECE)
            sum_rows(to + x, from + x, src_pitch, fl_min(PIECE, width - x), weight, axis->count[i],
                     axis->precision);
    }
}

const fl_image_ops fl_cpu_image_plain = {
    .name = "plain",
    .split = split_channels,
    .join = join_channels,
    .reverse = reverse_bytes,
    .cast = {[FL_IMAGE_F16] = cast_16, [FL_IMAGE_BF16] = cast_16, [FL_IMAGE_F32] = cast_f32},
    .fill = fill_elements,
    .resample_x = resample_x,
    .resample_y = resample_y,
};
