/* fl_py_pure: functions of a program whose code shows that they draw nothing and keep nothing.
 *
 * All names in the code must be known: attributes and builtins from a list, modules from a list,
 * and globals with plain values. Then a result depends on the arguments and on these values alone.
 * All functions need the interpreter lock. */
#ifndef FL_PY_PURE_H
#define FL_PY_PURE_H

#include "fl_py.h"

/* Returns, as a new reference, a tuple of all that the results of a function depend on beside its
 * arguments, to be compared with another time; or a str: why that cannot be told. NULL: an
 * exception. An object of the class Lambda of torchvision is read as the function in it.
 *
 * is_seeder: the function may seed the generators of a worker, and do nothing else; otherwise it
 * may compute with numbers, tensors and arrays. */
PyObject *fl_py_read_function(PyObject *function, bool is_seeder);

#endif
