/* fl_py_launch: where passes over gradients run: on a thread pool, or on torch's current stream of
 * a CUDA device.
 *
 * All functions need the interpreter lock and may call Python. */
#ifndef FL_PY_LAUNCH_H
#define FL_PY_LAUNCH_H

#include "fl_py.h"

#include "fl_cuda.h"
#include "fl_thread_pool.h"

/* What the passes of one list need on a CUDA device. Begins as {0} but for new_scratch and
 * usable_device. One thread at a time. */
typedef struct fl_py_launcher {
    PyObject *new_scratch; /* owned: new_scratch(like, bytes) makes the tensor `scratch`; None: no
                              pass runs on a CUDA device */
    PyObject *scratch;     /* owned: what it made last, or NULL */
    int64_t scratch_bytes; /* of it, for the queue's device and stream; 0: it cannot be used */
    _Atomic int32_t usable_device; /* the last one that fl_cuda_check has approved, or FL_PY_CPU;
                                      update_scale looks at it from any thread */
    bool is_graphs;                /* scratch belongs to a graph that was captured */
    fl_cuda_queue queue;
} fl_py_launcher;

const fl_grad_ops *fl_py_grad_ops(int32_t device);

/* Whether passes run on the device. */
bool fl_py_can_run(fl_py_launcher *self, int32_t device);

/* The queue for a pass over the list, whose tensors are on the device, `like` among them; on the
 * CPU it is `pool`. NULL and an exception if there is none. The queue belongs to the launcher. */
void *fl_py_queue(fl_py_launcher *self, const fl_py_dlpack *dlpack, int32_t device,
                  const fl_tensor_list *list, PyObject *like, fl_thread_pool *pool);

/* The same for an operation on numbers: *out is NULL on the CPU, otherwise `queue`, which is filled
 * in. 0, -1 exception. */
int fl_py_number_queue(fl_py_launcher *self, const fl_py_dlpack *dlpack, int32_t device,
                       fl_cuda_queue *queue, void **out);

/* Turns the status of a pass or operation on the queue into an exception: 0 for FL_OK, or -1. */
int fl_py_check_status(int status, const void *queue);

/* Forgets scratch that belongs to a graph, so that the graph's memory can go. */
void fl_py_launcher_forget_graph(fl_py_launcher *self);

#endif
