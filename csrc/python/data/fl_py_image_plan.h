/* fl_py_image_plan: the heap type _core.ImagePlan, operations on images, compiled by fastloop/data.
 *
 * A plan is read-only except for `values`, so ring threads use the plan while the table keeps it
 * alive. All functions need the interpreter lock. */
#ifndef FL_PY_IMAGE_PLAN_H
#define FL_PY_IMAGE_PLAN_H

#include "fl_image_plan.h"
#include "fl_py_dlpack.h"
#include "fl_transfer_ops.h"

typedef struct fl_py_image_plan {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    fl_image_plan *plan; /* owned */
    fl_image_plan
        *host_part;         /* owned: makes the bytes to look up in `tables`; NULL: there is none */
    PyObject *why_whole;    /* owned: str, why there is no host part; "": there is one */
    PyObject *tables;       /* owned: bytes, [channels][256] elements; or None */
    PyObject *values;       /* owned: the result of values(), or NULL */
    fl_image_layout memory; /* memory layout of a result */
    fl_image_layout layout; /* layout of the images that the plan reads */
    fl_dtype dtype;         /* dtype of a result */
    int64_t shape[3];       /* shape of a result */
    fl_image_layout form;   /* order of the dimensions in shape */
    int64_t stride[3];      /* strides of a result, in elements */
} fl_py_image_plan;

extern PyType_Spec fl_py_image_plan_spec;

/* Returns true if the image is a YccImage or a JpegImage that the plan can read. */
bool fl_py_image_plan_is_encoded(const fl_py_image_plan *self, PyObject *image);

/* Describes the image as the plan reads images, and finds the address of memory that the plan can
 * write; both borrow. If the image or the memory does not fit the plan: -1 or NULL, and TypeError
 * or ValueError. */
int fl_py_image_plan_source(const fl_py_image_plan *self, PyObject *image, fl_image_source *out);
char *fl_py_image_plan_memory(const fl_py_image_plan *self, PyObject *out);

/* Describes the destination's work on one result: the whole plan, which has a map, or the lookup
 * that `host_part` leaves. Borrows the tables. */
fl_transfer_cast fl_py_image_plan_cast(const fl_py_image_plan *self, bool is_whole);

#endif
