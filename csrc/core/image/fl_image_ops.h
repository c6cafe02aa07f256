/* fl_image_ops: the table of functions that a device fills for images.
 *
 * Floor 1. csrc/cpu fills fl_cpu_image_ops for several instruction sets, all with the same bits;
 * csrc/python chooses a table and passes it in. An image is worked on in planes: one byte an
 * element, one plane a channel. No function blocks, allocates or fails, and no function reads or
 * writes a byte outside the memory that its arguments name; any thread. */
#ifndef FL_IMAGE_OPS_H
#define FL_IMAGE_OPS_H

#include "fl_resample.h"

enum { FL_MAX_CHANNELS = 4 };

/* Whose arithmetic makes the pixels of operations that compute pixels. */
typedef enum fl_image_arithmetic {
    FL_BY_TENSOR_V2 = 0, /* torchvision.transforms.v2's, of uint8 tensors */
    FL_BY_TENSOR_V1,     /* torchvision.transforms', of uint8 tensors */
    FL_BY_PIL,           /* Pillow's, which both versions call for PIL images */
    FL_IMAGE_ARITHMETICS
} fl_image_arithmetic;

/* The element types of results. */
typedef enum fl_image_type {
    FL_IMAGE_U8,
    FL_IMAGE_F16,
    FL_IMAGE_BF16,
    FL_IMAGE_F32,
    FL_IMAGE_TYPES
} fl_image_type;

/* Returns the bytes of one element. */
static inline int32_t fl_image_type_bytes(fl_image_type type)
{
    return type == FL_IMAGE_U8 ? 1 : type == FL_IMAGE_F32 ? 4 : 2;
}

/* The cast of the elements of a channel: value v becomes table[v]. */
typedef struct fl_image_cast {
    const void *table; /* borrowed: 256 elements of the output's type, at a multiple of 64 bytes */
    /* true: table[v] is (p - mean) / std for all v, each operation rounded to float and the last to
     * the output's type, where p0 = (float)v * scale and p = fma(fma(-p0, divisor, v), rescale,
     * p0). The same holds if the quotient q of a = p - mean is formed as q0 = a * inverse, q =
     * fma(fma(-q0, std, a), inverse, q0). */
    bool is_linear;
    float scale, mean, std, inverse; /* inverse: 1 / std */
    float divisor, rescale;          /* about 1 / scale, and scale; 0 if v is multiplied */
    /* true: results are written past the caches, if the machine can, and are in memory when the
     * call returns. For an output that is part of a batch larger than the caches. */
    bool is_streamed;
} fl_image_cast;

/* Rows of bytes in the order of reading. Row y is `before` elements of `fill`, then the elements
 * src[y * pitch + i * step] for i < columns, then `after` elements of `fill`. */
typedef struct fl_image_block {
    const uint8_t *src; /* borrowed: the first element */
    int64_t pitch;      /* of any sign */
    int64_t step;       /* of any sign; 1 and -1 are fast */
    int64_t rows, columns;
    int64_t before, after;
    uint8_t fill;
} fl_image_block;

/* The same rows of bytes in several planes that lie `plane` bytes apart. */
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
    /* Taps on each side of x and y that hardly count: a sum in x, then in y, leaves them out. */
    int32_t x_skipped, y_skipped;
    float error; /* bound of the difference between a sum in x, then in y, and a sum of `taps` in
                    their order */
} fl_image_blur;

/* The position that a result is read from. Pixel (row, column), at x = (column + origin_x) and y =
 * (row + origin_y), is read at ((x * X[0] + y * X[1]) + X[2], the same with Y). The image reaches
 * from -1 to 1. With a perspective, the position is divided by Z, and 1 is subtracted. */
typedef struct fl_image_warp {
    int32_t width, height; /* of the image without its border */
    float origin_x, origin_y;
    float x[3], y[3], z[3];
    bool is_perspective;
    bool is_bilinear; /* false: nearest */
    float fill[4];    /* of each channel; NaN: no fill, the outside is 0 */
} fl_image_warp;

/* The position that a result of Pillow's arithmetic is read from. The middle of a pixel, at x, y,
 * is read at m[0] x + m[1] y + m[2] and m[3] x + m[4] y + m[5], divided by m[6] x + m[7] y + 1 if
 * it is a perspective. */
typedef struct fl_warp_pil {
    double m[8];
    bool is_perspective;
    fl_interpolation how;          /* FL_NEAREST, FL_BILINEAR or FL_BICUBIC */
    uint8_t fill[FL_MAX_CHANNELS]; /* the bytes of pixels that are read outside of the image */
} fl_warp_pil;

