/* fl_py_seed: reads seeds and epochs, which decide the random numbers, from Python ints.
 *
 * All functions need the interpreter lock. 0, or -1 and ValueError or TypeError. */
#ifndef FL_PY_SEED_H
#define FL_PY_SEED_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

int fl_py_seed(PyObject *number, uint64_t *out);  /* in [0, 2**64) */
int fl_py_epoch(PyObject *number, uint32_t *out); /* in [0, 2**32) */

#endif
