/* fl_py_balance: see fl_py_balance.h. */
#include "fl_py_balance.h"

#include "fl_balance.h"
#include "fl_py_error.h"

const char fl_py_balance_window_doc[] =
    "balance_window(lengths, costs, order, ends, ranks, accumulate, max_tokens, drop_last, /)\n"
    "--\n\n"
    "Divide the samples of a window into batches of equal cost. lengths: int64, costs:\n"
    "float64, of each sample, within the limits of fl_balance.h. The samples of all\n"
    "batches are written to order, and the end of each batch to ends: int64, with room\n"
    "for samples + ranks. Returns the number of batches. Releases the interpreter lock.";

enum { LENGTHS, COSTS, ORDER, ENDS, VECTORS };

PyObject *fl_py_balance_window(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer vectors[VECTORS];
    long long ranks, accumulate, max_tokens;
    int drop_last;
    if (!PyArg_ParseTuple(args, "y*y*w*w*LLLp:balance_window", vectors, vectors + COSTS,
                          vectors + ORDER, vectors + ENDS, &ranks, &accumulate, &max_tokens,
                          &drop_last))
        return NULL;
    fl_balance_rule rule = {.lengths = vectors[LENGTHS].buf,
                            .costs = vectors[COSTS].buf,
                            .count = vectors[LENGTHS].len / (int64_t)sizeof(int64_t),
                            .ranks = ranks,
                            .accumulate = accumulate,
                            .max_tokens = max_tokens,
                            .drop_last = drop_last != 0};
    int64_t room = fl_balance_room(&rule) * (int64_t)sizeof(int64_t), batches = 0;
    bool fits = vectors[COSTS].len == vectors[LENGTHS].len && vectors[ORDER].len >= room &&
                vectors[ENDS].len >= room;
    fl_err err;
    int status = FL_OK;
    Py_BEGIN_ALLOW_THREADS
    if (fits)
        status = fl_balance_plan(&rule, vectors[ORDER].buf, vectors[ENDS].buf, &batches, &err);
    Py_END_ALLOW_THREADS
    for (int i = 0; i < VECTORS; i++) PyBuffer_Release(vectors + i);
    if (!fits) PyErr_SetString(PyExc_ValueError, "balance_window: a vector is too short");
    if (!fits || fl_py_check(status, &err, NULL) != 0) return NULL;
    return PyLong_FromLongLong(batches);
}
