/* fl_py_gather: kernels that make batches out of tensors on a CUDA device, or in a region: their
 * arguments are read and checked, then they are queued on torch's current stream.
 *
 * A kind of source is one file: fl_py_gather_rows, _images, _windows. All functions need the
 * interpreter lock; 0, or -1 and an exception. The caller holds references to all that a
 * fl_py_gather names, and to outs and maps, until they return. */
#ifndef FL_PY_GATHER_H
#define FL_PY_GATHER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_py_dlpack.h"
#include "fl_py_image_plan.h"
#include "fl_py_region.h"

/* What a batch is made of. Objects are borrowed. */
typedef struct fl_py_gather_source {
    PyObject *tensor;
    fl_py_region *region;   /* that the tensor lies in; NULL: it lies on the device */
    fl_py_image_plan *plan; /* that makes images; NULL: rows are copied */
    PyObject *values;       /* of the plan, its values() on the device */
    bool is_windows;        /* the tensor is of tokens, and rows are where windows begin */
    int32_t shift;          /* of windows: tokens from one of x to that of y, 0 or 1 */
} fl_py_gather_source;

typedef struct fl_py_gather {
    const fl_py_dlpack *dlpack;         /* borrowed, as all objects */
    int32_t device;                     /* on which all tensors lie, but sources in a region */
    const fl_py_gather_source *sources; /* borrowed: fields, or the tokens alone */
    Py_ssize_t count;                   /* of them */
    int64_t length;                     /* fields had so many rows when indices were checked */
    const int64_t *rows; /* of a batch; set by open, which borrows them from its tensor */
    int64_t row_count;
} fl_py_gather;

/* Takes indices [first, first + count) of a tensor for the batches that follow. They are not read
 * here. ValueError, IndexError. */
int fl_py_gather_open(fl_py_gather *self, PyObject *indices, int64_t first, int64_t count);

/* A kind: queues the kernels of all sources of the kind, whose results go to their places in the
 * list outs. maps: a tuple of int32 tensors, for images. */
typedef struct fl_py_gather_ops {
    int (*run)(const fl_py_gather *self, PyObject *maps, PyObject *outs);
} fl_py_gather_ops;

/* Fields without a plan are copied: one kernel for 32 of them. ValueError for fields that have lost
 * rows. */
extern const fl_py_gather_ops fl_py_gather_rows;

/* Fields with a plan, a kernel each. maps: those from plan.map(), in turn. */
extern const fl_py_gather_ops fl_py_gather_images;

/* Windows of the tokens, which begin at the indices. outs: x, or x and y, [row_count, length], of
 * ints that are not narrower than the tokens. */
extern const fl_py_gather_ops fl_py_gather_windows;

/* ValueError: the data have lost rows since. NULL. */
PyObject *fl_py_gather_refuse(int64_t before, int64_t now);

/* ---- for the kinds alone */

/* A tensor on the device. ValueError for one of another. */
int fl_py_gather_view(const fl_py_gather *self, PyObject *tensor, fl_tensor *out);

/* A field, wherever it lies. ValueError if it has lost rows. */
int fl_py_gather_view_source(const fl_py_gather *self, const fl_py_gather_source *source,
                             fl_tensor *out);

/* Queues the kernels of `what` on the stream. Without the interpreter lock; may block, if the
 * stream's queue is full. */
typedef int
fl_py_gather_launch(const fl_py_gather *self, void *stream, const void *what, fl_err *err);

/* Calls launch with torch's current stream, and notes in the regions that it reads them. */
int fl_py_gather_queue(const fl_py_gather *self, fl_py_gather_launch *launch, const void *what);

#endif
