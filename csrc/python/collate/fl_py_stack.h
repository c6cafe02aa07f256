/* fl_py_stack: stacks the values at one place of a batch: tensors, ndarrays, numbers, strings. */
#ifndef FL_PY_STACK_H
#define FL_PY_STACK_H

#include "fl_py_fallbacks.h"
#include "fl_py_items.h"
#include "fl_py_thread_pool.h"
#include "fl_py_worker_end.h"

enum { FL_PY_POOLS = 64 };

/* What looking at a value may find, besides FL_PY_*: it can be stacked here. */
enum { FL_PY_FINE = FL_FALLBACK_REASONS };

/* What stacking needs: torch's functions, and where batches are built: in a worker's slot, or in
 * pools of this process, one for each stack of a batch, so that the user who keeps one tensor keeps
 * no other. SHARED(stacker): block, pools, stacks, has_warned and fallbacks change with each batch,
 * in the section of the collate. */
typedef struct fl_py_stacker {
    fl_py_dlpack dlpack;
    PyObject *memmap_type;                /* owned */
    PyObject *fallback;                   /* owned: torch's default_collate */
    fl_py_worker_end *worker_end;         /* owned; NULL outside of workers */
    fl_py_thread_pool *thread_pool;       /* owned; NULL: long copies are the caller's alone */
    PyObject *is_neg, *stack, *as_tensor; /* owned: torch's */
    PyObject *zero, *out_name;            /* owned: arguments of stack: 0 and ("out",) */
    PyObject *int8, *uint8;               /* owned: torch's */
    PyObject *block;                      /* owned: of fl_py_stacker_block, or NULL */
    fl_pool *pools[FL_PY_POOLS];          /* owned; NULL until used */
    int32_t stacks;                       /* made of this batch so far */
    bool has_warned; /* torch's warning about read-only arrays has been given */
    int64_t fallbacks[FL_FALLBACK_REASONS];
} fl_py_stacker;

/* Fills a zeroed one. 0, or -1 with an exception: what was had is closed as after success. */
int fl_py_stacker_open(fl_py_stacker *self, PyObject *torch);
void fl_py_stacker_close(fl_py_stacker *self);

/* The stack of the values; Py_NotImplemented (new reference) for what cannot be stacked. */
PyObject *fl_py_stack(fl_py_stacker *self, const fl_py_items *batch);

/* A tensor of the batch; its elements go to *data. New reference. */
PyObject *fl_py_stacker_tensor(fl_py_stacker *self, fl_dtype dtype, int32_t ndim,
                               const int64_t *shape, char **data);

/* Begins a batch with a tensor for the stack of `count` tensors like this one, contiguous. If the
 * batch then has its rows to be stacked, all and in order, this tensor is the stack, and nothing is
 * copied. It stays here until then, or until the next one or fl_py_stacker_drop. New reference. */
PyObject *fl_py_stacker_block(fl_py_stacker *self, PyObject *like, Py_ssize_t count);
void fl_py_stacker_drop(fl_py_stacker *self);

/* Describes a tensor of exactly torch's type: FL_PY_FINE, a reason, or -1 and an exception. */
int fl_py_stacker_look(fl_py_stacker *self, PyObject *tensor, fl_tensor *view);

/* torch's own function, counted under the reason. New reference. */
PyObject *fl_py_fall_back(fl_py_stacker *self, const fl_py_items *batch, int reason);

#endif
