/* fl_py_mixture: see fl_py_mixture.h. A mixture never changes: any thread may use it. */
#include "fl_py_mixture.h"

#include "fl_py.h"
#include "fl_py_error.h"
#include "fl_py_numpy.h"
#include "fl_py_seed.h"

typedef struct fl_py_mixture {
    PyObject_HEAD
    fl_mixed_rows *rows; /* owned */
    Py_ssize_t sources;
} fl_py_mixture;

fl_mixed_rows *fl_py_mixture_rows(PyObject *mixture) { return ((fl_py_mixture *)mixture)->rows; }

/* Adds a segment, (begin, sources, weights): 0, or -1 and an exception. */
static int add_segment(fl_py_mixture *self, PyObject *segment)
{
    long long begin;
    Py_buffer sources, weights;
    fl_err err;
    if (!PyTuple_Check(segment))
        return FL_PY_FAIL(PyExc_TypeError, "Mixture: a segment must be a tuple, got %R", segment);
    if (!PyArg_ParseTuple(segment, "Ly*y*:Mixture", &begin, &sources, &weights)) return -1;
    int status = -1;
    int64_t count = sources.len / (int64_t)sizeof(int64_t);
    if (sources.len == weights.len && count <= FL_MIXTURE_SOURCES)
        status = fl_py_check(
            fl_mixed_rows_add(self->rows, begin, sources.buf, weights.buf, (int32_t)count, &err),
            &err, NULL);
    else
        PyErr_SetString(PyExc_ValueError, "Mixture: each source of a segment must have a weight");
    PyBuffer_Release(&sources);
    PyBuffer_Release(&weights);
    return status;
}

static int open_rows(fl_py_mixture *self, const fl_mixed_config *config, PyObject *segments,
                     long long length, bool is_alike)
{
    fl_err err;
    if (fl_py_check(fl_mixed_rows_open(config, &self->rows, &err), &err, NULL) != 0) return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(segments); i++)
        if (add_segment(self, PyTuple_GET_ITEM(segments, i)) != 0) return -1;
    if (fl_mixed_rows_segments(self->rows) == 0 || length < 1)
        return FL_PY_FAIL(PyExc_ValueError,
                          "Mixture: there must be a segment, and length must be at least 1");
    fl_mixed_rows_set_epochs(self->rows, length, is_alike);
    return 0;
}

static PyObject *mixture_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"lengths",     "names",  "segments", "seed",    "is_even",
                               "is_shuffled", "length", "is_alike", "endless", NULL};
    const char *endless = NULL;
    Py_ssize_t flags = 0;
    Py_buffer lengths, names;
    PyObject *segments, *seed;
    int is_even, is_shuffled, is_alike;
    long long length;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*y*O!OppLp|y#:Mixture", keywords, &lengths,
                                     &names, &PyTuple_Type, &segments, &seed, &is_even,
                                     &is_shuffled, &length, &is_alike, &endless, &flags))
        return NULL;
    fl_py_mixture *self = (fl_py_mixture *)type->tp_alloc(type, 0);
    fl_mixed_config config = {.lengths = lengths.buf,
                              .names = names.buf,
                              .endless = endless,
                              .is_even = is_even != 0,
                              .is_shuffled = is_shuffled != 0};
    int64_t count = lengths.len / (int64_t)sizeof(int64_t);
    bool fits = count <= FL_MIXTURE_SOURCES && names.len == count * (int64_t)sizeof(uint32_t) &&
                (endless == NULL || flags == count);
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "Mixture: each source must have a name, and a flag");
    config.count = (int32_t)count;
    if (self != NULL) self->sources = (Py_ssize_t)count;
    if (!fits || self == NULL || fl_py_seed(seed, &config.seed) != 0 ||
        open_rows(self, &config, segments, length, is_alike != 0) != 0)
        Py_CLEAR(self);
    PyBuffer_Release(&lengths);
    PyBuffer_Release(&names);
    return (PyObject *)self;
}

static void mixture_dealloc(fl_py_mixture *self)
{
    fl_mixed_rows_close(self->rows);
    fl_py_free(self);
}

