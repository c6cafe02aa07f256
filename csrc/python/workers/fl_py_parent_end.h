/* fl_py_parent_end: the heap type _core.ParentEnd, the parent's end of the memory that it shares
 * with its workers. */
#ifndef FL_PY_PARENT_END_H
#define FL_PY_PARENT_END_H

#include "fl_py.h"

extern PyType_Spec fl_py_parent_end_spec;

#endif
