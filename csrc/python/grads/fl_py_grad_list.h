/* fl_py_grad_list: what the files of the heap type _core.GradList share.
 *
 * fl_py_collect.c collects tensors, fl_py_grad_list.c runs passes over them, fl_py_scalars.c
 * computes the numbers between passes, fl_py_launch.c knows where all that runs. */
#ifndef FL_PY_GRAD_LIST_H
#define FL_PY_GRAD_LIST_H

#include "fl_py.h"

#include "fl_cuda.h"

typedef struct fl_py_grad_list {
    PyObject_HEAD
    fl_py_dlpack door;
    PyObject *is_neg;      /* owned: torch.Tensor.is_neg */
    PyObject *written;     /* owned: tells autograd that the tensors in a list have changed */
    PyObject *name_grad;   /* owned: "grad" */
    PyObject *name_params; /* owned: "params" */
    PyObject *tensors;     /* owned: list of those the last walk found */
    fl_tensor_list list;
    uint64_t *layouts; /* owned: one for each span */
    int64_t layouts_capacity;
    bool is_plain;  /* the last walk found plain tensors alone */
    bool is_busy;   /* interpreter lock */
    int32_t device; /* of all tensors: FL_PY_CPU, or the index of a CUDA device */

    /* Of passes on a CUDA device. */
    PyObject *new_scratch; /* owned: makes a tensor for the scratch of a queue; None: no passes */
    PyObject *scratch;     /* owned: what it made last, or NULL */
    int64_t scratch_bytes; /* of it, for the queue's device and stream; 0: unusable */
    int32_t usable_device; /* the last one that fl_cuda_check has approved */
    bool is_graphs;        /* scratch belongs to a graph that was captured */
    fl_cuda_queue queue;
} fl_py_grad_list;

/* Takes the object for this thread: 0, or -1 and RuntimeError while another has it. Whoever has it
 * clears is_busy. */
int fl_py_grad_list_enter(fl_py_grad_list *self);

/* Adds an object to the list: 1 it is plain, 0 it is something else, -1 exception. */
typedef int fl_py_add(fl_py_grad_list *self, PyObject *object);

fl_py_add fl_py_add_group;    /* the gradients of an optimizer's group */
fl_py_add fl_py_add_gradient; /* the gradient of a parameter, if it has one */
fl_py_add fl_py_add_tensor;   /* the tensor itself */

/* ---- fl_py_launch.c: where passes run */

const fl_grad_ops *fl_py_grad_ops(int32_t device);

/* Whether passes run on the device here. */
bool fl_py_can_run(fl_py_grad_list *self, int32_t device);

/* Where a pass of self, which this thread has entered, runs now: 0, or -1 exception. May call
 * Python. */
int fl_py_open_pass(fl_py_grad_list *self, fl_py_thread_pool *team, fl_grad_pass *out);

/* Where an operation on numbers runs: *out is NULL on the CPU, otherwise `room`. 0, -1 exception.
 */
int fl_py_open_scalars(fl_py_grad_list *self, int32_t device, fl_cuda_queue *room, void **out);

/* What either has come to: None, or NULL and an exception. */
PyObject *fl_py_close_pass(int status, const void *queue);

/* ---- fl_py_scalars.c: methods */

PyObject *fl_py_clip_factor(fl_py_grad_list *self, PyObject *args);
PyObject *fl_py_invert(fl_py_grad_list *self, PyObject *args);
PyObject *fl_py_update_scale(fl_py_grad_list *self, PyObject *args);

/* The address in a tensor of one float number, or NULL for None: 0 done, -1 exception. For *device
 * see fl_py_scalar_address. */
int fl_py_find_scalar(fl_py_grad_list *self, PyObject *tensor, uint8_t bits, int32_t *device,
                      void **out);

/* ---- fl_py_collect.c */

/* Collects anew from the items of a list or tuple; whether all is plain, as a new reference. */
PyObject *fl_py_collect(fl_py_grad_list *self, PyObject *items, fl_py_add *add);

#endif
