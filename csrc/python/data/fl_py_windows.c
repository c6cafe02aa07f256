/* fl_py_windows: see fl_py_windows.h. The object is read-only once made: several threads may read
 * at once, and read without the interpreter lock. */
#include "fl_py_windows.h"

#include "fl_py.h"
#include "fl_cpu_tokens.h"
#include "fl_plan.h"
#include "fl_py_error.h"
#include "fl_py_indices.h"
#include "fl_py_mapped_file.h"
#include "fl_py_put.h"
#include "fl_py_seed.h"
#include "fl_py_token_source.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>
#include <unistd.h>

/* ---- what the arguments say */

typedef struct choice {
    const char *name; /* NULL ends the list */
    int value;
} choice;

static const choice modes[] = {{"strided", FL_WINDOW_STRIDED},
                               {"jittered", FL_WINDOW_JITTERED},
                               {"random", FL_WINDOW_RANDOM},
                               {NULL, 0}};
static const choice ios[] = {
    {"auto", FL_TOKEN_AUTO}, {"pread", FL_TOKEN_PREAD}, {"mmap", FL_TOKEN_MMAP}, {NULL, 0}};
static const choice all_targets[] = {
    {"", FL_TARGETS_NONE}, {"same", FL_TARGETS_SAME}, {"shift", FL_TARGETS_SHIFT}, {NULL, 0}};

/* The choices of out_dtype; the values are indices of out_types. */
static const choice outs[] = {{"int64", 0}, {"int32", 1}, {"uint32", 2}, {"uint16", 3}, {NULL, 0}};
static const struct {
    fl_dtype dtype;
    fl_token_out out;
    uint64_t most; /* largest token, for sources with types that hold more */
} out_types[] = {{{kDLInt, 64, 1}, FL_TOKEN_OUT_64, INT64_MAX},
                 {{kDLInt, 32, 1}, FL_TOKEN_OUT_32, INT32_MAX},
                 {{kDLUInt, 32, 1}, FL_TOKEN_OUT_32, UINT32_MAX},
                 {{kDLUInt, 16, 1}, FL_TOKEN_OUT_16, UINT16_MAX}};

static int choose(const char *argument, const char *name, const choice *choices, int *out)
{
    for (; choices->name != NULL; choices++) {
        *out = choices->value;
        if (strcmp(choices->name, name) == 0) return 0;
    }
    return FL_PY_FAIL(PyExc_ValueError, "Windows: %s must be one of its choices, got %s", argument,
                      name);
}

typedef struct arguments {
    PyObject *files, *descriptors, *eos, *vocab_size, *seed;
    long long length, stride;
    const char *mode, *targets, *out, *io;
    int has_documents;
    int mode_value, targets_value, out_value, io_value;
    uint64_t seed_value;
    uint64_t most; /* largest token, vocab_size - 1; UINT64_MAX: vocab_size is None */
} arguments;

static int read_vocab_size(arguments *given)
{
    given->most = UINT64_MAX;
    if (given->vocab_size == Py_None) return 0;
    long long size = PyLong_AsLongLong(given->vocab_size);
    if (size == -1 && PyErr_Occurred()) return -1;
    if (size < 1)
        return FL_PY_FAIL(PyExc_ValueError, "vocab_size must be at least 1, got %lld", size);
    given->most = (uint64_t)size - 1;
    return 0;
}

