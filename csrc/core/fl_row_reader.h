/* fl_row_reader: rows of an image as planes, whatever its source looks like in memory.
 *
 * Floor 1. Reads a source through the segments of two axes, fills what padding holds, and casts on
 * the way. One thread; the memory it works in is the scratch's. */
#ifndef FL_ROW_READER_H
#define FL_ROW_READER_H

#include "fl_image_axis.h"
#include "fl_image_scratch.h"

/* What the parts of a plan at work need of it; all borrowed from the plan, the scratch lent by it
 * for one sample. */
typedef struct fl_image_tools {
    const fl_image_op *ops;
    const fl_image_ops *image_ops;
    int32_t channels;
    fl_image_type type;        /* of the output */
    const fl_image_cast *cast; /* [channels], of the output; NULL: bytes stay */
    fl_image_scratch *scratch;
} fl_image_tools;

typedef struct fl_row_reader {
    fl_image_tools tools; /* cast is NULL for a reader of bytes */
    fl_image_source source;
    const fl_image_axis *y, *x; /* borrowed from the caller */
    bool is_output;             /* fills are out_fill, else fill */
    bool is_interleaved;        /* rows are split into planes first */
    int32_t from, to;           /* the columns of the source that x reads */
    uint8_t *split;             /* borrowed from the scratch: planes of such a row */
    int64_t split_pitch;
    uint8_t *line; /* borrowed from the scratch: bytes of a channel in the order of x */
} fl_row_reader;

/* Rows of bytes, or of elements of the output. FL_ENOMEM. */
int fl_row_reader_open(fl_row_reader *reader, const fl_image_tools *tools, bool is_output,
                       const fl_image_source *source, const fl_image_axis *y,
                       const fl_image_axis *x, fl_err *err);

/* Writes row i: channel c at dst + c * pitch, in bytes. */
void fl_row_reader_read(const fl_row_reader *reader, int32_t i, char *dst, int64_t pitch);

static inline int32_t fl_image_type_bytes(fl_image_type type)
{
    return type == FL_IMAGE_U8 ? 1 : type == FL_IMAGE_F32 ? 4 : 2;
}

/* Rows of planes begin at multiples of 64 bytes. */
static inline int64_t fl_image_pitch(int64_t bytes) { return (bytes + 63) / 64 * 64; }

#endif
