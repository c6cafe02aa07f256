/* fl_py_launch: where passes run: on the threads of a team, or on torch's current stream of a CUDA
 * device; see fl_py_grad_list.h. */
#include "fl_py_grad_list.h"

#include "fl_cpu_grad.h"

const fl_grad_ops *fl_py_grad_ops(int32_t device)
{
    return device == FL_PY_CPU ? &fl_cpu_grad_ops : &fl_cuda_grad_ops;
}

bool fl_py_can_run(fl_py_grad_list *self, int32_t device)
{
    if (device == FL_PY_CPU || device == self->usable_device) return true;
    if (self->new_scratch == Py_None || fl_cuda_check(device, NULL) != FL_OK) return false;
    self->usable_device = device;
    return true;
}

int fl_py_open_scalars(fl_py_grad_list *self, int32_t device, fl_cuda_queue *room, void **out)
{
    *out = NULL;
    if (device == FL_PY_CPU) return 0;
    if (!fl_py_can_run(self, device)) {
        PyErr_SetString(PyExc_ValueError, "nothing of fastloop runs on this device");
        return -1;
    }
    *room = (fl_cuda_queue){.device = device};
    *out = room;
    return fl_py_stream(&self->door, device, &room->stream);
}

/* A new tensor for scratch, on the device of the list's tensors and, as torch's allocator sees it,
 * of the current stream. */
static int replace_scratch(fl_py_grad_list *self, int64_t bytes)
{
    fl_py_floats memory;
    PyObject *like = PyList_GET_ITEM(self->tensors, 0);
    self->scratch_bytes = 0; /* until there is another */
    PyObject *scratch = PyObject_CallFunction(self->new_scratch, "OL", like, (long long)bytes);
    if (scratch == NULL) return -1;
    Py_XSETREF(self->scratch, scratch);
    self->queue.is_listed = false;
    if (fl_py_float_tensor(&self->door, scratch, &memory)) {
        self->queue.scratch = memory.data;
        self->scratch_bytes = bytes;
        return 0;
    }
    PyErr_SetString(PyExc_TypeError, "new_scratch() must return a float64 tensor");
    return -1;
}

static int open_stream(fl_py_grad_list *self)
{
    fl_err err;
    bool is_capturing;
    fl_cuda_queue *queue = &self->queue, now = {.device = self->device};
    if (fl_py_stream(&self->door, self->device, &now.stream) != 0) return -1;
    if (fl_cuda_is_capturing(&now, &is_capturing, &err) != FL_OK) {
        fl_py_raise(&err, NULL);
        return -1;
    }
    int64_t bytes = fl_cuda_scratch_bytes(&self->list);
    /* A graph keeps the scratch it was captured with. */
    bool is_usable = !is_capturing && !self->is_graphs && now.stream == queue->stream &&
                     now.device == queue->device && bytes <= self->scratch_bytes;
    if (queue->device != now.device) queue->processors = 0;
    queue->device = now.device;
    queue->stream = now.stream;
    self->is_graphs = is_capturing;
    return is_usable ? 0 : replace_scratch(self, bytes);
}

int fl_py_open_pass(fl_py_grad_list *self, fl_py_thread_pool *team, fl_grad_pass *out)
{
    *out = (fl_grad_pass){.list = &self->list, .queue = team->team};
    if (self->device == FL_PY_CPU) return 0;
    out->queue = &self->queue;
    return open_stream(self);
}

PyObject *fl_py_close_pass(int status, const void *queue)
{
    if (status == FL_OK) Py_RETURN_NONE;
    return fl_py_raise(&((const fl_cuda_queue *)queue)->err, NULL);
}
