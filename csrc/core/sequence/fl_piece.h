/* fl_piece: a batch of sequences as a device makes it: what each output is, over a table that says
 * where every sequence lies.
 *
 * Floor 1. Plain data. fl_column_pad and fl_column_pack write tables on the host, csrc/python sends
 * them, a kernel of csrc/cuda reads them there. */
#ifndef FL_PIECE_H
#define FL_PIECE_H

#include "fl_base.h"

/* The elements of an output from `start` up to the start of the next piece: those of one sequence,
 * and padding. Behind the last piece of a table is one more, whose start is the end of the output.
 */
typedef struct fl_piece {
    int64_t start;
    int64_t begin;  /* among the values */
    int64_t length; /* of the sequence; 0: padding alone */
} fl_piece;

typedef enum fl_piece_output {
    FL_PIECE_VALUES,    /* the values of sequences */
    FL_PIECE_MASK,      /* 1 at elements of sequences, 0 at padding */
    FL_PIECE_POSITIONS, /* 0, 1, 2, ... in each piece */
    FL_PIECE_STARTS,    /* where pieces begin, and the end of all */
    FL_PIECE_LENGTHS    /* of the sequences */
} fl_piece_output;

/* One output of a batch. Addresses are the device's, borrowed. */
typedef struct fl_piece_batch {
    const fl_piece *pieces;
    int64_t piece_count;
    const void *from;          /* the values; NULL without FL_PIECE_VALUES */
    void *to;                  /* elements side by side */
    int64_t count;             /* of them */
    int64_t width;             /* elements of every piece; 0: they differ */
    uint64_t padding;          /* the bits of an element of padding */
    int32_t from_bytes, bytes; /* of a value and of an element: 1, 2, 4 or 8, bytes not less */
    fl_piece_output output;
    bool is_signed; /* values keep their sign where elements are wider */
    bool is_left;   /* a piece begins with its padding, and does not end with it */
    bool is_label;  /* the first element of each sequence is padding, too */
} fl_piece_batch;

#endif
