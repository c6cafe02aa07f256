/* fl_column_pad: the kinds of column that pad sequences to the longest of a batch: their values, a
 * mask that is 0 over the padding, or their lengths.
 *
 * Floor 1. docs/use/text.md defines the outputs; docs/internals/ragged-columns.md says how columns
 * make a batch of PadCollate. */
#ifndef FL_COLUMN_PAD_H
#define FL_COLUMN_PAD_H

#include "fl_column.h"
#include "fl_piece.h"
#include "fl_ragged.h"

typedef enum fl_pad_output {
    FL_PAD_VALUES, /* [rows, width] of the values' dtype, or int64 */
    FL_PAD_MASK,   /* [rows, width] int64: 1 at elements, 0 at padding */
    FL_PAD_LENGTHS /* [rows] int64 */
} fl_pad_output;

typedef struct fl_column_pad_config {
    fl_ragged ragged; /* the caller keeps its memory alive until close; mask and lengths read only
                         the offsets */
    fl_pad_output output;
    bool pad_left;      /* padding is at the left */
    bool is_widened;    /* integers come out as int64 */
    int64_t multiple;   /* the width is rounded up to a multiple of this; >= 1 */
    int64_t max_length; /* sequences are cut to this length; INT64_MAX: not cut */
    char padding[16];   /* an element of the output */
    bool has_ignored;   /* int64 values equal to `ignored` come out as padding */
    int64_t ignored;
    const fl_sequence_ops *ops; /* borrowed, static */
} fl_column_pad_config;

/* Opens a column and copies the description; the caller closes *out. FL_ENOMEM. */
int fl_column_pad_open(const fl_column_pad_config *config, fl_column **out, fl_err *err);

/* Writes the table of a batch of this width (any width, for lengths): a piece for each row, and the
 * end. FL_EINVAL: offsets have been changed. */
int fl_column_pad_pieces(const fl_column_pad_config *config, const fl_rows *rows, int64_t width,
                         fl_piece *out, fl_err *err);

#endif
