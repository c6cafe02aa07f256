/* fl_py_launch: see fl_py_launch.h. */
#include "fl_py_launch.h"

#include "fl_cpu_grad.h"

const fl_grad_ops *fl_py_grad_ops(int32_t device)
{
    return device == FL_PY_CPU ? &fl_cpu_grad_ops : &fl_cuda_grad_ops;
}

bool fl_py_can_run(fl_py_launcher *self, int32_t device)
{
    if (device == FL_PY_CPU || device == self->usable_device) return true;
    if (self->new_scratch == Py_None || fl_cuda_check(device, NULL) != FL_OK) return false;
    self->usable_device = device;
    return true;
}

int fl_py_number_queue(fl_py_launcher *self, const fl_py_dlpack *dlpack, int32_t device,
                       fl_cuda_queue *queue, void **out)
{
    *out = NULL;
    if (device == FL_PY_CPU) return 0;
    if (!fl_py_can_run(self, device))
        return FL_PY_FAIL(PyExc_ValueError, "fastloop has no kernels for this device");
    *queue = (fl_cuda_queue){.device = device};
    *out = queue;
    return fl_py_stream(dlpack, device, &queue->stream);
}

/* Makes new scratch on the device of `like`. In torch's allocator the new scratch belongs to the
 * current stream. */
static int
replace_scratch(fl_py_launcher *self, const fl_py_dlpack *dlpack, PyObject *like, int64_t bytes)
{
    fl_py_floats memory;
    self->scratch_bytes = 0; /* scratch cannot be used until the replacement exists */
    PyObject *scratch = PyObject_CallFunction(self->new_scratch, "OL", like, (long long)bytes);
    if (scratch == NULL) return -1;
    Py_XSETREF(self->scratch, scratch);
    self->queue.is_listed = false;
    if (fl_py_float_tensor(dlpack, scratch, &memory)) {
        self->queue.scratch = memory.data;
        self->scratch_bytes = bytes;
        return 0;
    }
    return FL_PY_FAIL(PyExc_TypeError, "new_scratch() must return a float64 tensor");
}

void *fl_py_queue(fl_py_launcher *self, const fl_py_dlpack *dlpack, int32_t device,
                  const fl_tensor_list *list, PyObject *like, fl_thread_pool *pool)
{
    fl_err err;
    bool is_capturing;
    fl_cuda_queue *queue = &self->queue, now = {.device = device};
    if (device == FL_PY_CPU) return pool;
    if (fl_py_stream(dlpack, device, &now.stream) != 0) return NULL;
    if (fl_cuda_is_capturing(&now, &is_capturing, &err) != FL_OK) return fl_py_raise(&err, NULL);
    int64_t bytes = fl_cuda_scratch_bytes(list);
    /* A graph keeps the scratch of its capture. */
    bool is_usable = !is_capturing && !self->is_graphs && now.stream == queue->stream &&
                     now.device == queue->device && bytes <= self->scratch_bytes;
    if (queue->device != now.device) queue->processors = 0;
    queue->device = now.device;
    queue->stream = now.stream;
    self->is_graphs = is_capturing;
    return is_usable || replace_scratch(self, dlpack, like, bytes) == 0 ? queue : NULL;
}

int fl_py_check_status(int status, const void *queue)
{
    return fl_py_check(status, &((const fl_cuda_queue *)queue)->err, NULL);
}

void fl_py_launcher_forget_graph(fl_py_launcher *self)
{
    if (!self->is_graphs) return;
    self->scratch_bytes = 0;
    Py_CLEAR(self->scratch);
}
