/* fl_band_reader: rows of an image as planes of bytes, whatever its source looks like in memory.
 *
 * Floor 1. Reads a source through the segments of two axes, a band of rows at a time, so that what
 * comes next is done with one call for each channel of a band. One thread; the memory it works in
 * is the scratch's. */
#ifndef FL_BAND_READER_H
#define FL_BAND_READER_H

#include "fl_image_axis.h"
#include "fl_image_scratch.h"

/* What the parts of a plan at work need of it: borrowed from the plan, the scratch lent by it for
 * one sample. */
typedef struct fl_image_tools {
    const fl_image_op *ops;
    const fl_image_ops *image_ops;
    int32_t channels;
    fl_image_scratch *scratch;
} fl_image_tools;

typedef struct fl_band_reader {
    fl_image_tools tools;
    fl_image_source source;
    const fl_image_axis *y, *x; /* borrowed from the caller */
    int32_t band_rows;          /* at most so many are read at a time */
    int32_t base_fill;          /* an operation whose fill a band holds before anything is read into
                                   it: most have but one; FL_NO_FILL: none fills */
    bool is_interleaved;        /* rows are split into planes first */
    int32_t from, to;           /* the columns that are split */
    uint8_t *split;             /* borrowed from the scratch: planes of such rows */
} fl_band_reader;

/* FL_ENOMEM. */
int fl_band_reader_open(fl_band_reader *reader, const fl_image_tools *tools,
                        const fl_image_source *source, const fl_image_axis *y,
                        const fl_image_axis *x, fl_err *err);

/* Rows [first, first + count) of channel c to dst + c * pitch, each right behind the one before;
 * count <= band_rows. Padding becomes `fill` of its operation. */
void fl_band_reader_read(const fl_band_reader *reader, int32_t first, int32_t count, uint8_t *dst,
                         int64_t pitch);

/* Where the source holds all rows as fl_band_reader_read writes them; NULL: it does not. */
const uint8_t *fl_band_reader_direct(const fl_band_reader *reader);

#endif
