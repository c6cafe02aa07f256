/* fl_band_reader: rows of an image as planes, whatever its source looks like in memory.
 *
 * Floor 1. Reads a source through the segments of two axes, a band of rows at a time, into planes
 * of bytes or of what these are cast to. One thread; the memory it works in is the scratch's. */
#ifndef FL_BAND_READER_H
#define FL_BAND_READER_H

#include "fl_image_axis.h"
#include "fl_scratch.h"

/* What the parts of a plan at work need of it: borrowed from the plan, the scratch lent by it for
 * one sample. */
typedef struct fl_image_tools {
    const fl_image_op *ops;
    const fl_image_ops *image_ops;
    int32_t channels;
    fl_scratch *scratch;
} fl_image_tools;

/* What elements are read as. */
typedef struct fl_band_form {
    fl_image_type type;
    const fl_image_cast *cast; /* borrowed: of each channel, and padding becomes `out_fill` of its
                                  operation; NULL: bytes stay, and padding becomes `fill` */
    uint32_t typed_fills; /* bit i: out_fill of operation i is not what its `fill` is cast to */
} fl_band_form;

/* Columns that are one segment of the source between two of one operation's fill. */
typedef struct fl_band_frame {
    int32_t columns; /* that segment of x; -1: there is no frame */
    int32_t fill;    /* the operation; FL_NO_FILL: none fills */
    int32_t before, after;
} fl_band_frame;

typedef struct fl_band_reader {
    fl_image_tools tools;
    fl_band_form form;
    fl_image_source source;
    const fl_image_axis *y, *x; /* borrowed from the caller */
    int32_t last_fill;          /* of x; FL_NO_FILL: none fills */
    fl_band_frame frame;        /* of x: rows are then read in one piece */
    int32_t band_rows;          /* at most so many are read at a time */
    bool is_interleaved;        /* rows are split into planes first */
    int32_t from, to;           /* the columns that are split */
    uint8_t *split;             /* borrowed from the scratch: planes of such rows */
} fl_band_reader;

/* FL_ENOMEM. */
int fl_band_reader_open(fl_band_reader *reader, const fl_image_tools *tools,
                        const fl_band_form *form, const fl_image_source *source,
                        const fl_image_axis *y, const fl_image_axis *x, fl_err *err);

/* Rows [first, first + count) of channel c to dst + c * pitch (in bytes), each right behind the one
 * before; count <= band_rows. */
void fl_band_reader_read(const fl_band_reader *reader, int32_t first, int32_t count, void *dst,
                         int64_t pitch);

#endif
