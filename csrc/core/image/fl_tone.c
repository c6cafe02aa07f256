/* fl_tone: see fl_tone.h. If torch adds a scaled tensor, the code here calls fma, because torch
 * rounds that sum once on every CPU with fused operations. */
#include "fl_tone.h"

#include "fl_blur.h"

#include <math.h>
#include <string.h>

static uint8_t clamp_byte(float x) { return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x); }

/* Adds a lookup in `table` for `channels` channels from `channel` on, after the pending lookups. */
static void
then_look_up(fl_image_view *view, int32_t channel, int32_t channels, const uint8_t *table)
{
    fl_byte_table *tables = fl_image_view_tables(view);
    for (int32_t c = channel; c < channel + channels; c++)
        for (int v = 0; v < 256; v++) tables[c][v] = table[tables[c][v]];
}

/* ---- tables that depend on the number alone */

static int by_number(fl_image_view *view, fl_tone tone, double number, fl_err *err)
{
    fl_image_planes planes;
    uint8_t table[256];
    const int dropped = tone == FL_TONE_POSTERIZE ? 8 - (int)number : 0;
    /* Pillow compares a threshold as Python's number; torch, as float32. */
    const float limit = (float)number;
    const double threshold = view->arithmetic == FL_BY_PIL ? number : (double)limit;
    FL_TRY(fl_image_view_own(view, false, &planes, err));
    for (int v = 0; v < 256; v++) {
        if (tone == FL_TONE_POSTERIZE)
            table[v] = (uint8_t)(v >> dropped << dropped);
        else if (tone == FL_TONE_BRIGHTNESS)
            table[v] = clamp_byte((float)v * limit);
        else
            table[v] = (uint8_t)(tone == FL_TONE_INVERT || v >= threshold ? 255 - v : v);
    }
    then_look_up(view, 0, view->tools.channels, table);
    return FL_OK;
}

/* ---- tables that depend on the image */

/* Counts each byte of a channel as the pending lookups leave it. */
static void count_bytes(const fl_image_view *view, const fl_image_planes *plane, int32_t channel,
                        int64_t count[256])
{
    int64_t before[256] = {0};
    view->tools.image_ops->tone.count(plane, before);
    memset(count, 0, 256 * sizeof *count);
    for (int v = 0; v < 256; v++)
        count[view->has_tables ? view->table[channel][v] : v] += before[v];
}

/* Returns byte v of a channel whose bytes `least` to `largest` become 0 to 255. */
static uint8_t spread_byte(int v, int least, int largest, fl_image_arithmetic how)
{
    if (how == FL_BY_PIL) {
        double scale = 255.0 / (largest - least), at = v * scale + -least * scale;
        return (uint8_t)(at < 0 ? 0 : at > 255 ? 255 : at);
    }
    float span = (float)(largest - least);
    if (how == FL_BY_TENSOR_V1) return clamp_byte((float)(v - least) * (1.0f / span * 255.0f));
    return clamp_byte((float)(v - least) / (span * (float)(1.0 / 255)));
}

/* Makes the table that spreads the bytes between the least and the largest over 0 to 255. */
static void make_autocontrast(const fl_image_view *view, const fl_image_planes *plane,
                              int32_t channel, uint8_t table[256])
{
    uint8_t least = 0, largest = 255;
    if (view->has_tables) {
        int64_t count[256];
        count_bytes(view, plane, channel, count);
        while (count[least] == 0) least++;
        while (count[largest] == 0) largest--;
    } else {
        view->tools.image_ops->tone.range(plane, &least, &largest);
    }
    for (int v = 0; v < 256; v++)
        table[v] = least == largest ? (uint8_t)v : spread_byte(v, least, largest, view->arithmetic);
}

