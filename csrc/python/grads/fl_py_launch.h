/* fl_py_launch: chooses the threads or the stream for passes over gradients: a thread pool on the
 * CPU, torch's current stream on a CUDA device.
 *
 * All functions need the interpreter lock and may call Python. */
#ifndef FL_PY_LAUNCH_H
#define FL_PY_LAUNCH_H

#include "fl_py.h"

#include "fl_cuda.h"
#include "fl_thread_pool.h"

/* The state of one list's passes on a CUDA device. The owner sets new_scratch and usable_device;
 * the remaining fields begin zeroed. One thread at a time. */
typedef struct fl_py_launcher {
    PyObject *new_scratch; /* owned: new_scratch(like, bytes) makes the tensor `scratch`; None: no
                              pass runs on a CUDA device */
    PyObject *scratch;     /* owned: the result of the last new_scratch(), or NULL */
    int64_t scratch_bytes; /* bytes of scratch, for the queue's device and stream; 0: scratch cannot
                              be used */
    _Atomic int32_t usable_device; /* the last device that fl_cuda_check has approved, or FL_PY_CPU;
                                      update_scale reads this field from any thread */
    bool is_graphs;                /* scratch belongs to a captured graph */
    fl_cuda_queue queue;
} fl_py_launcher;

const fl_grad_ops *fl_py_grad_ops(int32_t device);

/* Returns true if passes run on the device. */
bool fl_py_can_run(fl_py_launcher *self, int32_t device);

/* Returns the queue for a pass over the list. The list's tensors, for example `like`, are on
 * `device`; on the CPU the queue is `pool`. NULL and an exception if there is no queue. The queue
 * belongs to the launcher. */
void *fl_py_queue(fl_py_launcher *self, const fl_py_dlpack *dlpack, int32_t device,
                  const fl_tensor_list *list, PyObject *like, fl_thread_pool *pool);

/* Sets *out to the queue for an operation on numbers: NULL on the CPU; on a CUDA device `queue`,
 * which this function fills in. 0, or -1 and an exception. */
int fl_py_number_queue(fl_py_launcher *self, const fl_py_dlpack *dlpack, int32_t device,
                       fl_cuda_queue *queue, void **out);

/* Turns the status of a pass or operation on the queue into an exception: 0 for FL_OK, or -1. */
int fl_py_check_status(int status, const void *queue);

/* If scratch belongs to a graph, drops scratch, so that the graph's memory can be freed. */
void fl_py_launcher_forget_graph(fl_py_launcher *self);

#endif
