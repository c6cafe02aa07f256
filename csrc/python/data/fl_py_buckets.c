/* fl_py_buckets: see fl_py_buckets.h. */
#include "fl_py_buckets.h"

#include "fl_buckets.h"
#include "fl_py_error.h"
#include "fl_py_numpy.h"

#include <string.h>

/* The arguments, vectors of int64, and memory for the steps. */
typedef struct bucket_call {
    Py_buffer lengths, given; /* not open if buf is NULL */
    fl_bucket_rule rule;
    int64_t count;
    int64_t *order, *spare, *ends; /* owned */
} bucket_call;

static void close_call(bucket_call *call)
{
    fl_free(call->order);
    fl_free(call->spare);
    fl_free(call->ends);
    if (call->lengths.buf != NULL) PyBuffer_Release(&call->lengths);
    if (call->given.buf != NULL) PyBuffer_Release(&call->given);
}

/* Copies the given order and allocates the memory: 0, or -1 and an exception. */
static int copy_order(bucket_call *call)
{
    const int64_t *given = call->given.buf;
    int64_t room;
    if (fl_mul(fl_buckets_room(&call->rule, call->count), (int64_t)sizeof *given, &room)) {
        call->order = fl_alloc(room);
        call->spare = fl_alloc(room);
        call->ends = fl_alloc((call->count + 1) * (int64_t)sizeof *given);
    }
    if (call->order == NULL || call->spare == NULL || call->ends == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t i = 0; i < call->count; i++) {
        call->order[i] = given[i];
        if (given[i] >= 0 && given[i] < call->rule.count) continue;
        return FL_PY_FAIL(PyExc_IndexError,
                          "bucket_steps: the order has an index without a length");
    }
    return 0;
}

/* Lists the steps, one array each. The step with the longest sample trades places with the first
 * one. New reference. */
static PyObject *list_steps(const bucket_call *call, int64_t steps)
{
    PyObject *list = PyList_New((Py_ssize_t)steps);
    int64_t begin = 0, most = -1;
    Py_ssize_t longest = 0;
    for (Py_ssize_t i = 0; list != NULL && i < steps; i++) {
        int64_t *data, size = call->ends[i] - begin;
        PyObject *step = fl_py_int64_vector((Py_ssize_t)size, &data);
        if (step == NULL) {
            Py_CLEAR(list);
            break;
        }
        memcpy(data, call->order + begin, (size_t)size * sizeof *data);
        PyList_SET_ITEM(list, i, step);
        int64_t length = call->rule.lengths[call->order[begin]];
        if (length > most) longest = i;
        most = fl_max(most, length);
        begin = call->ends[i];
    }
    if (list == NULL || longest == 0) return list;
    PyObject *first = PyList_GET_ITEM(list, 0);
    PyList_SET_ITEM(list, 0, PyList_GET_ITEM(list, longest));
    PyList_SET_ITEM(list, longest, first);
    return list;
}

const char fl_py_bucket_steps_doc[] =
    "bucket_steps(lengths, order, ranks, batch_size, max_tokens, mega_steps, drop_last, /)\n--\n\n"
    "Cut an order of samples into steps of samples of similar length. lengths: int64,\n"
    "the length of each sample. order: int64, the order of the samples. batch_size or\n"
    "max_tokens may be 0 for no such limit; mega_steps=0 sorts all samples. Returns a\n"
    "list of int64 arrays, one for each step; the step with the longest sample comes\n"
    "first. Releases the interpreter lock.";

PyObject *fl_py_bucket_steps(PyObject *Py_UNUSED(module), PyObject *args)
{
    bucket_call call = {0};
    long long ranks, batch_size, max_tokens, mega_steps;
    int drop_last;
    PyObject *list = NULL;
    if (!PyArg_ParseTuple(args, "y*y*LLLLp:bucket_steps", &call.lengths, &call.given, &ranks,
                          &batch_size, &max_tokens, &mega_steps, &drop_last))
        return NULL;
    call.count = call.given.len / (int64_t)sizeof(int64_t);
    call.rule = (fl_bucket_rule){.lengths = call.lengths.buf,
                                 .count = call.lengths.len / (int64_t)sizeof(int64_t),
                                 .ranks = fl_max(ranks, 1),
                                 .batch_size = batch_size,
                                 .max_tokens = max_tokens,
                                 .mega_steps = mega_steps,
                                 .drop_last = drop_last != 0};
    if (copy_order(&call) == 0) {
        int64_t steps;
        Py_BEGIN_ALLOW_THREADS
        steps = fl_buckets_split(&call.rule, call.count, call.order, call.spare, call.ends);
        Py_END_ALLOW_THREADS
        list = list_steps(&call, steps);
    }
    close_call(&call);
    return list;
}
