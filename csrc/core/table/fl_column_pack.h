/* fl_column_pack: the kinds of column that pack sequences into rows: their values, positions in
 * each sequence, the bounds of segments, and the length of the longest.
 *
 * Floor 1. docs/use/text.md defines the outputs; docs/internals/ragged-columns.md says how columns
 * make a batch of PackCollate. The columns of a batch share one packing: the first column makes the
 * packing, from the lengths of the main field; or takes the rows of a plan, and then the rows of
 * the batch are rows of the epoch (docs/internals/packed-rows.md). */
#ifndef FL_COLUMN_PACK_H
#define FL_COLUMN_PACK_H

#include "fl_column.h"
#include "fl_epoch_packing.h"
#include "fl_packing.h"
#include "fl_piece.h"
#include "fl_ragged.h"

typedef enum fl_pack_output {
    FL_PACK_VALUES,    /* [rows, width] of the values' dtype, or int64 */
    FL_PACK_POSITIONS, /* [rows, width] int64: 0, 1, 2, ... in each segment */
    FL_PACK_DOCUMENTS, /* [rows, width] int64: the number of the segment in its row */
    FL_PACK_BOUNDS, /* [segments + 1] int32: the start of each segment, and the end of the last */
    FL_PACK_LONGEST /* a number: the length of the longest segment */
} fl_pack_output;

typedef struct fl_column_pack_config {
    fl_ragged ragged; /* with FL_PACK_VALUES: the values; the caller keeps their memory alive until
                         close. Without: only the length is used */
    fl_ragged main;   /* the offsets that give the lengths; kept alive like ragged */
    int32_t leader; /* the column this many places before this one makes the packing; 0: this column
                       does */
    fl_pack_output output;
    bool is_widened;              /* integers come out as int64 */
    bool is_label;                /* the first element of each sequence is also padding */
    char padding[16];             /* an element of the output */
    int64_t max_tokens;           /* in a row; 0: all tokens in one row */
    fl_epoch_packing *plan;       /* borrowed until close; NULL: rows of the batch are sequences */
    bool has_bos, has_eos;        /* with a plan: each document begins with bos, ends with eos */
    char bos[16], eos[16];        /* elements of the output */
    const char *name, *main_name; /* borrowed: names of the fields, for errors */
    const fl_sequence_ops *ops;   /* borrowed, static */
} fl_column_pack_config;

/* Opens a column and copies the description; the caller closes *out. FL_ENOMEM. */
int fl_column_pack_open(const fl_column_pack_config *config, fl_column **out, fl_err *err);

/* Writes the table of a packed batch: a piece for each segment, and the end. FL_EINVAL: offsets
 * have been changed. */
int fl_column_pack_pieces(const fl_column_pack_config *config, const fl_packing *packing,
                          const fl_rows *rows, fl_piece *out, fl_err *err);

#endif
