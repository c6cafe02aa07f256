/* fl_py_batch_codec: writes batches made by _core.Collate to bytes, and reads the batches back.
 *
 * The codec covers lists, tuples, dicts, strings, numbers, and tensors, which are written as their
 * offset in the slot. A few bytes replace the several objects and calls that the pickle module
 * needs. If a batch contains anything else, the writer gives up and the batch is pickled. Sizes
 * have the machine's own byte order, because both sides run on the same machine. */
#include "fl_py_batch_codec.h"

#include "fl_py_put.h"
#include "fl_py_tensor_slot.h"
#include "fl_py_section.h"

#include <string.h>

enum { DEEPEST = 64 };

/* ---- slots */

bool fl_py_memory_has(const fl_py_memory *memory, PyObject *object, fl_tensor *view,
                      int64_t *offset)
{
    if (Py_TYPE(object) != memory->dlpack->tensor_type) return false;
    if (fl_py_view(memory->dlpack, object, view) != 0) {
        PyErr_Clear();
        return false;
    }
    *offset = view->data - memory->data;
    int64_t bytes = fl_tensor_bytes(view->dtype, view->ndim, view->shape);
    return view->data != NULL && *offset >= 0 && bytes <= memory->bytes - *offset;
}

/* ---- writing */

static bool put_bytes(fl_py_writer *out, const void *bytes, int64_t count)
{
    void *items = out->data;
    if (fl_grow(&items, &out->capacity, out->used + count, 1, NULL) != FL_OK) return false;
    out->data = items;
    memcpy(out->data + out->used, bytes, (size_t)count);
    out->used += count;
    return true;
}

static bool put_tag(fl_py_writer *out, char tag, int64_t value)
{
    char bytes[1 + sizeof value];
    bytes[0] = tag;
    memcpy(bytes + 1, &value, sizeof value);
    return put_bytes(out, bytes, sizeof bytes);
}

static bool put_string(fl_py_writer *out, PyObject *string)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(string, &size);
    if (text == NULL) PyErr_Clear(); /* surrogates */
    return text != NULL && put_tag(out, 's', size) && put_bytes(out, text, size);
}

static bool put_tensor(fl_py_writer *out, const fl_tensor *view, int64_t offset)
{
    /* Views and tensors that may share memory with an earlier tensor are pickled. */
    if (offset < out->end || !fl_tensor_is_contiguous(view)) return false;
    out->end = offset + fl_tensor_bytes(view->dtype, view->ndim, view->shape);
    int64_t head[] = {offset, view->dtype.code * 256 + view->dtype.bits};
    return put_tag(out, 't', view->ndim) && put_bytes(out, head, sizeof head) &&
           put_bytes(out, view->shape, view->ndim * (int64_t)sizeof *view->shape);
}

static bool put_object(fl_py_writer *out, PyObject *object, int depth);

static bool put_items(fl_py_writer *out, PyObject *dict, int depth)
{
    Py_ssize_t at = 0, count = PyDict_GET_SIZE(dict);
    PyObject *key, *value;
    bool is_put = put_tag(out, 'd', count);
    for (; is_put && PyDict_Next(dict, &at, &key, &value); count--) {
        Py_INCREF(key);
        Py_INCREF(value);
        is_put = put_object(out, key, depth) && put_object(out, value, depth);
        Py_DECREF(key);
        Py_DECREF(value);
    }
    return is_put && count == 0;
}

/* SHARED(batch): a user's thread in a worker may change the dict, and other threads enter the
 * section while an item waits for a section of its own. So put_items holds references to key and
 * value, and counts the items. */
static bool put_dict(fl_py_writer *out, PyObject *dict, int depth)
{
    bool is_put;
    FL_PY_BEGIN_SECTION(dict);
    is_put = put_items(out, dict, depth);
    FL_PY_END_SECTION();
    return is_put;
}

static bool put_sequence(fl_py_writer *out, char tag, PyObject *sequence, int depth)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
    if (!put_tag(out, tag, count)) return false;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = fl_py_item(sequence, i);
        bool is_put = item != NULL && put_object(out, item, depth);
        Py_XDECREF(item);
        if (!is_put) return false;
    }
    return true;
}

static bool put_int(fl_py_writer *out, PyObject *number)
{
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    return overflow == 0 && put_tag(out, 'i', value);
}

