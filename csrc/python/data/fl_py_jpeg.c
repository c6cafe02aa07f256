/* fl_py_jpeg: see fl_py_jpeg.h. */
#define _GNU_SOURCE /* dladdr */
#include "fl_py_jpeg.h"

#include "fl_py_image_cache.h"

#include <dlfcn.h>
#include <string.h>

typedef struct fl_py_jpeg_decoder {
    PyObject_HEAD
    void *handle; /* owned: keeps the library loaded */
    fl_jpeg_library library;
} fl_py_jpeg_decoder;

static const struct {
    const char *name;
    size_t offset;
} functions[] = {{"jpeg_CreateDecompress", offsetof(fl_jpeg_library, create)},
                 {"jpeg_destroy_decompress", offsetof(fl_jpeg_library, destroy)},
                 {"jpeg_read_header", offsetof(fl_jpeg_library, read_header)},
                 {"jpeg_start_decompress", offsetof(fl_jpeg_library, start)},
                 {"jpeg_crop_scanline", offsetof(fl_jpeg_library, crop)},
                 {"jpeg_skip_scanlines", offsetof(fl_jpeg_library, skip)},
                 {"jpeg_read_scanlines", offsetof(fl_jpeg_library, read)},
                 {"jpeg_read_raw_data", offsetof(fl_jpeg_library, read_raw)}};

static PyObject *decoder_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    const char *path;
    if (!PyArg_ParseTuple(args, "s:JpegDecoder", &path)) return NULL;
    fl_py_jpeg_decoder *self = (fl_py_jpeg_decoder *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        /* Looks in the library itself, and then in the libraries that it links. */
        void *found = self->handle != NULL ? dlsym(self->handle, functions[i].name) : NULL;
        if (found == NULL) {
            PyErr_Format(PyExc_ValueError, "JpegDecoder: %s must be loaded and link %s", path,
                         functions[i].name);
            Py_DECREF(self);
            return NULL;
        }
        memcpy((char *)&self->library + functions[i].offset, &found, sizeof found);
    }
    return (PyObject *)self;
}

static void decoder_dealloc(fl_py_jpeg_decoder *self)
{
    if (self->handle != NULL) dlclose(self->handle);
    fl_py_free(self);
}

static PyObject *decoder_path(fl_py_jpeg_decoder *self, void *Py_UNUSED(closure))
{
    Dl_info info;
    void *function;
    memcpy(&function, &self->library.read_raw, sizeof function);
    if (dladdr(function, &info) == 0) Py_RETURN_NONE;
    return PyUnicode_DecodeFSDefault(info.dli_fname);
}

PyDoc_STRVAR(open_doc,
             "open(data, /)\n--\n\n"
             "Return the JpegImage of a file's bytes, or None if the file is not whole or\n"
             "is of a kind that is left to others.");

static PyObject *decoder_open(fl_py_jpeg_decoder *self, PyObject *data)
{
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    fl_jpeg image;
    if (!PyBytes_Check(data))
        return PyErr_Format(PyExc_TypeError, "open: data must be bytes, got %s",
                            Py_TYPE(data)->tp_name);
    if (!fl_jpeg_open(&self->library, (const uint8_t *)PyBytes_AS_STRING(data),
                      PyBytes_GET_SIZE(data), &image))
        Py_RETURN_NONE;
    PyTypeObject *type = state->jpeg_image_type;
    fl_py_jpeg_image *made = (fl_py_jpeg_image *)type->tp_alloc(type, 0);
    if (made == NULL) return NULL;
    made->image = image;
    made->decoder = Py_NewRef(self);
    made->data = Py_NewRef(data);
    return (PyObject *)made;
}

static PyMethodDef decoder_methods[] = {{"open", (PyCFunction)decoder_open, METH_O, open_doc},
                                        {NULL, NULL, 0, NULL}};

static PyGetSetDef decoder_getset[] = {
    {"path", (getter)decoder_path, NULL, "the file of libjpeg; None: unknown", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

PyDoc_STRVAR(decoder_doc,
             "JpegDecoder(path)\n--\n\n"
             "The libjpeg-turbo that the loaded library at `path` links. Raises ValueError if\n"
             "the library is not loaded or links none.");

static PyType_Slot decoder_slots[] = {
    {Py_tp_doc, (void *)decoder_doc}, {Py_tp_new, decoder_new},
    {Py_tp_dealloc, decoder_dealloc}, {Py_tp_methods, decoder_methods},
    {Py_tp_getset, decoder_getset},   {0, NULL}};

PyType_Spec fl_py_jpeg_decoder_spec =
    FL_PY_SPEC("JpegDecoder", fl_py_jpeg_decoder, 0, decoder_slots);

/* ---- JpegImage */

static void image_dealloc(fl_py_jpeg_image *self)
{
    Py_XDECREF(self->decoder);
    Py_XDECREF(self->data);
    fl_py_free(self);
}

PyDoc_STRVAR(planes_doc,
             "planes()\n--\n\n"
             "Decode the image to a YccImage, or return None if a YccImage cannot hold\n"
             "its planes. Releases the interpreter lock. Raises ValueError if libjpeg\n"
             "warns of the file.");

static PyObject *image_planes(fl_py_jpeg_image *self, PyObject *Py_UNUSED(ignored))
{
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    fl_ycc ycc;
    fl_err err = {0};
    int status;
    if (!fl_jpeg_planes(&self->image, &ycc)) Py_RETURN_NONE;
    PyObject *memory = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)fl_ycc_bytes(&ycc));
    if (memory == NULL) return NULL;
    uint8_t *data = (uint8_t *)PyBytes_AS_STRING(memory);
    Py_BEGIN_ALLOW_THREADS
    status = fl_jpeg_read_planes(&self->image, data, &err);
    Py_END_ALLOW_THREADS
    ycc.data = data;
    PyObject *made = fl_py_check(status, &err, NULL) == 0
                         ? fl_py_ycc_image_make(state->ycc_image_type, &ycc, memory)
                         : NULL;
    Py_DECREF(memory);
    return made;
}

static PyObject *image_shape(fl_py_jpeg_image *self, void *Py_UNUSED(closure))
{
    return Py_BuildValue("(iii)", self->image.height, self->image.width, 3);
}

static PyMethodDef image_methods[] = {
    {"planes", (PyCFunction)image_planes, METH_NOARGS, planes_doc}, {NULL, NULL, 0, NULL}};

static PyGetSetDef image_getset[] = {
    {"shape", (getter)image_shape, NULL, "(height, width, 3)", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

PyDoc_STRVAR(image_doc,
             "An RGB image in a JPEG file. A plan decodes the part that it reads, and raises\n"
             "ValueError if libjpeg warns of the file. Made by JpegDecoder.open.");

static PyType_Slot image_slots[] = {{Py_tp_doc, (void *)image_doc},
                                    {Py_tp_dealloc, image_dealloc},
                                    {Py_tp_methods, image_methods},
                                    {Py_tp_getset, image_getset},
                                    {0, NULL}};

PyType_Spec fl_py_jpeg_image_spec =
    FL_PY_SPEC("JpegImage", fl_py_jpeg_image, Py_TPFLAGS_DISALLOW_INSTANTIATION, image_slots);
