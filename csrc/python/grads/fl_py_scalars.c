/* fl_py_scalars: see fl_py_scalars.h. */
#include "fl_py_scalars.h"

int fl_py_find_float(const fl_py_dlpack *dlpack, PyObject *tensor, uint8_t bits, int32_t *device,
                     void **out)
{
    *out = NULL;
    if (tensor == Py_None) return 0;
    *out = fl_py_scalar_address(dlpack, tensor, kDLFloat, bits, device);
    return *out != NULL ? 0 : -1;
}

int fl_py_find_clip_factor(fl_py_launcher *launcher, const fl_py_dlpack *dlpack, int32_t device,
                           const double *norm, double max_norm, const float *found_inf,
                           fl_divisor divisor, double *factor)
{
    fl_cuda_queue number_queue;
    void *queue;
    if (fl_py_number_queue(launcher, dlpack, device, &number_queue, &queue) != 0) return -1;
    int status =
        fl_py_grad_ops(device)->clip_factor(queue, norm, max_norm, found_inf, divisor, factor);
    return fl_py_check_status(status, queue);
}

int fl_py_invert(fl_py_launcher *launcher, const fl_py_dlpack *dlpack, int32_t device,
                 const float *scale, float *inverse)
{
    fl_cuda_queue number_queue;
    void *queue;
    if (fl_py_number_queue(launcher, dlpack, device, &number_queue, &queue) != 0) return -1;
    return fl_py_check_status(fl_py_grad_ops(device)->invert(queue, scale, inverse), queue);
}

/* The four tensors of update_scale. */
enum { FOUND_INF, SCALE, TRACKER, MISSES, NUMBERS };

static int
find_all(const fl_py_dlpack *dlpack, PyObject *const *tensors, int32_t *device, void **out)
{
    static const uint8_t codes[NUMBERS] = {kDLFloat, kDLFloat, kDLInt, kDLInt};
    for (int32_t i = 0; i < NUMBERS; i++) {
        out[i] = fl_py_scalar_address(dlpack, tensors[i], codes[i], 32, device);
        if (out[i] == NULL) return -1;
    }
    return 0;
}

PyObject *fl_py_update_scale(fl_py_launcher *launcher, const fl_py_dlpack *dlpack,
                             PyObject *written, PyObject *args)
{
    PyObject *tensors[NUMBERS];
    fl_scale_rule rule;
    void *at[NUMBERS], *queue;
    int32_t device = FL_PY_ANYWHERE;
    fl_cuda_queue number_queue;
    if (!PyArg_ParseTuple(args, "O(ddiiff)OOO:update_scale", &tensors[FOUND_INF], &rule.growth,
                          &rule.backoff, &rule.interval, &rule.hysteresis, &rule.least, &rule.most,
                          &tensors[SCALE], &tensors[TRACKER], &tensors[MISSES]))
        return NULL;
    if (find_all(dlpack, tensors, &device, at) != 0) return NULL;
    if (fl_py_number_queue(launcher, dlpack, device, &number_queue, &queue) != 0) return NULL;
    PyObject *answer = PyObject_CallFunction(written, "((OO))", tensors[SCALE], tensors[TRACKER]);
    if (answer == NULL) return NULL;
    Py_DECREF(answer);
    int status = fl_py_grad_ops(device)->update_scale(queue, &rule, at[FOUND_INF], at[SCALE],
                                                      at[TRACKER], at[MISSES]);
    if (fl_py_check_status(status, queue) != 0) return NULL;
    Py_RETURN_NONE;
}
