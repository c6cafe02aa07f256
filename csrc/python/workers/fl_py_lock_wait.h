/* fl_py_lock_wait: measures how long a thread waits for the interpreter lock. */
#ifndef FL_PY_LOCK_WAIT_H
#define FL_PY_LOCK_WAIT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Function of the module, without arguments: gives up the interpreter lock for about 50 us, so that
 * a waiting thread can run, and returns the ns until the caller has the lock again. Any thread that
 * holds the lock may call this function. */
PyObject *fl_py_lock_wait(PyObject *module, PyObject *ignored);
extern const char fl_py_lock_wait_doc[];

#endif
