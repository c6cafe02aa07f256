/* fl_py_grad_list: see fl_py_grad_list.h.
 *
 * Collecting holds references to the tensors; passes then need no Python until the next collection.
 * Numbers that only a device knows come and go as tensors of one number. One thread at a time: a
 * long pass gives up the interpreter lock, and a thread that enters meanwhile gets RuntimeError. */
#include "fl_py_grad_list.h"

#include "fl_py.h"
#include "fl_py_clip.h"
#include "fl_py_passes.h"
#include "fl_py_scalars.h"
#include "fl_py_thread_pool.h"

#include <stdatomic.h>

#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_OBJECT_EX T_OBJECT_EX
#define Py_T_BOOL T_BOOL
#define Py_READONLY READONLY
#endif

typedef struct grad_list {
    PyObject_HEAD
    fl_py_grads grads;
    atomic_bool is_busy; /* SHARED(is_busy): a thread is inside a method, and owns the whole list */
} grad_list;

static PyObject *list_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"tensor_type", "written", "new_number", "new_scratch", NULL};
    PyObject *tensor_type, *written, *new_number, *new_scratch = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|O:GradListBase", keywords, &tensor_type,
                                     &written, &new_number, &new_scratch))
        return NULL;
    grad_list *self = (grad_list *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    if (fl_py_grads_open(&self->grads, tensor_type, written, new_number, new_scratch) == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int list_traverse(grad_list *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return fl_py_grads_traverse(&self->grads, visit, arg);
}

static int list_clear(grad_list *self)
{
    fl_py_grads_clear(&self->grads);
    return 0;
}

static void list_dealloc(grad_list *self)
{
    PyObject_GC_UnTrack(self);
    fl_py_grads_clear(&self->grads);
    fl_py_grads_free(&self->grads);
    fl_py_free(self);
}

/* Takes the list for this thread: 0, or -1 and RuntimeError while a different thread has the
 * list. */
static int enter(grad_list *self)
{
    if (!atomic_exchange(&self->is_busy, true)) {
        if (self->grads.tensors != NULL) return 0;
        self->is_busy = false; /* the collector has cleared this list */
    }
    PyErr_SetString(PyExc_RuntimeError,
                    "a different thread, or the inside of a step, is working on these gradients; "
                    "use a scaler, stepper or optimizer from one thread at a time");
    return -1;
}

/* Takes the list for a pass: 0, or -1 and RuntimeError if the list is taken or not plain. */
static int enter_plain(grad_list *self)
{
    if (enter(self) != 0) return -1;
    if (self->grads.is_plain) return 0;
    PyErr_SetString(PyExc_RuntimeError,
                    "the last collection found no plain tensors, so there is nothing to pass over");
    self->is_busy = false;
    return -1;
}

static PyObject *leave(grad_list *self, int status)
{
    self->is_busy = false;
    if (status != 0) return NULL;
    Py_RETURN_NONE;
}

/* ---- collecting */

static PyObject *collect(grad_list *self, PyObject *items, fl_py_source source)
{
    if (enter(self) != 0) return NULL;
    int status = fl_py_grads_collect(&self->grads, items, source);
    bool is_plain = self->grads.is_plain;
    self->is_busy = false;
    return status == 0 ? PyBool_FromLong(is_plain) : NULL;
}

PyDoc_STRVAR(take_shards_doc,
             "take_shards(shard_type, layouts, /)\n--\n\n"
             "Let passes run over the parts of DTensors in this process. shard_type is torch's\n"
             "DTensor. layouts(spec) returns the number of the DTensor's layout, from 1 to 62,\n"
             "or -1 if passes do not cover the layout. layouts.reduce(kind, number, is_max)\n"
             "replaces a 0-d tensor by the sum, or the maximum, over all processes that share\n"
             "a layout. layouts.as_total_norm(kinds, norm) returns a norm as torch does.");

static PyObject *list_take_shards(grad_list *self, PyObject *args)
{
    PyObject *shard_type, *layouts;
    if (!PyArg_ParseTuple(args, "OO:take_shards", &shard_type, &layouts)) return NULL;
    if (enter(self) != 0) return NULL;
    int status = fl_py_grads_take_shards(&self->grads, shard_type, layouts);
    self->is_busy = false;
    if (status != 0) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(collect_groups_doc,
             "collect_groups(param_groups, /)\n--\n\n"
             "Collect the gradients of an optimizer's param_groups. Returns True if passes may\n"
             "run over the list.");

static PyObject *list_collect_groups(grad_list *self, PyObject *groups)
{
    return collect(self, groups, FL_PY_GROUPS);
}

PyDoc_STRVAR(collect_parameters_doc,
             "collect_parameters(parameters, /)\n--\n\n"
             "Collect the gradients of an iterable of parameters. Returns True if passes may\n"
             "run over the list.");

static PyObject *list_collect_parameters(grad_list *self, PyObject *parameters)
{
    return collect(self, parameters, FL_PY_PARAMETERS);
}

PyDoc_STRVAR(collect_tensors_doc,
             "collect_tensors(tensors, /)\n--\n\n"
             "Collect an iterable of tensors. Returns True if passes may run over the list.");

static PyObject *list_collect_tensors(grad_list *self, PyObject *tensors)
{
    return collect(self, tensors, FL_PY_TENSORS);
}

PyDoc_STRVAR(release_doc, "release()\n--\n\n"
                          "Release the tensors.");

static PyObject *list_release(grad_list *self, PyObject *Py_UNUSED(ignored))
{
    return enter(self) == 0 ? leave(self, fl_py_grads_release(&self->grads)) : NULL;
}

/* ---- passes */

/* Returns the type _core.GradListBase among a type and its bases; NULL if the type does not derive
 * from it. A class made in Python has Python's tp_dealloc, so the search compares tp_dealloc. */
static PyTypeObject *find_base(PyTypeObject *type)
{
    while (type != NULL && type->tp_dealloc != (destructor)list_dealloc) type = type->tp_base;
    return type;
}

static PyTypeObject *pool_type_of(grad_list *self)
{
    fl_py_state *state = PyType_GetModuleState(find_base(Py_TYPE(self)));
    return state->thread_pool_type;
}

PyDoc_STRVAR(collect_kind_doc,
             "collect_kind(source, kind, /)\n--\n\n"
             "Collect the tensors of one kind from the list `source`, which keeps the tensors\n"
             "alive. kind 0: the tensors that are not DTensors. Returns True if passes may run\n"
             "over the list.");

static PyObject *list_collect_kind(grad_list *self, PyObject *args)
{
    grad_list *from;
    int kind, status = -1;
    if (!PyArg_ParseTuple(args, "O!i:collect_kind", find_base(Py_TYPE(self)), &from, &kind))
        return NULL;
    if (from == self) return PyErr_Format(PyExc_ValueError, "source must be a different list");
    if (enter_plain(from) != 0) return NULL;
    if (from->grads.has_shards && enter(self) == 0) {
        status = fl_py_grads_collect_kind(&self->grads, &from->grads, kind);
        self->is_busy = false;
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "source must have DTensors");
    }
    from->is_busy = false;
    return status == 0 ? PyBool_FromLong(self->grads.is_plain) : NULL;
}

/* Makes a number on the tensors' device, and finds its address: new reference, or NULL and an
 * exception. If the list is empty, the number is on the CPU. */
static PyObject *make_number(grad_list *self, int32_t *device, void **at)
{
    const fl_py_grads *grads = &self->grads;
    bool has_any = PyList_GET_SIZE(grads->tensors) > 0;
    PyObject *like = has_any ? PyList_GET_ITEM(grads->tensors, 0) : Py_None;
    PyObject *number = PyObject_CallOneArg(grads->new_number, like);
    if (number == NULL) return NULL;
    *at = fl_py_scalar_address(&grads->dlpack, number, kDLFloat, 64, device);
    if (*at == NULL) Py_CLEAR(number);
    return number;
}

PyDoc_STRVAR(norm_check_doc,
             "run_norm_check(pool, norm_type, scale, divisor, found_inf, /)\n--\n\n"
             "Return the norm (1, 2 or inf) of the elements divided by (scale * divisor), as a\n"
             "new 0-d float64 tensor. Sets found_inf (float32) to 1 if an element is not\n"
             "finite. scale: float32, or None. Does not wait for a device.");

static PyObject *list_norm_check(grad_list *self, PyObject *args)
{
    fl_py_thread_pool *pool;
    PyObject *scale, *found_inf, *norm;
    double norm_type;
    fl_divisor by;
    void *scale_at, *found_at, *norm_at;
    fl_py_grads *grads = &self->grads;
    if (!PyArg_ParseTuple(args, "O!dOdO:run_norm_check", pool_type_of(self), &pool, &norm_type,
                          &scale, &by.constant, &found_inf))
        return NULL;
    int32_t kind = fl_py_find_norm(norm_type);
    if (kind < 0) {
        PyErr_SetString(PyExc_ValueError, "norm_type must be 1, 2 or inf");
        return NULL;
    }
    if (enter_plain(self) != 0) return NULL;
    int32_t device = grads->device;
    /* Make the tensor first: making a tensor runs Python, and Python may move the memory at the
     * addresses. */
    norm = make_number(self, &device, &norm_at);
    if (norm == NULL || fl_py_find_float(&grads->dlpack, scale, 32, &device, &scale_at) != 0)
        goto fail;
    by.scale = scale_at;
    found_at = fl_py_scalar_address(&grads->dlpack, found_inf, kDLFloat, 32, &device);
    if (found_at == NULL) goto fail;
    if (fl_py_pass_norm_check(grads, pool->pool, kind, by, found_at, norm_at) != 0) goto fail;
    self->is_busy = false;
    return norm;
fail:
    self->is_busy = false;
    Py_XDECREF(norm);
    return NULL;
}

PyDoc_STRVAR(clip_factor_doc,
             "find_clip_factor(norm, max_norm, found_inf, scale, divisor, /)\n--\n\n"
             "Return min(1, max_norm / (norm + 1e-6)) / (scale * divisor) as a new 0-d float64\n"
             "tensor. If norm is None, or found_inf (float32, or None) is not 0, the factor\n"
             "has no min(...). Does not wait for a device.");

static PyObject *list_clip_factor(grad_list *self, PyObject *args)
{
    PyObject *norm, *found_inf, *scale, *factor;
    double max_norm;
    fl_divisor by;
    void *norm_at, *found_at, *scale_at, *factor_at;
    fl_py_grads *grads = &self->grads;
    if (!PyArg_ParseTuple(args, "OdOOd:find_clip_factor", &norm, &max_norm, &found_inf, &scale,
                          &by.constant))
        return NULL;
    if (enter_plain(self) != 0) return NULL;
    int32_t device = grads->device;
    /* Make the tensor before taking addresses, as list_norm_check does. */
    factor = make_number(self, &device, &factor_at);
    if (factor == NULL || fl_py_find_float(&grads->dlpack, norm, 64, &device, &norm_at) != 0 ||
        fl_py_find_float(&grads->dlpack, found_inf, 32, &device, &found_at) != 0 ||
        fl_py_find_float(&grads->dlpack, scale, 32, &device, &scale_at) != 0)
        goto fail;
    by.scale = scale_at;
    if (fl_py_find_clip_factor(&grads->launcher, &grads->dlpack, device, norm_at, max_norm,
                               found_at, by, factor_at) != 0)
        goto fail;
    self->is_busy = false;
    return factor;
fail:
    self->is_busy = false;
    Py_XDECREF(factor);
    return NULL;
}

PyDoc_STRVAR(scale_doc,
             "run_scale(pool, factor, /)\n--\n\n"
             "Multiply by the factor, a 0-d float64 tensor. If the factor is 1, nothing is\n"
             "written. Does not wait for a device.");

static PyObject *list_scale(grad_list *self, PyObject *args)
{
    fl_py_thread_pool *pool;
    PyObject *factor;
    if (!PyArg_ParseTuple(args, "O!O:run_scale", pool_type_of(self), &pool, &factor)) return NULL;
    if (enter_plain(self) != 0) return NULL;
    int32_t device = self->grads.device;
    const double *factor_at =
        fl_py_scalar_address(&self->grads.dlpack, factor, kDLFloat, 64, &device);
    int status = factor_at != NULL ? fl_py_pass_scale(&self->grads, pool->pool, factor_at) : -1;
    return leave(self, status);
}

PyDoc_STRVAR(unscale_doc,
             "run_unscale(pool, inv_scale, found_inf, /)\n--\n\n"
             "Multiply by inv_scale (float32), and set found_inf (float32) to 1 if an element\n"
             "was not finite. If inv_scale is 1, tensors are only read. Does not wait for a\n"
             "device.");

static PyObject *list_unscale(grad_list *self, PyObject *args)
{
    fl_py_thread_pool *pool;
    PyObject *inv_scale, *found_inf;
    const fl_py_dlpack *dlpack = &self->grads.dlpack;
    if (!PyArg_ParseTuple(args, "O!OO:run_unscale", pool_type_of(self), &pool, &inv_scale,
                          &found_inf))
        return NULL;
    if (enter_plain(self) != 0) return NULL;
    int32_t device = self->grads.device;
    int status = -1;
    float *found_at = NULL;
    const float *inv_at = fl_py_scalar_address(dlpack, inv_scale, kDLFloat, 32, &device);
    if (inv_at != NULL) found_at = fl_py_scalar_address(dlpack, found_inf, kDLFloat, 32, &device);
    if (found_at != NULL) status = fl_py_pass_unscale(&self->grads, pool->pool, inv_at, found_at);
    return leave(self, status);
}

PyDoc_STRVAR(combine_doc,
             "run_combine(pool, source, alpha, factor, beta, found_inf, /)\n--\n\n"
             "Compute self = beta * self + alpha * factor * source. factor: float64, or None\n"
             "for 1. found_inf: float32, or None; becomes 1 if an element of source is not\n"
             "finite. Returns False, and does nothing, if the engine does not cover the two\n"
             "lists.");

/* Unpacks numbers in tensors (or None), and calls fl_py_pass_combine. Returns its result. */
static int combine(fl_py_grads *grads, fl_thread_pool *pool, fl_py_grads *from, double alpha,
                   PyObject *factor, double beta, PyObject *found_inf)
{
    void *factor_at, *found_at;
    int32_t device = grads->device;
    if (fl_py_find_float(&grads->dlpack, factor, 64, &device, &factor_at) != 0 ||
        fl_py_find_float(&grads->dlpack, found_inf, 32, &device, &found_at) != 0)
        return -1;
    return fl_py_pass_combine(grads, pool, from, alpha, factor_at, beta, found_at);
}

static PyObject *list_combine(grad_list *self, PyObject *args)
{
    fl_py_thread_pool *pool;
    grad_list *from;
    PyObject *factor, *found_inf;
    double alpha, beta;
    if (!PyArg_ParseTuple(args, "O!O!dOdO:run_combine", pool_type_of(self), &pool,
                          find_base(Py_TYPE(self)), &from, &alpha, &factor, &beta, &found_inf))
        return NULL;
    if (from == self) Py_RETURN_FALSE;
    if (enter(from) != 0) return NULL;
    int is_done = from->grads.is_plain ? -1 : 0;
    if (is_done != 0 && enter_plain(self) == 0) {
        is_done = combine(&self->grads, pool->pool, &from->grads, alpha, factor, beta, found_inf);
        self->is_busy = false;
    }
    from->is_busy = false;
    return is_done >= 0 ? PyBool_FromLong(is_done) : NULL;
}

PyDoc_STRVAR(update_scale_doc,
             "update_scale(found_inf, rule, scale, tracker, misses, /)\n--\n\n"
             "Compute the scale (float32) after a step, and the counts (int32) of good and bad\n"
             "steps in a row. rule: (growth_factor, backoff_factor, interval, hysteresis,\n"
             "least, most). Does not wait for a device.");

static PyObject *list_update_scale(grad_list *self, PyObject *args)
{
    fl_py_grads *grads = &self->grads;
    return fl_py_update_scale(&grads->launcher, &grads->dlpack, grads->written, args);
}

/* ---- collecting, passes and releasing in one call */

PyDoc_STRVAR(unscale_and_clip_doc,
             "unscale_and_clip(pool, param_groups, scale, found_inf, clip, /)\n--\n\n"
             "Divide the gradients of an optimizer's param_groups by scale (a 0-d float32\n"
             "tensor), and set found_inf (a 0-d float32 tensor) to 1 if a gradient is not\n"
             "finite. clip is None or (max_norm, norm_type, error_if_nonfinite): then also\n"
             "clip the gradients, unless a gradient is not finite, or error_if_nonfinite asks\n"
             "to raise for the norm. With error_if_nonfinite the call waits for the device\n"
             "(SYNC).\n\n"
             "Returns False if the engine does not cover the gradients in one call: then\n"
             "nothing is written, and the gradients stay collected. Otherwise the list becomes\n"
             "empty. Returns True if the gradients were divided but not clipped; else the norm\n"
             "before clipping, a tensor of the gradients' dtype (a DTensor for DTensors).");

static PyObject *list_unscale_and_clip(grad_list *self, PyObject *args)
{
    fl_py_thread_pool *pool;
    PyObject *groups, *scale, *found_inf, *options, *answer;
    fl_py_clip clip;
    int raises = 0;
    if (!PyArg_ParseTuple(args, "O!OOOO:unscale_and_clip", pool_type_of(self), &pool, &groups,
                          &scale, &found_inf, &options))
        return NULL;
    if (options != Py_None && !PyTuple_Check(options))
        return PyErr_Format(PyExc_TypeError, "clip must be a tuple or None, got %R", options);
    if (options != Py_None && !PyArg_ParseTuple(options, "ddp:unscale_and_clip", &clip.max_norm,
                                                &clip.norm_type, &raises))
        return NULL;
    clip.error_if_nonfinite = raises != 0;
    if (enter(self) != 0) return NULL;
    answer = fl_py_unscale_and_clip(&self->grads, pool->pool, groups, scale, found_inf,
                                    options != Py_None ? &clip : NULL);
    self->is_busy = false;
    return answer;
}

PyDoc_STRVAR(clip_parameters_doc,
             "clip_parameters(pool, parameters, max_norm, norm_type, error_if_nonfinite, /)\n--\n\n"
             "Clip the gradients of an iterable of parameters. Returns the norm before\n"
             "clipping, a tensor of the gradients' dtype (a DTensor for DTensors), and empties\n"
             "the list. Returns None if the engine does not cover the gradients in one call,\n"
             "or if torch's function has to raise: then the gradients are unchanged and stay\n"
             "collected. With error_if_nonfinite the call waits for the device (SYNC).");

static PyObject *list_clip_parameters(grad_list *self, PyObject *args)
{
    fl_py_thread_pool *pool;
    PyObject *parameters;
    fl_py_clip clip;
    int raises;
    if (!PyArg_ParseTuple(args, "O!Oddp:clip_parameters", pool_type_of(self), &pool, &parameters,
                          &clip.max_norm, &clip.norm_type, &raises))
        return NULL;
    clip.error_if_nonfinite = raises != 0;
    if (enter(self) != 0) return NULL;
    PyObject *norm = fl_py_clip_parameters(&self->grads, pool->pool, parameters, &clip);
    self->is_busy = false;
    return norm;
}

/* ---- the type */

/* SHARED(look): a different thread may be collecting. The members are one reference that never
 * changes, and one byte. */
static PyObject *list_get_dtypes(grad_list *self, void *Py_UNUSED(closure))
{
    if (enter(self) != 0) return NULL;
    PyObject *dtypes = fl_py_grads_dtypes(&self->grads);
    self->is_busy = false;
    return dtypes;
}

static PyObject *list_get_is_plain(grad_list *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->grads.is_plain && !self->grads.has_shards);
}

static PyObject *list_get_has_shards(grad_list *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->grads.is_plain && self->grads.has_shards);
}

