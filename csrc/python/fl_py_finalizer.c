/* fl_py_finalizer: see fl_py_finalizer.h. A __del__ written in Python would not do: the interpreter
 * checks for signals before its first line, and no code can catch that KeyboardInterrupt. */
#include "fl_py_finalizer.h"

#include "fl_py.h"

#include <stdbool.h>

/* Calls `self.name()`, again after each interruption by Ctrl-C, 8 times at most. Returns true if
 * Ctrl-C has interrupted a call. */
static bool call(PyObject *self, const char *name)
{
    int interrupts = 0;
    PyObject *done = NULL;
    while (interrupts < 8 && (done = PyObject_CallMethod(self, name, NULL)) == NULL &&
           PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
        PyErr_Clear();
        interrupts++;
    }
    if (done == NULL && PyErr_Occurred()) PyErr_WriteUnraisable(self);
    Py_XDECREF(done);
    return interrupts > 0;
}

static void finalize(PyObject *self)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (call(self, "_finalize")) call(self, "_interrupt_later");
    PyErr_Restore(type, value, traceback);
}

PyDoc_STRVAR(finalizer_doc,
             "FinalizerBase()\n--\n\n"
             "A base class whose finalizer calls self._finalize(). If Ctrl-C interrupts the\n"
             "call, the finalizer calls self._finalize() again, and then\n"
             "self._interrupt_later().");

static PyType_Slot finalizer_slots[] = {
    {Py_tp_doc, (void *)finalizer_doc}, {Py_tp_finalize, finalize}, {0, NULL}};

PyType_Spec fl_py_finalizer_spec =
    FL_PY_SPEC("FinalizerBase", PyObject, Py_TPFLAGS_BASETYPE, finalizer_slots);
