/* fl_py_step_hook: the heap type _core.StepHook, a function that stands in place of a function of
 * torch, on any thread, and logs the usual call without running Python.
 *
 * A usual call is made by the thread of the StepLog, with an object that the log expects, before
 * the time at which Python wants to look. All other calls go to a Python function. All functions
 * need the interpreter lock. */
#ifndef FL_PY_STEP_HOOK_H
#define FL_PY_STEP_HOOK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec fl_py_step_hook_spec;

#endif
