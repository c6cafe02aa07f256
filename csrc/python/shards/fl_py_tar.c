/* fl_py_tar: see fl_py_tar.h. */
#include "fl_py_tar.h"

#include "fl_hash.h"
#include "fl_py.h"
#include "fl_py_error.h"
#include "fl_tar_index.h"

enum { ENTRY_BYTES = sizeof(fl_tar_entry), HASH_BYTES = sizeof(uint64_t) };

/* The memory may be NULL if there are no bytes. */
static PyObject *as_bytes(const void *memory, int64_t bytes)
{
    return PyBytes_FromStringAndSize(bytes > 0 ? memory : "", (Py_ssize_t)bytes);
}

static PyObject *list_sets(const fl_tar_index *index)
{
    PyObject *sets = PyTuple_New(index->set_count);
    for (int32_t s = 0; sets != NULL && s < index->set_count; s++) {
        PyObject *text = PyUnicode_DecodeUTF8(
            index->sets[s].text, (Py_ssize_t)index->sets[s].bytes - 1, "surrogateescape");
        if (text == NULL)
            Py_CLEAR(sets);
        else
            PyTuple_SET_ITEM(sets, s, text);
    }
    return sets;
}

const char fl_py_tar_index_doc[] =
    "tar_index(path, descriptor, bytes, /)\n--\n\n"
    "Find the samples of an open archive of `bytes` bytes: (entries, hashes, sets).\n\n"
    "entries: for each sample, 16 bytes: uint64, its first byte; uint32, its bytes;\n"
    "uint32, 24 bits of the key's hash and 8 bits, the number of its set; 255: in no\n"
    "set. hashes: uint64, of the keys. sets: the extensions of a sample, with slashes\n"
    "between. Releases the interpreter lock. Raises ValueError, whose text has the\n"
    "archive as its subject, and OSError with the path.";

PyObject *fl_py_tar_index(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *path, *result = NULL;
    int fd, status;
    long long bytes;
    fl_tar_index index;
    fl_err err;
    if (!PyArg_ParseTuple(args, "UiL:tar_index", &path, &fd, &bytes)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = fl_tar_index_make(fd, bytes, &index, &err);
    Py_END_ALLOW_THREADS
    PyObject *paths = PyTuple_Pack(1, path);
    fl_py_fields fields = {.token_files = paths};
    if (paths != NULL && fl_py_check(status, &err, &fields) == 0)
        result = Py_BuildValue("NNN", as_bytes(index.entries, index.count * ENTRY_BYTES),
                               as_bytes(index.hashes, index.count * HASH_BYTES), list_sets(&index));
    fl_tar_index_clear(&index);
    Py_XDECREF(paths);
    return result;
}

/* Reads the next member at *at, which must lie whole in the sample. 0, or -1 and an exception. */
static int read_member(const Py_buffer *sample, int64_t at, fl_tar_member *out)
{
    fl_err err;
    int64_t left = sample->len - at;
    int status = fl_tar_read((const char *)sample->buf + at, left, at, out, &err);
    if (status == FL_EEND ||
        (status == FL_OK && (out->needs > left || out->body + out->bytes > left)))
        status = fl_fail(&err, FL_EINVAL, "has no whole member at byte %lld", (long long)at);
    return fl_py_check(status, &err, NULL);
}

/* Adds (extension, contents) to a list, and sets *key to the member's key. 0, or -1 and an
 * exception. */
static int add_member(const Py_buffer *sample, int64_t at, const fl_tar_member *member,
                      unsigned int check, PyObject *list, PyObject **key)
{
    int64_t length = member->is_file ? fl_tar_key(member->name, member->name_bytes) : -1;
    if (length < 0) return 0;
    if (fl_tar_check(fl_hash(member->name, length)) != check)
        return FL_PY_FAIL(PyExc_ValueError, "has a member of a different sample at byte %lld",
                          (long long)at);
    if (*key == NULL)
        *key = PyUnicode_DecodeUTF8(member->name, (Py_ssize_t)length, "surrogateescape");
    PyObject *name =
        PyUnicode_DecodeUTF8(member->name + length + 1,
                             (Py_ssize_t)(member->name_bytes - length - 1), "surrogateescape");
    PyObject *part = *key != NULL && name != NULL
                         ? Py_BuildValue("Oy#", name, (const char *)sample->buf + at + member->body,
                                         (Py_ssize_t)member->bytes)
                         : NULL;
    int status = part != NULL ? PyList_Append(list, part) : -1;
    Py_XDECREF(part);
    Py_XDECREF(name);
    return status;
}

const char fl_py_tar_members_doc[] =
    "tar_members(sample, check, /)\n--\n\n"
    "Return (key, [(extension, contents), ...]) for the bytes of a sample. `check` is\n"
    "the 24 bits of the key's hash. Raises ValueError if the bytes are not that sample's.";

PyObject *fl_py_tar_members(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer sample;
    unsigned int check;
    fl_tar_member member;
    PyObject *key = NULL;
    if (!PyArg_ParseTuple(args, "y*I:tar_members", &sample, &check)) return NULL;
    PyObject *list = PyList_New(0);
    int status = list != NULL ? 0 : -1;
    for (int64_t at = 0; status == 0 && at < sample.len; at += member.end) {
        status = read_member(&sample, at, &member);
        if (status == 0) status = add_member(&sample, at, &member, check, list, &key);
    }
    PyBuffer_Release(&sample);
    if (status == 0 && key == NULL) PyErr_SetString(PyExc_ValueError, "has no member");
    if (status == 0 && key != NULL) return Py_BuildValue("NN", key, list);
    Py_XDECREF(key);
    Py_XDECREF(list);
    return NULL;
}

const char fl_py_checksum_doc[] = "checksum(data, /)\n--\n\n"
                                  "Return a checksum of 64 bits of a buffer (fl_hash).";

PyObject *fl_py_checksum(PyObject *Py_UNUSED(module), PyObject *data)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE) != 0) return NULL;
    uint64_t sum = fl_hash(buffer.buf, buffer.len);
    PyBuffer_Release(&buffer);
    return PyLong_FromUnsignedLongLong(sum);
}