/* Makes Pillow's table, in integers. */
static void make_equalize(const fl_image_view *view, const fl_image_planes *plane, int32_t channel,
                          uint8_t table[256])
{
    int64_t count[256], below = 0;
    int largest = 255;
    count_bytes(view, plane, channel, count);
    while (count[largest] == 0) largest--;
    int64_t step = (plane->rows * plane->columns - count[largest]) / 255;
    for (int v = 0; v < 256; v++) {
        table[v] = step == 0 ? (uint8_t)v : (uint8_t)fl_min((below + step / 2) / step, 255);
        if (v == 0 && step > 0) table[v] = 0;
        below += count[v];
    }
}

static int by_channel(fl_image_view *view, fl_tone tone, fl_err *err)
{
    fl_image_planes planes;
    uint8_t table[FL_MAX_CHANNELS][256];
    FL_TRY(fl_image_view_own(view, false, &planes, err));
    for (int32_t c = 0; c < view->tools.channels; c++, planes.data += planes.plane)
        (tone == FL_TONE_EQUALIZE ? make_equalize : make_autocontrast)(view, &planes, c, table[c]);
    for (int32_t c = 0; c < view->tools.channels; c++) then_look_up(view, c, 1, table[c]);
    return FL_OK;
}

/* ---- contrast */

/* Computes the sum that torch makes of bytes as float32, on one thread. Eight lanes of four
 * registers take the elements in turn; up to 2 million elements, the sum of each lane is exact. */
static float sum_as_torch(const fl_image_ops *ops, const uint8_t *src, int64_t count)
{
    enum { LANES = 8, REGISTERS = 4, STEP = LANES * REGISTERS };
    int64_t sum[STEP] = {0}, steps = count / STEP * STEP, rows = count / LANES * LANES;
    float total = 0, lane[LANES];
    ops->tone.sum(src, steps, sum);
    for (int k = 0; k < LANES; k++) {
        lane[k] = (float)sum[k];
        for (int64_t i = steps + k; i < rows; i += LANES) lane[k] += (float)src[i];
        for (int r = 1; r < REGISTERS; r++) lane[k] += (float)sum[r * LANES + k];
    }
    for (int64_t i = rows; i < count; i++) total += (float)src[i];
    for (int k = 0; k < LANES; k++) total += lane[k];
    return total;
}

/* Computes the mean of grey bytes: torch's, or Pillow's, which is a byte. */
static float mean_of(const fl_image_view *view, const uint8_t *grey, int64_t count)
{
    int64_t sum[32] = {0}, total = 0;
    if (view->arithmetic != FL_BY_PIL)
        return sum_as_torch(view->tools.image_ops, grey, count) / (float)count;
    view->tools.image_ops->tone.sum(grey, count, sum);
    for (int k = 0; k < 32; k++) total += sum[k];
    return (float)(int)((double)total / (double)count + 0.5);
}

