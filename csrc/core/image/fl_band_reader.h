/* fl_band_reader: rows of an image as planes, whatever the layout of the source.
 *
 * Floor 1. Reads a source through the segments of two axes, a band of rows at a time, into planes
 * of bytes or of cast elements. One thread; works in memory of the scratch. */
#ifndef FL_BAND_READER_H
#define FL_BAND_READER_H

#include "fl_image_axis.h"
#include "fl_scratch.h"

/* The parts of a running plan that readers and views need. Borrowed from the plan, which lends the
 * scratch for one sample. */
typedef struct fl_image_tools {
    const fl_image_op *ops;
    const fl_image_ops *image_ops;
    int32_t channels;
    fl_scratch *scratch;
} fl_image_tools;

/* The type and the casts for elements that are read. */
typedef struct fl_band_form {
    fl_image_type type;
    const fl_image_cast *cast; /* borrowed: a cast for each channel; padding becomes `out_fill` of
                                  its operation. NULL: bytes stay, and padding becomes `fill` */
    uint32_t typed_fills; /* bit i: out_fill of operation i differs from the cast of its `fill` */
} fl_band_form;

/* Columns that are one segment of the source, between two runs that one operation fills. */
typedef struct fl_band_frame {
    int32_t columns; /* number of the source's segment of x; -1: there is no frame */
    int32_t fill;    /* the operation; FL_NO_FILL: no operation fills */
    int32_t before, after;
} fl_band_frame;

typedef struct fl_band_reader {
    fl_image_tools tools;
    fl_band_form form;
    fl_image_source source;
    const fl_image_axis *y, *x; /* borrowed from the caller */
    int32_t last_fill;          /* of x; FL_NO_FILL: no segment is filled */
    fl_band_frame frame;        /* of x: if there is a frame, rows are read in one piece */
    int32_t band_rows;          /* most rows that are read at a time */
    int32_t lanes;     /* bytes of a pixel, if rows are split into planes first; 0: they are not */
    int32_t from, to;  /* columns that are split */
    int32_t top, left; /* the row and the column of the image that lie at source.data */
    uint8_t *split;    /* borrowed from the scratch: the split rows as planes */
} fl_band_reader;

/* Opens a reader on a source; there is nothing to close. FL_ENOMEM.
 * FL_EINVAL: the source is a JPEG file that libjpeg refuses. */
int fl_band_reader_open(fl_band_reader *reader, const fl_image_tools *tools,
                        const fl_band_form *form, const fl_image_source *source,
                        const fl_image_axis *y, const fl_image_axis *x, fl_err *err);

/* Reads rows [first, first + count) of each channel c to dst + c * pitch (in bytes). Each row
 * directly follows the row before; count <= band_rows. */
void fl_band_reader_read(const fl_band_reader *reader, int32_t first, int32_t count, void *dst,
                         int64_t pitch);

#endif
