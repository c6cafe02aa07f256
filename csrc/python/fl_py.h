/* fl_py: what the files of the binding share.
 *
 * Floor 3, the only floor that knows Python. All functions need the interpreter lock and follow
 * CPython's rule: NULL or -1 means an exception is set. */
#ifndef FL_PY_H
#define FL_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "dlpack/dlpack.h"
#include "fl_ring.h"
#include "fl_pool.h"
#include "fl_table.h"
#include "fl_thread_pool.h"

/* ---- fl_py_module.c ---- */

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

extern struct PyModuleDef fl_py_module;

/* Turns a status of the lower floors into an exception; always returns NULL. `table`, a Table or
 * NULL, gives names to fields. The one place that does. */
PyObject *fl_py_raise(const fl_err *err, PyObject *table);

/* ---- fl_py_dlpack.c: doors between NumPy, torch and views ---- */

/* torch's exchange table, found through the tensor type. */
typedef struct fl_py_dlpack {
    PyTypeObject *tensor_type;    /* owned */
    const DLPackExchangeAPI *api; /* borrowed from torch, lives as long as the process */
} fl_py_dlpack;

int fl_py_numpy_import(void);

/* Opens the door of torch.Tensor (given as the type). RuntimeError if there is none. */
int fl_py_dlpack_open(PyObject *tensor_type, fl_py_dlpack *door);
void fl_py_dlpack_close(fl_py_dlpack *door);

/* Describes a torch tensor of exactly the door's type or an ndarray. The view borrows from
 * `object`. TypeError or ValueError for what has no plain CPU memory. */
int fl_py_view(const fl_py_dlpack *door, PyObject *object, fl_tensor *out);

/* The same for a contiguous int64 vector; TypeError for anything else. */
int fl_py_index_vector(const fl_py_dlpack *door, PyObject *object, fl_tensor *out);

/* Elements that a pass may run over. */
typedef struct fl_py_floats {
    char *data; /* borrowed from the tensor */
    int64_t count;
    int32_t type;    /* FL_F64, ... */
    uint64_t layout; /* 0 for contiguous ones; equal for equal orders of dimensions in memory */
    int32_t device;  /* FL_PY_CPU, or the index of a CUDA device */
} fl_py_floats;

enum { FL_PY_CPU = -1, FL_PY_ANYWHERE = -2 };

/* Whether `object` is exactly of the door's type, on the CPU or a CUDA device, real floating and
 * dense. No exception is set. A lazily negated tensor looks like any other. */
bool fl_py_float_tensor(const fl_py_dlpack *door, PyObject *object, fl_py_floats *out);

/* The address of the one number in a tensor of DLPack's dtype (code, bits), which must be on
 * *device; *device becomes the tensor's if it is FL_PY_ANYWHERE. TypeError or ValueError. */
void *fl_py_scalar_address(const fl_py_dlpack *door, PyObject *object, uint8_t code, uint8_t bits,
                           int32_t *device);

/* The address of a vector of exactly `bytes` > 0 bytes on a CUDA device, or on the CPU; ValueError.
 */
void *
fl_py_buffer_address(const fl_py_dlpack *door, PyObject *object, int32_t device, int64_t bytes);

/* torch's current stream of a CUDA device (cudaStream_t): 0 done, -1 exception. */
int fl_py_stream(const fl_py_dlpack *door, int32_t device, void **out);

/* A tensor over slot memory: takes one share of the (lent) slot, which the tensor's deleter
 * gives back from whatever thread. `managed` lives in the slot's header; shape and stride are
 * copied. On failure the share has been given back, so the caller must hold another. New
 * reference. */
PyObject *
fl_py_tensor_over(const fl_py_dlpack *door, fl_slot *slot, char *data, fl_dtype dtype, int32_t ndim,
                  int64_t *shape, int64_t *stride, DLManagedTensorVersioned *managed);

/* A contiguous tensor over memory that outlives it, or over memory of a slot of which it takes one
 * more share (the caller holds one). New reference. */
PyObject *fl_py_tensor_at(const fl_py_dlpack *door, fl_slot *slot, char *data, fl_dtype dtype,
                          int32_t ndim, const int64_t *shape);

