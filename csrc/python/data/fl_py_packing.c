/* fl_py_packing: see fl_py_packing.h. A packing never changes, and its readers are taken by atomic
 * exchange: any thread may use it. */
#include "fl_py_packing.h"

#include "fl_py_mixture.h"
#include "fl_py_numpy.h"
#include "fl_py_seed.h"

#include <string.h>

enum { INT = 0 }; /* DLPack's */

typedef struct fl_py_packing {
    PyObject_HEAD
    fl_epoch_packing *packing;   /* owned */
    PyObject *offsets, *mixture; /* owned; borrowed by the packing */
} fl_py_packing;

fl_epoch_packing *fl_py_packing_of(PyObject *object) { return ((fl_py_packing *)object)->packing; }

int fl_py_offsets(const fl_py_dlpack *dlpack, PyObject *object, fl_ragged *out)
{
    fl_tensor view;
    if (fl_py_view(dlpack, object, &view) != 0) return -1;
    bool is_paired = view.ndim == 2 && view.shape[1] == 2;
    if (!(is_paired || view.ndim == 1) || !fl_tensor_is_contiguous(&view))
        return FL_PY_FAIL(PyExc_ValueError,
                          "offsets must be a contiguous vector, or contiguous pairs");
    bool is_wide = view.dtype.bits == 64, is_narrow = view.dtype.bits == 32;
    if (view.dtype.code != INT || !(is_wide || is_narrow) || (!is_paired && view.shape[0] < 1))
        return FL_PY_FAIL(PyExc_ValueError, "offsets must be int32 or int64, and at least one");
    out->offsets = view.data;
    out->is_wide = is_wide;
    out->is_paired = is_paired;
    out->length = is_paired ? view.shape[0] : view.shape[0] - 1;
    out->count = INT64_MAX; /* an output without values has no count to check */
    return 0;
}

/* Reads the configuration from a tuple. 0, or -1 and an exception. */
static int read_config(PyObject *tuple, fl_epoch_packing_config *out)
{
    int overlong, is_wrapped, is_shuffled, is_repacked;
    long long count, length, window, extra, epoch, at, before, rows;
    PyObject *seed;
    if (!PyArg_ParseTuple(tuple, "LLLLipppO(LLLL):Packing", &count, &length, &window, &extra,
                          &overlong, &is_wrapped, &is_shuffled, &is_repacked, &seed, &epoch, &at,
                          &before, &rows) ||
        fl_py_seed(seed, &out->seed) != 0)
        return -1;
    out->count = count;
    out->length = length;
    out->window = window;
    out->extra = extra;
    out->overlong = (fl_overlong)overlong;
    out->is_wrapped = is_wrapped != 0;
    out->is_shuffled = is_shuffled != 0;
    out->is_repacked = is_repacked != 0;
    out->told = (fl_packing_place){at, before, rows, (uint32_t)epoch};
    bool fits = length >= 1 && length <= FL_EPOCH_PACKING_LENGTH && window >= 1 && count >= 1;
    fits = fits && at >= 0 && at <= (count - 1) / window && before >= 0 && rows >= 0;
    if (fits && (out->mixed != NULL || count == out->documents.length)) return 0;
    return FL_PY_FAIL(PyExc_ValueError, "Packing: count, length or window is out of range");
}

