/* fl_jpeg: parts of JPEG files, and their planes, by a libjpeg-turbo that the process has loaded.
 *
 * Floor 1. Links no libjpeg: the caller finds the functions, for example those that Pillow uses, so
 * that the pixels are Pillow's. Takes files of one sequential scan of 8 bits, in Y or in YCbCr of
 * 4:4:4, 4:2:2 or 4:2:0, whose markers go on to the end of the image: then nothing below a part can
 * change the part, or make another decoder fail. An fl_jpeg and its library are read-only, so any
 * threads may decode at once. No function waits. */
#ifndef FL_JPEG_H
#define FL_JPEG_H

#include "fl_image_ops.h"
#include "fl_jpeg_codes.h"

/* ---- the part of libjpeg 6b's interface that fl_jpeg uses; libjpeg-turbo has the same interface
 *
 * libjpeg compares the version and the size of the state with its own, so a library of another
 * interface refuses to decode. */

typedef struct fl_jpeg_state fl_jpeg_state;

typedef struct fl_jpeg_errors {                    /* jpeg_error_mgr */
    void (*refuse)(fl_jpeg_state *state);          /* does not return */
    void (*note)(fl_jpeg_state *state, int level); /* < 0: a warning */
    void (*unused[2])(void);
    void (*reset)(fl_jpeg_state *state);
    int64_t rest[16];
} fl_jpeg_errors;

typedef struct fl_jpeg_input { /* jpeg_source_mgr */
    const uint8_t *next;       /* borrowed: the bytes that are not read yet */
    size_t left;
    void (*begin)(fl_jpeg_state *state);
    int (*refill)(fl_jpeg_state *state);
    void (*skip)(fl_jpeg_state *state, long bytes);
    int (*restart)(fl_jpeg_state *state, int wanted);
    void (*end)(fl_jpeg_state *state);
} fl_jpeg_input;

enum { FL_JPEG_VERSION = 62, FL_JPEG_GREY = 1, FL_JPEG_RGB = 2, FL_JPEG_YCC = 3 };

typedef struct fl_jpeg_entropy { /* jpeg_entropy_decoder */
    void (*start)(fl_jpeg_state *state);
    /* Decodes a unit to blocks of coefficients, which are 0. NULL: leaves out the unit. */
    int (*decode)(fl_jpeg_state *state, fl_jpeg_block **blocks);
} fl_jpeg_entropy;

struct fl_jpeg_state { /* jpeg_decompress_struct */
    fl_jpeg_errors *errors;
    void *memory, *progress;
    void *owner;
    int is_decoder, stage;
    fl_jpeg_input *input;
    unsigned width, height;
    int components;
    int colors, out_colors; /* FL_JPEG_* */
    unsigned scale[2];
    double gamma;
    int is_buffered, is_raw;
    char unused[376];
    unsigned units[2]; /* of the scan, in x and in y */
    int blocks;        /* of a unit */
    char unused_too[108];
    fl_jpeg_entropy *entropy;
    void *rest[4];
};

typedef struct fl_jpeg_library {
    void (*create)(fl_jpeg_state *state, int version, size_t bytes);
    void (*destroy)(fl_jpeg_state *state);
    int (*read_header)(fl_jpeg_state *state, int needs_image);
    int (*start)(fl_jpeg_state *state);
    void (*crop)(fl_jpeg_state *state, unsigned *left, unsigned *width);
    unsigned (*skip)(fl_jpeg_state *state, unsigned rows);
    unsigned (*read)(fl_jpeg_state *state, uint8_t **rows, unsigned count);
    unsigned (*read_raw)(fl_jpeg_state *state, uint8_t ***planes, unsigned rows);
} fl_jpeg_library;

/* ---- images */

typedef struct fl_jpeg {
    const fl_jpeg_library *library; /* borrowed */
    const uint8_t *data;            /* borrowed: the whole file */
    const uint8_t *scan;            /* the codes in it */
    int64_t bytes;
    int32_t width, height;
    int32_t components; /* 1 or 3 */
    int32_t factors[2]; /* samples of Y for one sample of Cb, in x and in y: 1 or 2 */
} fl_jpeg;

/* Reads the markers of a file; library and data must outlive *out. Returns false if the file is of
 * another kind or not whole. */
bool fl_jpeg_open(const fl_jpeg_library *library, const uint8_t *data, int64_t bytes, fl_jpeg *out);

/* Rows [top, bottom) and columns [left, right); not empty. */
typedef struct fl_jpeg_part {
    int32_t top, bottom, left, right;
} fl_jpeg_part;

/* Adds the columns that are decoded in any case, or without which libjpeg would give other bits to
 * the columns at the edges. */
void fl_jpeg_widen(const fl_jpeg *image, fl_jpeg_part *part);

/* Decodes a part, as fl_jpeg_widen leaves it, to rows of RGB that follow each other at `out`.
 * FL_ENOMEM; FL_EINVAL: libjpeg gives a warning or an error; `out` is undefined then. */
int fl_jpeg_read(const fl_jpeg *image, const fl_jpeg_part *part, uint8_t *out, fl_err *err);

/* Describes the planes of an image, without data. Returns false if Cb and Cr have a size that
 * fl_ycc does not have. */
bool fl_jpeg_planes(const fl_jpeg *image, fl_ycc *out);

/* Decodes the planes of the image to `out`, fl_ycc_bytes long. FL_ENOMEM; FL_EINVAL as above. */
int fl_jpeg_read_planes(const fl_jpeg *image, uint8_t *out, fl_err *err);

#endif
