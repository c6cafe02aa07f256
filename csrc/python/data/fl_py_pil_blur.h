/* fl_py_pil_blur: blurs, affine transforms and kept images in the memory of Pillow's images. Need
 * the interpreter lock, and give it up meanwhile. */
#ifndef FL_PY_PIL_BLUR_H
#define FL_PY_PIL_BLUR_H

#include "fl_py.h"

/* pil_blur of _core: blurs a core in place. */
PyObject *fl_py_pil_blur(PyObject *module, PyObject *args);
extern const char fl_py_pil_blur_doc[];

/* pil_clear of _core: clears the bytes of a core that no channel has. */
PyObject *fl_py_pil_clear(PyObject *module, PyObject *core);
extern const char fl_py_pil_clear_doc[];

/* pil_ycc of _core: writes planes of YCbCr as an image. */
PyObject *fl_py_pil_ycc(PyObject *module, PyObject *args);
extern const char fl_py_pil_ycc_doc[];

/* pil_affine of _core: writes a turned or sheared image. */
PyObject *fl_py_pil_affine(PyObject *module, PyObject *args);
extern const char fl_py_pil_affine_doc[];

#endif
