/* fl_epoch_packing: documents packed into rows of equal length, by their lengths alone.
 *
 * Floor 1. The documents of an epoch come in a keyed order, or in the order of a mixture. The order
 * is cut into windows of equally many documents, and each window is packed on its own, so a row
 * depends on the documents of one window. Best fit decreasing: the longest piece comes first, into
 * the row with the least room that takes the piece. The rows of a window come in a keyed order.
 *
 * A reader keeps what it has computed: how many rows the windows of two epochs have, and the rows
 * of two windows. Readers wait in slots. Taking and giving exchange pointers, without a lock, so
 * any number of threads may read, and a child forked at any moment can go on. Users reproduce
 * rows, so the meaning of a seed never changes. */
#ifndef FL_EPOCH_PACKING_H
#define FL_EPOCH_PACKING_H

#include "fl_mixed_rows.h"
#include "fl_ragged.h"

/* More rows than an epoch can have. Row FL_EPOCH_PACKING_ROWS - k is the k-th from the end, so that
 * a table of this many rows counts as Python does, whatever the epoch. */
#define FL_EPOCH_PACKING_ROWS ((int64_t)1 << 62)

enum { FL_EPOCH_PACKING_LENGTH = 1 << 24 }; /* most tokens in a row */

/* How a packing treats documents that are longer than a row. */
typedef enum fl_overlong { FL_OVERLONG_SPLIT, FL_OVERLONG_TRUNCATE, FL_OVERLONG_DROP } fl_overlong;

/* The window in which a row of an epoch lies. A packing that is told the place packs no window
 * before it, unless an earlier row is asked for. */
typedef struct fl_packing_place {
    int64_t window; /* its place in the epoch */
    int64_t before; /* rows of the epoch before the window */
    int64_t rows;   /* of the epoch; 0: nothing is told */
    uint32_t epoch;
} fl_packing_place;

typedef struct fl_epoch_packing_config {
    fl_ragged documents;  /* only offsets are read, which the caller keeps alive until close */
    fl_mixed_rows *mixed; /* borrowed until close: the order of documents; NULL: a keyed order */
    int64_t count;        /* of documents in an epoch, >= 1 */
    int64_t length;       /* tokens in a row, 1 to FL_EPOCH_PACKING_LENGTH */
    int64_t window;       /* documents, >= 1 */
    int64_t extra;        /* tokens that each document has besides its own, unless it is empty */
    fl_overlong overlong;
    bool is_wrapped;  /* documents are laid end to end, and cut into rows */
    bool is_shuffled; /* false: documents, unless mixed, and rows come in order */
    bool is_repacked; /* false: all epochs have the rows of epoch 0, windows and rows shuffled anew
                       */
    uint64_t seed;
    fl_packing_place told; /* as fl_packing_reader_place gave it */
} fl_epoch_packing_config;

/* Tokens of a document that stand together in a row. An empty document has no piece. */
typedef struct fl_packed_piece {
    int64_t document, first, count;
} fl_packed_piece;

typedef struct fl_packed_row {
    const fl_packed_piece *pieces; /* borrowed from the reader, until it reads the next row */
    int64_t count;                 /* of pieces, >= 1 */
} fl_packed_row;

typedef struct fl_epoch_packing fl_epoch_packing;
typedef struct fl_packing_reader fl_packing_reader;

/* Opens a packing, and copies the configuration; the caller closes *out when no reader is taken.
 * FL_ENOMEM. */
int fl_epoch_packing_open(const fl_epoch_packing_config *config, fl_epoch_packing **out,
                          fl_err *err);
void fl_epoch_packing_close(fl_epoch_packing *packing);

int64_t fl_epoch_packing_length(const fl_epoch_packing *packing); /* tokens in a row */

/* Takes a reader for the caller alone, until the caller gives the reader back. FL_ENOMEM. */
int fl_packing_reader_take(fl_epoch_packing *packing, fl_packing_reader **out, fl_err *err);
void fl_packing_reader_give(fl_epoch_packing *packing, fl_packing_reader *reader);

/* Counts the rows of an epoch; the first call for an epoch packs all windows, about 100 ns a
 * document. FL_EINVAL: offsets have been changed; FL_ENOMEM. */
int fl_packing_reader_count(fl_packing_reader *reader, uint32_t epoch, int64_t *rows, fl_err *err);

/* Finds the place of a row, or of the last row if there are fewer; if the row is below 0, only how
 * many rows there are. Errors as above. */
int fl_packing_reader_place(fl_packing_reader *reader, uint32_t epoch, int64_t row,
                            fl_packing_place *out, fl_err *err);

/* Finds a row of an epoch; packs the windows up to the row if they are not counted yet. FL_EINDEX:
 * value and length are set; FL_EINVAL, FL_ENOMEM as above. */
int fl_packing_reader_find(fl_packing_reader *reader, uint32_t epoch, int64_t row,
                           fl_packed_row *out, fl_err *err);

#endif
