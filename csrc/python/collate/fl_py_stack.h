/* fl_py_stack: stacks the values at one position of a batch: tensors, ndarrays, numbers,
 * strings. */
#ifndef FL_PY_STACK_H
#define FL_PY_STACK_H

#include "fl_py_fallbacks.h"
#include "fl_py_items.h"
#include "fl_py_thread_pool.h"
#include "fl_py_worker_end.h"

enum { FL_PY_POOLS = 64 };

/* The result for a value that can be stacked here; FL_PY_NOT_PLAIN and the further reasons are the
 * remaining results. */
enum { FL_PY_FINE = FL_FALLBACK_REASONS };

/* The state of stacking: torch's functions, and the memory for batches. In a worker the memory is
 * the slot. Outside of workers each stack of a batch has its own pool, so a user who keeps one
 * tensor keeps no second tensor alive. SHARED(stacker): block, pools, stacks, has_warned and
 * fallbacks change with each batch, in the section of the collate. */
typedef struct fl_py_stacker {
    fl_py_dlpack dlpack;
    PyObject *memmap_type;                /* owned */
    PyObject *fallback;                   /* owned: torch's default_collate */
    fl_py_worker_end *worker_end;         /* owned; NULL outside of workers */
    fl_py_thread_pool *thread_pool;       /* owned; NULL: the caller makes long copies alone */
    PyObject *is_neg, *stack, *as_tensor; /* owned: torch's */
    PyObject *zero, *out_name;            /* owned: arguments of stack: 0 and ("out",) */
    PyObject *int8, *uint8;               /* owned: torch's */
    PyObject *requires_grad;              /* owned: the name */
    PyObject *block;                      /* owned: the tensor of fl_py_stacker_block, or NULL */
    fl_pool *pools[FL_PY_POOLS];          /* owned; NULL until used */
    int32_t stacks;                       /* number of this batch's stacks so far */
    bool has_warned; /* the user has seen torch's warning about read-only arrays */
    int64_t fallbacks[FL_FALLBACK_REASONS];
} fl_py_stacker;

/* Opens a zeroed stacker: 0, or -1 and an exception. The caller closes the stacker in both
 * cases. */
int fl_py_stacker_open(fl_py_stacker *self, PyObject *torch);
void fl_py_stacker_close(fl_py_stacker *self);

/* Returns the stack of the values; Py_NotImplemented (new reference) if the values cannot be
 * stacked. */
PyObject *fl_py_stack(fl_py_stacker *self, const fl_py_items *batch);

/* Makes a tensor of the batch; the caller writes the elements to *data. New reference. */
PyObject *fl_py_stacker_tensor(fl_py_stacker *self, fl_dtype dtype, int32_t ndim,
                               const int64_t *shape, char **data);

/* Begins a batch with the tensor for a stack of `count` contiguous tensors like `like`. If the
 * batch then stacks the rows of this tensor, all rows and in order, the tensor is the stack and
 * nothing is copied. The stacker keeps the tensor until then, or until the next call or
 * fl_py_stacker_drop. New reference. */
PyObject *fl_py_stacker_block(fl_py_stacker *self, PyObject *like, Py_ssize_t count);
void fl_py_stacker_drop(fl_py_stacker *self);

/* Describes a tensor of exactly torch's type: FL_PY_FINE, a reason, or -1 and an exception. */
int fl_py_stacker_look(fl_py_stacker *self, PyObject *tensor, fl_tensor *view);

/* Calls torch's own function, and counts the reason. New reference. */
PyObject *fl_py_fall_back(fl_py_stacker *self, const fl_py_items *batch, int reason);

#endif
