/* fl_py_token_mask: _core.mask_tokens, the draws of masked language models. Needs the interpreter
 * lock. */
#ifndef FL_PY_TOKEN_MASK_H
#define FL_PY_TOKEN_MASK_H

#include "fl_py.h"

PyObject *fl_py_mask_tokens(PyObject *module, PyObject *args);
extern const char fl_py_mask_tokens_doc[];

#endif
