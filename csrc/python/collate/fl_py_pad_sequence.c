/* fl_py_pad_sequence: see fl_py_pad_sequence.h.
 *
 * The first step looks once at all tensors. Python code may run while the batch gets its memory,
 * for example a finalizer, and may resize a tensor. So the second step looks again, makes no
 * object, and copies. All functions enter with the interpreter lock. */
#include "fl_py_pad_sequence.h"

#include "fl_cpu_rows.h"
#include "fl_py_sequences.h"

#include <string.h>

enum { LONG_COPY = 256 << 10 }; /* bytes; a longer copy runs without the interpreter lock */

typedef struct steps {
    const char *data; /* borrowed from the tensor */
    int64_t stride;   /* bytes from a step to the next one */
    int64_t count;
} steps;

typedef struct sequences {
    PyObject **tensors; /* owned, and so is a reference to each tensor */
    steps *each;        /* owned */
    Py_ssize_t count;   /* of tensors */
    fl_tensor like;     /* the first tensor */
    int64_t step_bytes;
    int64_t longest; /* steps */
} sequences;

/* Reads the steps of a tensor. Returns 0, or FL_PY_UNCOVERED if the dtype or the shape of a step is
 * not the first tensor's, or a step has gaps in memory. */
static int read_steps(const fl_tensor *view, const sequences *all, steps *to)
{
    const fl_tensor *like = &all->like;
    if (view->ndim < 1 || view->ndim != like->ndim) return FL_PY_UNCOVERED;
    int64_t step = fl_dtype_bytes(view->dtype);
    bool is_alike = memcmp(&view->dtype, &like->dtype, sizeof view->dtype) == 0;
    for (int32_t d = view->ndim - 1; is_alike && d >= 1; d--) {
        is_alike =
            view->shape[d] == like->shape[d] && (view->shape[d] == 1 || view->stride[d] == step);
        step *= like->shape[d];
    }
    *to = (steps){view->data, view->stride[0], view->shape[0]};
    return is_alike ? 0 : FL_PY_UNCOVERED;
}

static int look_at_all(fl_py_stacker *stacker, sequences *all)
{
    fl_tensor other;
    for (Py_ssize_t i = 0; i < all->count; i++) {
        fl_tensor *view = i == 0 ? &all->like : &other;
        if (!fl_py_is_tensor(&stacker->dlpack, all->tensors[i])) return FL_PY_UNCOVERED;
        int look = fl_py_stacker_look(stacker, all->tensors[i], view);
        if (look != FL_PY_FINE) return look < 0 ? -1 : FL_PY_UNCOVERED;
        if (i == 0 && view->ndim > 0)
            all->step_bytes = fl_tensor_bytes(view->dtype, view->ndim - 1, view->shape + 1);
        /* torch decides about the strides of a batch without elements. */
        if (all->step_bytes <= 0 || view->ndim >= FL_MAX_NDIM) return FL_PY_UNCOVERED;
        if (read_steps(view, all, &all->each[i]) != 0) return FL_PY_UNCOVERED;
        all->longest = fl_max(all->longest, all->each[i].count);
    }
    return all->longest > 0 ? 0 : FL_PY_UNCOVERED;
}

static bool are_unmoved(const fl_py_stacker *stacker, const sequences *all)
{
    fl_tensor view;
    steps now;
    for (Py_ssize_t i = 0; i < all->count; i++) {
        if (fl_py_view(&stacker->dlpack, all->tensors[i], &view) != 0) {
            PyErr_Clear();
            return false;
        }
        const steps *seen = &all->each[i];
        if (read_steps(&view, all, &now) != 0 || now.data != seen->data ||
            now.stride != seen->stride || now.count != seen->count)
            return false;
    }
    return true;
}

/* Fills memory with copies of the 8 bytes of `padding`, whole elements. */
static void fill(char *to, int64_t bytes, const char *padding)
{
    int64_t at = 0;
    for (; at + 8 <= bytes; at += 8) memcpy(to + at, padding, 8);
    memcpy(to + at, padding, (size_t)(bytes - at));
}