static int parse(PyObject *args, PyObject *kwargs, arguments *given)
{
    static char *keywords[] = {"files",   "descriptors", "seq_len", "stride",      "mode",
                               "targets", "out_dtype",   "eos_id",  "return_docs", "vocab_size",
                               "io",      "seed",        NULL};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!O!$LLszsOpOsO:Windows", keywords, &PyTuple_Type, &given->files,
            &PyList_Type, &given->descriptors, &given->length, &given->stride, &given->mode,
            &given->targets, &given->out, &given->eos, &given->has_documents, &given->vocab_size,
            &given->io, &given->seed))
        return -1;
    if (given->length < 1 || given->length > INT32_MAX || given->stride < 1)
        return FL_PY_FAIL(
            PyExc_ValueError,
            "Windows: seq_len must be in [1, 2**31) and stride at least 1, got %lld and %lld",
            given->length, given->stride);
    if (choose("mode", given->mode, modes, &given->mode_value) != 0 ||
        choose("targets", given->targets != NULL ? given->targets : "", all_targets,
               &given->targets_value) != 0 ||
        choose("out_dtype", given->out, outs, &given->out_value) != 0 ||
        choose("io", given->io, ios, &given->io_value) != 0 ||
        fl_py_seed(given->seed, &given->seed_value) != 0)
        return -1;
    return read_vocab_size(given);
}

/* ---- opening */

static void describe_tensors(fl_py_windows *self, const arguments *given)
{
    self->column = (fl_column_window_config){.windows = self->windows,
                                             .reader = self->reader,
                                             .length = given->length,
                                             .tokens = out_types[given->out_value].dtype,
                                             .has_y = given->targets_value != FL_TARGETS_NONE,
                                             .has_documents = given->has_documents != 0};
    self->tensors = fl_column_window_dtypes(&self->column, self->dtype);
}

/* Returns the largest token that the source may have. If the source's type holds more than the
 * output, tokens are checked; if both have the same width, tokens keep their bits. */
static uint64_t limit_of(const arguments *given, fl_token_type type)
{
    bool is_wider = fl_token_bytes(type) > fl_token_out_bytes(out_types[given->out_value].out);
    bool loses_sign = type == FL_TOKEN_U32 && given->out_value == 1;
    uint64_t most = out_types[given->out_value].most;
    return is_wider || loses_sign ? (given->most < most ? given->most : most) : given->most;
}

static void
add_mapped(fl_py_windows *self, int64_t f, PyObject *file, const fl_token_source *source)
{
    int64_t bytes = source->first_byte + source->tokens * fl_token_bytes(source->type);
    self->mapped[self->mappings++] =
        (fl_py_mapped_tokens){.number = f, .file = file, .end = source->data + bytes};
}

static int read_sources(fl_py_windows *self, const arguments *given, fl_token_source *sources)
{
    for (int64_t f = 0; f < self->files; f++) {
        PyObject *item = PyTuple_GET_ITEM(given->files, f);
        if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) < 6)
            return FL_PY_FAIL(PyExc_TypeError,
                              "Windows: a file must be a tuple of at least 6 items");
        if (fl_py_token_source(&self->dlpack, item, self->kept, &sources[f]) != 0) return -1;
        PyTuple_SET_ITEM(self->names, f, Py_NewRef(PyTuple_GET_ITEM(item, 0)));
        PyObject *source = sources[f].fd < 0 ? PyTuple_GET_ITEM(item, 1) : Py_None;
        PyTuple_SET_ITEM(self->sources, f, Py_NewRef(source));
        if (sources[f].is_volatile) add_mapped(self, f, PyTuple_GET_ITEM(item, 6), &sources[f]);
        sources[f].most = limit_of(given, sources[f].type);
    }
    return 0;
}

static int
open_windows(fl_py_windows *self, const arguments *given, const int64_t *tokens, fl_err *err)
{
    bool is_random = given->mode_value == FL_WINDOW_RANDOM;
    fl_window_config config = {.tokens = tokens,
                               .files = self->files,
                               .length = fl_token_reader_window(self->reader),
                               .stride = is_random ? given->length : given->stride,
                               .mode = (fl_window_mode)given->mode_value,
                               .seed = given->seed_value};
    return fl_windows_open(&config, &self->windows, err);
}

static int open_reader(fl_py_windows *self, const arguments *given, const fl_token_source *sources,
                       fl_err *err)
{
    fl_token_config config = {.sources = sources,
                              .count = self->files,
                              .length = given->length,
                              .targets = (fl_token_targets)given->targets_value,
                              .out = out_types[given->out_value].out,
                              .has_eos = given->eos != Py_None,
                              .io = (fl_token_io)given->io_value,
                              .ops = fl_cpu_token_ops_find()};
    if (config.has_eos) config.eos = PyLong_AsLongLong(given->eos);
    if (PyErr_Occurred()) return FL_EINVAL;
    return fl_token_reader_open(&config, &self->reader, err);
}

