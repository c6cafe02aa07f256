/* fl_image_ops: the table of functions that a device fills for images.
 *
 * Floor 1. csrc/cpu fills fl_cpu_image_ops for several instruction sets, all with the same bits;
 * csrc/python chooses one and passes it in. An image is worked in planes: one byte an element, one
 * plane a channel. No function blocks, allocates or fails, or reads or writes a byte outside of
 * what its arguments name; any thread. */
#ifndef FL_IMAGE_OPS_H
#define FL_IMAGE_OPS_H

#include "fl_resample.h"

enum { FL_MAX_CHANNELS = 4 };

/* What elements become. */
typedef enum fl_image_type {
    FL_IMAGE_U8,
    FL_IMAGE_F16,
    FL_IMAGE_BF16,
    FL_IMAGE_F32,
    FL_IMAGE_TYPES
} fl_image_type;

/* Of one element. */
static inline int32_t fl_image_type_bytes(fl_image_type type)
{
    return type == FL_IMAGE_U8 ? 1 : type == FL_IMAGE_F32 ? 4 : 2;
}

/* What becomes of the elements of a channel: value v becomes table[v]. */
typedef struct fl_image_cast {
    const void *table; /* borrowed: 256 elements of the output's type, at a multiple of 64 bytes */
    /* Whether table[v] is ((float)v * scale - mean) / std for all v, each operation rounded to
     * float and the last to the output's type, also when the quotient q of a = (float)v * scale -
     * mean is formed as q0 = a * inverse, q = fma(fma(-q0, std, a), inverse, q0). */
    bool is_linear;
    float scale, mean, std, inverse; /* inverse: 1 / std */
    /* Whether results are written past the caches where the machine can, and are in memory when the
     * call returns: for an output that is part of a batch larger than caches. */
    bool is_streamed;
} fl_image_cast;

/* Rows of bytes in the order of reading: `before` elements of `fill`, then elements src[y * pitch +
 * i * step] for i < columns of row y, then `after` elements of `fill`. */
typedef struct fl_image_block {
    const uint8_t *src; /* borrowed: the first element */
    int64_t pitch;      /* of any sign */
    int64_t step;       /* of any sign; tables are fast for 1 and -1 */
    int64_t rows, columns;
    int64_t before, after;
    uint8_t fill;
} fl_image_block;

/* Rows of bytes at one place of planes that lie `plane` bytes apart. */
typedef struct fl_image_planes {
    uint8_t *data; /* of the first plane */
    int64_t pitch, plane;
    int64_t rows, columns;
} fl_image_planes;

/* The weights of a blur: sums of width * height taps. */
typedef struct fl_image_blur {
    int32_t width, height; /* odd */
    const float *x, *y;    /* borrowed: [width], [height] */
    const float *taps;     /* borrowed: [height][width], y[i] * x[j] */
    /* Taps on each side of x and of y that hardly count: a sum in x, then in y, leaves them out. */
    int32_t x_skipped, y_skipped;
    float error; /* at most how far a sum in x, then in y, is from one of `taps` in their order */
} fl_image_blur;

/* Where a result is read: pixel (row, column) at x = (column + origin_x) and y = (row + origin_y)
 * is that at ((x * X[0] + y * X[1]) + X[2], likewise Y), where the image is from -1 to 1; with a
 * perspective, divided by Z and less 1. */
typedef struct fl_image_warp {
    int32_t width, height; /* of the image without its border */
    float origin_x, origin_y;
    float x[3], y[3], z[3];
    bool is_perspective;
    bool is_bilinear; /* else nearest */
    float fill[4];    /* of each channel; NaN: none, what lies outside is 0 */
} fl_image_warp;

/* Normal numbers are made in pairs by Box and Muller's method of the words of fl_philox with this
 * key: number n of words n % 4 and its neighbour of block n / 4. */
typedef struct fl_image_noise {
    uint64_t key;
    float mean, scale;
    bool clips; /* within 0 and 255; else what is beyond wraps around */
} fl_image_noise;