/* Normal numbers are made in pairs, by Box and Muller's method, from the words of fl_philox with
 * this key: number n is made from word n % 4 and its neighbour of block n / 4. */
typedef struct fl_image_noise {
    uint64_t key;
    float mean, scale;
    bool clips; /* results stay within 0 and 255; otherwise they wrap around */
} fl_image_noise;

/* The mean over 2 * radius + 1 bytes, and over a part of the next byte at both ends. */
typedef struct fl_box {
    int64_t radius;
    uint32_t whole, part; /* the weights of a byte and of both ends, in 2^-24 */
} fl_box;

enum { FL_BOX_COLUMNS = 64 };

/* Operations on colours, in place unless there is a dst. Bytes equal torchvision's; every product
 * and sum is rounded to float32, and fma is rounded once. V is a byte, f(x) is x as float32,
 * whole() cuts to an integer. Three planes are R, G and B. If there is a function for each
 * fl_image_arithmetic, these names differ:
 *   grey of v2       whole(fma(B, f(.114), fma(G, f(.587), R * f(.2989))))
 *           v1       whole((R * f(.2989) + G * f(.587)) + B * f(.114))
 *           Pillow   (19595 * R + 38470 * G + 7471 * B + 2^15) / 2^16 in integers
 *   blend(x, V) of v2       whole(fma(x, f(1 - factor), V * f(factor))) within 0 and 255
 *                  v1       whole(V * f(factor) + x * f(1 - factor)), likewise
 *                  Pillow   whole(x + f(factor) * (V - x)), likewise */
typedef struct fl_image_tone_ops {
    /* V of the first plane becomes table[V]. */
    void (*look_up)(const fl_image_planes *planes, const uint8_t *table);

    /* Finds the least and the largest byte of the first plane, which is not empty. */
    void (*range)(const fl_image_planes *planes, uint8_t *least, uint8_t *largest);

    /* Adds the number of times that each byte is in the first plane to count[256]. */
    void (*count)(const fl_image_planes *planes, int64_t *count);

    /* Adds bytes i of src, i < bytes, to sum[i % 32]. */
    void (*sum)(const uint8_t *src, int64_t bytes, int64_t *sum);

    /* Writes grey of three planes to rows of dst, which follow each other. */
    void (*grey[FL_IMAGE_ARITHMETICS])(uint8_t *dst, const fl_image_planes *planes);

    /* V of three planes becomes blend(grey, V). */
    void (*saturate[FL_IMAGE_ARITHMETICS])(const fl_image_planes *planes, double factor);

    /* Turns the hue of three planes by `turns` turns, from -0.5 to 0.5. Pillow turns by whole
     * 256ths.
     */
    void (*turn_hue[FL_IMAGE_ARITHMETICS])(const fl_image_planes *planes, float turns);

    /* V of the first plane becomes blend(mean, V) in dst; with v2, whole(fma(mean - V, f(1 -
     * factor), V)) within 0 and 255. The mean is over 3 by 3 bytes, and the middle weighs 5 of 13;
     * torch rounds a chain of fma from the upper left on; Pillow cuts the sum of 0.5 and of sums of
     * rows, the lowest row first. In the outer rows and columns the mean is
     * V. */
    void (*sharpen[FL_IMAGE_ARITHMETICS])(uint8_t *dst, int64_t dst_pitch,
                                          const fl_image_planes *planes, double factor);

    /* Blurs the first plane. The result lacks the plane's edges: height - 1 rows, width - 1
     * columns. A byte is round(fma(...fma(V, tap, 0)...)), half to even. `memory` has room for
     * (height + 2) * planes->columns floats. */
    void (*blur)(uint8_t *dst, int64_t dst_pitch, const fl_image_planes *planes,
                 const fl_image_blur *blur, float *memory);

    /* Takes the means of FL_BOX_COLUMNS columns; rows follow each other in memory. A byte is (sum *
     * whole + (left + right) * part + 2^23) / 2^24; the first and the last row go on for ever. */
    void (*box)(uint8_t *dst, const uint8_t *src, int64_t rows, const fl_box *box);

    /* Samples planes that have a border of 2 zeros on each side, and 2 more on the right. Gives the
     * bytes of torch's grid_sample; a bilinear fill is (V - fill) * inside + fill, as in
     * torchvision. */
    void (*warp)(const fl_image_planes *dst, const fl_image_planes *bordered, int32_t channels,
                 const fl_image_warp *warp);

    /* Samples an image of width * height pixels of `channels` bytes each, as Pillow's
     * Image.transform does. The image has fewer than 2^31 pixels. Source and result each have 3
     * more bytes of memory behind them: the source's are read, with any value, and the result's may
     * be written. */
    void (*warp_pil)(uint8_t *dst, const uint8_t *src, int32_t width, int32_t height,
                     int32_t channels, const fl_warp_pil *warp);

    /* sums[i] = weight * V, plus the old sums[i] unless is_first, for the bytes V of the first
     * plane. */
    void (*add_weighted)(float *sums, const fl_image_planes *planes, float weight, bool is_first);
    /* Writes whole(sums[i]), from 0 to 255, to dst. */
    void (*cut_sums)(uint8_t *dst, const float *sums, int64_t count);

    /* V of the first plane becomes V + whole(number * scale + mean). The first byte takes number
     * `first`, and the numbers go on through the rows. */
    void (*add_noise)(const fl_image_planes *planes, int64_t first, const fl_image_noise *noise);
} fl_image_tone_ops;

