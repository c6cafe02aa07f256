/* fl_py_index_source: the source of the indices of an array loader's batches: cuts the items of the
 * user's sampler into batches, and maps the indices through nested subsets and mixtures.
 *
 * All functions need the interpreter lock; one thread at a time. restart and read run the user's
 * code. */
#ifndef FL_PY_INDEX_SOURCE_H
#define FL_PY_INDEX_SOURCE_H

#include "fl_plan.h"
#include "fl_py.h"
#include "fl_py_dlpack.h"

typedef enum {
    FL_PY_INDEX_BLOCKS,  /* the sampler yields int64 vectors and (first, count) ranges, which the
                            source cuts into batches. An int ends an epoch: the number of the epoch
                            to which the next blocks belong */
    FL_PY_INDEX_BATCHES, /* the sampler yields the indices of one batch */
    FL_PY_INDEX_SINGLES, /* the sampler yields one index or a list of indices, as with
                            batch_size=None */
    FL_PY_INDEX_LISTS    /* as FL_PY_INDEX_SINGLES, but torch fetches an item that is not a list */
} fl_py_index_kind;

typedef struct fl_py_index_source {
    fl_py_index_kind kind;
    fl_plan *plan;           /* owned */
    PyObject *maps;          /* owned: tuple of vectors and mixtures that the plan borrows */
    PyObject *iterator;      /* owned; NULL: used up */
    PyObject *block;         /* owned: the vector that the plan borrows */
    PyObject *batch_sampler; /* owned: its batch_size may change during an epoch */
    int64_t batch_size;      /* like drop_last, only for FL_PY_INDEX_BLOCKS */
    int64_t next_epoch;      /* if the next block begins an epoch, its number, else -1 */
    bool is_recut;           /* batch_size has changed since the source came to next_epoch */
    bool drop_last;
    bool has_views; /* an item may be (index, view) */
} fl_py_index_source;

/* Opens a source for a table of `length` rows under the subsets of `maps`, a tuple of int64
 * vectors and objects of Mixture, innermost first. has_views: the table makes views of a row, and
 * then a list of (index, view) is a batch. 0, or -1 and an exception. The owner closes the source
 * in both cases. */
int fl_py_index_source_open(fl_py_index_source *self, const fl_py_state *state,
                            const fl_py_dlpack *dlpack, PyObject *maps, int64_t length,
                            bool has_views);

/* Begins this epoch over the iterable `indices`: 0, or -1 and an exception. */
int fl_py_index_source_restart(fl_py_index_source *self, PyObject *indices, fl_py_index_kind kind,
                               PyObject *batch_sampler, uint32_t epoch);

enum { FL_PY_INDEX_END, FL_PY_INDEX_ROWS, FL_PY_INDEX_ITEM };

/* Reads the indices of one batch, without resolving them. FL_PY_INDEX_ROWS: `rows` holds the
 * indices; *is_single: the sampler gave one index, not a list. FL_PY_INDEX_ITEM: *item, a new
 * reference, does not consist of plain integers, and torch has to fetch it. FL_PY_INDEX_END: used
 * up. -1 and an exception. */
int fl_py_index_source_read(fl_py_index_source *self, const fl_py_dlpack *dlpack, fl_rows *rows,
                            bool *is_single, PyObject **item);

/* Goes on with the iterable `indices` after the block read last: 0, or -1 and an exception. */
int fl_py_index_source_go_on(fl_py_index_source *self, PyObject *indices);

/* Goes on to the blocks of the next epoch, once `next_epoch` is set and the last batch was read: 0,
 * or -1 and an exception. */
int fl_py_index_source_begin_next(fl_py_index_source *self);

/* Returns the unread rest of the epoch: a new tuple (iterator, block, left, kind, batch_sampler).
 * The last `left` indices of `block` come before the iterator's items; before the first block,
 * block is None. NULL and an exception. */
PyObject *fl_py_index_source_rest(const fl_py_index_source *self);

/* Forgets the epoch. */
void fl_py_index_source_drop(fl_py_index_source *self);

int fl_py_index_source_traverse(fl_py_index_source *self, visitproc visit, void *arg);
void fl_py_index_source_close(fl_py_index_source *self);

#endif
