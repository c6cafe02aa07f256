/* fl_py_slices: see fl_py_slices.h. */
#include "fl_py_slices.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

const char fl_py_copy_slices_doc[] =
    "copy_slices(source, begins, lengths, increments, out, /)\n--\n\n"
    "Copy slices of each block of an array, one behind the other. source: bytes of shape\n"
    "[blocks, rows, bytes of a row], with rows without gaps; begins and lengths: int64, of\n"
    "the slices in rows; out: the bytes of the result, whose shape is [blocks, all lengths,\n"
    "bytes of a row]. increments: None; or int64, added to the elements of each slice, which\n"
    "are then ints of a row's size (4 or 8 bytes). Releases the interpreter lock.";

enum { BEGINS, LENGTHS, INCREMENTS, OUT, VECTORS };

typedef struct slices {
    const Py_buffer *source;   /* borrowed from the call */
    const int64_t *begins;     /* borrowed from the call */
    const int64_t *lengths;    /* borrowed from the call */
    const int64_t *increments; /* borrowed from the call; or NULL */
    int64_t count;
} slices;

/* Tells whether all slices lie within the source and fill `bytes` exactly. */
static bool fits(const slices *self, int64_t bytes)
{
    int64_t rows = self->source->shape[1], total = 0;
    for (int64_t i = 0; i < self->count; i++) {
        int64_t begin = self->begins[i], length = self->lengths[i];
        if (begin < 0 || length < 0 || begin > rows || length > rows - begin) return false;
        total += length;
    }
    return total * self->source->shape[0] * self->source->shape[2] == bytes;
}

/* Adds an increment to ints of 4 or 8 bytes, which wrap around as torch's do. */
static void add_to(char *data, int64_t count, int64_t bytes, int64_t increment)
{
    if (bytes == 4) {
        for (int64_t i = 0; i < count; i++) {
            uint32_t value;
            memcpy(&value, data + 4 * i, 4);
            value += (uint32_t)increment;
            memcpy(data + 4 * i, &value, 4);
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint64_t value;
        memcpy(&value, data + 8 * i, 8);
        value += (uint64_t)increment;
        memcpy(data + 8 * i, &value, 8);
    }
}

static void copy_all(const slices *self, char *out)
{
    const Py_buffer *source = self->source;
    int64_t row_bytes = source->shape[2], stride = source->strides[1];
    for (int64_t block = 0; block < source->shape[0]; block++) {
        const char *rows = (const char *)source->buf + block * source->strides[0];
        for (int64_t i = 0; i < self->count; i++) {
            const char *from = rows + self->begins[i] * stride;
            int64_t length = self->lengths[i], bytes = length * row_bytes;
            if (stride == row_bytes) {
                memcpy(out, from, (size_t)bytes);
            } else {
                for (int64_t row = 0; row < length; row++)
                    memcpy(out + row * row_bytes, from + row * stride, (size_t)row_bytes);
            }
            if (self->increments != NULL) add_to(out, length, row_bytes, self->increments[i]);
            out += bytes;
        }
    }
}

PyObject *fl_py_copy_slices(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *array;
    Py_buffer source, vectors[VECTORS];
    if (!PyArg_ParseTuple(args, "Oy*y*z*w*:copy_slices", &array, vectors, vectors + LENGTHS,
                          vectors + INCREMENTS, vectors + OUT))
        return NULL;
    bool is_done = false;
    if (PyObject_GetBuffer(array, &source, PyBUF_STRIDED_RO) == 0) {
        int64_t bytes = vectors[LENGTHS].len, out_bytes = vectors[OUT].len;
        slices self = {&source, vectors[BEGINS].buf, vectors[LENGTHS].buf, vectors[INCREMENTS].buf,
                       bytes / (int64_t)sizeof(int64_t)};
        bool has_increments = self.increments != NULL;
        is_done = source.ndim == 3 && source.itemsize == 1 && vectors[BEGINS].len == bytes &&
                  (source.shape[2] <= 1 || source.strides[2] == 1) &&
                  (!has_increments || (vectors[INCREMENTS].len == bytes &&
                                       (source.shape[2] == 4 || source.shape[2] == 8))) &&
                  fits(&self, out_bytes);
        Py_BEGIN_ALLOW_THREADS
        if (is_done) copy_all(&self, vectors[OUT].buf);
        Py_END_ALLOW_THREADS
        PyBuffer_Release(&source);
        if (!is_done) PyErr_SetString(PyExc_ValueError, "copy_slices: the slices do not fit");
    }
    for (int i = 0; i < VECTORS; i++)
        if (vectors[i].obj != NULL) PyBuffer_Release(vectors + i);
    if (!is_done) return NULL;
    Py_RETURN_NONE;
}