/* An image as a JPEG file has it, in planes of YCbCr (BT.601) whose rows follow each other. Its RGB
 * is what libjpeg makes of the planes, with "fancy" upsampling. */
typedef struct fl_ycc {
    const uint8_t *data;   /* borrowed: Y, then Cb, then Cr */
    int32_t width, height; /* of Y; >= 1 */
    int32_t chroma;        /* FL_CHROMA_* */
} fl_ycc;

enum {
    FL_CHROMA_NONE, /* grey */
    FL_CHROMA_FULL, /* Cb and Cr are as large as Y */
    FL_CHROMA_HALF, /* half as wide and half as high, rounded up; 4:2:0. The width is > 4 */
    FL_CHROMAS
};

static inline int32_t fl_ycc_chroma_width(const fl_ycc *image)
{
    if (image->chroma == FL_CHROMA_HALF) return image->width / 2 + image->width % 2;
    return image->chroma == FL_CHROMA_FULL ? image->width : 0;
}

static inline int32_t fl_ycc_chroma_height(const fl_ycc *image)
{
    if (image->chroma == FL_CHROMA_HALF) return image->height / 2 + image->height % 2;
    return image->chroma == FL_CHROMA_FULL ? image->height : 0;
}

/* Returns the bytes of all planes. */
static inline int64_t fl_ycc_bytes(const fl_ycc *image)
{
    return (int64_t)image->width * image->height +
           2 * (int64_t)fl_ycc_chroma_width(image) * fl_ycc_chroma_height(image);
}

typedef struct fl_image_ops {
    const char *name; /* the name of its level of fl_cpu_level */

    /* Makes planes of R, G and B, `pitch` bytes apart, of columns [from, to) of a row; from < to.
     */
    void (*read_ycc)(uint8_t *dst, int64_t pitch, const fl_ycc *image, int32_t row, int32_t from,
                     int32_t to);

    /* Splits pixels of `channels` (2 to 4) interleaved bytes into planes: channel c of pixel i goes
     * to dst[c * pitch + i]. */
    void (*split)(uint8_t *dst, int64_t pitch, const uint8_t *src, int64_t pixels,
                  int32_t channels);

    /* Joins planes to pixels: element i of channel c, `bytes` (1, 2 or 4) long, at src + c * pitch
     * (in bytes) becomes element i * channels + c of dst. */
    void (*join)(void *dst, const void *src, int64_t pitch, int64_t pixels, int32_t channels,
                 int32_t bytes);

    /* Casts a block by `cast`: element i of row y becomes element i of the row at dst + y * pitch
     * (in bytes). With FL_IMAGE_U8 bytes stay, and `cast` is not read. */
    void (*cast[FL_IMAGE_TYPES])(void *dst, int64_t pitch, const fl_image_block *block,
                                 const fl_image_cast *cast);

    /* Fills `rows` rows, `pitch` bytes apart, with `count` elements of 1, 2 or 4 bytes, each
     * *value. */
    void (*fill)(void *dst, int64_t pitch, int64_t rows, int64_t count, const void *value,
                 int32_t bytes);

    /* Resizes `rows` rows of axis->in bytes to axis->out bytes; pitches in bytes, of any sign.
     * Bytes before axis->first[0] are not read and need not be memory. */
    void (*resample_x)(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch,
                       int64_t rows, const fl_resample *axis);

    /* Resizes axis->in rows of `width` bytes to axis->out rows. Rows before axis->first[0] are not
     * read and need not be memory. */
    void (*resample_y)(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch,
                       int64_t width, const fl_resample *axis);

    fl_image_tone_ops tone;
} fl_image_ops;

