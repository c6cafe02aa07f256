/* fl_py: what all files of the binding need: errors, torch's tensors, the module's types.
 *
 * Floor 3, the only floor that knows Python. All functions need the interpreter lock and follow
 * CPython's rule: NULL or -1 means an exception is set. */
#ifndef FL_PY_H
#define FL_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_copier.h"
#include "fl_py_dlpack.h"
#include "fl_py_error.h"
#include "fl_shm_queue.h"

/* The heap types of the module, for code that makes or checks objects of another file's type. */
typedef struct fl_py_state {
    PyTypeObject *table_type;        /* owned */
    PyTypeObject *batch_pool_type;   /* owned */
    PyTypeObject *array_loader_type; /* owned */
    PyTypeObject *collate_type;      /* owned */
    PyTypeObject *worker_end_type;   /* owned */
    PyTypeObject *parent_end_type;   /* owned */
    PyTypeObject *reply_type;        /* owned */
    PyTypeObject *thread_pool_type;  /* owned */
    PyTypeObject *grad_list_type;    /* owned */
    PyTypeObject *finalizer_type;    /* owned */
} fl_py_state;


/* ---- fl_py_worker_end.c: a worker process's end of the shared memory ---- */

typedef struct fl_py_worker_end fl_py_worker_end;
extern PyType_Spec fl_py_worker_end_spec;

/* Memory for a tensor in the batch being built, or of its own once the slot is full. New
 * reference; *data is where its elements go. */
PyObject *fl_py_worker_end_tensor(fl_py_worker_end *port, fl_dtype dtype, int32_t ndim,
                                  const int64_t *shape, char **data);

/* Whether a tensor lies in the current request's slot: its view and offset there. No exception is
 * set. */
bool fl_py_worker_end_place(const fl_py_worker_end *port, PyObject *object, fl_tensor *view,
                            int64_t *offset);

/* Counts one fallback of the kind (< FL_FALLBACK_REASONS) for the parent's statistics. */
void fl_py_worker_end_fell_back(fl_py_worker_end *port, int32_t kind);

/* ---- fl_py_collate.c: samples stacked into batches ---- */

extern PyType_Spec fl_py_collate_spec;

/* Fallbacks to torch's own functions, counted by kind, as a new dict by reason. */
PyObject *fl_py_count_reasons(const int64_t *counts);

/* ---- fl_py_parent_end.c, fl_py_reply.c: the parent's end ---- */

/* What a worker sent and the user has not taken yet: a slot, READY. Where a courier carries batches
 * it lands: then the batch is in a block, and only what was pickled is here. */
typedef struct fl_py_reply {
    PyObject_HEAD
    PyObject *hub; /* owned: whose budget counts it until it is opened */
    fl_py_dlpack door;
    fl_slot *slot; /* owned; one share of it if it is lent; NULL once the batch has landed */
    bool is_open, is_lent, is_landing, is_elsewhere;
    int64_t limit; /* what the budget counts */
    fl_reply_message reply;
    fl_transfer *errand;  /* owned; NULL unless a courier has it */
    fl_dest_buffer berth; /* where it is carried, if there is an owner */
    char *head;           /* owned, once it has been read here: what was pickled */
    PyObject *block;      /* owned: where it has landed; NULL until then. With is_elsewhere */
} fl_py_reply;

extern PyType_Spec fl_py_parent_end_spec;
extern PyType_Spec fl_py_reply_spec;

/* A tensor at a place in an opened parcel: over its memory, or a copy if it is a small part of it
 * or the slot is not lent. ValueError if it does not lie inside. New reference. */
PyObject *fl_py_reply_tensor(const fl_py_reply *self, int64_t offset, fl_dtype dtype, int32_t ndim,
                             const int64_t *shape);

/* The parcel's memory is the user's from now on, or free. */
void fl_py_parent_end_release(PyObject *hub, int64_t limit);

/* ---- fl_py_batch_codec.c: batches of plain containers as bytes ---- */

typedef struct fl_py_writer {
    const fl_py_worker_end *port; /* borrowed: whose slot holds the tensors */
    char *data;                   /* owned, by fl_free; used again from batch to batch */
    int64_t used, capacity;
    int64_t end; /* of the last tensor written: those that come later lie behind it */
} fl_py_writer;

typedef struct fl_py_reader {
    const fl_py_reply *parcel; /* borrowed, open */
    PyObject *make;            /* borrowed: makes a tensor of its place; NULL: the parcel does */
    const char *data;          /* borrowed from the parcel: nobody writes there */
    int64_t bytes, at;
} fl_py_reader;

/* False when there is something in the batch that is not covered; no exception is set. */
bool fl_py_write_batch(fl_py_writer *out, PyObject *batch);

/* The batch, or what comes next in it. New reference; NULL without an exception where neither was
 * written. */
PyObject *fl_py_read_batch(fl_py_reader *in);

#endif
