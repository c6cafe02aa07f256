/* fl_py_batch_codec: batches as the C collate makes them, written to bytes and read back. */
#ifndef FL_PY_BATCH_CODEC_H
#define FL_PY_BATCH_CODEC_H

#include "fl_py.h"

/* Memory that tensors of a batch may lie in. */
typedef struct fl_py_memory {
    const fl_py_dlpack *dlpack; /* borrowed */
    const char *data;           /* borrowed */
    int64_t bytes;              /* < 0: nothing lies there */
} fl_py_memory;

/* Whether a tensor lies in the memory: its view and offset there. No exception is set. */
bool fl_py_memory_has(const fl_py_memory *memory, PyObject *object, fl_tensor *view,
                      int64_t *offset);

typedef struct fl_py_writer {
    fl_py_memory memory;
    char *data; /* owned, by fl_free; used again from batch to batch */
    int64_t used, capacity;
    int64_t end; /* of the last tensor written: those that come later lie behind it */
} fl_py_writer;

typedef struct fl_py_reader {
    const char *data; /* borrowed: nobody writes there */
    int64_t bytes, at;
    /* Makes a tensor of its place. New reference. */
    PyObject *(*make)(void *context, int64_t offset, fl_dtype dtype, int32_t ndim,
                      const int64_t *shape);
    void *context;
} fl_py_reader;

/* False when there is something in the batch that is not covered; no exception is set. */
bool fl_py_write_batch(fl_py_writer *out, PyObject *batch);

/* The places of the tensors in a batch, in the order in which fl_py_read_batch makes them. New
 * reference to a list; NULL without an exception where no batch was written. */
PyObject *fl_py_list_places(fl_py_reader *in);

/* The batch, or what comes next in it. New reference; NULL without an exception where neither was
 * written. */
PyObject *fl_py_read_batch(fl_py_reader *in);

#endif
