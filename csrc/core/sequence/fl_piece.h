/* fl_piece: a batch of sequences for a device to make: what each output is, with a table of where
 * every sequence lies.
 *
 * Floor 1. Plain data. fl_column_pad and fl_column_pack write tables on the host, csrc/python sends
 * the tables, a kernel of csrc/cuda reads them on the device. */
#ifndef FL_PIECE_H
#define FL_PIECE_H

#include "fl_base.h"

/* The elements of an output from `start` up to the start of the next piece: the elements of one
 * sequence, and padding. A table ends with one extra piece, whose start is the end of the
 * output. */
typedef struct fl_piece {
    int64_t start;
    int64_t begin;  /* index of the sequence's first value */
    int64_t length; /* of the sequence; 0: the piece is padding alone */
} fl_piece;

typedef enum fl_piece_output {
    FL_PIECE_VALUES,    /* the values of sequences */
    FL_PIECE_MASK,      /* 1 at elements of sequences, 0 at padding */
    FL_PIECE_POSITIONS, /* 0, 1, 2, ... in each piece */
    FL_PIECE_STARTS,    /* the start of each piece, and the end of the last */
    FL_PIECE_LENGTHS    /* the length of each sequence */
} fl_piece_output;

/* One output of a batch. Addresses are the device's, borrowed. */
typedef struct fl_piece_batch {
    const fl_piece *pieces;
    int64_t piece_count;
    const void *from;          /* the values; NULL without FL_PIECE_VALUES */
    void *to;                  /* elements side by side */
    int64_t count;             /* elements */
    int64_t width;             /* elements of every piece; 0: pieces differ */
    uint64_t padding;          /* the bits of an element of padding */
    int32_t from_bytes, bytes; /* of a value and of an element: 1, 2, 4 or 8, bytes not less */
    fl_piece_output output;
    bool is_signed; /* values keep their sign if elements are wider */
    bool pad_left;  /* a piece begins with its padding, instead of ending with it */
    bool is_label;  /* the first element of each sequence is also padding */
} fl_piece_batch;

#endif
