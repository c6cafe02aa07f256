/* fl_py_index_source: where the indices of an array loader's batches come from: what the user's
 * sampler yields, cut into batches and led through the maps of nested subsets.
 *
 * All functions need the interpreter lock; one thread at a time. restart and read run the user's
 * code. */
#ifndef FL_PY_INDEX_SOURCE_H
#define FL_PY_INDEX_SOURCE_H

#include "fl_plan.h"
#include "fl_py_dlpack.h"

typedef enum {
    FL_PY_INDEX_BLOCKS,  /* the sampler yields int64 vectors and (first, count) ranges, to be cut
                            into batches */
    FL_PY_INDEX_BATCHES, /* it yields the indices of one batch */
    FL_PY_INDEX_SINGLES, /* it yields one index, or a list of them, as for batch_size=None */
    FL_PY_INDEX_LISTS    /* the same, but torch fetches a sample that is not a list */
} fl_py_index_kind;

typedef struct fl_py_index_source {
    fl_py_index_kind kind;
    fl_plan *plan;           /* owned */
    PyObject *maps;          /* owned: tuple of vectors that the plan borrows */
    PyObject *iterator;      /* owned; NULL: used up */
    PyObject *block;         /* owned: the vector that the plan borrows */
    PyObject *batch_sampler; /* owned: its batch_size may change during an epoch */
    int64_t batch_size;      /* of FL_PY_INDEX_BLOCKS, and so is drop_last */
    bool drop_last;
    bool has_views; /* an item may be (index, view) */
} fl_py_index_source;

/* For a table of `length` rows below the subsets of `maps`, a tuple of int64 vectors, innermost
 * first. has_views: the table makes views of a row, and then a list of (index, view) is a batch. 0,
 * or -1 and an exception. The owner closes it in either case. */
int fl_py_index_source_open(fl_py_index_source *self, const fl_py_dlpack *dlpack, PyObject *maps,
                            int64_t length, bool has_views);

/* Begins an epoch over the iterable `indices`: 0, or -1 and an exception. */
int fl_py_index_source_restart(fl_py_index_source *self, PyObject *indices, fl_py_index_kind kind,
                               PyObject *batch_sampler);

enum { FL_PY_INDEX_END, FL_PY_INDEX_ROWS, FL_PY_INDEX_ITEM };

/* Reads the indices of one batch, which are not resolved yet. FL_PY_INDEX_ROWS: they are in `rows`;
 * *is_single: as one index, not as a list. FL_PY_INDEX_ITEM: *item, a new reference, holds
 * something else than plain integers, and is torch's to fetch. FL_PY_INDEX_END: used up. -1 and an
 * exception.
 */
int fl_py_index_source_read(fl_py_index_source *self, const fl_py_dlpack *dlpack, fl_rows *rows,
                            bool *is_single, PyObject **item);

/* What the epoch has not read yet: a new tuple (iterator, block, left, kind, batch_sampler). `left`
 * indices at the end of `block` come before what the iterator gives; block is None before the
 * first. NULL and an exception. */
PyObject *fl_py_index_source_rest(const fl_py_index_source *self);

/* Forgets the epoch. */
void fl_py_index_source_drop(fl_py_index_source *self);

int fl_py_index_source_traverse(fl_py_index_source *self, visitproc visit, void *arg);
void fl_py_index_source_close(fl_py_index_source *self);

#endif
