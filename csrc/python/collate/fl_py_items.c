/* fl_py_items: see fl_py_items.h. */
#include "fl_py_items.h"

#include "fl_py_section.h"

/* SHARED(samples): any thread may change the list, but not during the copy. */
int fl_py_items_take(PyObject *sequence, PyObject ***items, Py_ssize_t *count)
{
    FL_PY_BEGIN_SECTION(sequence);
    *count = PySequence_Fast_GET_SIZE(sequence);
    *items = *count > 0 ? PyMem_New(PyObject *, (size_t)*count) : NULL;
    for (Py_ssize_t i = 0; *items != NULL && i < *count; i++)
        (*items)[i] = Py_NewRef(PySequence_Fast_GET_ITEM(sequence, i));
    FL_PY_END_SECTION();
    if (*count == 0 || *items != NULL) return 0;
    *count = 0;
    PyErr_NoMemory();
    return -1;
}

PyObject *fl_py_items_object(const fl_py_items *batch)
{
    if (batch->original != NULL) return Py_NewRef(batch->original);
    PyObject *object = batch->is_tuple ? PyTuple_New(batch->count) : PyList_New(batch->count);
    for (Py_ssize_t i = 0; object != NULL && i < batch->count; i++) {
        PyObject *item = Py_NewRef(batch->items[i]);
        if (batch->is_tuple)
            PyTuple_SET_ITEM(object, i, item);
        else
            PyList_SET_ITEM(object, i, item);
    }
    return object;
}

PyObject *fl_py_items_call(PyObject *function, PyObject *first, const fl_py_items *batch)
{
    PyObject *values = function != NULL ? fl_py_items_object(batch) : NULL;
    if (function == NULL) PyErr_SetString(PyExc_ReferenceError, "this collate is being destroyed");
    PyObject *args[] = {first, values};
    PyObject *const *given = first != NULL ? args : args + 1;
    PyObject *result = NULL;
    if (values != NULL)
        result = PyObject_Vectorcall(function, given, (size_t)(args + 2 - given), NULL);
    Py_XDECREF(values);
    return result;
}
