/* fl_py_image_cache: see fl_py_image_cache.h. */
#include "fl_py_image_cache.h"

typedef struct fl_py_image_cache {
    PyObject_HEAD
    fl_image_cache *cache; /* owned */
} fl_py_image_cache;

/* ---- YccImage */

PyObject *fl_py_ycc_image_make(PyTypeObject *type, const fl_ycc *image, PyObject *owner)
{
    fl_py_ycc_image *self = (fl_py_ycc_image *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->image = *image;
    self->owner = Py_NewRef(owner);
    return (PyObject *)self;
}

static PyObject *image_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *data;
    fl_ycc image;
    if (!PyArg_ParseTuple(args, "O!iii:YccImage", &PyBytes_Type, &data, &image.height, &image.width,
                          &image.chroma))
        return NULL;
    if (image.height < 1 || image.width < 1 || image.chroma < 0 || image.chroma >= FL_CHROMAS ||
        PyBytes_GET_SIZE(data) != fl_ycc_bytes(&image))
        return PyErr_Format(PyExc_ValueError, "YccImage: the bytes are not the planes of an image");
    image.data = (const uint8_t *)PyBytes_AS_STRING(data);
    return fl_py_ycc_image_make(type, &image, data);
}

static void image_dealloc(fl_py_ycc_image *self)
{
    Py_XDECREF(self->owner);
    fl_py_free(self);
}

static PyObject *image_shape(fl_py_ycc_image *self, void *Py_UNUSED(closure))
{
    return Py_BuildValue("(iii)", self->image.height, self->image.width, 3);
}

static PyGetSetDef image_getset[] = {
    {"shape", (getter)image_shape, NULL, "(height, width, 3)", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

PyDoc_STRVAR(image_doc,
             "YccImage(data, height, width, chroma)\n--\n\n"
             "An RGB image whose memory is planes of YCbCr, one after the other.\n\n"
             "chroma: 0: only Y. 1: all planes have one size. 2: Cb and Cr have half the width\n"
             "and height, rounded up; the width is > 4.");

static PyType_Slot image_slots[] = {{Py_tp_doc, (void *)image_doc},
                                    {Py_tp_new, image_new},
                                    {Py_tp_dealloc, image_dealloc},
                                    {Py_tp_getset, image_getset},
                                    {0, NULL}};

PyType_Spec fl_py_ycc_image_spec = FL_PY_SPEC("YccImage", fl_py_ycc_image, 0, image_slots);

/* ---- ImageCache */

enum { ID_BYTES = 16 };
_Static_assert(sizeof(fl_boot) == ID_BYTES && sizeof(fl_image_key) == ID_BYTES, "both are ids");

/* For "O&" of PyArg_ParseTuple: copies bytes to an fl_boot or an fl_image_key. */
static int copy_id(PyObject *object, void *out)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE) != 0) return 0;
    bool is_id = buffer.len == ID_BYTES;
    if (is_id) memcpy(out, buffer.buf, ID_BYTES);
    PyBuffer_Release(&buffer);
    if (!is_id)
        PyErr_Format(PyExc_ValueError, "ImageCache: boot and keys have %d bytes each", ID_BYTES);
    return is_id;
}

static PyObject *cache_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    int fd;
    long long budget;
    fl_boot boot;
    fl_err err;
    if (!PyArg_ParseTuple(args, "iLO&:ImageCache", &fd, &budget, copy_id, &boot)) return NULL;
    fl_py_image_cache *self = (fl_py_image_cache *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    if (fl_py_check(fl_image_cache_open(fd, budget, &boot, &self->cache, &err), &err, NULL) != 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void cache_dealloc(fl_py_image_cache *self)
{
    fl_image_cache_close(self->cache);
    fl_py_free(self);
}

PyDoc_STRVAR(format_doc,
             "format(bytes, boot)\n--\n\n"
             "Return the first bytes of a new file of `bytes` bytes, and how many bytes at its\n"
             "begin must have room on the disk. boot: 16 bytes, the time since the machine's\n"
             "start.");

static PyObject *cache_format(PyObject *Py_UNUSED(type), PyObject *args)
{
    long long bytes;
    fl_boot boot;
    fl_image_head head;
    if (!PyArg_ParseTuple(args, "LO&:format", &bytes, copy_id, &boot)) return NULL;
    if (bytes < FL_IMAGE_CACHE_LEAST)
        return PyErr_Format(PyExc_ValueError, "ImageCache: a file must have at least %d bytes",
                            FL_IMAGE_CACHE_LEAST);
    int64_t front = fl_image_cache_format(bytes, &boot, &head);
    return Py_BuildValue("(y#L)", &head, (Py_ssize_t)sizeof head, (long long)front);
}

PyDoc_STRVAR(find_doc, "find(key, /)\n--\n\n"
                       "Return the YccImage of a key of 16 bytes, or None.");

static PyObject *cache_find(fl_py_image_cache *self, PyObject *args)
{
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    fl_image_key key;
    fl_ycc image;
    if (!PyArg_ParseTuple(args, "O&:find", copy_id, &key)) return NULL;
    if (!fl_image_cache_find(self->cache, &key, &image)) Py_RETURN_NONE;
    return fl_py_ycc_image_make(state->ycc_image_type, &image, (PyObject *)self);
}

PyDoc_STRVAR(put_doc,
             "put(key, image, /)\n--\n\n"
             "Put a YccImage, and return False if the cache or its disk is full. Releases\n"
             "the interpreter lock.");

static PyObject *cache_put(fl_py_image_cache *self, PyObject *args)
{
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    fl_py_ycc_image *image;
    fl_image_key key;
    int status;
    if (!PyArg_ParseTuple(args, "O&O!:put", copy_id, &key, state->ycc_image_type, &image))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = fl_image_cache_put(self->cache, &key, &image->image);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(status != FL_IMAGE_CACHE_FULL);
}

static PyObject *cache_size(fl_py_image_cache *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(fl_image_cache_bytes(self->cache));
}

static PyObject *cache_used(fl_py_image_cache *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(fl_image_cache_used(self->cache));
}

static PyMethodDef cache_methods[] = {
    {"format", (PyCFunction)cache_format, METH_VARARGS | METH_STATIC, format_doc},
    {"find", (PyCFunction)cache_find, METH_VARARGS, find_doc},
    {"put", (PyCFunction)cache_put, METH_VARARGS, put_doc},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef cache_getset[] = {
    {"size", (getter)cache_size, NULL, "bytes of the file", NULL},
    {"used", (getter)cache_used, NULL, "bytes that are reserved", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

PyDoc_STRVAR(cache_doc,
             "ImageCache(fd, budget, boot)\n--\n\n"
             "A file of decoded images that processes share. Images are put only into its first\n"
             "`budget` bytes. The descriptor stays the caller's. Raises ValueError if the file is\n"
             "no such file, is of an earlier boot, or lies on a disk that machines share.");

static PyType_Slot cache_slots[] = {{Py_tp_doc, (void *)cache_doc}, {Py_tp_new, cache_new},
                                    {Py_tp_dealloc, cache_dealloc}, {Py_tp_methods, cache_methods},
                                    {Py_tp_getset, cache_getset},   {0, NULL}};

PyType_Spec fl_py_image_cache_spec = FL_PY_SPEC("ImageCache", fl_py_image_cache, 0, cache_slots);
