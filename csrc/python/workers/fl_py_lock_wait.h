/* fl_py_lock_wait: how long a thread waits for the interpreter lock. */
#ifndef FL_PY_LOCK_WAIT_H
#define FL_PY_LOCK_WAIT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* A function of the module without arguments: gives the interpreter lock up for about 50 us, so
 * that a thread that waits for it runs, and returns the ns until the caller has it again. Any
 * thread that has the lock. */
PyObject *fl_py_lock_wait(PyObject *module, PyObject *ignored);
extern const char fl_py_lock_wait_doc[];

#endif
