/* fl_py_balance: plans a window of a CostBatchSampler. Needs the interpreter lock. */
#ifndef FL_PY_BALANCE_H
#define FL_PY_BALANCE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char fl_py_balance_window_doc[];

/* balance_window(lengths, costs, ranks, accumulate, max_tokens, drop_last) */
PyObject *fl_py_balance_window(PyObject *module, PyObject *args);

#endif
