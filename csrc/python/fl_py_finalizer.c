/* fl_py_finalizer: the heap type _core.FinalizerBase, a base class whose finalizer Ctrl-C cannot
 * cut short. A __del__ in Python checks for signals before its first line, where nothing can catch.
 */
#include "fl_py.h"

/* Calls `self.name()` until Ctrl-C lets it return, a few times at most. Returns whether it came. */
static int call(PyObject *self, const char *name)
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

PyDoc_STRVAR(finalized_doc,
             "FinalizerBase()\n--\n\n"
             "The finalizer calls self._finalize(), again if Ctrl-C has stopped it, and then\n"
             "self._interrupt_later().");

static PyType_Slot finalized_slots[] = {
    {Py_tp_doc, (void *)finalized_doc}, {Py_tp_finalize, finalize}, {0, NULL}};

PyType_Spec fl_py_finalizer_spec = {.name = "fastloop._core.FinalizerBase",
                                    .basicsize = sizeof(PyObject),
                                    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE |
                                             Py_TPFLAGS_IMMUTABLETYPE,
                                    .slots = finalized_slots};
