/* fl_py_passes: see fl_py_passes.h. */
#include "fl_py_passes.h"

/* A pass over fewer bytes keeps the interpreter lock, because giving up the lock can take
 * longer. */
enum { SHORT_BYTES = 1 << 18 };

/* Makes the call, a pass over `self` that returns a status. A long pass runs without the
 * interpreter lock. */
#define RUN_PASS(self, status, call)             \
    do {                                         \
        if ((self)->list.bytes <= SHORT_BYTES) { \
            (status) = (call);                   \
        } else {                                 \
            Py_BEGIN_ALLOW_THREADS(status)       \
            = (call);                            \
            Py_END_ALLOW_THREADS                 \
        }                                        \
    } while (0)

static int open_pass(fl_py_grads *self, fl_thread_pool *pool, fl_grad_pass *out)
{
    PyObject *like = PyList_GET_SIZE(self->tensors) > 0 ? PyList_GET_ITEM(self->tensors, 0) : NULL;
    *out = (fl_grad_pass){.list = &self->list};
    out->queue = fl_py_queue(&self->launcher, &self->dlpack, self->device, &self->list, like, pool);
    return out->queue != NULL ? 0 : -1;
}

/* Tells autograd that a pass will write; autograd may refuse. DTensors are left out, as torch's own
 * operations on many DTensors also leave autograd untold. */
static int announce_write(fl_py_grads *self)
{
    PyObject *tensors = fl_py_grads_ordinary(self);
    if (tensors == NULL) return -1;
    PyObject *answer = PyObject_CallOneArg(self->written, tensors);
    Py_DECREF(tensors);
    Py_XDECREF(answer);
    return answer != NULL ? 0 : -1;
}

int fl_py_pass_norm_check(fl_py_grads *self, fl_thread_pool *pool, int32_t norm_type,
                          fl_divisor divisor, float *found_inf, double *norm)
{
    const fl_grad_ops *ops = fl_py_grad_ops(self->device);
    fl_grad_pass pass;
    int status;
    if (open_pass(self, pool, &pass) != 0) return -1;
    RUN_PASS(self, status, ops->norm_check(&pass, norm_type, divisor, found_inf, norm));
    return fl_py_check_status(status, pass.queue);
}

int fl_py_pass_scale(fl_py_grads *self, fl_thread_pool *pool, const double *factor)
{
    const fl_grad_ops *ops = fl_py_grad_ops(self->device);
    fl_grad_pass pass;
    int status;
    if (self->device == FL_PY_CPU && *factor == 1) return 0;
    if (open_pass(self, pool, &pass) != 0 || announce_write(self) != 0) return -1;
    RUN_PASS(self, status, ops->scale(&pass, factor));
    return fl_py_check_status(status, pass.queue);
}

int fl_py_pass_unscale(fl_py_grads *self, fl_thread_pool *pool, const float *inv_scale,
                       float *found_inf)
{
    const fl_grad_ops *ops = fl_py_grad_ops(self->device);
    fl_grad_pass pass;
    int status;
    bool only_reads = self->device == FL_PY_CPU && *inv_scale == 1;
    if (open_pass(self, pool, &pass) != 0) return -1;
    if (!only_reads && announce_write(self) != 0) return -1;
    RUN_PASS(self, status, ops->unscale(&pass, inv_scale, found_inf));
    return fl_py_check_status(status, pass.queue);
}

/* Returns 1 if a tensor is lazily negated, 0 if not, -1 and an exception. The memory of such a
 * tensor does not show the negation. Passes over one list need not know: norms ignore signs, and
 * scaling the memory scales the negation. But a sum of two lists would be wrong. */
static int has_negated(fl_py_grads *self)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(self->tensors); i++) {
        PyObject *local = fl_py_grads_local(self, PyList_GET_ITEM(self->tensors, i));
        PyObject *answer = local != NULL ? PyObject_CallOneArg(self->is_neg, local) : NULL;
        int is_neg = answer != NULL ? PyObject_IsTrue(answer) : -1;
        Py_XDECREF(local);
        Py_XDECREF(answer);
        if (is_neg != 0) return is_neg;
    }
    return 0;
}

/* Returns true if the spans match one by one, and the device offers all pairs of types. */
static bool is_matching(const fl_py_grads *self, const fl_py_grads *from)
{
    const fl_grad_ops *ops = fl_py_grad_ops(self->device);
    if (self->list.count != from->list.count || self->device != from->device) return false;
    for (int64_t i = 0; i < self->list.count; i++) {
        const fl_span *into = &self->list.spans[i], *of = &from->list.spans[i];
        if (into->count != of->count || self->layouts[i] != from->layouts[i]) return false;
        if (!ops->can_combine(into->type, of->type)) return false;
    }
    return true;
}

/* Tells whether the engine combines the two lists: 1, 0, -1 exception. */
static int is_offered(fl_py_grads *self, fl_py_grads *from)
{
    if (!is_matching(self, from)) return 0;
    int is_negated = has_negated(from);
    if (is_negated == 0) is_negated = has_negated(self);
    return is_negated < 0 ? -1 : is_negated == 0;
}

int fl_py_pass_combine(fl_py_grads *self, fl_thread_pool *pool, fl_py_grads *from, double alpha,
                       const double *factor, double beta, float *found_inf)
{
    const fl_grad_ops *ops = fl_py_grad_ops(self->device);
    fl_grad_pass pass;
    int status;
    if (open_pass(self, pool, &pass) != 0) return -1;
    int can_run = is_offered(self, from);
    if (can_run != 1) return can_run;
    if (announce_write(self) != 0) return -1;
    RUN_PASS(self, status, ops->combine(&pass, &from->list, alpha, factor, beta, found_inf));
    return fl_py_check_status(status, pass.queue) == 0 ? 1 : -1;
}
