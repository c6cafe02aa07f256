/* fl_py_batch_codec: writes batches made by _core.Collate to bytes, and reads the batches back. */
#ifndef FL_PY_BATCH_CODEC_H
#define FL_PY_BATCH_CODEC_H

#include "fl_py.h"

/* The memory that holds tensors of a batch. */
typedef struct fl_py_memory {
    const fl_py_dlpack *dlpack; /* borrowed */
    const char *data;           /* borrowed */
    int64_t bytes;              /* < 0: the memory holds no tensor */
} fl_py_memory;

/* Returns true if a tensor lies in the memory, and sets its view and its offset in the memory. Sets
 * no exception. */
bool fl_py_memory_has(const fl_py_memory *memory, PyObject *object, fl_tensor *view,
                      int64_t *offset);

typedef struct fl_py_writer {
    fl_py_memory memory;
    char *data; /* owned, freed with fl_free; reused from batch to batch */
    int64_t used, capacity;
    int64_t end; /* offset after the last tensor written: later tensors must begin at or after it */
} fl_py_writer;

typedef struct fl_py_reader {
    const char *data; /* borrowed; stays unchanged while the reader reads */
    int64_t bytes, at;
    /* Makes the tensor at an offset. New reference. */
    PyObject *(*make)(void *context, int64_t offset, fl_dtype dtype, int32_t ndim,
                      const int64_t *shape);
    void *context;
} fl_py_reader;

/* Writes a batch to out->data. Returns false if the batch contains an object that the codec does
 * not cover. Sets no exception. */
bool fl_py_write_batch(fl_py_writer *out, PyObject *batch);

/* Lists the slots of the tensors in a batch, in the order in which fl_py_read_batch makes the
 * tensors. New reference to a list; NULL without an exception: the bytes hold no batch. */
PyObject *fl_py_list_slots(fl_py_reader *in);

/* Reads the batch, or the next object inside a batch. New reference; NULL without an exception: the
 * bytes hold neither. */
PyObject *fl_py_read_batch(fl_py_reader *in);

#endif
