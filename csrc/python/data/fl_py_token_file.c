/* fl_py_token_file: see fl_py_token_file.h. */
#include "fl_py_token_file.h"

#include "fl_py_error.h"
#include "fl_py_numpy.h"
#include "fl_token_file.h"

#include <string.h>

static const char *const names[FL_TOKEN_TYPES] = {"uint8",  "int8",  "uint16", "int16",
                                                  "uint32", "int32", "int64"};

int fl_py_token_type(const char *name, fl_token_type *out)
{
    for (int t = 0; t < FL_TOKEN_TYPES; t++) {
        *out = (fl_token_type)t;
        if (strcmp(names[t], name) == 0) return 0;
    }
    return FL_PY_FAIL(
        PyExc_ValueError,
        "dtype must be one of uint8, int8, uint16, int16, uint32, int32 and int64, got %s", name);
}

/* Reads the name of a dtype. "auto" becomes FL_TOKEN_TYPES: the file must name its type. */
static int read_type(const char *name, fl_token_type *out)
{
    *out = FL_TOKEN_TYPES;
    return strcmp(name, "auto") == 0 ? 0 : fl_py_token_type(name, out);
}

static PyObject *as_tuple(const fl_token_layout *layout)
{
    return Py_BuildValue("sLL", names[layout->type], (long long)layout->first_byte,
                         (long long)layout->count);
}

/* Finds the layout of a file without an index. format: raw, llmc, or auto. */
static int find_layout(const Py_buffer *head, int64_t file_bytes, const char *format,
                       fl_token_type type, fl_token_layout *out, fl_err *err)
{
    bool is_raw = strcmp(format, "raw") == 0, is_llmc = strcmp(format, "llmc") == 0;
    if (!is_raw) FL_TRY(fl_token_file_check(head->buf, head->len, err));
    if (is_llmc || (!is_raw && fl_token_file_is_llmc(head->buf, head->len)))
        return fl_token_file_read_llmc(head->buf, head->len, file_bytes, type, out, err);
    return fl_token_file_read_raw(file_bytes, type, out, err);
}

const char fl_py_token_header_doc[] =
    "token_header(head, file_bytes, format, dtype, /)\n--\n\n"
    "Return the layout of a token file in llm.c's format or a raw file, as a tuple\n"
    "(dtype, first byte, tokens). `head` is the beginning of the file, and the file\n"
    "has file_bytes bytes. Raises ValueError for wrong bytes.";

PyObject *fl_py_token_header(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer head;
    long long file_bytes;
    const char *format, *dtype;
    fl_token_type type;
    fl_token_layout layout;
    fl_err err = {0};
    if (!PyArg_ParseTuple(args, "y*Lss:token_header", &head, &file_bytes, &format, &dtype))
        return NULL;
    PyObject *result = NULL;
    if (read_type(dtype, &type) == 0) {
        int status = find_layout(&head, file_bytes, format, type, &layout, &err);
        result = status == FL_OK ? as_tuple(&layout) : fl_py_raise(&err, NULL);
    }
    PyBuffer_Release(&head);
    return result;
}

/* Reads Megatron's index into a new array of ends, at *ends: 0, or -1 and an exception. */
static int read_megatron(const Py_buffer *index, int64_t file_bytes, fl_token_type type,
                         PyObject **ends, fl_token_layout *out)
{
    fl_token_index found;
    fl_err err = {0};
    int64_t *data;
    int status = fl_token_index_read(index->buf, index->len, index->len, &found, &err);
    if (status == FL_OK && type != FL_TOKEN_TYPES && type != found.type)
        status =
            fl_fail(&err, FL_EINVAL, "must have tokens of dtype='%s', got %s (leave dtype out)",
                    names[type], names[found.type]);
    if (status == FL_OK) {
        *ends = fl_py_int64_vector((Py_ssize_t)found.documents, &data);
        if (*ends == NULL) return -1;
        status = fl_token_index_ends(index->buf, &found, file_bytes, data, out, &err);
    }
    return fl_py_check(status, &err, NULL);
}

/* Reads datatrove's index into a new array of ends, at *ends: 0, or -1 and an exception. */
static int read_ends(const Py_buffer *index, int64_t file_bytes, fl_token_type type,
                     PyObject **ends, fl_token_layout *out)
{
    fl_err err = {0};
    int64_t *data;
    *ends = fl_py_int64_vector(index->len / 8, &data);
    if (*ends == NULL) return -1;
    int status = fl_token_ends_read(index->buf, index->len, file_bytes, type, data, out, &err);
    return fl_py_check(status, &err, NULL);
}

const char fl_py_token_index_doc[] =
    "token_index(index, file_bytes, format, dtype, /)\n--\n\n"
    "Return (layout, ends) for a token file of file_bytes bytes. `index` is the\n"
    "content of the file's index, in Megatron's or datatrove's format; the layout is\n"
    "a tuple (dtype, first byte, tokens), and `ends` is an int64 array with the end\n"
    "of each document. Raises ValueError for wrong bytes.";

PyObject *fl_py_token_index(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer index;
    long long file_bytes;
    const char *format, *dtype;
    fl_token_type type;
    fl_token_layout layout;
    if (!PyArg_ParseTuple(args, "y*Lss:token_index", &index, &file_bytes, &format, &dtype))
        return NULL;
    PyObject *ends = NULL;
    bool is_megatron = strcmp(format, "megatron") == 0;
    int status = read_type(dtype, &type);
    if (status == 0)
        status = is_megatron ? read_megatron(&index, file_bytes, type, &ends, &layout)
                             : read_ends(&index, file_bytes, type, &ends, &layout);
    PyBuffer_Release(&index);
    if (status == 0) return Py_BuildValue("NN", as_tuple(&layout), ends);
    Py_XDECREF(ends);
    return NULL;
}