static PyObject *packing_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"tensor_type", "offsets", "mixture", "config", NULL};
    const fl_py_state *state = PyType_GetModuleState(type);
    PyObject *tensor_type, *offsets, *mixture, *tuple;
    fl_epoch_packing_config config = {0};
    fl_py_dlpack dlpack;
    fl_err err;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO!:Packing", keywords, &tensor_type,
                                     &offsets, &mixture, &PyTuple_Type, &tuple) ||
        fl_py_dlpack_open(tensor_type, &dlpack) != 0)
        return NULL;
    if (Py_IS_TYPE(mixture, state->mixture_type)) config.mixed = fl_py_mixture_rows(mixture);
    int status = fl_py_offsets(&dlpack, offsets, &config.documents);
    if (status == 0) status = read_config(tuple, &config);
    fl_py_dlpack_close(&dlpack);
    if (status != 0) return NULL;
    fl_py_packing *self = (fl_py_packing *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->offsets = Py_NewRef(offsets);
    self->mixture = Py_NewRef(mixture);
    if (fl_py_check(fl_epoch_packing_open(&config, &self->packing, &err), &err, NULL) == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int packing_traverse(fl_py_packing *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->offsets);
    Py_VISIT(self->mixture);
    return 0;
}

/* No tp_clear: a table that lives longer still reads the offsets. */

static void packing_dealloc(fl_py_packing *self)
{
    PyObject_GC_UnTrack(self);
    fl_epoch_packing_close(self->packing);
    Py_XDECREF(self->offsets);
    Py_XDECREF(self->mixture);
    fl_py_free(self);
}

PyDoc_STRVAR(place_doc,
             "place(epoch, row, /)\n--\n\n"
             "Return the window in which a row lies, the rows before the window, and the rows of\n"
             "the epoch, as the last part of the configuration; for row -1 the rows alone. The "
             "first call for an epoch packs\n"
             "all windows, unless the configuration tells the rows. Releases the interpreter\n"
             "lock. Raises ValueError if offsets have been changed.");

static PyObject *packing_place(fl_py_packing *self, PyObject *args)
{
    PyObject *number;
    long long row;
    fl_packing_reader *reader;
    fl_packing_place place = {0};
    uint32_t epoch;
    fl_err err;
    int status;
    if (!PyArg_ParseTuple(args, "OL:place", &number, &row)) return NULL;
    if (fl_py_epoch(number, &epoch) != 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = fl_packing_reader_take(self->packing, &reader, &err);
    if (status == FL_OK) {
        status = fl_packing_reader_place(reader, epoch, row, &place, &err);
        fl_packing_reader_give(self->packing, reader);
    }
    Py_END_ALLOW_THREADS
    if (fl_py_check(status, &err, NULL) != 0) return NULL;
    return Py_BuildValue("[LLL]", (long long)place.window, (long long)place.before,
                         (long long)place.rows);
}

/* The pieces of several rows, one after another. */
typedef struct piece_list {
    fl_packed_piece *pieces; /* owned */
    int64_t count, capacity;
    int64_t *bounds; /* the rows' first pieces, and the end */
} piece_list;

static int list_pieces(fl_epoch_packing *packing, uint32_t epoch, int64_t first, int64_t rows,
                       piece_list *out, fl_err *err)
{
    fl_packing_reader *reader;
    int status = FL_OK;
    FL_TRY(fl_packing_reader_take(packing, &reader, err));
    for (int64_t i = 0; status == FL_OK && i < rows; i++) {
        fl_packed_row row = {0};
        status = fl_packing_reader_find(reader, epoch, first + i, &row, err);
        if (status == FL_OK)
            status = fl_grow((void **)&out->pieces, &out->capacity, out->count + row.count,
                             sizeof *out->pieces, err);
        if (status != FL_OK) break;
        memcpy(out->pieces + out->count, row.pieces, (size_t)row.count * sizeof *row.pieces);
        out->count += row.count;
        out->bounds[i + 1] = out->count;
    }
    fl_packing_reader_give(packing, reader);
    return status;
}

PyDoc_STRVAR(rows_doc,
             "rows(epoch, first, count, /)\n--\n\n"
             "Return the pieces of `count` rows from row `first` on as two int64 arrays:\n"
             "document, first token and tokens of each piece, one after another; and the rows'\n"
             "bounds among the pieces. Releases the interpreter lock. Raises IndexError.");

static PyObject *packing_rows(fl_py_packing *self, PyObject *args)
{
    PyObject *number;
    long long first, rows;
    uint32_t epoch;
    piece_list list = {0};
    int64_t *data;
    fl_err err;
    int status;
    if (!PyArg_ParseTuple(args, "OLL:rows", &number, &first, &rows)) return NULL;
    if (fl_py_epoch(number, &epoch) != 0) return NULL;
    if (first < 0 || rows < 0 || rows > FL_EPOCH_PACKING_ROWS / 2)
        return PyErr_Format(PyExc_ValueError, "rows: first and count must be at least 0");
    PyObject *bounds = fl_py_int64_vector((Py_ssize_t)rows + 1, &list.bounds), *pieces = NULL;
    if (bounds == NULL) return NULL;
    list.bounds[0] = 0;
    Py_BEGIN_ALLOW_THREADS
    status = list_pieces(self->packing, epoch, first, rows, &list, &err);
    Py_END_ALLOW_THREADS
    const Py_ssize_t words = sizeof *list.pieces / sizeof *data;
    if (fl_py_check(status, &err, NULL) == 0)
        pieces = fl_py_int64_vector((Py_ssize_t)list.count * words, &data);
    if (pieces != NULL && list.count > 0)
        memcpy(data, list.pieces, (size_t)list.count * sizeof *list.pieces);
    fl_free(list.pieces);
    if (pieces != NULL) return Py_BuildValue("(NN)", pieces, bounds);
    Py_DECREF(bounds);
    return NULL;
}

static PyMethodDef packing_methods[] = {
    {"place", (PyCFunction)packing_place, METH_VARARGS, place_doc},
    {"rows", (PyCFunction)packing_rows, METH_VARARGS, rows_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(packing_doc,
             "Packing(tensor_type, offsets, mixture, config)\n--\n\n"
             "The rows into which documents are packed, by their lengths alone.\n\n"
             "offsets: as for SequenceColumn. mixture: a Mixture, whose positions are the\n"
             "documents of an epoch, or None. config: (documents in an epoch, tokens in a row,\n"
             "documents in a window, tokens that each document has besides its own, 0 to split\n"
             "long documents, 1 to truncate, 2 to drop them, is_wrapped, is_shuffled,\n"
             "is_repacked, seed, (epoch, and what place() has returned for it) or zeros).");

static PyType_Slot packing_slots[] = {
    {Py_tp_doc, (void *)packing_doc},   {Py_tp_new, packing_new},
    {Py_tp_traverse, packing_traverse}, {Py_tp_dealloc, packing_dealloc},
    {Py_tp_methods, packing_methods},   {0, NULL}};

PyType_Spec fl_py_packing_spec =
    FL_PY_SPEC("Packing", fl_py_packing, Py_TPFLAGS_HAVE_GC, packing_slots);
