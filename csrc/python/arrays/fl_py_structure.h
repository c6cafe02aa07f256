/* fl_py_structure: puts the tensors of a batch into nested lists and dicts.
 *
 * A structure is None for the next output of the table, a tuple of structures for a list, or a dict
 * of structures for a dict. A checked structure never changes. All functions need the interpreter
 * lock. */
#ifndef FL_PY_STRUCTURE_H
#define FL_PY_STRUCTURE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* Checks a structure: 0 if it has this many outputs; else -1 and ValueError. */
int fl_py_structure_check(PyObject *structure, int32_t outputs);

/* Returns the number of outputs in a structure; -1 and ValueError if the object is not a
 * structure. */
int64_t fl_py_structure_count(PyObject *structure);

/* Arranges the outputs, a list, in their structure. Takes the list. New reference; NULL and an
 * exception. */
PyObject *fl_py_structure_around(PyObject *structure, PyObject *outputs);

#endif
