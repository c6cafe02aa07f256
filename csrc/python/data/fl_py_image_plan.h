/* fl_py_image_plan: the heap type _core.ImagePlan, operations on images that were compiled by
 * fastloop/data.
 *
 * A plan is read-only, but for `values`, so ring threads use it while the table that they fill from
 * keeps it alive. All functions need the interpreter lock. */
#ifndef FL_PY_IMAGE_PLAN_H
#define FL_PY_IMAGE_PLAN_H

#include "fl_image_plan.h"
#include "fl_py_dlpack.h"
#include "fl_transfer_ops.h"

typedef struct fl_py_image_plan {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    fl_image_plan *plan;    /* owned */
    fl_image_plan *cut;     /* owned: what makes the bytes that `tables` are for; NULL: */
    PyObject *uncut;        /* owned: a str that says why there is no such plan; "": there is */
    PyObject *tables;       /* owned: bytes, [channels][256] elements; or None */
    PyObject *values;       /* owned: what values() has made, or NULL */
    fl_image_layout memory; /* of what it makes */
    fl_image_layout layout; /* of the images that it is given */
    fl_dtype dtype;         /* of what it makes, */
    int64_t shape[3];       /* and its shape, */
    fl_image_layout form;   /* whose dimensions are these, */
    int64_t stride[3];      /* and its strides in elements */
} fl_py_image_plan;

extern PyType_Spec fl_py_image_plan_spec;

/* The image as the plan reads it, and the address of memory as the plan writes it; both borrow.
 * -1 or NULL, and TypeError or ValueError, where they are not. */
int fl_py_image_plan_source(const fl_py_image_plan *self, PyObject *image, fl_image_source *out);
char *fl_py_image_plan_memory(const fl_py_image_plan *self, PyObject *out);

/* What a destination does of one result: all of the plan, which has a map, or the lookup that `cut`
 * leaves. Borrows the tables. */
fl_transfer_cast fl_py_image_plan_cast(const fl_py_image_plan *self, bool is_whole);

#endif
