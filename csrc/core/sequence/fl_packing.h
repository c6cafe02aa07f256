/* fl_packing: where the sequences of a batch lie when they are packed into rows, first fit.
 *
 * Floor 1. Pure: a function of their lengths. Written at layout into the notes of a column. */
#ifndef FL_PACKING_H
#define FL_PACKING_H

#include "fl_layout.h"

/* A sequence of the batch. */
typedef struct fl_packed {
    int64_t length;
    int64_t start;   /* in the rows laid end to end */
    int64_t segment; /* which one it is, counted likewise */
    int64_t padding; /* elements behind it up to the end of its row, where it is the last there: a
                        segment of their own if there are any */
} fl_packed;

typedef struct fl_packing {
    int64_t rows, width;
    int64_t segments, longest; /* of sequences and padding */
    fl_packed sequences[];     /* of the batch, in its order */
} fl_packing;

/* Room in `notes` for the packing of so many sequences, whose lengths the caller then sets.
 * FL_ENOMEM; FL_EINVAL: there cannot be so many. */
int fl_packing_reserve(fl_notes *notes, int64_t count, fl_packing **out, fl_err *err);

/* The packing that fl_packing_reserve made room for. */
static inline fl_packing *fl_packing_of(const fl_notes *notes)
{
    return (fl_packing *)(void *)notes->values;
}

/* Packs count >= 1 sequences into rows of max_tokens; into one row if it is 0. FL_EINVAL: a
 * sequence that is longer than a row, more than 2^31 - 1 elements. */
int fl_packing_fit(fl_packing *packing, int64_t count, int64_t max_tokens, fl_err *err);

#endif
