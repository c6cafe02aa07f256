/* fl_py_snapshot: the heap type _core.Snapshot, the attributes of objects at one time; and a
 * function that finds functions of classes and modules that differ from noted ones.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_SNAPSHOT_H
#define FL_PY_SNAPSHOT_H

#include "fl_py.h"

extern PyType_Spec fl_py_snapshot_spec;
extern const char fl_py_find_other_doc[];

/* The function find_other of the module (METH_O). */
PyObject *fl_py_find_other(PyObject *module, PyObject *noted);

#endif
