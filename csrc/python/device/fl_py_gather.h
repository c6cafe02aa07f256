/* fl_py_gather: makes batches with kernels from tensors on a CUDA device or in a host range: reads
 * and checks the kernels' arguments, and then queues the kernels on torch's current stream.
 *
 * Each kind of source has one file: fl_py_gather_rows, _images, _windows. All functions need the
 * interpreter lock; 0, or -1 and an exception. Until the functions return, the caller holds
 * references to all objects in a fl_py_gather, and to outs. */
#ifndef FL_PY_GATHER_H
#define FL_PY_GATHER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_py_dlpack.h"
#include "fl_py_image_plan.h"
#include "fl_py_host_range.h"

/* The maps of images of the indices [first, first + count). */
typedef struct fl_py_gather_maps {
    PyObject *tensors; /* a list: an int32 tensor for each source with a plan, then an int64 tensor
                          for the rows of a batch that come in a kernel's argument; NULL: no maps */
    int64_t first, count;
    uint32_t epoch;         /* of the random numbers */
    void *stream;           /* the stream that writes the maps */
    const int64_t *indices; /* borrowed: the first of the indices, on the device */
} fl_py_gather_maps;

/* One source of a batch. Objects are borrowed. */
typedef struct fl_py_gather_source {
    PyObject *tensor;
    fl_py_host_range *range; /* holds the tensor; NULL: the tensor lies on the device */
    fl_py_image_plan *plan;  /* makes images; NULL: rows are copied */
    PyObject *values;        /* the plan's values() on the device */
    bool is_windows;         /* the tensor holds tokens, and rows are begins of windows */
    int32_t shift;           /* of windows: y begins this many tokens after x, 0 or 1 */
} fl_py_gather_source;

typedef struct fl_py_gather {
    const fl_py_dlpack *dlpack; /* borrowed, like all objects */
    int32_t device; /* the device that holds the tensors, except sources in a host range */
    const fl_py_gather_source *sources; /* borrowed: the fields, or one source of tokens */
    Py_ssize_t count;                   /* of sources */
    int64_t length;                     /* rows of the fields when the indices were checked */
    const int64_t *rows; /* the rows of a batch; open sets rows to memory borrowed from the tensor
                            of indices; NULL: */
    const int64_t *here; /* borrowed: the rows, in host memory, for the argument of a kernel, */
    int64_t *kept;       /* which writes them here for the kernels of images; NULL: no plans */
    int64_t row_count;
    int64_t first, rest;    /* place of the rows among the indices, and how many are left there */
    fl_py_gather_maps maps; /* of these rows and of later rows */
    bool are_drawn;         /* the maps; if not, fl_py_gather_rows draws them */
    void *stream;           /* torch's current stream, borrowed; set by open */
} fl_py_gather;

/* Takes indices [first, first + count) of a tensor, without reading the indices, and the current
 * stream. ValueError, IndexError. */
int fl_py_gather_open(fl_py_gather *self, PyObject *indices, int64_t first, int64_t count);

/* Opens a gather of the rows in `indices`, a vector in host memory of at most FL_GATHER_OWN_ROWS
 * indices, which travel in a kernel's argument. Checks the indices. */
int fl_py_gather_open_here(fl_py_gather *self, PyObject *indices);

/* A kind of source: `run` queues the kernels of all sources of this kind; the results go to the
 * sources' positions in the list `outs`. After the results the list has a tensor for the rows of
 * each staged source, in the order of the sources. */
typedef struct fl_py_gather_ops {
    int (*run)(const fl_py_gather *self, PyObject *outs);
    /* Fills in the maps to draw, or that are drawn, one batch for each source with a plan; maps of
     * staged sources have spans. NULL, except for images. */
    int (*find_maps)(const fl_py_gather *self, fl_map_batch *out);
} fl_py_gather_ops;

/* Returns true if a source is staged: its rows are copied to the device, and its plan makes images
 * of the copies. The kernels of images read single bytes, and several times. */
static inline bool fl_py_gather_is_staged(const fl_py_gather_source *source)
{
    return source->range != NULL && source->plan != NULL;
}

/* Copies fields without a plan, and rows of staged fields, and draws maps unless they are drawn:
 * one kernel for 16 fields and 4 plans. ValueError if a field has lost rows. */
extern const fl_py_gather_ops fl_py_gather_rows;

/* Runs fl_py_gather_rows, then makes images of the fields with a plan: one kernel for each field,
 * or two if its plan changes colours. */
extern const fl_py_gather_ops fl_py_gather_images;

/* Makes windows of the tokens; the indices are the windows' begins. outs: x, or x and y,
 * [row_count, length]; ints that are not narrower than the tokens. */
extern const fl_py_gather_ops fl_py_gather_windows;

/* Notes in the ranges that the stream reads them, once for all kernels of a batch, also if not all
 * kernels could be queued. Keeps an exception that is set. */
int fl_py_gather_note(const fl_py_gather *self);

/* Raises ValueError: the data have lost rows since the indices were checked. Returns NULL. */
PyObject *fl_py_gather_refuse(int64_t before, int64_t now);

/* ---- for the kinds alone */

/* Describes a tensor on the gather's device. ValueError if the tensor is on a different device. */
int fl_py_gather_view(const fl_py_gather *self, PyObject *tensor, fl_tensor *out);

/* Describes a field on the device or in a host range. ValueError if the field has lost rows. */
int fl_py_gather_view_source(const fl_py_gather *self, const fl_py_gather_source *source,
                             fl_tensor *out);

/* Queues the kernels of `what` on the stream. Runs without the interpreter lock; blocks while the
 * stream's queue is full. */
typedef int
fl_py_gather_launch(const fl_py_gather *self, void *stream, const void *what, fl_err *err);

/* Calls launch with the stream; fl_py_gather_note has to follow. */
int fl_py_gather_queue(const fl_py_gather *self, fl_py_gather_launch *launch, const void *what);

#endif