/* Computes the mean of the grey image. */
static int compute_mean(fl_image_view *view, float *mean, fl_err *err)
{
    fl_image_planes planes;
    FL_TRY(fl_image_view_own(view, true, &planes, err));
    fl_image_view_look_up(view);
    int64_t count = planes.rows * planes.columns;
    uint8_t *grey = fl_scratch_memory(view->tools.scratch, FL_SCRATCH_ROWS, count);
    if (grey == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a grey image");
    if (view->tools.channels == 3)
        view->tools.image_ops->tone.grey[view->arithmetic](grey, &planes);
    else
        for (int64_t y = 0; y < planes.rows; y++)
            memcpy(grey + y * planes.columns, planes.data + y * planes.pitch,
                   (size_t)planes.columns);
    *mean = mean_of(view, grey, count);
    return FL_OK;
}

/* Blends a number and a byte, as fl_image_tone_ops does. */
static uint8_t blend(float other, float v, double number, fl_image_arithmetic how)
{
    const float factor = (float)number, rest = (float)(1.0 - number);
    if (how == FL_BY_PIL) return clamp_byte(other + factor * (v - other));
    if (how == FL_BY_TENSOR_V1) return clamp_byte(v * factor + other * rest);
    return clamp_byte(fmaf(other, rest, v * factor));
}

static int change_contrast(fl_image_view *view, double factor, fl_err *err)
{
    float mean = 0;
    uint8_t table[256];
    FL_TRY(compute_mean(view, &mean, err));
    for (int v = 0; v < 256; v++) table[v] = blend(mean, (float)v, factor, view->arithmetic);
    then_look_up(view, 0, view->tools.channels, table);
    return FL_OK;
}

/* ---- across channels */

static int across_channels(fl_image_view *view, fl_tone tone, double number, fl_err *err)
{
    const fl_image_tone_ops *ops = &view->tools.image_ops->tone;
    fl_image_planes planes;
    if (view->tools.channels != 3) return FL_OK;
    FL_TRY(fl_image_view_own(view, false, &planes, err));
    fl_image_view_look_up(view);
    if (tone == FL_TONE_SATURATION)
        ops->saturate[view->arithmetic](&planes, number);
    else
        ops->turn_hue[view->arithmetic](&planes, (float)number);
    return FL_OK;
}

/* ---- neighbours */

/* Does the pending lookups in the image's own planes; opens these planes and the planes of the next
 * image. */
static int open_next(fl_image_view *view, int32_t channels, fl_image_planes *image,
                     fl_image_planes *next, fl_err *err)
{
    FL_TRY(fl_image_view_own(view, true, image, err));
    fl_image_view_look_up(view);
    fl_image_size size = {(int32_t)image->rows, (int32_t)image->columns};
    return fl_image_view_next(view, size, channels, next, err);
}

static int sharpen(fl_image_view *view, double factor, fl_err *err)
{
    fl_image_planes image, next;
    if (view->y.length <= 2 || view->x.length <= 2) return FL_OK;
    FL_TRY(open_next(view, view->tools.channels, &image, &next, err));
    for (int32_t c = 0; c < view->tools.channels; c++, image.data += image.plane)
        view->tools.image_ops->tone.sharpen[view->arithmetic](next.data + c * next.plane,
                                                              next.pitch, &image, factor);
    fl_image_view_replace(view, &next, view->tools.channels);
    return FL_OK;
}

/* Makes planes of the image with margins (left, top, right, bottom), and does the pending
 * lookups. */
static int own_padded(fl_image_view *view, const int32_t padding[4], fl_padding_mode mode,
                      int32_t op, fl_image_planes *padded, fl_err *err)
{
    /* Reflections multiply the segments of an axis, and do not repeat erased rectangles. */
    bool is_plain = view->y.count == 1 && view->x.count == 1 && view->erased_count == 0;
    if (!is_plain) FL_TRY(fl_image_view_own(view, false, padded, err));
    fl_image_view_pad(view, padding, mode, op);
    FL_TRY(fl_image_view_own(view, true, padded, err));
    fl_image_view_look_up(view);
    return FL_OK;
}

int fl_tone_blur(fl_image_view *view, fl_image_size taps, float sigma, const float *given,
                 fl_err *err)
{
    fl_image_size size = {view->y.length, view->x.length};
    fl_image_planes padded, next;
    fl_image_blur blur;
    const int32_t x = taps.width / 2, y = taps.height / 2, padding[] = {x, y, x, y};
    FL_TRY(own_padded(view, padding, FL_PAD_REFLECT, FL_NO_FILL, &padded, err));
    FL_TRY(fl_image_view_next(view, size, view->tools.channels, &next, err));
    int64_t weights = fl_blur_floats(taps.width, taps.height);
    int64_t floats = weights + (taps.height + 2) * padded.columns;
    float *memory =
        fl_scratch_memory(view->tools.scratch, FL_SCRATCH_BAND, floats * (int64_t)sizeof *memory);
    if (memory == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a blur");
    fl_blur_make(&blur, taps.width, taps.height, sigma, given, memory);
    for (int32_t c = 0; c < view->tools.channels; c++, padded.data += padded.plane)
        view->tools.image_ops->tone.blur(next.data + c * next.plane, next.pitch, &padded, &blur,
                                         memory + weights);
    fl_image_view_replace(view, &next, view->tools.channels);
    return FL_OK;
}

int fl_tone_warp(fl_image_view *view, int32_t op, const fl_image_warp *warp, fl_err *err)
{
    fl_image_size size = {view->y.length, view->x.length};
    fl_image_planes bordered, next;
    const int32_t border[] = {2, 2, 4, 2};
    FL_TRY(own_padded(view, border, FL_PAD_CONSTANT, op, &bordered, err));
    FL_TRY(fl_image_view_next(view, size, view->tools.channels, &next, err));
    view->tools.image_ops->tone.warp(&next, &bordered, view->tools.channels, warp);
    fl_image_view_replace(view, &next, view->tools.channels);
    return FL_OK;
}

int fl_tone_shift(fl_image_view *view, int32_t op, int32_t x, int32_t y, fl_err *err)
{
    const int32_t right = x > 0 ? x : 0, left = right - x, down = y > 0 ? y : 0, up = down - y;
    const int32_t margins[] = {right, down, left, up};
    fl_image_size kept = {view->y.length - down - up, view->x.length - right - left};
    fl_image_planes own;
    fl_image_view_crop(view, up, left, kept);
    return own_padded(view, margins, FL_PAD_CONSTANT, op, &own, err);
}

int fl_tone_quarter(fl_image_view *view, bool is_clockwise, fl_err *err)
{
    fl_image_planes image, next;
    FL_TRY(open_next(view, view->tools.channels, &image, &next, err));
    int64_t last = image.rows - 1;
    for (int32_t c = 0; c < view->tools.channels; c++)
        for (int64_t y = 0; y < image.rows; y++)
            for (int64_t x = 0; x < image.columns; x++) {
                int64_t row = is_clockwise ? last - x : x, column = is_clockwise ? y : last - y;
                next.data[c * next.plane + y * next.pitch + x] =
                    image.data[c * image.plane + row * image.pitch + column];
            }
    fl_image_view_replace(view, &next, view->tools.channels);
    return FL_OK;
}

int fl_tone_apply(fl_image_view *view, fl_tone tone, double number, fl_err *err)
{
    switch (tone) {
    case FL_TONE_AUTOCONTRAST:
    case FL_TONE_EQUALIZE:
        return by_channel(view, tone, err);
    case FL_TONE_CONTRAST:
        return change_contrast(view, number, err);
    case FL_TONE_SATURATION:
    case FL_TONE_HUE:
        return across_channels(view, tone, number, err);
    case FL_TONE_SHARPNESS:
        return sharpen(view, number, err);
    default:
        return by_number(view, tone, number, err);
    }
}

/* Copies plane `from` of the image to plane `to` of the next image, whose rows follow each
 * other. */
static void
copy_plane(const fl_image_planes *image, int32_t from, const fl_image_planes *next, int32_t to)
{
    const uint8_t *src = image->data + from * image->plane;
    uint8_t *dst = next->data + to * next->plane;
    for (int64_t y = 0; y < image->rows; y++, src += image->pitch, dst += next->pitch)
        memcpy(dst, src, (size_t)image->columns);
}

int fl_tone_grey(fl_image_view *view, int32_t channels, fl_err *err)
{
    fl_image_planes image, next;
    int32_t before = view->tools.channels;
    if (before == 1 && channels == 1) return FL_OK;
    FL_TRY(open_next(view, channels, &image, &next, err));
    if (before == 3)
        view->tools.image_ops->tone.grey[view->arithmetic](next.data, &image);
    else
        copy_plane(&image, 0, &next, 0);
    for (int32_t c = 1; c < channels; c++) copy_plane(&next, 0, &next, c);
    fl_image_view_replace(view, &next, channels);
    return FL_OK;
}

int fl_tone_permute(fl_image_view *view, const int8_t *order, fl_err *err)
{
    fl_image_planes image, next;
    int32_t channels = view->tools.channels;
    FL_TRY(open_next(view, channels, &image, &next, err));
    for (int32_t c = 0; c < channels; c++) copy_plane(&image, order[c], &next, c);
    fl_image_view_replace(view, &next, channels);
    return FL_OK;
}
