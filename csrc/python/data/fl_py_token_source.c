/* fl_py_token_source: see fl_py_token_source.h. */
#include "fl_py_token_source.h"

#include "fl_py_error.h"
#include "fl_py_indices.h"
#include "fl_py_mapped_file.h"
#include "fl_py_token_file.h"

#include <fcntl.h>
#include <string.h>

/* Checks a source's tokens and bytes: their end must fit int64 and, if the room is known, `room`.
 * 0, or -1 and ValueError. */
static int check_extent(const fl_token_source *source, int64_t room)
{
    int64_t end;
    if (source->first_byte >= 0 && source->tokens >= 0 &&
        fl_mul(source->tokens, fl_token_bytes(source->type), &end) &&
        fl_add(end, source->first_byte, &end) && end <= room)
        return 0;
    return FL_PY_FAIL(PyExc_ValueError,
                      "Windows: the source must hold %lld tokens from byte %lld on",
                      (long long)source->tokens, (long long)source->first_byte);
}

static int read_descriptor(PyObject *number, int *fd)
{
    *fd = (int)PyLong_AsLong(number);
    if (*fd == -1 && PyErr_Occurred()) return -1;
    if (fcntl(*fd, F_GETFD) >= 0) return 0;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

static int
open_array(const fl_py_dlpack *dlpack, PyObject *array, PyObject *kept, fl_token_source *out)
{
    fl_tensor view;
    if (fl_py_view(dlpack, array, &view) != 0) return -1;
    if (view.ndim != 1 || !fl_tensor_is_contiguous(&view))
        return FL_PY_FAIL(PyExc_ValueError,
                          "Windows: an array of tokens must be 1-d and contiguous");
    out->data = view.data;
    if (check_extent(out, fl_tensor_bytes(view.dtype, 1, view.shape)) != 0) return -1;
    return PyList_Append(kept, array);
}

static int
read_ends(const fl_py_dlpack *dlpack, PyObject *ends, PyObject *kept, fl_token_source *out)
{
    fl_tensor view;
    if (ends == Py_None) return 0;
    if (fl_py_index_vector(dlpack, ends, &view) != 0) return -1;
    out->ends = (const int64_t *)(const void *)view.data;
    out->documents = view.shape[0];
    for (int64_t i = 1; i < out->documents; i++) {
        if (out->ends[i - 1] <= out->ends[i]) continue;
        return FL_PY_FAIL(PyExc_ValueError,
                          "Windows: document ends must rise, got end %lld at %lld after %lld",
                          (long long)i, (long long)out->ends[i], (long long)out->ends[i - 1]);
    }
    return PyList_Append(kept, ends);
}

int fl_py_token_source(const fl_py_dlpack *dlpack, PyObject *item, PyObject *kept,
                       fl_token_source *out)
{
    PyObject *name, *source, *ends, *mapped = Py_None;
    long long first_byte, tokens;
    const char *dtype;
    *out = (fl_token_source){.fd = -1, .most = UINT64_MAX};
    if (!PyArg_ParseTuple(item, "UOLLsO|O:Windows", &name, &source, &first_byte, &tokens, &dtype,
                          &ends, &mapped) ||
        fl_py_mapped_file_check(mapped) != 0 || fl_py_token_type(dtype, &out->type) != 0)
        return -1;
    out->first_byte = first_byte;
    out->tokens = tokens;
    out->is_volatile = mapped != Py_None;
    if (check_extent(out, INT64_MAX) != 0 || read_ends(dlpack, ends, kept, out) != 0) return -1;
    if (!PyLong_Check(source)) {
        if (open_array(dlpack, source, kept, out) != 0) return -1;
        return PyList_Append(kept, mapped);
    }
    out->is_volatile = false;
    return read_descriptor(source, &out->fd);
}
