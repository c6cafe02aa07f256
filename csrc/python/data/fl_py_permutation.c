/* fl_py_permutation: see fl_py_permutation.h. A permutation never changes: any thread with the
 * interpreter lock may use it. */
#include "fl_py_permutation.h"

#include "fl_py.h"
#include "fl_permutation.h"
#include "fl_py_numpy.h"
#include "fl_py_seed.h"

enum { LARGE_BLOCK = 4096 }; /* indices; a larger block is made without the interpreter lock */

typedef struct fl_py_permutation {
    PyObject_HEAD
    fl_permutation permutation;
} fl_py_permutation;

static PyObject *permutation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"n", "seed", "epoch", NULL};
    long long count;
    PyObject *seed_given, *epoch_given;
    uint64_t seed;
    uint32_t epoch;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LOO:Permutation", keywords, &count, &seed_given,
                                     &epoch_given) ||
        fl_py_seed(seed_given, &seed) != 0 || fl_py_epoch(epoch_given, &epoch) != 0)
        return NULL;
    if (count < 0 || count > FL_PERMUTATION_MAX)
        return PyErr_Format(PyExc_ValueError, "Permutation: n must be in [0, 2**62], got %lld",
                            count);
    fl_py_permutation *self = (fl_py_permutation *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->permutation = fl_permutation_make(count, seed, epoch);
    return (PyObject *)self;
}

static void permutation_dealloc(fl_py_permutation *self) { fl_py_free(self); }

static bool is_within(const fl_permutation *permutation, int64_t first, int64_t count, int64_t step)
{
    int64_t last;
    if (count == 0) return true;
    return first >= 0 && first < permutation->count && count > 0 && step > 0 &&
           fl_mul(count - 1, step, &last) && last < permutation->count - first;
}

PyDoc_STRVAR(block_doc,
             "block(first, count, step=1)\n--\n\n"
             "Return an int64 array with the indices at positions first, first + step, ...:\n"
             "`count` indices. Releases the interpreter lock. Raises IndexError for a position\n"
             "outside [0, n).");

static PyObject *permutation_block(fl_py_permutation *self, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"first", "count", "step", NULL};
    long long first, count, step = 1;
    int64_t *data;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LL|L:block", keywords, &first, &count, &step))
        return NULL;
    if (!is_within(&self->permutation, first, count, step))
        return PyErr_Format(
            PyExc_IndexError,
            "block(first=%lld, count=%lld, step=%lld) must stay within an order of n=%lld", first,
            count, step, (long long)self->permutation.count);
    PyObject *out = fl_py_int64_vector((Py_ssize_t)count, &data);
    if (out == NULL) return NULL;
    if (count <= LARGE_BLOCK) {
        fl_permutation_block(&self->permutation, first, count, step, data);
        return out;
    }
    Py_BEGIN_ALLOW_THREADS
    fl_permutation_block(&self->permutation, first, count, step, data);
    Py_END_ALLOW_THREADS
    return out;
}

static PyMethodDef permutation_methods[] = {{"block",
                                             (PyCFunction)(void (*)(void))permutation_block,
                                             METH_VARARGS | METH_KEYWORDS, block_doc},
                                            {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(permutation_doc,
             "Permutation(n, seed, epoch)\n--\n\n"
             "A random order of the indices in [0, n), for n at most 2**62. The object takes 8\n"
             "KiB for every n. Equal arguments always give the same order.");

static PyType_Slot permutation_slots[] = {{Py_tp_doc, (void *)permutation_doc},
                                          {Py_tp_new, permutation_new},
                                          {Py_tp_dealloc, permutation_dealloc},
                                          {Py_tp_methods, permutation_methods},
                                          {0, NULL}};

PyType_Spec fl_py_permutation_spec =
    FL_PY_SPEC("Permutation", fl_py_permutation, 0, permutation_slots);
