/* fl_py_arrow: columns of Apache Arrow as ndarrays over Arrow's own memory.
 *
 * Reads the C data interface (https://arrow.apache.org/docs/format/CDataInterface.html), so
 * building and running need no Arrow library. All functions need the interpreter lock. */
#ifndef FL_PY_ARROW_H
#define FL_PY_ARROW_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

extern const char fl_py_arrow_rows_doc[], fl_py_arrow_lists_doc[], fl_py_int_lists_doc[];

/* Functions of the module; fl_py_*_doc describes each function. */
PyObject *fl_py_arrow_rows(PyObject *module, PyObject *chunk);
PyObject *fl_py_arrow_lists(PyObject *module, PyObject *chunks);
PyObject *fl_py_int_lists(PyObject *module, PyObject *args);

/* Finds the bytes of an object with __arrow_c_array__ that returns one capsule, as the core of
 * Pillow's images has: an array of `count` bytes, or of `count` lists of `lanes` bytes. Returns the
 * capsule, which keeps *out alive, as a new reference; NULL without an exception: there are no such
 * bytes. */
PyObject *fl_py_arrow_bytes(PyObject *object, int64_t count, int64_t lanes, const uint8_t **out);

#endif