/* Operations on colours, in place unless there is a dst. Bytes are those of torchvision; every
 * product and sum is rounded to float32, and fma is rounded once. V is a byte, f(x) is x as
 * float32, whole() cuts to an integer, and grey = fma(B, f(.114), fma(G, f(.587), R * f(.2989))).
 * Those of three planes take R, G and B. */
typedef struct fl_image_tone_ops {
    /* V becomes table[V], in the first plane. */
    void (*look_up)(const fl_image_planes *planes, const uint8_t *table);

    /* The least and the largest byte of the first plane, which is not empty. */
    void (*range)(const fl_image_planes *planes, uint8_t *least, uint8_t *largest);

    /* Adds how often each byte is in the first plane to count[256]. */
    void (*count)(const fl_image_planes *planes, int64_t *count);

    /* Adds bytes i of src, i < bytes, to sum[i % 32]. */
    void (*sum)(const uint8_t *src, int64_t bytes, int64_t *sum);

    /* whole(grey) of three planes to rows of dst, which follow each other. */
    void (*grey)(uint8_t *dst, const fl_image_planes *planes);

    /* V of three planes becomes whole(fma(whole(grey), rest, V * factor)) within 0 and 255. */
    void (*saturate)(const fl_image_planes *planes, float factor, float rest);

    /* Turns the hue of three planes by so many turns, from -0.5 to 0.5. */
    void (*turn_hue)(const fl_image_planes *planes, float turns);

    /* V of the first plane becomes whole(fma(round(mean) - V, rest, V)) within 0 and 255 in dst:
     * the mean is that of 3 by 3, the middle weighs 5 of 13. The outer rows and columns stay. */
    void (*sharpen)(uint8_t *dst, int64_t dst_pitch, const fl_image_planes *planes, float rest);

    /* The blur of the first plane, whose edges dst lacks: height - 1 rows, width - 1 columns. A
     * byte is round(fma(...fma(V, tap, 0)...)), half to even. `memory` has room for (height + 2) *
     * planes->columns floats. */
    void (*blur)(uint8_t *dst, int64_t dst_pitch, const fl_image_planes *planes,
                 const fl_image_blur *blur, float *memory);

    /* Samples planes with a border of 2 zeros on each side, and 2 more on the right. Gives the
     * bytes of torch's grid_sample; a bilinear fill is (V - fill) * inside + fill, as in
     * torchvision. */
    void (*warp)(const fl_image_planes *dst, const fl_image_planes *bordered, int32_t channels,
                 const fl_image_warp *warp);

    /* sums[i] = weight * V, plus what it was unless it is_first, of the bytes of the first plane.
     */
    void (*add_weighted)(float *sums, const fl_image_planes *planes, float weight, bool is_first);
    /* whole(sums[i]), from 0 to 255, to dst. */
    void (*cut_sums)(uint8_t *dst, const float *sums, int64_t count);

    /* V of the first plane becomes V + whole(number * scale + mean); its first byte takes number
     * `first`, and so on through its rows. */
    void (*add_noise)(const fl_image_planes *planes, int64_t first, const fl_image_noise *noise);
} fl_image_tone_ops;

