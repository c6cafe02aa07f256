/* fl_py_fallbacks: see fl_py_fallbacks.h. */
#include "fl_py_fallbacks.h"

static const char *const reasons[FL_FALLBACK_REASONS] = {
    [FL_PY_NOT_PLAIN] = "not a plain tensor, array or number",
    [FL_PY_MIXED] = "types, dtypes or shapes differ within a batch",
    [FL_PY_STRIDED] = "not contiguous",
    [FL_PY_REGISTRY] = "default_collate_fn_map was changed",
    [FL_PY_MODE] = "a default device, or a function or dispatch mode of torch, is active",
};

PyObject *fl_py_fallbacks_dict(const int64_t *counts)
{
    PyObject *result = PyDict_New();
    for (int i = 0; result != NULL && i < FL_FALLBACK_REASONS; i++) {
        if (counts[i] == 0 || reasons[i] == NULL) continue;
        PyObject *count = PyLong_FromLongLong(counts[i]);
        if (count == NULL || PyDict_SetItemString(result, reasons[i], count) != 0) Py_CLEAR(result);
        Py_XDECREF(count);
    }
    return result;
}
