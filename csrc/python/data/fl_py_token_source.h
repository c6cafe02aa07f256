/* fl_py_token_source: reads Python's descriptions of files and arrays of tokens for the core.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_TOKEN_SOURCE_H
#define FL_PY_TOKEN_SOURCE_H

#include "fl_py_dlpack.h"
#include "fl_token_reader.h"

/* Reads (name, source, first_byte, tokens, dtype, ends[, mapped]); source is a descriptor or an
 * array. Arrays are appended to the list `kept`, and *out borrows from the arrays; the descriptor
 * is borrowed from the caller. *out allows any token. 0, or -1 and an exception. */
int fl_py_token_source(const fl_py_dlpack *dlpack, PyObject *item, PyObject *kept,
                       fl_token_source *out);

#endif