typedef struct fl_image_ops {
    const char *name; /* that of a level of fl_cpu_level */

    /* Pixels of `channels` (2 to 4) interleaved bytes to planes: channel c of pixel i goes to
     * dst[c * pitch + i]. */
    void (*split)(uint8_t *dst, int64_t pitch, const uint8_t *src, int64_t pixels,
                  int32_t channels);

    /* Planes to pixels: element i of channel c, `bytes` (1, 2 or 4) long, at src + c * pitch (in
     * bytes) becomes element i * channels + c of dst. */
    void (*join)(void *dst, const void *src, int64_t pitch, int64_t pixels, int32_t channels,
                 int32_t bytes);

    /* Element i of row y of the block becomes element i of the row at dst + y * pitch (in bytes):
     * what its byte becomes by `cast`. With FL_IMAGE_U8 bytes stay, and `cast` is not read. */
    void (*cast[FL_IMAGE_TYPES])(void *dst, int64_t pitch, const fl_image_block *block,
                                 const fl_image_cast *cast);

    /* `rows` rows, `pitch` bytes apart, of `count` elements of 1, 2 or 4 bytes, each *value. */
    void (*fill)(void *dst, int64_t pitch, int64_t rows, int64_t count, const void *value,
                 int32_t bytes);

    /* Resizes `rows` rows of axis->in bytes to axis->out bytes; pitches in bytes, of any sign. What
     * lies before axis->first[0] is not read and need not be memory. */
    void (*resample_x)(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch,
                       int64_t rows, const fl_resample *axis);

    /* Resizes axis->in rows of `width` bytes to axis->out rows. Rows before axis->first[0] are not
     * read and need not be memory. */
    void (*resample_y)(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch,
                       int64_t width, const fl_resample *axis);

    fl_image_tone_ops tone;
} fl_image_ops;

/* What operations on colours do. */
typedef enum fl_tone {
    FL_TONE_NONE,
    FL_TONE_INVERT,
    FL_TONE_SOLARIZE,  /* number: threshold */
    FL_TONE_POSTERIZE, /* bits, 0 to 8 */
    FL_TONE_AUTOCONTRAST,
    FL_TONE_EQUALIZE,
    FL_TONE_BRIGHTNESS, /* this and the next ones: factor >= 0; of 1 or 3 channels */
    FL_TONE_CONTRAST,
    FL_TONE_SATURATION,
    FL_TONE_HUE,       /* turns, -0.5 to 0.5; of 1 or 3 channels */
    FL_TONE_SHARPNESS, /* factor >= 0; of 1 or 3 channels */
    FL_TONE_GREY,      /* of 3 channels */
    FL_TONE_PERMUTE,
    FL_TONES
} fl_tone;

/* One of them as a device takes it: three numbers of a map. */
typedef struct fl_color_step {
    int32_t tone; /* FL_TONE_NONE: there are no more */
    float number;
    int8_t order[FL_MAX_CHANNELS]; /* FL_TONE_PERMUTE: channel order[k] becomes channel k */
} fl_color_step;

enum { FL_ERASED_NUMBERS = 5, FL_STEP_NUMBERS = 3, FL_CROP_NUMBERS = 6, FL_TAP_NUMBERS = 3 };

/* How a resize on a device makes one axis of `out` samples, of any length from shortest to longest.
 * In memory, for each length or for one, for each sample: where its taps begin, how many there are
 * and the precision of their weights, as in fl_resample; then `taps` weights. */
typedef struct fl_image_taps {
    int32_t shortest, longest, out, taps;
} fl_image_taps;

static inline int64_t fl_image_taps_numbers(const fl_image_taps *axis)
{
    int64_t lengths = axis->longest - axis->shortest + 1;
    return lengths * axis->out * (FL_TAP_NUMBERS + axis->taps);
}

/* Images of a batch that a device makes out of its own memory: byte (image, channel, row, column)
 * is at the sum of these steps, and so is an element of the batch. fl_transfer_ops knows the tag.
 */
typedef struct fl_image_batch {
    const uint8_t *from;                /* borrowed */
    char *to;                           /* borrowed */
    int64_t from_steps[4], to_steps[4]; /* in bytes; in elements */
    int32_t channels, height, width;    /* of a result */
    int32_t element_bytes;              /* 1, 2 or 4 */
    const int32_t *maps; /* borrowed, on the device: for each image as fl_image_plan_map */
    int64_t map_numbers; /* from one to the next */
    int32_t erased;      /* operations that erase */
    int32_t steps;       /* on colours; where there are any, results have no gaps */
    int32_t values;      /* of each channel: */
    const char *table;   /* borrowed, on the device: as fl_image_plan_write_values */
    bool resizes;
    /* likewise: as fl_image_plan_write_taps; NULL: each map has its own behind it */
    const int32_t *row_taps, *column_taps;
    fl_image_taps rows, columns;
} fl_image_batch;

#endif
