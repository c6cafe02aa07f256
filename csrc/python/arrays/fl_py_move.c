/* fl_py_move: see fl_py_move.h. */
#include "fl_py_move.h"

#include "fl_py.h"
#include "fl_py_table.h"
#include "fl_py_windows.h"

/* Returns the gate of a Table or Windows; NULL and TypeError for any other object. */
static fl_gate *gate_of(const fl_py_state *state, PyObject *keeper)
{
    if (Py_IS_TYPE(keeper, state->table_type)) return &((fl_py_table *)keeper)->gate;
    if (Py_IS_TYPE(keeper, state->windows_type)) return &((fl_py_windows *)keeper)->gate;
    PyErr_Format(PyExc_TypeError, "move: keepers must be Tables and Windows, got %.100s",
                 Py_TYPE(keeper)->tp_name);
    return NULL;
}

/* Closes a gate and waits until nobody is inside, without the interpreter lock. Readers leave the
 * gate without the lock. */
static void close_gate(fl_gate *gate)
{
    fl_gate_close(gate);
    Py_BEGIN_ALLOW_THREADS
    fl_gate_wait(gate);
    Py_END_ALLOW_THREADS
}

static void look(const fl_py_state *state, PyObject *keeper)
{
    if (Py_IS_TYPE(keeper, state->table_type))
        fl_py_table_look((fl_py_table *)keeper);
    else
        fl_py_windows_look((fl_py_windows *)keeper);
}

const char fl_py_move_doc[] =
    PyDoc_STR("move(keepers, function, args, kwargs)\n--\n\n"
              "Call function(*args, **kwargs) while nobody reads the Tables and Windows in the\n"
              "tuple `keepers`, and return the result. The function may move the memory that\n"
              "the keepers read; afterwards the keepers look up the new addresses.\n"
              "Waits for readers without the interpreter lock.");

PyObject *fl_py_move(PyObject *module, PyObject *args)
{
    const fl_py_state *state = PyModule_GetState(module);
    PyObject *keepers, *function, *arguments, *keywords;
    if (!PyArg_ParseTuple(args, "O!OO!O!:move", &PyTuple_Type, &keepers, &function, &PyTuple_Type,
                          &arguments, &PyDict_Type, &keywords))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(keepers);
    for (Py_ssize_t i = 0; i < count; i++)
        if (gate_of(state, PyTuple_GET_ITEM(keepers, i)) == NULL) return NULL;
    for (Py_ssize_t i = 0; i < count; i++) close_gate(gate_of(state, PyTuple_GET_ITEM(keepers, i)));
    PyObject *result = PyObject_Call(function, arguments, keywords);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    /* A Table reads through its Windows without entering the gate of the Windows. */
    for (Py_ssize_t i = 0; i < count; i++) look(state, PyTuple_GET_ITEM(keepers, i));
    for (Py_ssize_t i = 0; i < count; i++)
        fl_gate_open(gate_of(state, PyTuple_GET_ITEM(keepers, i)));
    PyErr_Restore(type, value, traceback);
    return result;
}
