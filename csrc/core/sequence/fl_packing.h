/* fl_packing: the positions of a batch's sequences after packing them into rows, first fit.
 *
 * Floor 1. The result depends only on the lengths. Written at layout into the notes of a column. */
#ifndef FL_PACKING_H
#define FL_PACKING_H

#include "fl_layout.h"

/* A sequence of the batch. */
typedef struct fl_packed {
    int64_t length;
    int64_t start;   /* offset in the rows laid end to end */
    int64_t segment; /* number of its segment, counted over the rows laid end to end */
    int64_t padding; /* if the sequence is the last of its row: elements from its end to the end of
                        the row. If there are any, they form a segment of their own */
    int64_t row, first; /* set by the caller: where its values lie */
} fl_packed;

typedef struct fl_packing {
    int64_t rows, width;
    int64_t segments, longest; /* counting sequences and padding */
    int64_t count;             /* of sequences; only if they come in the order of the rows */
    fl_packed sequences[];     /* in the order of the batch */
} fl_packing;

/* Makes room in `notes` for the packing of `count` sequences; the caller then sets their lengths.
 * FL_ENOMEM; FL_EINVAL: the count is too large. */
int fl_packing_reserve(fl_notes *notes, int64_t count, fl_packing **out, fl_err *err);

/* Returns the packing that fl_packing_reserve made room for. */
static inline fl_packing *fl_packing_of(const fl_notes *notes)
{
    return (fl_packing *)(void *)notes->values;
}

/* Packs count >= 1 sequences into rows of max_tokens; if max_tokens is 0, into one row. FL_EINVAL:
 * a sequence is longer than a row, or there are more than 2^31 - 1 elements. */
int fl_packing_fit(fl_packing *packing, int64_t count, int64_t max_tokens, fl_err *err);

/* Checks that cu_seqlens can count the elements of all rows; FL_EINVAL. */
int fl_packing_check_size(const fl_packing *packing, fl_err *err);

#endif