PyDoc_STRVAR(rows_doc,
             "rows(positions, epoch=0, /)\n--\n\n"
             "Return an int64 array with the row at each position, an int64 vector, of an\n"
             "epoch. Positions may lie beyond the epoch's end. Raises ValueError beyond 2**62.");

static PyObject *mixture_find(fl_py_mixture *self, PyObject *args)
{
    Py_buffer positions;
    PyObject *epoch_given = NULL;
    uint32_t epoch = 0;
    int64_t *data;
    fl_err err;
    if (!PyArg_ParseTuple(args, "y*|O:rows", &positions, &epoch_given)) return NULL;
    Py_ssize_t count = positions.len / (Py_ssize_t)sizeof(int64_t);
    PyObject *out = NULL;
    if (epoch_given == NULL || fl_py_epoch(epoch_given, &epoch) == 0)
        out = fl_py_int64_vector(count, &data);
    if (out != NULL &&
        fl_py_check(fl_mixed_rows_find(self->rows, epoch, positions.buf, count, data, &err), &err,
                    NULL) != 0)
        Py_CLEAR(out);
    PyBuffer_Release(&positions);
    return out;
}

PyDoc_STRVAR(seen_doc,
             "seen(n, /)\n--\n\n"
             "Return an int64 array with the number of samples of each source among the first n\n"
             "positions of all epochs.");

static PyObject *mixture_seen(fl_py_mixture *self, PyObject *number)
{
    int64_t *data;
    long long n = PyLong_AsLongLong(number);
    if (n == -1 && PyErr_Occurred()) return NULL;
    if (n < 0 || n >= FL_MIXTURE_MAX)
        return PyErr_Format(PyExc_ValueError, "seen: n must be in [0, 2**62), got %lld", n);
    PyObject *out = fl_py_int64_vector(self->sources, &data);
    if (out != NULL) fl_mixed_rows_seen(self->rows, n, data);
    return out;
}

static PyObject *mixture_bounds(fl_py_mixture *self, void *Py_UNUSED(closure))
{
    int32_t count = fl_mixed_rows_segments(self->rows);
    PyObject *out = PyTuple_New(count);
    for (int32_t i = 0; out != NULL && i < count; i++) {
        PyObject *bound = PyFloat_FromDouble(fl_mixed_rows_bound(self->rows, i));
        if (bound == NULL)
            Py_CLEAR(out);
        else
            PyTuple_SET_ITEM(out, i, bound);
    }
    return out;
}

static PyMethodDef mixture_methods[] = {{"rows", (PyCFunction)mixture_find, METH_VARARGS, rows_doc},
                                        {"seen", (PyCFunction)mixture_seen, METH_O, seen_doc},
                                        {NULL, NULL, 0, NULL}};

static PyGetSetDef mixture_getset[] = {
    {"bounds", (getter)mixture_bounds, NULL,
     "the most by which a source's samples differ from its share, in each segment", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

PyDoc_STRVAR(mixture_doc,
             "Mixture(lengths, names, segments, seed, is_even, is_shuffled, length, is_alike,\n"
             "endless=...)\n--\n\n"
             "The rows at the positions of a mixture; rows of all sources count as one list.\n\n"
             "lengths: int64, of the sources. names: uint32, a checksum of each name. segments:\n"
             "tuples (begin, sources, weights), two int64 vectors. length: positions of an\n"
             "epoch. is_alike: every epoch has the segments of the first. endless: bytes, not 0\n"
             "for a source with an order of its own, whose rows of turn t are rows t * length\n"
             "and on; the source takes TURNS * length rows of the list.");

static PyType_Slot mixture_slots[] = {
    {Py_tp_doc, (void *)mixture_doc}, {Py_tp_new, mixture_new},
    {Py_tp_dealloc, mixture_dealloc}, {Py_tp_methods, mixture_methods},
    {Py_tp_getset, mixture_getset},   {0, NULL}};

PyType_Spec fl_py_mixture_spec = FL_PY_SPEC("Mixture", fl_py_mixture, 0, mixture_slots);