/* Takes over the descriptors, and empties the caller's list. */
static int
take_descriptors(fl_py_windows *self, const arguments *given, const fl_token_source *sources)
{
    if (PyList_SetSlice(given->descriptors, 0, PyList_GET_SIZE(given->descriptors), NULL) != 0)
        return FL_ENOMEM;
    for (int64_t f = 0; f < self->files; f++) self->fds[f] = sources[f].fd;
    return FL_OK;
}

static int open_both(fl_py_windows *self, const arguments *given)
{
    fl_token_source *sources = fl_alloc(self->files * (int64_t)sizeof *sources);
    int64_t *tokens = fl_alloc(self->files * (int64_t)sizeof *tokens);
    fl_err err = {.code = FL_ENOMEM, .text = "out of memory for the files of a dataset"};
    int status = sources != NULL && tokens != NULL ? FL_OK : FL_ENOMEM;
    if (status == FL_OK) status = read_sources(self, given, sources) == 0 ? FL_OK : FL_EINVAL;
    for (int64_t f = 0; status == FL_OK && f < self->files; f++) tokens[f] = sources[f].tokens;
    if (status == FL_OK) status = open_reader(self, given, sources, &err);
    if (status == FL_OK) status = open_windows(self, given, tokens, &err);
    if (status == FL_OK) status = take_descriptors(self, given, sources);
    fl_free(sources);
    fl_free(tokens);
    return fl_py_check(status, &err, NULL);
}

