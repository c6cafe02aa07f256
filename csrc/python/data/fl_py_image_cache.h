/* fl_py_image_cache: the heap types _core.ImageCache, a file of decoded images, and _core.YccImage,
 * one image, which an ImagePlan takes in place of an array [height, width, 3].
 *
 * Both are read-only: any thread may use them. All functions need the interpreter lock. */
#ifndef FL_PY_IMAGE_CACHE_H
#define FL_PY_IMAGE_CACHE_H

#include "fl_py.h"
#include "fl_image_cache.h"

typedef struct fl_py_ycc_image {
    PyObject_HEAD
    fl_ycc image;    /* borrows from the owner */
    PyObject *owner; /* owned: an ImageCache or bytes */
} fl_py_ycc_image;

/* Makes a YccImage that keeps the owner of its data alive. New reference. */
PyObject *fl_py_ycc_image_make(PyTypeObject *type, const fl_ycc *image, PyObject *owner);

extern PyType_Spec fl_py_image_cache_spec, fl_py_ycc_image_spec;

#endif