/* Operations on colours. */
typedef enum fl_tone {
    FL_TONE_NONE,
    FL_TONE_INVERT,
    FL_TONE_SOLARIZE,  /* number: threshold */
    FL_TONE_POSTERIZE, /* bits, 0 to 8 */
    FL_TONE_AUTOCONTRAST,
    FL_TONE_EQUALIZE,
    FL_TONE_BRIGHTNESS, /* from here to SATURATION: factor >= 0; 1 or 3 channels */
    FL_TONE_CONTRAST,
    FL_TONE_SATURATION,
    FL_TONE_HUE,       /* turns, -0.5 to 0.5; 1 or 3 channels */
    FL_TONE_SHARPNESS, /* factor >= 0; 1 or 3 channels */
    FL_TONE_GREY,      /* 3 channels */
    FL_TONE_PERMUTE,
    FL_TONES
} fl_tone;

/* One operation on colours in a form for devices: three numbers of a map. */
typedef struct fl_color_step {
    int32_t tone; /* FL_TONE_NONE: the list ends */
    float number;
    int8_t order[FL_MAX_CHANNELS]; /* FL_TONE_PERMUTE: channel order[k] becomes channel k */
} fl_color_step;

enum { FL_ERASED_NUMBERS = 5, FL_STEP_NUMBERS = 3, FL_CROP_NUMBERS = 6, FL_TAP_NUMBERS = 3 };

/* Returns the numbers of a map for steps on colours. The last one is 0: a kernel counts there which
 * blocks of the image are done. */
FL_HOST_DEVICE int32_t fl_steps_numbers(int32_t steps)
{
    return steps > 0 ? FL_STEP_NUMBERS * steps + 1 : 0;
}

/* The taps of a resize on a device, for one axis of `out` samples and any source length from
 * shortest to longest. In memory there are, for each length (or one length) and each sample: the
 * first tap, the number of taps and the precision of the weights, as in fl_resample; then `taps`
 * weights. */
typedef struct fl_image_taps {
    int32_t shortest, longest, out, taps;
} fl_image_taps;

static inline int64_t fl_image_taps_numbers(const fl_image_taps *axis)
{
    int64_t lengths = axis->longest - axis->shortest + 1;
    return lengths * axis->out * (FL_TAP_NUMBERS + axis->taps);
}

/* Images of a batch that a device makes from images in its own memory. Byte (image, channel, row,
 * column) lies at the sum of the steps from_steps, and an element of the batch at the sum of
 * to_steps. fl_transfer_ops knows this struct's tag. */
typedef struct fl_image_batch {
    const uint8_t *from;                /* borrowed */
    char *to;                           /* borrowed */
    int64_t from_steps[4], to_steps[4]; /* in bytes; in elements */
    int32_t channels, height, width;    /* of a result */
    int32_t element_bytes;              /* 1, 2 or 4 */
    int32_t *maps;       /* borrowed, on the device: a map for each image: fl_image_plan_map */
    int64_t map_numbers; /* numbers from one map to the next */
    int32_t erased;      /* operations that erase */
    int32_t steps;       /* operations on colours; if there are any, results have no gaps */
    int32_t runs_at;     /* of a map: see fl_image_map; with steps, the number before is 0 */
    int32_t values;      /* values of each channel: */
    const char *table;   /* borrowed, on the device: see fl_image_plan_write_values */
    bool resizes;
    /* borrowed, on the device: see fl_image_plan_write_taps; NULL: each map is followed by its own
     * taps */
    const int32_t *row_taps, *column_taps;
    fl_image_taps rows, columns;
} fl_image_batch;

/* Sets the addresses of the elements and taps, which follow each other on the device: see
 * fl_image_plan_write_all. */
static inline void fl_image_batch_set_tables(fl_image_batch *of, const char *elements)
{
    const int64_t each = of->element_bytes + (of->steps > 0 ? 1 : 0);
    const int64_t bytes = (each * of->values * of->channels + 3) / 4 * 4;
    of->table = elements;
    if (!of->resizes) return;
    of->row_taps = (const int32_t *)(const void *)(elements + bytes);
    of->column_taps = of->row_taps + fl_image_taps_numbers(&of->rows);
}

#endif
