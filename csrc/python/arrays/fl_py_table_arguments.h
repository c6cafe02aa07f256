/* fl_py_table_arguments: what _core.Table accepts as files, plans and casts of its sources. */
#ifndef FL_PY_TABLE_ARGUMENTS_H
#define FL_PY_TABLE_ARGUMENTS_H

#include "fl_py.h"

/* Sources and files are tuples of one length. 0, or -1 and TypeError. */
int fl_py_table_check_arguments(const fl_py_state *state, PyObject *sources, PyObject *files,
                                PyObject *plans, PyObject *casts);

#endif