static PyObject *list_get_kinds(grad_list *self, void *Py_UNUSED(closure))
{
    return Py_BuildValue("(KK)", (unsigned long long)self->grads.tensor_kinds,
                         (unsigned long long)self->grads.missing_kinds);
}

static PyMemberDef list_members[] = {{"tensors", Py_T_OBJECT_EX, offsetof(grad_list, grads.tensors),
                                      Py_READONLY, "the tensors that were collected last"},
                                     {NULL, 0, 0, 0, NULL}};

static PyGetSetDef list_getset[] = {
    {"dtypes", (getter)list_get_dtypes, NULL, "the set of the tensors' torch.dtypes", NULL},
    {"is_plain", (getter)list_get_is_plain, NULL,
     "True if passes may run over the tensors, and no tensor is a DTensor", NULL},
    {"has_shards", (getter)list_get_has_shards, NULL,
     "True if passes may run over the tensors, and a tensor or a parameter is a\n"
     "DTensor",
     NULL},
    {"kinds", (getter)list_get_kinds, NULL,
     "(tensor bits, missing bits): one bit (1 << kind) for each kind among the\n"
     "tensors, and among the parameters without a gradient",
     NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef list_methods[] = {
    {"collect_groups", (PyCFunction)list_collect_groups, METH_O, collect_groups_doc},
    {"collect_parameters", (PyCFunction)list_collect_parameters, METH_O, collect_parameters_doc},
    {"collect_tensors", (PyCFunction)list_collect_tensors, METH_O, collect_tensors_doc},
    {"take_shards", (PyCFunction)list_take_shards, METH_VARARGS, take_shards_doc},
    {"collect_kind", (PyCFunction)list_collect_kind, METH_VARARGS, collect_kind_doc},
    {"release", (PyCFunction)list_release, METH_NOARGS, release_doc},
    {"run_norm_check", (PyCFunction)list_norm_check, METH_VARARGS, norm_check_doc},
    {"find_clip_factor", (PyCFunction)list_clip_factor, METH_VARARGS, clip_factor_doc},
    {"run_scale", (PyCFunction)list_scale, METH_VARARGS, scale_doc},
    {"run_unscale", (PyCFunction)list_unscale, METH_VARARGS, unscale_doc},
    {"run_combine", (PyCFunction)list_combine, METH_VARARGS, combine_doc},
    {"update_scale", (PyCFunction)list_update_scale, METH_VARARGS, update_scale_doc},
    {"unscale_and_clip", (PyCFunction)list_unscale_and_clip, METH_VARARGS, unscale_and_clip_doc},
    {"clip_parameters", (PyCFunction)list_clip_parameters, METH_VARARGS, clip_parameters_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(list_doc,
             "GradListBase(tensor_type, written, new_number, new_scratch=None)\n--\n\n"
             "A list of tensors, and passes over all of them. Long passes on the CPU release\n"
             "the interpreter lock; one thread at a time may use a list.\n\n"
             "written(tensors) is called before a pass writes tensors. new_number(like)\n"
             "returns a 0-d float64 tensor on the device of `like`; for None, on the CPU.\n"
             "new_scratch(like, bytes) returns a float64 tensor of at least `bytes` bytes on\n"
             "the CUDA device of `like`, with the first 16 bytes zero; without new_scratch no\n"
             "list on a CUDA device is plain.");

static PyType_Slot list_slots[] = {
    {Py_tp_doc, (void *)list_doc},   {Py_tp_new, list_new},       {Py_tp_dealloc, list_dealloc},
    {Py_tp_traverse, list_traverse}, {Py_tp_clear, list_clear},   {Py_tp_methods, list_methods},
    {Py_tp_members, list_members},   {Py_tp_getset, list_getset}, {0, NULL}};

PyType_Spec fl_py_grad_list_spec =
    FL_PY_SPEC("GradListBase", grad_list, Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, list_slots);