/* A contiguous tensor with memory of its own, at *data. New reference. */
PyObject *fl_py_tensor_new(const fl_py_dlpack *door, fl_dtype dtype, int32_t ndim,
                           const int64_t *shape, char **data);

/* Exactly an ndarray; whether an array is read-only. */
bool fl_py_is_array(PyObject *object);
bool fl_py_is_read_only(PyObject *array);

/* The dtype of a NumPy number or bool, if torch has it; and its value, once that is known. */
bool fl_py_scalar_dtype(PyObject *scalar, fl_dtype *out);
void fl_py_scalar_value(PyObject *scalar, char *out);

/* Adds the indices in a tensor, array or iterable of integers to `rows`: 1 done; 0 something in
 * it is not a plain integer, nothing was added; -1 exception. For *item see fl_py_rows_add. */
int fl_py_rows_add(const fl_py_dlpack *door, PyObject *item, fl_rows *rows);

/* One index: 1 done, -1 exception, 0 neither an int or NumPy integer nor a 0-d tensor of signed
 * ones, or too large for int64. */
int fl_py_index(const fl_py_dlpack *door, PyObject *item, int64_t *out);

/* A new int64 ndarray of the plain integers in a list or tuple; None if something else is in it. */
PyObject *fl_py_int64_array(const fl_py_dlpack *door, PyObject *sequence);

/* ---- fl_py_table.c: a table over the user's arrays ---- */

typedef struct fl_py_table {
    PyObject_HEAD
    fl_py_dlpack door;
    PyObject *sources;  /* owned: tuple of tensors and ndarrays, alive while views are */
    PyObject *names;    /* owned: tuple of str, for errors */
    PyObject *files;    /* owned: tuple of None or (path, address of its first byte, size) */
    fl_column *columns; /* owned: one for each source */
    int32_t count;
    fl_table *table; /* owned */
} fl_py_table;

extern PyType_Spec fl_py_table_spec;

/* Looks at the sources again and rebuilds views and table if one has moved or changed its shape.
 * Only while nothing reads the table. */
int fl_py_table_refresh(fl_py_table *self);

/* After the rows have been read: -1 and OSError if a mapped file behind one of them has become
 * too short meanwhile. */
int fl_py_table_check_files(fl_py_table *self, const fl_rows *rows);

/* ---- fl_py_batch_pool.c: the pool a loader's iterators share, and what they count ---- */

typedef struct fl_py_batch_pool {
    PyObject_HEAD
    fl_pool *pool;                                   /* owned */
    fl_arena *arena;                                 /* owned; NULL unless shared with workers */
    fl_slot *probe;                                  /* owned; NULL unless it is pinned, too */
    uint32_t generation;                             /* of the process that made it */
    int32_t fields;                                  /* room for so many tensors with every slot */
    int32_t device;                                  /* for copies to it; -1: for use on the CPU */
    int64_t batches, samples, bytes, waits, wait_ns; /* interpreter lock */
    int64_t largest; /* interpreter lock: bytes that batches of workers needed of late, also in
                        epochs before, so that their slots serve the next */
} fl_py_batch_pool;

extern PyType_Spec fl_py_batch_pool_spec;

/* ---- fl_py_batch.c: filled slots as containers of tensors ---- */

/* A list of tensors over the slot, or a dict if `keys` is a tuple; a single has no batch
 * dimension. Takes the slot, also on failure. New reference. */
PyObject *
fl_py_batch(const fl_py_table *table, PyObject *keys, const fl_batch *batch, bool is_single);

/* ---- fl_py_array_loader.c: the engine of an iterator ---- */

extern PyType_Spec fl_py_array_loader_spec;

/* ---- fl_py_thread_pool.c, fl_py_grad_list.c: passes over gradients ---- */

typedef struct fl_py_thread_pool {
    PyObject_HEAD
    fl_thread_pool *team; /* owned */
} fl_py_thread_pool;

extern PyType_Spec fl_py_thread_pool_spec;
extern PyType_Spec fl_py_grad_list_spec;

/* ---- fl_py_finalizer.c: what every iterator ends with ---- */

extern PyType_Spec fl_py_finalizer_spec;

#endif
