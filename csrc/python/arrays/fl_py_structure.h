/* fl_py_structure: what lies around the tensors of a batch: lists and dicts within each other.
 *
 * A structure is None for the next output of the table, a tuple of structures for a list, or a dict
 * of structures for a dict. Nobody changes it once it is checked. All functions need the
 * interpreter lock. */
#ifndef FL_PY_STRUCTURE_H
#define FL_PY_STRUCTURE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* 0 if it is a structure of so many outputs; else -1 and ValueError. */
int fl_py_structure_check(PyObject *structure, int32_t outputs);

/* The number of its outputs; -1 and ValueError for other objects. */
int64_t fl_py_structure_count(PyObject *structure);

/* The outputs, a list, in their structure. Takes the list. New reference; NULL and an exception. */
PyObject *fl_py_structure_around(PyObject *structure, PyObject *outputs);

#endif