static bool put_object(fl_py_writer *out, PyObject *object, int depth)
{
    fl_tensor view;
    int64_t offset;
    if (depth == DEEPEST) return false;
    if (fl_py_memory_has(&out->memory, object, &view, &offset))
        return put_tensor(out, &view, offset);
    if (PyUnicode_CheckExact(object)) return put_string(out, object);
    if (PyDict_CheckExact(object)) return put_dict(out, object, depth + 1);
    if (PyList_CheckExact(object)) return put_sequence(out, 'l', object, depth + 1);
    if (PyTuple_CheckExact(object)) return put_sequence(out, 'u', object, depth + 1);
    if (PyLong_CheckExact(object)) return put_int(out, object);
    if (PyBytes_CheckExact(object))
        return put_tag(out, 'b', PyBytes_GET_SIZE(object)) &&
               put_bytes(out, PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object));
    return false;
}

bool fl_py_write_batch(fl_py_writer *out, PyObject *batch)
{
    out->used = out->end = 0;
    return put_object(out, batch, 0);
}

/* ---- reading */

static bool get_bytes(fl_py_reader *in, void *to, int64_t count)
{
    if (count < 0 || count > in->bytes - in->at) return false;
    memcpy(to, in->data + in->at, (size_t)count);
    in->at += count;
    return true;
}

typedef struct tensor_head {
    int64_t offset;
    fl_dtype dtype;
    int64_t shape[FL_MAX_NDIM];
} tensor_head;

static bool get_head(fl_py_reader *in, int64_t ndim, tensor_head *out)
{
    int64_t head[2];
    if (ndim < 0 || ndim > FL_MAX_NDIM || !get_bytes(in, head, sizeof head)) return false;
    out->offset = head[0];
    out->dtype = (fl_dtype){(uint8_t)(head[1] >> 8), (uint8_t)head[1], 1};
    return get_bytes(in, out->shape, ndim * (int64_t)sizeof *out->shape);
}

static PyObject *get_tensor(fl_py_reader *in, int64_t ndim)
{
    tensor_head head;
    if (!get_head(in, ndim, &head)) return NULL;
    return in->make(in->context, head.offset, head.dtype, (int32_t)ndim, head.shape);
}

static int append_slot(PyObject *slots, const tensor_head *head, int64_t ndim)
{
    PyObject *slot = fl_py_tensor_slot(head->offset, head->dtype, (int32_t)ndim, head->shape, NULL);
    int status = slot != NULL ? PyList_Append(slots, slot) : -1;
    Py_XDECREF(slot);
    return status;
}

/* A container's items follow the container, so one loop over all tags finds every tensor. */
PyObject *fl_py_list_slots(fl_py_reader *in)
{
    PyObject *slots = PyList_New(0);
    while (slots != NULL && in->at < in->bytes) {
        char tag;
        int64_t value;
        tensor_head head;
        bool is_fine = get_bytes(in, &tag, 1) && get_bytes(in, &value, sizeof value);
        if (is_fine && (tag == 's' || tag == 'b')) {
            is_fine = value >= 0 && value <= in->bytes - in->at;
            in->at += is_fine ? value : 0;
        }
        if (is_fine && tag == 't')
            is_fine = get_head(in, value, &head) && append_slot(slots, &head, value) == 0;
        if (!is_fine) Py_CLEAR(slots);
    }
    return slots;
}

static PyObject *get_dict(fl_py_reader *in, int64_t count)
{
    PyObject *dict = PyDict_New();
    for (int64_t i = 0; dict != NULL && i < count; i++) {
        PyObject *key = fl_py_read_batch(in);
        PyObject *value = key != NULL ? fl_py_read_batch(in) : NULL;
        if (value == NULL || PyDict_SetItem(dict, key, value) != 0) Py_CLEAR(dict);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return dict;
}

static PyObject *get_sequence(fl_py_reader *in, bool is_list, int64_t count)
{
    if (count < 0 || count > in->bytes - in->at) return NULL; /* an item takes at least one byte */
    PyObject *sequence = is_list ? PyList_New(count) : PyTuple_New(count);
    for (int64_t i = 0; sequence != NULL && i < count; i++)
        fl_py_put(&sequence, i, fl_py_read_batch(in));
    return sequence;
}

static PyObject *get_text(fl_py_reader *in, bool is_string, int64_t count)
{
    if (count < 0 || count > in->bytes - in->at) return NULL;
    const char *text = in->data + in->at;
    in->at += count;
    return is_string ? PyUnicode_FromStringAndSize(text, count)
                     : PyBytes_FromStringAndSize(text, count);
}

PyObject *fl_py_read_batch(fl_py_reader *in)
{
    char tag;
    int64_t value;
    if (!get_bytes(in, &tag, 1) || !get_bytes(in, &value, sizeof value)) return NULL;
    switch (tag) {
    case 't':
        return get_tensor(in, value);
    case 'd':
        return get_dict(in, value);
    case 'l':
    case 'u':
        return get_sequence(in, tag == 'l', value);
    case 's':
    case 'b':
        return get_text(in, tag == 's', value);
    case 'i':
        return PyLong_FromLongLong(value);
    default:
        return NULL;
    }
}
