/* fl_py_pil_blur: see fl_py_pil_blur.h. */
#include "fl_py_pil_blur.h"

#include "fl_box_blur.h"
#include "fl_cpu_image.h"
#include "fl_py_arrow.h"
#include "fl_py_error.h"
#include "fl_py_image_cache.h"

/* A blur needs 128 bytes for each row or column, whichever are more. Without a bound, the memory of
 * a long and thin image would be many times the image's. */
enum { MOST_ROWS = 1 << 16 };

const char fl_py_pil_blur_doc[] =
    PyDoc_STR("pil_blur(core, radius, /)\n--\n\n"
              "Blur the pixels of a PIL image in place, as PIL.ImageFilter.GaussianBlur does.\n"
              "`core` is the image's core, of mode RGB, or of mode L and a width that is a\n"
              "multiple of 4; nobody else may have it. Releases the interpreter lock. Raises\n"
              "ValueError if fastloop cannot blur the image; then nothing has changed.");

/* Finds where Pillow stores the pixels of a core. Returns what keeps the pixels alive, a new
 * reference; NULL and an exception. */
static PyObject *find_pixels(PyObject *core, const char *mode, fl_box_image *out)
{
    const bool is_rgb = strcmp(mode, "RGB") == 0;
    const uint8_t *data = NULL;
    if (out->rows < 1 || out->columns < 1)
        return PyErr_Format(PyExc_ValueError, "fastloop does not blur an image without pixels");
    if (out->rows > MOST_ROWS || out->columns > MOST_ROWS)
        return PyErr_Format(PyExc_ValueError,
                            "fastloop blurs images of at most %d rows and columns", MOST_ROWS);
    if (!is_rgb && strcmp(mode, "L") != 0)
        return PyErr_Format(PyExc_ValueError, "fastloop blurs images of RGB and L, not %s", mode);
    if (!is_rgb && out->columns % 4 != 0)
        return PyErr_Format(PyExc_ValueError,
                            "fastloop blurs grey images if the width is a multiple of 4");
    out->pixel_bytes = is_rgb ? 4 : 1;
    PyObject *owner = fl_py_arrow_bytes(core, out->rows * out->columns, out->pixel_bytes, &data);
    if (owner == NULL)
        return PyErr_Format(PyExc_ValueError, "Pillow does not show where the pixels are");
    out->data = (uint8_t *)data;
    return owner;
}

static PyObject *open_image(PyObject *core, fl_box_image *out)
{
    int width, height;
    PyObject *mode = PyObject_GetAttrString(core, "mode"), *owner = NULL;
    PyObject *size = mode != NULL ? PyObject_GetAttrString(core, "size") : NULL;
    const char *name = size != NULL ? PyUnicode_AsUTF8(mode) : NULL;
    if (name != NULL && PyArg_Parse(size, "(ii)", &width, &height)) {
        *out = (fl_box_image){.rows = height, .columns = width};
        owner = find_pixels(core, name, out);
    }
    Py_XDECREF(size);
    Py_XDECREF(mode);
    return owner;
}

