/* fl_py_scalars: what is computed between passes, from numbers that may be known to a device alone;
 * methods of _core.GradList, see fl_py_grad_list.h. */
#include "fl_py_grad_list.h"

int fl_py_find_scalar(fl_py_grad_list *self, PyObject *tensor, uint8_t bits, int32_t *device,
                      void **out)
{
    *out = NULL;
    if (tensor == Py_None) return 0;
    *out = fl_py_scalar_address(&self->door, tensor, kDLFloat, bits, device);
    return *out != NULL ? 0 : -1;
}

PyObject *fl_py_clip_factor(fl_py_grad_list *self, PyObject *args)
{
    PyObject *norm, *found_inf, *scale, *factor;
    double max_norm, divisor;
    void *norm_at, *found_at, *scale_at, *factor_at, *queue;
    int32_t device = FL_PY_ANYWHERE;
    fl_cuda_queue room;
    if (!PyArg_ParseTuple(args, "OdOOdO:clip_factor", &norm, &max_norm, &found_inf, &scale,
                          &divisor, &factor))
        return NULL;
    if (fl_py_find_scalar(self, norm, 64, &device, &norm_at) != 0) return NULL;
    if (fl_py_find_scalar(self, found_inf, 32, &device, &found_at) != 0) return NULL;
    if (fl_py_find_scalar(self, scale, 32, &device, &scale_at) != 0) return NULL;
    factor_at = fl_py_scalar_address(&self->door, factor, kDLFloat, 64, &device);
    if (factor_at == NULL || fl_py_open_scalars(self, device, &room, &queue) != 0) return NULL;
    fl_divisor by = {.scale = scale_at, .constant = divisor};
    return fl_py_close_pass(
        fl_py_grad_ops(device)->clip_factor(queue, norm_at, max_norm, found_at, by, factor_at),
        queue);
}

PyObject *fl_py_invert(fl_py_grad_list *self, PyObject *args)
{
    PyObject *scale, *inverse;
    void *queue;
    int32_t device = FL_PY_ANYWHERE;
    fl_cuda_queue room;
    if (!PyArg_ParseTuple(args, "OO:invert", &scale, &inverse)) return NULL;
    const float *scale_at = fl_py_scalar_address(&self->door, scale, kDLFloat, 32, &device);
    if (scale_at == NULL) return NULL;
    float *inverse_at = fl_py_scalar_address(&self->door, inverse, kDLFloat, 32, &device);
    if (inverse_at == NULL || fl_py_open_scalars(self, device, &room, &queue) != 0) return NULL;
    return fl_py_close_pass(fl_py_grad_ops(device)->invert(queue, scale_at, inverse_at), queue);
}

PyObject *fl_py_update_scale(fl_py_grad_list *self, PyObject *args)
{
    PyObject *found_inf, *scale, *tracker, *misses;
    fl_scale_rule rule;
    void *found_at, *scale_at, *tracker_at, *misses_at, *queue;
    int32_t device = FL_PY_ANYWHERE;
    fl_cuda_queue room;
    if (!PyArg_ParseTuple(args, "O(ddiiff)OOO:update_scale", &found_inf, &rule.growth,
                          &rule.backoff, &rule.interval, &rule.hysteresis, &rule.least, &rule.most,
                          &scale, &tracker, &misses))
        return NULL;
    const fl_py_dlpack *door = &self->door;
    if ((found_at = fl_py_scalar_address(door, found_inf, kDLFloat, 32, &device)) == NULL)
        return NULL;
    if ((scale_at = fl_py_scalar_address(door, scale, kDLFloat, 32, &device)) == NULL) return NULL;
    if ((tracker_at = fl_py_scalar_address(door, tracker, kDLInt, 32, &device)) == NULL)
        return NULL;
    if ((misses_at = fl_py_scalar_address(door, misses, kDLInt, 32, &device)) == NULL) return NULL;
    if (fl_py_open_scalars(self, device, &room, &queue) != 0) return NULL;
    PyObject *told = PyObject_CallFunction(self->written, "((OO))", scale, tracker);
    if (told == NULL) return NULL;
    Py_DECREF(told);
    return fl_py_close_pass(fl_py_grad_ops(device)->update_scale(queue, &rule, found_at, scale_at,
                                                                 tracker_at, misses_at),
                            queue);
}