static PyObject *windows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    arguments given = {0};
    fl_err err;
    if (parse(args, kwargs, &given) != 0) return NULL;
    fl_py_windows *self = (fl_py_windows *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    int64_t files = PyTuple_GET_SIZE(given.files);
    self->names = PyTuple_New(files);
    self->kept = PyList_New(0);
    self->sources = PyTuple_New(files);
    self->fds = fl_alloc(files * (int64_t)sizeof *self->fds);
    self->mapped = fl_alloc(files * (int64_t)sizeof *self->mapped);
    if (self->fds == NULL || self->mapped == NULL) PyErr_NoMemory();
    for (int64_t f = 0; self->fds != NULL && f < files; f++) self->fds[f] = -1;
    self->files = files;
    if (self->names == NULL || self->kept == NULL || self->sources == NULL || self->fds == NULL ||
        self->mapped == NULL || fl_py_check(fl_gate_init(&self->gate, &err), &err, NULL) != 0 ||
        fl_py_dlpack_open_torch(&self->dlpack) != 0 || open_both(self, &given) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    describe_tensors(self, &given);
    return (PyObject *)self;
}

static void windows_dealloc(fl_py_windows *self)
{
    if (self->weakrefs != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    fl_windows_close(self->windows);
    fl_token_reader_close(self->reader);
    fl_gate_destroy(&self->gate);
    for (int64_t f = 0; self->fds != NULL && f < self->files; f++)
        if (self->fds[f] >= 0) close(self->fds[f]);
    fl_free(self->fds);
    fl_free(self->mapped);
    Py_XDECREF(self->names);
    Py_XDECREF(self->kept);
    Py_XDECREF(self->sources);
    fl_py_dlpack_close(&self->dlpack);
    fl_py_free(self);
}

/* ---- reading */

/* Makes the tensors of `rows` rows, or with -1 the tensors of one row without that dimension, and
 * sets *out to their memory. New reference. */
static PyObject *make_tensors(const fl_py_windows *self, int64_t rows, fl_token_rows *out)
{
    int64_t shape[2] = {rows, self->column.length};
    int32_t skip = rows < 0 ? 1 : 0;
    char *data[FL_WINDOW_OUTPUTS] = {NULL};
    PyObject *tensors = PyTuple_New(self->tensors);
    for (int32_t t = 0; tensors != NULL && t < self->tensors; t++)
        fl_py_put(
            &tensors, t,
            fl_py_tensor_new(&self->dlpack, self->dtype[t], 2 - skip, shape + skip, &data[t]));
    *out = fl_token_rows_at(data, self->column.has_y, self->column.has_documents);
    return tensors;
}

static PyObject *raise(const fl_py_windows *self, const fl_err *err)
{
    fl_py_fields fields = {.token_files = self->names};
    return fl_py_raise(err, &fields);
}

void fl_py_windows_look(fl_py_windows *self)
{
    for (int64_t f = 0; f < self->files; f++) {
        fl_tensor now;
        PyObject *source = PyTuple_GET_ITEM(self->sources, f);
        if (!fl_py_is_tensor(&self->dlpack, source)) continue;
        if (fl_py_view(&self->dlpack, source, &now) == 0)
            fl_token_reader_move(self->reader, f, now.data);
        else
            PyErr_Clear();
    }
}

int fl_py_windows_check_files(const fl_py_windows *self)
{
    for (int64_t m = 0; m < self->mappings; m++) {
        const fl_py_mapped_tokens *mapped = &self->mapped[m];
        const char *end;
        if (fl_py_mapped_file_end(mapped->file, &end) != 0) return -1;
        if (end == NULL || end >= mapped->end) continue;
        fl_err err;
        fl_fail(&err, FL_EFILE,
                "%lld bytes cannot be read: the file has become shorter; restore the file and make "
                "the dataset again",
                (long long)(mapped->end - end));
        err.position = mapped->number;
        raise(self, &err);
        return -1;
    }
    return 0;
}

/* Reads windows[0 .. count) into new tensors; `rows` as in make_tensors. Releases the interpreter
 * lock. New reference. */
static PyObject *
read_windows(fl_py_windows *self, const fl_window *windows, int64_t count, int64_t rows)
{
    fl_err err = {0};
    fl_token_rows out;
    PyObject *tensors = make_tensors(self, rows, &out);
    if (tensors == NULL) return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS
    if (fl_token_reader_is_cold(self->reader)) fl_token_reader_advise(self->reader, windows, count);
    fl_gate_enter(&self->gate);
    status = fl_token_reader_read(self->reader, windows, count, &out, 0, &err);
    fl_gate_leave(&self->gate);
    Py_END_ALLOW_THREADS
    if (status == FL_OK && fl_py_windows_check_files(self) == 0) return tensors;
    Py_DECREF(tensors);
    return status != FL_OK ? raise(self, &err) : NULL;
}

/* Finds the windows at `rows`, the result of fl_py_rows_add: 0, or -1 and IndexError. */
static int
find_windows(const fl_py_windows *self, const fl_rows *rows, uint32_t epoch, fl_window *out)
{
    int64_t length = fl_windows_count(self->windows);
    for (int64_t i = 0; i < rows->count; i++) {
        int64_t index = rows->index[i];
        if (index < 0 || index >= length) {
            fl_err err = {.code = FL_EINDEX, .position = i, .value = index, .length = length};
            fl_py_raise(&err, NULL);
            return -1;
        }
        out[i] = fl_windows_find(self->windows, index, epoch);
    }
    return 0;
}

PyDoc_STRVAR(read_batch_doc,
             "read_batch(indices, epoch)\n--\n\n"
             "Read windows. Returns a tuple of tensors [n, seq_len]: x; y if there are\n"
             "targets; position_ids, doc_ids and loss_mask if documents are returned. indices:\n"
             "ints in [0, len), as a list or an int64 array. Releases the interpreter lock.\n"
             "Raises IndexError for an index outside the range, OSError for a file that cannot\n"
             "be read, and ValueError for a token that is too large.");

/* Calls a function with the windows that the arguments (indices, epoch) name. */
static PyObject *
with_rows(fl_py_windows *self, PyObject *args,
          PyObject *function(fl_py_windows *self, const fl_window *windows, int64_t count))
{
    PyObject *indices, *number, *result = NULL;
    uint32_t epoch;
    fl_rows rows = {0};
    fl_window *windows = NULL;
    if (!PyArg_ParseTuple(args, "OO", &indices, &number) || fl_py_epoch(number, &epoch) != 0)
        return NULL;
    int added = fl_py_rows_add(&self->dlpack, indices, &rows);
    if (added == 0)
        PyErr_SetString(PyExc_TypeError, "indices must be a list of ints or an int64 array");
    if (added == 1) windows = fl_alloc(rows.count * (int64_t)sizeof *windows);
    if (added == 1 && windows == NULL) PyErr_NoMemory();
    if (windows != NULL && find_windows(self, &rows, epoch, windows) == 0)
        result = function(self, windows, rows.count);
    fl_free(windows);
    fl_rows_close(&rows);
    return result;
}

static PyObject *read_batch(fl_py_windows *self, const fl_window *windows, int64_t count)
{
    return read_windows(self, windows, count, count);
}

static PyObject *windows_read_batch(fl_py_windows *self, PyObject *args)
{
    return with_rows(self, args, read_batch);
}

PyDoc_STRVAR(starts_doc,
             "starts(indices, epoch)\n--\n\n"
             "Return the begin of each window as an int64 tensor, counted in tokens from the\n"
             "begin of the first file, as if all files lay end to end. indices: see\n"
             "read_batch. Raises IndexError for an index outside the range.");

static PyObject *find_starts(fl_py_windows *self, const fl_window *windows, int64_t count)
{
    char *data;
    PyObject *tensor = fl_py_tensor_new(&self->dlpack, (fl_dtype){kDLInt, 64, 1}, 1, &count, &data);
    int64_t *starts = (int64_t *)(void *)data;
    for (int64_t i = 0; tensor != NULL && i < count; i++)
        starts[i] = fl_windows_position(self->windows, windows[i]);
    return tensor;
}

static PyObject *windows_starts(fl_py_windows *self, PyObject *args)
{
    return with_rows(self, args, find_starts);
}

PyDoc_STRVAR(read_tokens_doc,
             "read_tokens(file, first, count)\n--\n\n"
             "Read `count` tokens of a file, beginning with token `first`. The file must have\n"
             "these tokens. Returns a tensor of the narrowest dtype that holds the tokens of\n"
             "all files. Raises the errors of read_batch.");

static int64_t tokens_of(const fl_py_windows *self, int64_t file)
{
    return fl_windows_position(self->windows, (fl_window){.file = file + 1}) -
           fl_windows_position(self->windows, (fl_window){.file = file});
}

static PyObject *windows_read_tokens(fl_py_windows *self, PyObject *args)
{
    char *out;
    fl_err err = {0};
    long long file, first, given;
    if (!PyArg_ParseTuple(args, "LLL:read_tokens", &file, &first, &given)) return NULL;
    fl_window from = {.file = file, .first = first};
    int64_t count = given;
    if (file < 0 || file >= self->files || first < 0 || count < 0 ||
        count > tokens_of(self, file) - first)
        return PyErr_Format(PyExc_IndexError, "file %lld must have %lld tokens from token %lld on",
                            file, given, first);
    fl_token_type type = fl_token_reader_narrow_type(self->reader);
    uint8_t code = fl_token_is_signed(type) ? kDLInt : kDLUInt;
    fl_dtype dtype = {code, (uint8_t)(8 * fl_token_bytes(type)), 1};
    PyObject *tensor = fl_py_tensor_new(&self->dlpack, dtype, 1, &count, &out);
    if (tensor == NULL) return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS
    fl_gate_enter(&self->gate);
    status = fl_token_reader_copy(self->reader, from, count, out, &err);
    fl_gate_leave(&self->gate);
    Py_END_ALLOW_THREADS
    if (status == FL_OK && fl_py_windows_check_files(self) == 0) return tensor;
    Py_DECREF(tensor);
    return status != FL_OK ? raise(self, &err) : NULL;
}

PyDoc_STRVAR(read_one_doc,
             "read_one(index, epoch)\n--\n\n"
             "Read one window, as read_batch does. Returns a tuple of tensors [seq_len].");

static PyObject *windows_read_one(fl_py_windows *self, PyObject *args)
{
    long long given;
    PyObject *number;
    uint32_t epoch;
    fl_window window;
    if (!PyArg_ParseTuple(args, "LO", &given, &number) || fl_py_epoch(number, &epoch) != 0)
        return NULL;
    int64_t index = given;
    fl_rows rows = {.count = 1, .index = &index};
    if (find_windows(self, &rows, epoch, &window) != 0) return NULL;
    return read_windows(self, &window, 1, -1);
}

static Py_ssize_t windows_length(fl_py_windows *self)
{
    return (Py_ssize_t)fl_windows_count(self->windows);
}

static PyObject *windows_counts(fl_py_windows *self, void *Py_UNUSED(ignored))
{
    PyObject *counts = PyTuple_New((Py_ssize_t)self->files);
    for (int64_t f = 0; counts != NULL && f < self->files; f++)
        fl_py_put(&counts, f, PyLong_FromLongLong(fl_windows_of_file(self->windows, f)));
    return counts;
}

static PyObject *windows_io(fl_py_windows *self, void *Py_UNUSED(ignored))
{
    PyObject *words = PyTuple_New((Py_ssize_t)self->files);
    for (int64_t f = 0; words != NULL && f < self->files; f++)
        fl_py_put(&words, f, PyUnicode_FromString(fl_token_reader_io(self->reader, f)));
    return words;
}

static PyMemberDef windows_members[] = {
    {"sources", T_OBJECT_EX, offsetof(fl_py_windows, sources), READONLY,
     "a tuple with one array for each source; None for a file descriptor"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(fl_py_windows, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyGetSetDef windows_getset[] = {
    {"counts", (getter)windows_counts, NULL,
     "the number of windows in each file; for random windows, the number of tokens at\n"
     "which a window can begin",
     NULL},
    {"io", (getter)windows_io, NULL, "how each file is read: 'memory', 'pread' or 'mmap'", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef windows_methods[] = {
    {"read_one", (PyCFunction)windows_read_one, METH_VARARGS, read_one_doc},
    {"read_batch", (PyCFunction)windows_read_batch, METH_VARARGS, read_batch_doc},
    {"starts", (PyCFunction)windows_starts, METH_VARARGS, starts_doc},
    {"read_tokens", (PyCFunction)windows_read_tokens, METH_VARARGS, read_tokens_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(windows_doc,
             "Windows(files, descriptors, *, seq_len, stride, mode, targets, out_dtype, eos_id,\n"
             "        return_docs, vocab_size, io, seed)\n--\n\n"
             "Windows of seq_len tokens in files.\n\n"
             "files: a tuple with (name, source, first_byte, tokens, dtype, ends[, mapped])\n"
             "for each file. source: a file descriptor, or a contiguous 1-d array, which the\n"
             "object keeps alive. mapped: None, or for memory of a mapped file (path, address\n"
             "at which byte 0 of the file would be mapped, function that returns the file's\n"
             "present size, or None); the memory is then read safely. ends: an int64 array of\n"
             "the tokens at which documents end, or None. descriptors: a list of the file\n"
             "descriptors in `files`; the new object closes the descriptors later, and empties\n"
             "the list.");

static PyType_Slot windows_slots[] = {
    {Py_tp_doc, (void *)windows_doc}, {Py_tp_new, windows_new},
    {Py_tp_dealloc, windows_dealloc}, {Py_tp_methods, windows_methods},
    {Py_tp_getset, windows_getset},   {Py_tp_members, windows_members},
    {Py_sq_length, windows_length},   {0, NULL}};

PyType_Spec fl_py_windows_spec = FL_PY_SPEC("Windows", fl_py_windows, 0, windows_slots);
