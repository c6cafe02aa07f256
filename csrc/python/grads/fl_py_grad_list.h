/* fl_py_grad_list: the heap type _core.GradListBase, a list of tensors and the passes over the
 * list. */
#ifndef FL_PY_GRAD_LIST_H
#define FL_PY_GRAD_LIST_H

#include "fl_py.h"

extern PyType_Spec fl_py_grad_list_spec;

#endif
