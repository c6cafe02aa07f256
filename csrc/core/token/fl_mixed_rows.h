/* fl_mixed_rows: which row each position of a mixture of data sets is.
 *
 * Floor 1. The rows of all sources count as one list, source after source. Positions are cut into
 * segments; from the begin of a segment on, its sources share by its weights (fl_mixture), and each
 * source goes on where it was, whether it had a part in the segment before or not. A source that is
 * used up begins anew: each turn has its own order of the rows (fl_permutation), which depends on
 * the source's own key and the turn alone. Segments are added by one thread; then any thread
 * reads, without waiting. */
#ifndef FL_MIXED_ROWS_H
#define FL_MIXED_ROWS_H

#include "fl_mixture.h"

typedef struct fl_mixed_rows fl_mixed_rows;

enum { FL_MIXED_TURNS = 1 << 20 };

typedef struct fl_mixed_config {
    const int64_t *lengths; /* of the sources, each >= 1, below 2^62 together; only read by open */
    const uint32_t *names;  /* a checksum of each source's name; only read by open */
    const char *endless;    /* for each source, not 0: it has an order of its own for each turn. Its
                               rows come in order, and the rows of turn t are rows t * length and
                               on, of FL_MIXED_TURNS turns. NULL: no source; only read by open */
    int32_t count;
    uint64_t seed;
    bool is_even, is_shuffled; /* see fl_mixture_open; otherwise rows of a source come in order */
} fl_mixed_config;

/* Opens a list of rows without a segment. The caller closes *out. FL_EINVAL, FL_ENOMEM. */
int fl_mixed_rows_open(const fl_mixed_config *config, fl_mixed_rows **out, fl_err *err);
void fl_mixed_rows_close(fl_mixed_rows *rows);

/* Appends a segment at a position after the begin of the last segment; the first segment begins at
 * 0. `sources` are numbers of sources, each once. FL_EINVAL, FL_ENOMEM: nothing has changed. */
int fl_mixed_rows_add(fl_mixed_rows *rows, int64_t begin, const int64_t *sources,
                      const int64_t *weights, int32_t count, fl_err *err);

/* Sets the positions of an epoch. is_alike: every epoch has the segments of the first, in which
 * each row comes once; otherwise an epoch goes on where the epoch before has ended. */
void fl_mixed_rows_set_epochs(fl_mixed_rows *rows, int64_t length, bool is_alike);
int64_t fl_mixed_rows_length(const fl_mixed_rows *rows); /* positions of an epoch */

int32_t fl_mixed_rows_segments(const fl_mixed_rows *rows);
double fl_mixed_rows_bound(const fl_mixed_rows *rows, int32_t segment); /* see fl_mixture_bound */

/* Writes the row at each position of an epoch; positions may lie beyond the epoch's end. `row` and
 * `position` may be the same array. FL_EINVAL: a position, counted through all epochs, is negative
 * or beyond 2^62; FL_ENOMEM. */
int fl_mixed_rows_find(fl_mixed_rows *rows, uint32_t epoch, const int64_t *position, int64_t count,
                       int64_t *row, fl_err *err);

/* Writes how many samples of each source the first n positions of all epochs have, 0 <= n < 2^62.
 */
void fl_mixed_rows_seen(const fl_mixed_rows *rows, int64_t n, int64_t *counts);

#endif
