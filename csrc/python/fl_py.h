/* fl_py: the parts that all files of the binding need: errors, torch's tensors, the module's types.
 *
 * Floor 3, the only floor that knows Python. All functions need the interpreter lock and follow
 * CPython's rule: NULL or -1 means that an exception is set. */
#ifndef FL_PY_H
#define FL_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_py_dlpack.h"
#include "fl_py_error.h"

/* The heap types of the module, for code that makes or checks objects of a type from a different
 * file. */
typedef struct fl_py_state {
    PyTypeObject *table_type;           /* owned */
    PyTypeObject *batch_pool_type;      /* owned */
    PyTypeObject *array_loader_type;    /* owned */
    PyTypeObject *collate_type;         /* owned */
    PyTypeObject *worker_end_type;      /* owned */
    PyTypeObject *parent_end_type;      /* owned */
    PyTypeObject *reply_type;           /* owned */
    PyTypeObject *thread_pool_type;     /* owned */
    PyTypeObject *grad_list_type;       /* owned */
    PyTypeObject *finalizer_type;       /* owned */
    PyTypeObject *image_plan_type;      /* owned */
    PyTypeObject *image_draws_type;     /* owned */
    PyTypeObject *image_cache_type;     /* owned */
    PyTypeObject *ycc_image_type;       /* owned */
    PyTypeObject *jpeg_decoder_type;    /* owned */
    PyTypeObject *jpeg_image_type;      /* owned */
    PyTypeObject *snapshot_type;        /* owned */
    PyTypeObject *sequence_column_type; /* owned */
    PyTypeObject *windows_type;         /* owned */
    PyTypeObject *permutation_type;     /* owned */
    PyTypeObject *mixture_type;         /* owned */
    PyTypeObject *file_reader_type;     /* owned */
    PyTypeObject *packing_type;         /* owned */
    PyTypeObject *host_range_type;      /* owned */
    PyTypeObject *gatherer_type;        /* owned */
    PyTypeObject *step_log_type;        /* owned */
    PyTypeObject *step_hook_type;       /* owned */
} fl_py_state;

/* Initializes the PyType_Spec of a heap type of this module: its name, the struct of its objects,
 * its slots, and flags in addition to the flags that every type has. */
#define FL_PY_SPEC(NAME, STRUCT, FLAGS, SLOTS)                                             \
    {                                                                                      \
        .name = "fastloop._core." NAME, .basicsize = sizeof(STRUCT),                       \
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | (FLAGS), .slots = (SLOTS) \
    }

/* Frees an object of a heap type, as the last step of tp_dealloc, and drops its reference to the
 * type. */
static inline void fl_py_free(void *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    type->tp_free(self);
    Py_DECREF(type);
}

#endif
