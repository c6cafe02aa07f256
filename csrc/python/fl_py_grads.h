/* fl_py_grads: what the two files of the heap type _core.Grads share.
 *
 * fl_py_walk.c collects tensors, fl_py_grads.c runs passes over them. */
#ifndef FL_PY_GRADS_H
#define FL_PY_GRADS_H

#include "fl_py.h"

#include "fl_backend.h"

typedef struct fl_py_grads {
    PyObject_HEAD
    fl_py_door door;
    PyObject *is_neg;      /* owned: torch.Tensor.is_neg */
    PyObject *written;     /* owned: tells autograd that the tensors in a list have changed */
    PyObject *name_grad;   /* owned: "grad" */
    PyObject *name_params; /* owned: "params" */
    PyObject *tensors;     /* owned: list of those the last walk found */
    fl_list list;
    uint64_t *layouts; /* owned: one for each span */
    int64_t layouts_capacity;
    const fl_backend *backend; /* borrowed, lives as long as the process */
    bool is_plain;             /* the last walk found plain tensors alone */
    bool is_busy;              /* interpreter lock */
} fl_py_grads;

/* Takes the object for this thread: 0, or -1 and RuntimeError while another has it. Whoever has it
 * clears is_busy. */
int fl_py_grads_enter(fl_py_grads *self);

/* Adds an object to the list: 1 it is plain, 0 it is something else, -1 exception. */
typedef int fl_py_add(fl_py_grads *self, PyObject *object);

fl_py_add fl_py_add_group;    /* the gradients of an optimizer's group */
fl_py_add fl_py_add_gradient; /* the gradient of a parameter, if it has one */
fl_py_add fl_py_add_tensor;   /* the tensor itself */

/* Collects anew from the items of a list or tuple; whether all is plain, as a new reference. */
PyObject *fl_py_walk(fl_py_grads *self, PyObject *items, fl_py_add *add);

#endif
