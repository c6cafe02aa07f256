/* fl_py_section: critical sections, which replace the interpreter lock in interpreters without one
 * (CPython 3.13t, 3.14t). With the lock a section is empty and costs nothing.
 *
 * A section belongs to an object, and one thread at a time is in the section. Like the interpreter
 * lock, a section is released whenever its thread waits or releases the lock. Sections therefore
 * need no order; and Python code that is called inside a section may let in more threads.
 * docs/internals/threads.md says which object needs a section. */
#ifndef FL_PY_SECTION_H
#define FL_PY_SECTION_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#ifdef Py_GIL_DISABLED
#define FL_PY_BEGIN_SECTION(object) Py_BEGIN_CRITICAL_SECTION(object)
#define FL_PY_END_SECTION() Py_END_CRITICAL_SECTION()
typedef _Atomic int64_t fl_py_count; /* several threads add to this number */
#else
#define FL_PY_BEGIN_SECTION(object) \
    {                               \
        (void)(object);
#define FL_PY_END_SECTION() }
typedef int64_t fl_py_count;
#endif

/* Defines a method NAME_in_section, which calls NAME(self, arg) in the section of `object`, an
 * expression of self. */
#define FL_PY_METHOD_IN_SECTION(name, type, object)               \
    static PyObject *name##_in_section(type *self, PyObject *arg) \
    {                                                             \
        PyObject *result;                                         \
        FL_PY_BEGIN_SECTION((PyObject *)(object));                \
        result = name(self, arg);                                 \
        FL_PY_END_SECTION();                                      \
        return result;                                            \
    }

/* Returns an item of a list or tuple that other threads may change. New reference; NULL without an
 * exception if the index is past the end. */
static inline PyObject *fl_py_item(PyObject *sequence, Py_ssize_t i)
{
#ifdef Py_GIL_DISABLED
    if (PyList_Check(sequence)) {
        PyObject *item = PyList_GetItemRef(sequence, i);
        if (item == NULL) PyErr_Clear();
        return item;
    }
#endif
    return i < PySequence_Fast_GET_SIZE(sequence) ? Py_NewRef(PySequence_Fast_GET_ITEM(sequence, i))
                                                  : NULL;
}

/* Returns the value of a key in a dict that other threads may change. New reference; NULL: the key
 * is missing, or an exception is set. */
static inline PyObject *fl_py_value(PyObject *dict, PyObject *key)
{
#ifdef Py_GIL_DISABLED
    PyObject *value;
    (void)PyDict_GetItemRef(dict, key, &value);
    return value;
#else
    return Py_XNewRef(PyDict_GetItemWithError(dict, key));
#endif
}

#endif
