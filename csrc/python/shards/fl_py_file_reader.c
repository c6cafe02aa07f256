/* fl_py_file_reader: see fl_py_file_reader.h. A reader never changes but for its descriptors, which
 * threads take and give by atomic exchange. Reads release the interpreter lock. */
#include "fl_py_file_reader.h"

#include "fl_file_reader.h"
#include "fl_py.h"
#include "fl_py_error.h"

typedef struct fl_py_file_reader {
    PyObject_HEAD
    fl_file_reader *reader; /* owned */
    PyObject *paths;        /* owned: tuple of str, for errors */
    int64_t count;
} fl_py_file_reader;

/* Encodes the paths: a new tuple of bytes, whose text *out lists; the caller frees *out. */
static PyObject *encode_paths(PyObject *paths, const char ***out)
{
    Py_ssize_t count = PyTuple_GET_SIZE(paths);
    PyObject *encoded = PyTuple_New(count);
    *out = PyMem_Calloc((size_t)count + 1, sizeof **out);
    if (*out == NULL) PyErr_NoMemory();
    for (Py_ssize_t i = 0; encoded != NULL && i < count; i++) {
        PyObject *path = NULL;
        if (*out == NULL || !PyUnicode_FSConverter(PyTuple_GET_ITEM(paths, i), &path)) {
            Py_CLEAR(encoded);
            break;
        }
        PyTuple_SET_ITEM(encoded, i, path);
        (*out)[i] = PyBytes_AS_STRING(path);
    }
    return encoded;
}

static int open_reader(fl_py_file_reader *self, const char **names, const Py_buffer *states)
{
    fl_err err;
    fl_py_fields fields = {.token_files = self->paths};
    int64_t bytes = self->count * (int64_t)sizeof(fl_file_state);
    if (states->buf != NULL && states->len != bytes)
        return FL_PY_FAIL(PyExc_ValueError, "FileReader: states must have %lld bytes, got %zd",
                          (long long)bytes, states->len);
    return fl_py_check(fl_file_reader_open(names, states->buf, self->count, &self->reader, &err),
                       &err, &fields);
}

static PyObject *file_reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"paths", "states", NULL};
    PyObject *paths;
    Py_buffer states = {0};
    const char **names = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|z*:FileReader", keywords, &PyTuple_Type,
                                     &paths, &states))
        return NULL;
    fl_py_file_reader *self = (fl_py_file_reader *)type->tp_alloc(type, 0);
    PyObject *encoded = self != NULL ? encode_paths(paths, &names) : NULL;
    if (self != NULL) self->paths = Py_NewRef(paths);
    if (self != NULL) self->count = (int64_t)PyTuple_GET_SIZE(paths);
    if (encoded == NULL || open_reader(self, names, &states) != 0) Py_CLEAR(self);
    Py_XDECREF(encoded);
    PyMem_Free(names);
    if (states.obj != NULL) PyBuffer_Release(&states);
    return (PyObject *)self;
}

static void file_reader_dealloc(fl_py_file_reader *self)
{
    fl_file_reader_close(self->reader);
    Py_XDECREF(self->paths);
    fl_py_free(self);
}

/* Checks that a part lies in the range of a file's bytes. */
static int check_part(const fl_py_file_reader *self, const fl_file_part *part)
{
    int64_t end;
    if (part->file >= 0 && part->file < self->count && part->byte >= 0 && part->bytes >= 0 &&
        fl_add(part->byte, part->bytes, &end) &&
        end <= fl_file_reader_state(self->reader, part->file)->bytes)
        return 0;
    return FL_PY_FAIL(PyExc_IndexError, "no part of a file: file %lld, byte %lld, %lld bytes",
                      (long long)part->file, (long long)part->byte, (long long)part->bytes);
}

PyDoc_STRVAR(read_doc,
             "read(file, byte, bytes, /)\n--\n\n"
             "Return `bytes` bytes of a file, from `byte` on. Releases the interpreter lock.\n"
             "Raises OSError; its errno is ESTALE if the file has changed. Raises IndexError for\n"
             "bytes that the file did not have.");

static PyObject *file_reader_read(fl_py_file_reader *self, PyObject *args)
{
    long long file, byte, bytes;
    int status;
    fl_err err;
    if (!PyArg_ParseTuple(args, "LLL:read", &file, &byte, &bytes)) return NULL;
    fl_file_part part = {file, byte, bytes};
    if (check_part(self, &part) != 0) return NULL;
    PyObject *out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    if (out == NULL) return NULL;
    char *memory = PyBytes_AS_STRING(out);
    Py_BEGIN_ALLOW_THREADS
    status = fl_file_reader_read(self->reader, &part, memory, &err);
    Py_END_ALLOW_THREADS
    fl_py_fields fields = {.token_files = self->paths};
    if (fl_py_check(status, &err, &fields) != 0) Py_CLEAR(out);
    return out;
}

PyDoc_STRVAR(announce_doc,
             "announce(parts, /)\n--\n\n"
             "Tell the system that a batch of parts will be read soon. parts: int64, [n, 3]: the\n"
             "arguments of read(). Does nothing if the files are cached. Releases the\n"
             "interpreter lock.");

static PyObject *file_reader_announce(fl_py_file_reader *self, PyObject *given)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(given, &buffer, PyBUF_SIMPLE) != 0) return NULL;
    const fl_file_part *parts = buffer.buf;
    int64_t count = buffer.len / (int64_t)sizeof *parts;
    int status = 0;
    for (int64_t i = 0; i < count && status == 0; i++) status = check_part(self, &parts[i]);
    if (status == 0) {
        Py_BEGIN_ALLOW_THREADS
        fl_file_reader_announce(self->reader, parts, count);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&buffer);
    if (status != 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *file_reader_states(fl_py_file_reader *self, void *Py_UNUSED(closure))
{
    const char *states = self->count > 0 ? (const char *)fl_file_reader_state(self->reader, 0) : "";
    return PyBytes_FromStringAndSize(states,
                                     (Py_ssize_t)(self->count * (int64_t)sizeof(fl_file_state)));
}

static PyMethodDef file_reader_methods[] = {
    {"read", (PyCFunction)file_reader_read, METH_VARARGS, read_doc},
    {"announce", (PyCFunction)file_reader_announce, METH_O, announce_doc},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef file_reader_getset[] = {
    {"states", (getter)file_reader_states, NULL,
     "int64, [files, 3], as bytes: size, time of the last change in ns, inode", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

PyDoc_STRVAR(file_reader_doc,
             "FileReader(paths, states=None)\n--\n\n"
             "Reads parts of many files with few descriptors. paths: a tuple of str.\n\n"
             "states: the files' states when the dataset was made; a different file under the\n"
             "same path then is an error of read(). None: the states that the files have now.\n"
             "Raises OSError for a path without a regular file.");

static PyType_Slot file_reader_slots[] = {
    {Py_tp_doc, (void *)file_reader_doc}, {Py_tp_new, file_reader_new},
    {Py_tp_dealloc, file_reader_dealloc}, {Py_tp_methods, file_reader_methods},
    {Py_tp_getset, file_reader_getset},   {0, NULL}};

PyType_Spec fl_py_file_reader_spec =
    FL_PY_SPEC("FileReader", fl_py_file_reader, 0, file_reader_slots);
