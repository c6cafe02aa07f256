/* fl_py_image_steps: see fl_py_image_steps.h. */
#include "fl_py_image_steps.h"

#include "fl_py_error.h"

static int read_crop(PyObject *drawn, fl_image_size in, fl_image_params *out)
{
    fl_image_size *size = &out->size;
    if (!PyArg_Parse(drawn, "(iiii)", &out->top, &out->left, &size->height, &size->width))
        return -1;
    if (out->top >= 0 && out->left >= 0 && size->height >= 1 && size->width >= 1 &&
        size->height <= in.height - out->top && size->width <= in.width - out->left)
        return 0;
    return FL_PY_FAIL(PyExc_ValueError,
                      "apply_drawn: a crop of (%d, %d) at (%d, %d) is not inside the image",
                      size->height, size->width, out->top, out->left);
}

static int
read_drawn(const fl_image_op *op, PyObject *drawn, fl_image_size in, fl_image_params *out)
{
    if (op->kind == FL_OP_RANDOM_RESIZED_CROP) return read_crop(drawn, in, out);
    if (op->kind != FL_OP_HORIZONTAL_FLIP && op->kind != FL_OP_VERTICAL_FLIP)
        return FL_PY_FAIL(PyExc_ValueError, "apply_drawn: nothing can be drawn for %s",
                          fl_image_op_name(op->kind));
    int answer = PyObject_IsTrue(drawn);
    out->is_applied = answer > 0;
    return answer < 0 ? -1 : 0;
}

int fl_py_image_drawn_read(const fl_image_plan *plan, PyObject *drawn, fl_image_size in,
                           fl_image_params *params)
{
    const int32_t count = fl_image_plan_count(plan);
    fl_err err;
    if (!PyTuple_Check(drawn) || PyTuple_GET_SIZE(drawn) != count)
        return FL_PY_FAIL(PyExc_ValueError, "apply_drawn: drawn must be a tuple of %d", count);
    if (fl_py_check(fl_image_plan_draw(plan, NULL, in, params, &err), &err, NULL) != 0) return -1;
    for (int32_t i = 0; i < count; i++) {
        const fl_image_op *op = fl_image_plan_op(plan, i);
        if (read_drawn(op, PyTuple_GET_ITEM(drawn, i), in, &params[i]) != 0) return -1;
        in = params[i].out;
    }
    return 0;
}

static int read_step(PyObject *tuple, fl_image_step *out)
{
    const char *name = NULL;
    const Py_ssize_t count = PyTuple_Check(tuple) ? PyTuple_GET_SIZE(tuple) - 2 : -1;
    fl_err err;
    if (count < 0 || count > FL_DRAWN_STEP_NUMBERS ||
        (name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(tuple, 0))) == NULL)
        return PyErr_Occurred() ? -1 : FL_PY_FAIL(PyExc_ValueError, "apply_drawn: not a step");
    *out = (fl_image_step){.how = (fl_interpolation)PyLong_AsLong(PyTuple_GET_ITEM(tuple, 1))};
    for (Py_ssize_t k = 0; k < count; k++)
        out->number[k] = PyFloat_AsDouble(PyTuple_GET_ITEM(tuple, k + 2));
    if (PyErr_Occurred()) return -1;
    return fl_py_check(fl_image_step_find(name, out, &err), &err, NULL);
}

int fl_py_image_steps_read(PyObject *steps, PyObject *border, fl_image_size size,
                           fl_image_steps *out)
{
    const Py_ssize_t count = PyTuple_Check(steps) ? PyTuple_GET_SIZE(steps) : FL_MAX_STEPS + 1;
    fl_err err;
    if (count > FL_MAX_STEPS)
        return FL_PY_FAIL(PyExc_ValueError, "apply_drawn: steps must be a tuple of at most %d",
                          FL_MAX_STEPS);
    if (!PyArg_Parse(border, "(ddd)", &out->border[0], &out->border[1], &out->border[2])) return -1;
    for (Py_ssize_t k = 0; k < count; k++)
        if (read_step(PyTuple_GET_ITEM(steps, k), &out->step[k]) != 0) return -1;
    out->count = (int32_t)count;
    return fl_py_check(fl_image_steps_check(out, size, &err), &err, NULL);
}
