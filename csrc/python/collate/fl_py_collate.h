/* fl_py_collate: what the two halves of the collate share: containers and leaves. */
#ifndef FL_PY_COLLATE_H
#define FL_PY_COLLATE_H

#include "fl_py.h"

enum { FL_PY_POOLS = 64 };

/* Why torch's own function collated something. */
enum { FL_PY_NOT_PLAIN, FL_PY_MIXED, FL_PY_STRIDED, FL_PY_REGISTRY, FL_PY_MODE };

typedef struct fl_py_collate {
    PyObject_HEAD
    fl_py_dlpack door;
    PyObject *memmap_type;                /* owned */
    PyObject *registry;                   /* owned: torch's dict of collate functions by type */
    PyObject *expected;                   /* owned: its keys and values in turn, as they were */
    PyObject *others, *fallback;          /* owned */
    PyObject *port;                       /* owned; NULL outside of workers */
    PyObject *team;                       /* owned; NULL: long copies are the caller's alone */
    PyObject *is_neg, *stack, *as_tensor; /* owned: torch's */
    PyObject *zero, *out_name;            /* owned: arguments of stack: 0 and ("out",) */
    PyObject *int8, *uint8;               /* owned: torch's */
    PyObject *count_modes[2];             /* owned: torch's, for both kinds of modes */
    fl_pool *pools[FL_PY_POOLS];          /* owned; NULL until used */
    int32_t leaf;                         /* leaves of the batch so far */
    bool has_warned; /* torch's warning about read-only arrays has been given */
    int64_t fallbacks[FL_FALLBACK_REASONS];
} fl_py_collate;

/* The values at one place of the samples of a batch. */
typedef struct batch_items {
    PyObject **items; /* borrowed from the caller, who holds references */
    Py_ssize_t count;
    bool is_tuple;      /* torch has them in a tuple here, else in a list */
    PyObject *original; /* borrowed: the very list or tuple, if there is one */
} batch_items;

/* Stacks tensors, arrays, numbers, strings; Py_NotImplemented (new reference) for anything else. */
PyObject *fl_py_collate_stack(fl_py_collate *self, const batch_items *batch);

/* torch's own function, counted under the reason. New reference. */
PyObject *fl_py_fall_back(fl_py_collate *self, const batch_items *batch, int reason);

/* The values as torch has them. New reference. */
PyObject *fl_py_items_object(const batch_items *batch);

/* A tensor of the batch; its elements go to *data. New reference. */
PyObject *fl_py_collate_tensor(fl_py_collate *self, fl_dtype dtype, int32_t ndim,
                               const int64_t *shape, char **data);

/* Copies `count` pieces of `bytes` each one after another; if that takes long, with the team's
 * threads and without the interpreter lock. */
void fl_py_copy_items(fl_py_collate *self, char *to, const char *const *from, int64_t bytes,
                      Py_ssize_t count);

#endif
