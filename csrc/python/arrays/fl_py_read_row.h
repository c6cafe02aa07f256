/* fl_py_read_row: the method _core.Table.read_row. It needs the interpreter lock. */
#ifndef FL_PY_READ_ROW_H
#define FL_PY_READ_ROW_H

#include "fl_py_table.h"

extern const char fl_py_read_row_doc[];
PyObject *fl_py_read_row(fl_py_table *self, PyObject *args);

#endif
