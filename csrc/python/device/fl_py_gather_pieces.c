/* fl_py_gather_pieces: see fl_py_gather_pieces.h. The columns form a table as on the CPU. No gather
 * reads from the table; only its layout is used, to describe a batch. */
#include "fl_py_gather_pieces.h"

#include "fl_cuda.h"
#include "fl_py_put.h"

#include <string.h>

enum { WORDS = sizeof(fl_piece) / sizeof(int64_t) };

static const fl_dtype INT64 = {kDLInt, 64, 1};

/* The state of making one batch. */
typedef struct batch {
    const fl_py_pieces *self;
    fl_rows rows;
    fl_layout layout;        /* owned */
    fl_piece_batch *outputs; /* owned: one for each column; a number has no elements */
    int64_t *tables; /* owned: for each column the number of pieces before the column's own table */
    int64_t pieces;  /* sum over the tables */
    int32_t device;
} batch;

/* ---- the columns */

/* Opens the column at index i. All columns that pack share the packing of the first one. */
static int open_column(const fl_py_sequence_column *column, int32_t i, fl_column **out, fl_err *err)
{
    if (!column->is_packed) return fl_column_pad_open(&column->pad, out, err);
    fl_column_pack_config config = column->pack;
    config.leader = i;
    return fl_column_pack_open(&config, out, err);
}