/* Writes batch[i, t]. */
static void put_rows(const sequences *all, char *to, bool pad_left, const char *padding)
{
    int64_t bytes = all->step_bytes;
    for (Py_ssize_t i = 0; i < all->count; i++, to += all->longest * bytes) {
        const steps *from = &all->each[i];
        int64_t gap = (all->longest - from->count) * bytes;
        char *at = to + (pad_left ? gap : 0);
        fill(pad_left ? to : to + from->count * bytes, gap, padding);
        if (from->count > 0) /* an empty tensor may have no memory */
            fl_cpu_row_ops.copy_rows(at, from->data, from->stride, bytes, 0, from->count, false);
    }
}

/* Writes batch[t, i], in the order of memory. */
static inline __attribute__((always_inline)) void
put_steps(const sequences *all, char *to, bool pad_left, const char *padding, int64_t bytes)
{
    for (int64_t t = 0; t < all->longest; t++)
        for (Py_ssize_t i = 0; i < all->count; i++, to += bytes) {
            const steps *from = &all->each[i];
            int64_t at = pad_left ? t - (all->longest - from->count) : t;
            if (at >= 0 && at < from->count)
                memcpy(to, from->data + at * from->stride, (size_t)bytes);
            else
                fill(to, bytes, padding);
        }
}

static void
put_all(const sequences *all, char *to, bool batch_first, bool pad_left, const char *padding)
{
    if (batch_first)
        put_rows(all, to, pad_left, padding);
    else if (all->step_bytes == 8)
        put_steps(all, to, pad_left, padding, 8);
    else if (all->step_bytes == 4)
        put_steps(all, to, pad_left, padding, 4);
    else
        put_steps(all, to, pad_left, padding, all->step_bytes);
}

static PyObject *make_batch(fl_py_stacker *stacker, const sequences *all, bool batch_first,
                            bool pad_left, const char *padding)
{
    const fl_tensor *like = &all->like;
    int64_t shape[FL_MAX_NDIM + 1];
    char *data;
    shape[batch_first ? 0 : 1] = all->count;
    shape[batch_first ? 1 : 0] = all->longest;
    memcpy(shape + 2, like->shape + 1, (size_t)(like->ndim - 1) * sizeof *shape);
    int64_t bytes = fl_tensor_bytes(like->dtype, like->ndim + 1, shape);
    if (bytes < 0) return Py_NewRef(Py_NotImplemented);
    PyObject *tensor = fl_py_stacker_tensor(stacker, like->dtype, like->ndim + 1, shape, &data);
    if (tensor == NULL) return NULL;
    if (!are_unmoved(stacker, all)) {
        Py_DECREF(tensor);
        return Py_NewRef(Py_NotImplemented);
    }
    PyThreadState *saved = bytes >= LONG_COPY ? PyEval_SaveThread() : NULL;
    put_all(all, data, batch_first, pad_left, padding);
    if (saved != NULL) PyEval_RestoreThread(saved);
    return tensor;
}

static PyObject *
pad_all(fl_py_stacker *self, sequences *all, PyObject *fill_of, bool batch_first, bool pad_left)
{
    char padding[8];
    all->each = PyMem_New(steps, (size_t)all->count);
    if (all->each == NULL) return PyErr_NoMemory();
    int status = all->count > 0 ? look_at_all(self, all) : FL_PY_UNCOVERED;
    if (status == 0) status = fl_py_sequences_find_padding(fill_of, all->like.dtype, padding);
    if (status != 0) return status < 0 ? NULL : Py_NewRef(Py_NotImplemented);
    for (int64_t done = fl_dtype_bytes(all->like.dtype); done < 8; done *= 2)
        memcpy(padding + done, padding, (size_t)done);
    return make_batch(self, all, batch_first, pad_left, padding);
}

PyObject *fl_py_pad_sequence(fl_py_stacker *self, PyObject *args)
{
    PyObject *tensors, *fill_of;
    int batch_first, pad_left;
    if (!PyArg_ParseTuple(args, "OOpp:pad_sequence", &tensors, &fill_of, &batch_first, &pad_left))
        return NULL;
    if (!PyList_CheckExact(tensors) && !PyTuple_CheckExact(tensors))
        return Py_NewRef(Py_NotImplemented);
    sequences all = {0};
    if (fl_py_items_take(tensors, &all.tensors, &all.count) != 0) return NULL;
    PyObject *result = pad_all(self, &all, fill_of, batch_first, pad_left);
    for (Py_ssize_t i = 0; i < all.count; i++) Py_DECREF(all.tensors[i]);
    PyMem_Free(all.tensors);
    PyMem_Free(all.each);
    return result;
}
