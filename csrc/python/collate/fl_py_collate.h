/* fl_py_collate: the heap type _core.Collate, torch's default_collate in native code. */
#ifndef FL_PY_COLLATE_H
#define FL_PY_COLLATE_H

#include "fl_py.h"

extern PyType_Spec fl_py_collate_spec;

#endif
