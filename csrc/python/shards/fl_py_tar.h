/* fl_py_tar: functions of the module for tar archives: the samples of an archive, and the members
 * of a sample. */
#ifndef FL_PY_TAR_H
#define FL_PY_TAR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char fl_py_tar_index_doc[];
extern const char fl_py_tar_members_doc[];
extern const char fl_py_checksum_doc[];

/* tar_index(path, descriptor, bytes) */
PyObject *fl_py_tar_index(PyObject *module, PyObject *args);

/* tar_members(sample, check) */
PyObject *fl_py_tar_members(PyObject *module, PyObject *args);

/* checksum(data) */
PyObject *fl_py_checksum(PyObject *module, PyObject *data);

#endif