PyObject *fl_py_pil_blur(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *core, *owner;
    fl_box_image image;
    fl_err err = {0};
    float radius;
    int status;
    if (!PyArg_ParseTuple(args, "Of:pil_blur", &core, &radius)) return NULL;
    if (!(radius > 0 && radius <= FL_MAX_BOX_RADIUS))
        return PyErr_Format(PyExc_ValueError, "fastloop blurs by a radius above 0 and at most %d",
                            FL_MAX_BOX_RADIUS);
    if ((owner = open_image(core, &image)) == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = fl_box_blur(fl_cpu_image_ops_find(), &image, radius, &err);
    Py_END_ALLOW_THREADS
    Py_DECREF(owner);
    if (status != FL_OK) return fl_py_raise(&err, NULL);
    Py_RETURN_NONE;
}

/* Writes the byte that follows the three channels of each pixel of RGB. Pillow shows it to those
 * who ask for the pixels as RGBX or in Arrow's format. */
static void put_fourth(const fl_box_image *image, uint8_t value)
{
    uint8_t *fourth = image->data + 3;
    for (int64_t i = 0; i < image->rows * image->columns; i++) fourth[4 * i] = value;
}

const char fl_py_pil_clear_doc[] = PyDoc_STR(
    "pil_clear(core, /)\n--\n\n"
    "Write 0 to the fourth byte of each pixel of a core of mode RGB, as PIL.Image.resize\n"
    "does; nobody else may have the core. Raises ValueError if fastloop cannot.");

PyObject *fl_py_pil_clear(PyObject *Py_UNUSED(module), PyObject *core)
{
    fl_box_image image;
    PyObject *owner = open_image(core, &image);
    if (owner == NULL) return NULL;
    if (image.pixel_bytes == 4) put_fourth(&image, 0);
    Py_DECREF(owner);
    Py_RETURN_NONE;
}

enum { PIECE = 512 }; /* pixels of a row that are written at once */

/* Writes a row of an image. The fourth bytes are 255, as Pillow's decoders write them. */
static void write_ycc(uint8_t *dst, const fl_ycc *ycc, int32_t row)
{
    const fl_image_ops *ops = fl_cpu_image_ops_find();
    uint8_t planes[4][PIECE];
    memset(planes[3], 255, PIECE);
    for (int32_t from = 0; from < ycc->width; from += PIECE) {
        const int32_t to = ycc->width - from < PIECE ? ycc->width : from + PIECE;
        ops->read_ycc(planes[0], PIECE, ycc, row, from, to);
        ops->join(dst + 4 * (int64_t)from, planes[0], PIECE, to - from, 4, 1);
    }
}

const char fl_py_pil_ycc_doc[] = PyDoc_STR(
    "pil_ycc(core, image, /)\n--\n\n"
    "Write a YccImage to a core of mode RGB and of its size; nobody else may have the\n"
    "core. Releases the interpreter lock. Raises ValueError if fastloop does not write it.");

PyObject *fl_py_pil_ycc(PyObject *module, PyObject *args)
{
    const fl_py_state *state = PyModule_GetState(module);
    fl_py_ycc_image *from;
    fl_box_image image;
    PyObject *core, *owner;
    if (!PyArg_ParseTuple(args, "OO!:pil_ycc", &core, state->ycc_image_type, &from)) return NULL;
    if ((owner = open_image(core, &image)) == NULL) return NULL;
    const fl_ycc *ycc = &from->image;
    if (image.pixel_bytes != 4 || image.rows != ycc->height || image.columns != ycc->width) {
        Py_DECREF(owner);
        return PyErr_Format(PyExc_ValueError, "pil_ycc: must have a core of RGB and of %dx%d",
                            ycc->width, ycc->height);
    }
    Py_BEGIN_ALLOW_THREADS
    for (int32_t row = 0; row < ycc->height; row++)
        write_ycc(image.data + row * image.columns * 4, ycc, row);
    Py_END_ALLOW_THREADS
    Py_DECREF(owner);
    Py_RETURN_NONE;
}

const char fl_py_pil_affine_doc[] = PyDoc_STR(
    "pil_affine(result, core, is_cubic, fills, a, b, c, d, e, f, /)\n--\n\n"
    "Write the image of a core to a result of the same size, as PIL.Image.transform does\n"
    "with an affine matrix. Both are cores of mode RGB; nobody else may have the result.\n"
    "fills: what lies outside of the image becomes 0; else the result's first pixel.\n"
    "Releases the interpreter lock. Raises ValueError if fastloop does not write the\n"
    "result; then nothing has changed.");

PyObject *fl_py_pil_affine(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *result, *core, *to, *from;
    int is_cubic, fills;
    fl_box_image target, image;
    fl_warp_pil warp = {0};
    double *m = warp.m;
    if (!PyArg_ParseTuple(args, "OOppdddddd:pil_affine", &result, &core, &is_cubic, &fills, &m[0],
                          &m[1], &m[2], &m[3], &m[4], &m[5]))
        return NULL;
    if ((to = open_image(result, &target)) == NULL) return NULL;
    if ((from = open_image(core, &image)) != NULL) {
        if (image.pixel_bytes != 4 || target.pixel_bytes != 4 || image.rows != target.rows ||
            image.columns != target.columns || image.data == target.data) {
            PyErr_SetString(PyExc_ValueError,
                            "pil_affine: must have two cores of RGB and one size");
            Py_CLEAR(from);
        }
    }
    if (from != NULL) {
        const uint8_t fourth = target.data[3]; /* Pillow writes three channels */
        warp.how = is_cubic ? FL_BICUBIC : FL_BILINEAR;
        if (!fills) memcpy(warp.fill, target.data, 4);
        Py_BEGIN_ALLOW_THREADS
        fl_cpu_image_ops_find()->tone.warp_pil(target.data, image.data, (int32_t)image.columns,
                                               (int32_t)image.rows, 4, &warp);
        put_fourth(&target, fourth);
        Py_END_ALLOW_THREADS
    }
    Py_DECREF(to);
    Py_XDECREF(from);
    return from != NULL ? Py_NewRef(Py_None) : NULL;
}
