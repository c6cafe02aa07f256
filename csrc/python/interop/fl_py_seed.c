/* fl_py_seed: see fl_py_seed.h. */
#include "fl_py_seed.h"

#include "fl_py_error.h"

#include <stdbool.h>

static int read_number(PyObject *number, const char *name, int bits, uint64_t *out)
{
    if (!PyLong_Check(number))
        return FL_PY_FAIL(PyExc_TypeError, "%s must be an int, got %R", name, number);
    *out = PyLong_AsUnsignedLongLong(number);
    bool has_failed = PyErr_Occurred() != NULL;
    if (!has_failed && (bits == 64 || *out >> bits == 0)) return 0;
    PyErr_Clear();
    return FL_PY_FAIL(PyExc_ValueError, "%s must be in [0, 2**%d), got %R", name, bits, number);
}

int fl_py_seed(PyObject *number, uint64_t *out) { return read_number(number, "seed", 64, out); }

int fl_py_epoch(PyObject *number, uint32_t *out)
{
    uint64_t value;
    if (read_number(number, "epoch", 32, &value) != 0) return -1;
    *out = (uint32_t)value;
    return 0;
}