static int open_table(fl_py_pieces *self, fl_err *err)
{
    fl_column **columns = fl_alloc(self->count * (int64_t)sizeof *columns);
    if (columns == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a table");
    int status = FL_OK;
    for (int32_t i = 0; status == FL_OK && i < self->count; i++)
        status = open_column(self->columns[i], i, &columns[i], err);
    if (status == FL_OK) status = fl_table_open(columns, self->count, &self->table, err);
    for (int32_t i = 0; status != FL_OK && i < self->count; i++) fl_column_close(columns[i]);
    fl_free(columns);
    return status;
}

static bool has_values(const fl_py_sequence_column *column)
{
    return column->is_packed ? column->pack.output == FL_PACK_VALUES
                             : column->pad.output == FL_PAD_VALUES;
}

/* Returns true if every batch gives `a` and `b` the same pieces, and the pieces lie among the
 * values of `b`. The pieces of lengths have no width. */
static bool has_pieces_of(const fl_py_sequence_column *a, const fl_py_sequence_column *b)
{
    const fl_ragged *of_a = fl_py_sequence_column_ragged(a),
                    *of_b = fl_py_sequence_column_ragged(b);
    return of_a->offsets == of_b->offsets && of_a->is_wide == of_b->is_wide &&
           of_a->is_paired == of_b->is_paired && of_a->count <= of_b->count &&
           a->pad.multiple == b->pad.multiple && a->pad.max_length == b->pad.max_length &&
           (a->pad.output == b->pad.output || a->pad.output != FL_PAD_LENGTHS);
}

static bool is_on_device(const fl_py_sequence_column *column)
{
    return !has_values(column) ||
           (column->device != FL_PY_CPU &&
            fl_dtype_bytes(fl_py_sequence_column_ragged(column)->dtype) <= 8);
}

/* Checks the columns. The kernel has no code for ignored values. */
static int check_columns(const fl_py_pieces *self)
{
    for (int32_t i = 0; i < self->count; i++) {
        const fl_py_sequence_column *column = self->columns[i];
        if (column->is_packed == self->columns[0]->is_packed && is_on_device(column) &&
            !column->pad.has_ignored)
            continue;
        return FL_PY_FAIL(PyExc_ValueError, "columns must all pad or all pack values of at most 8 "
                                            "bytes on a CUDA device, without ignored values");
    }
    return 0;
}

static void find_leaders(fl_py_pieces *self)
{
    for (int32_t i = 0; i < self->count; i++)
        while (!has_pieces_of(self->columns[self->leader[i]], self->columns[i])) self->leader[i]++;
}

int fl_py_pieces_open(fl_py_pieces *self, const fl_py_state *state, const fl_py_dlpack *dlpack,
                      PyObject *sources)
{
    fl_err err = {.code = FL_ENOMEM, .text = "out of memory for columns of sequences"};
    Py_ssize_t most = PyTuple_GET_SIZE(sources);
    self->dlpack = dlpack;
    self->columns = fl_alloc(most * (int64_t)sizeof(fl_py_sequence_column *));
    self->leader = fl_alloc(most * (int64_t)sizeof *self->leader);
    int status = self->columns != NULL && self->leader != NULL ? FL_OK : FL_ENOMEM;
    for (Py_ssize_t i = 0; status == FL_OK && i < most; i++) {
        PyObject *source = PyTuple_GET_ITEM(sources, i);
        if (Py_IS_TYPE(source, state->sequence_column_type))
            self->columns[self->count++] = (fl_py_sequence_column *)source;
    }
    if (status == FL_OK && check_columns(self) != 0) return -1;
    if (status == FL_OK) find_leaders(self);
    if (status == FL_OK && self->count > 0) status = open_table(self, &err);
    return fl_py_check(status, &err, NULL);
}

void fl_py_pieces_close(fl_py_pieces *self)
{
    fl_table_close(self->table);
    fl_free(self->columns);
    fl_free(self->leader);
}

/* ---- a batch */

static int read_rows(batch *self, PyObject *object)
{
    fl_tensor view;
    int64_t length = fl_table_length(self->self->table);
    if (fl_py_view(self->self->dlpack, object, &view) != 0) return -1;
    bool is_right = view.ndim == 1 && view.dtype.code == kDLInt && view.dtype.bits == 64 &&
                    fl_tensor_is_contiguous(&view);
    self->rows.index = (int64_t *)(uintptr_t)view.data;
    self->rows.count = is_right ? view.shape[0] : 0;
    for (int64_t i = 0; i < self->rows.count; i++)
        is_right &= self->rows.index[i] >= 0 && self->rows.index[i] < length;
    if (is_right) return 0;
    return FL_PY_FAIL(PyExc_ValueError,
                      "gather: rows must be a contiguous vector of int64 in [0, %lld)",
                      (long long)length);
}

static int64_t count_pieces(const batch *self)
{
    bool is_packed = self->self->columns[0]->is_packed;
    return is_packed ? fl_packing_of(self->layout.notes)->segments : self->rows.count;
}

/* Lays out the batch, and assigns the offsets of the tables of pieces, each table with one end
 * piece. */
static int lay_out(batch *self)
{
    fl_err err;
    const fl_py_pieces *of = self->self;
    if (fl_py_check(fl_table_layout(of->table, &self->rows, 0, &self->layout, &err), &err, NULL) !=
        0)
        return -1;
    for (int32_t i = 0; i < of->count; i++) {
        bool is_first = of->leader[i] == i;
        self->tables[i] = is_first ? self->pieces : self->tables[of->leader[i]];
        if (is_first) self->pieces += count_pieces(self) + 1;
    }
    return 0;
}

static int write_pieces(const batch *self, fl_piece *pieces)
{
    fl_err err;
    int status = FL_OK;
    for (int32_t i = 0; status == FL_OK && i < self->self->count; i++) {
        const fl_py_sequence_column *column = self->self->columns[i];
        fl_piece *out = pieces + self->tables[i];
        const fl_output *output = &self->layout.outputs[i];
        int64_t width = output->ndim == 2 ? output->shape[1] : 0;
        if (self->self->leader[i] != i) continue;
        status = column->is_packed
                     ? fl_column_pack_pieces(&column->pack, fl_packing_of(self->layout.notes),
                                             &self->rows, out, &err)
                     : fl_column_pad_pieces(&column->pad, &self->rows, width, out, &err);
    }
    return fl_py_check(status, &err, NULL);
}

/* Copies the tables to the device with `send`. New reference. */
static PyObject *send_pieces(batch *self, PyObject *send, const fl_piece **out)
{
    fl_tensor view;
    char *data;
    int64_t words = self->pieces * WORDS;
    const fl_py_dlpack *dlpack = self->self->dlpack;
    PyObject *made = fl_py_tensor_new(dlpack, INT64, 1, &words, &data), *sent = NULL;
    if (made != NULL && write_pieces(self, (fl_piece *)(void *)data) == 0)
        sent = PyObject_CallOneArg(send, made);
    Py_XDECREF(made);
    if (sent == NULL) return NULL;
    if (fl_py_cuda_view(dlpack, sent, &view, &self->device) == 0) {
        *out = (const fl_piece *)(const void *)view.data;
        if (view.ndim == 1 && view.shape[0] == words && fl_dtype_bytes(view.dtype) == 8 &&
            fl_tensor_is_contiguous(&view))
            return sent;
        PyErr_SetString(PyExc_ValueError, "gather: send must return a copy of its tensor");
    }
    Py_DECREF(sent);
    return NULL;
}

/* Looks at the present values of a column, because the user may have changed the tensor. */
static int look_at_values(const batch *self, int32_t i, fl_piece_batch *out)
{
    fl_tensor view;
    int32_t device;
    const fl_py_sequence_column *column = self->self->columns[i];
    const fl_ragged *ragged = fl_py_sequence_column_ragged(column);
    if (!has_values(column)) return 0;
    if (fl_py_cuda_view(self->self->dlpack, column->values, &view, &device) != 0) return -1;
    out->from = view.data;
    out->from_bytes = (int32_t)fl_dtype_bytes(ragged->dtype);
    out->is_signed = ragged->dtype.code == kDLInt;
    bool is_same = view.ndim == 1 && memcmp(&view.dtype, &ragged->dtype, sizeof view.dtype) == 0 &&
                   view.shape[0] >= ragged->count && fl_tensor_is_contiguous(&view);
    if (is_same && device == self->device) return 0;
    return FL_PY_FAIL(PyExc_ValueError,
                      "gather: the values must keep their %lld elements, dtype and device",
                      (long long)ragged->count);
}

static void describe(const batch *self, int32_t i, const fl_piece *pieces, fl_piece_batch *out)
{
    static const fl_piece_output pad[] = {[FL_PAD_VALUES] = FL_PIECE_VALUES,
                                          [FL_PAD_MASK] = FL_PIECE_MASK,
                                          [FL_PAD_LENGTHS] = FL_PIECE_LENGTHS};
    static const fl_piece_output pack[] = {[FL_PACK_VALUES] = FL_PIECE_VALUES,
                                           [FL_PACK_POSITIONS] = FL_PIECE_POSITIONS,
                                           [FL_PACK_BOUNDS] = FL_PIECE_STARTS};
    const fl_py_sequence_column *column = self->self->columns[i];
    const fl_output *output = &self->layout.outputs[i];
    out->pieces = pieces + self->tables[i];
    out->piece_count = count_pieces(self);
    out->bytes = (int32_t)fl_dtype_bytes(output->dtype);
    out->count = output->bytes / out->bytes;
    if (column->is_packed) {
        out->output = pack[column->pack.output];
        out->is_label = column->pack.is_label;
        memcpy(&out->padding, column->pack.padding, (size_t)out->bytes);
    } else {
        out->output = pad[column->pad.output];
        out->pad_left = column->pad.pad_left;
        out->width = output->ndim == 2 ? output->shape[1] : 0;
        memcpy(&out->padding, column->pad.padding, (size_t)out->bytes);
    }
}

/* Makes memory for an output with the function in `empties` for its dtype. New reference. */
static PyObject *make_output(const batch *self, int32_t i, PyObject *empties, fl_piece_batch *out)
{
    fl_tensor view;
    int32_t device;
    const fl_output *output = &self->layout.outputs[i];
    PyObject *key = PyLong_FromLong(output->dtype.code * 256 + output->dtype.bits);
    PyObject *empty = key != NULL ? PyObject_GetItem(empties, key) : NULL;
    PyObject *shape = output->ndim == 1 ? Py_BuildValue("(L)", (long long)output->shape[0])
                                        : Py_BuildValue("(LL)", (long long)output->shape[0],
                                                        (long long)output->shape[1]);
    PyObject *made = empty != NULL && shape != NULL ? PyObject_CallOneArg(empty, shape) : NULL;
    Py_XDECREF(key);
    Py_XDECREF(empty);
    Py_XDECREF(shape);
    if (made == NULL) return NULL;
    if (fl_py_cuda_view(self->self->dlpack, made, &view, &device) == 0) {
        size_t dims = (size_t)output->ndim * sizeof *view.shape;
        out->to = (void *)(uintptr_t)view.data;
        if (device == self->device && view.ndim == output->ndim &&
            memcmp(view.shape, output->shape, dims) == 0 && fl_tensor_is_contiguous(&view) &&
            memcmp(&view.dtype, &output->dtype, sizeof view.dtype) == 0)
            return made;
        PyErr_SetString(PyExc_ValueError,
                        "gather: empties must make tensors of the output's shape and dtype");
    }
    Py_DECREF(made);
    return NULL;
}

/* Makes the outputs, without elements. New reference. */
static PyObject *make_outputs(batch *self, const fl_piece *pieces, PyObject *empties)
{
    PyObject *made = PyList_New(self->self->count);
    for (int32_t i = 0; made != NULL && i < self->self->count; i++) {
        const fl_output *output = &self->layout.outputs[i];
        fl_piece_batch *out = &self->outputs[i];
        PyObject *each;
        if (output->is_number) {
            each = PyLong_FromLongLong(output->number);
        } else {
            describe(self, i, pieces, out);
            each = look_at_values(self, i, out) == 0 ? make_output(self, i, empties, out) : NULL;
        }
        fl_py_put(&made, i, each);
    }
    return made;
}

static int launch(const batch *self)
{
    fl_err err;
    void *stream;
    if (fl_py_stream(self->self->dlpack, self->device, &stream) != 0) return -1;
    int status;
    Py_BEGIN_ALLOW_THREADS /* launching blocks while the stream's queue is full; the caller keeps
                              the tensors */
    status = fl_cuda_gather_pieces(self->device, stream, self->outputs, self->self->count, &err);
    Py_END_ALLOW_THREADS
    return fl_py_check(status, &err, NULL);
}

PyObject *
fl_py_pieces_make(const fl_py_pieces *self, PyObject *rows, PyObject *send, PyObject *empties)
{
    PyObject *made = NULL, *sent = NULL;
    const fl_piece *pieces;
    batch of = {.self = self};
    of.outputs = fl_alloc(self->count * (int64_t)sizeof *of.outputs);
    of.tables = fl_alloc(self->count * (int64_t)sizeof *of.tables);
    if (of.outputs == NULL || of.tables == NULL)
        PyErr_NoMemory();
    else if (read_rows(&of, rows) == 0 && lay_out(&of) == 0)
        sent = send_pieces(&of, send, &pieces);
    if (sent != NULL) made = make_outputs(&of, pieces, empties);
    if (made != NULL && launch(&of) != 0) Py_CLEAR(made);
    Py_XDECREF(sent);
    fl_layout_close(&of.layout);
    fl_free(of.outputs);
    fl_free(of.tables);
    return made;
}
