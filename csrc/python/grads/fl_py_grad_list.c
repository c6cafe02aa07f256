/* fl_py_grad_list: the heap type _core.GradList, a list of tensors and the passes over it.
 *
 * A walk collects the tensors and holds them; the passes then need no Python until the next walk.
 * Scalars that a device would know come and go as tensors of one number. One thread at a time: a
 * pass lets go of the interpreter lock when it is long, and whoever enters then is refused. */
#include "fl_py_grad_list.h"

#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_OBJECT_EX T_OBJECT_EX
#define Py_READONLY READONLY
#endif

/* Passes over less keep the interpreter lock: giving it away can cost more. */
enum { SHORT_BYTES = 1 << 18 };

static PyObject *grads_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"tensor_type", "written", "new_scratch", NULL};
    PyObject *tensor_type, *written, *new_scratch = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:GradList", keywords, &tensor_type,
                                     &written, &new_scratch))
        return NULL;
    fl_py_grad_list *self = (fl_py_grad_list *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->device = self->usable_device = FL_PY_CPU;
    self->written = Py_NewRef(written);
    self->new_scratch = Py_NewRef(new_scratch);
    if (fl_py_dlpack_open(tensor_type, &self->door) != 0) goto fail;
    self->is_neg = PyObject_GetAttrString(tensor_type, "is_neg");
    self->name_grad = PyUnicode_InternFromString("grad");
    self->name_params = PyUnicode_InternFromString("params");
    self->tensors = PyList_New(0);
    if (self->is_neg != NULL && self->name_grad != NULL && self->name_params != NULL &&
        self->tensors != NULL)
        return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

static int grads_traverse(fl_py_grad_list *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->door.tensor_type);
    Py_VISIT(self->is_neg);
    Py_VISIT(self->written);
    Py_VISIT(self->new_scratch);
    Py_VISIT(self->scratch);
    Py_VISIT(self->tensors);
    return 0;
}

static int grads_clear(fl_py_grad_list *self)
{
    self->is_plain = false;
    fl_py_dlpack_close(&self->door);
    Py_CLEAR(self->is_neg);
    Py_CLEAR(self->written);
    Py_CLEAR(self->new_scratch);
    Py_CLEAR(self->scratch);
    Py_CLEAR(self->tensors);
    return 0;
}

static void grads_dealloc(fl_py_grad_list *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)grads_clear(self);
    Py_CLEAR(self->name_grad);
    Py_CLEAR(self->name_params);
    fl_tensor_list_close(&self->list);
    fl_free(self->layouts);
    type->tp_free(self);
    Py_DECREF(type);
}

int fl_py_grad_list_enter(fl_py_grad_list *self)
{
    if (!self->is_busy && self->tensors != NULL) {
        self->is_busy = true;
        return 0;
    }
    PyErr_SetString(PyExc_RuntimeError,
                    "these gradients are being worked on by another thread, or from inside of a "
                    "step; use a scaler, stepper or optimizer from one thread at a time");
    return -1;
}

PyDoc_STRVAR(walk_groups_doc,
             "walk_groups(param_groups, /)\n--\n\n"
             "Collect the gradients of an optimizer's parameters; whether all of them are plain.\n"
             "If not, no pass may run.");

static PyObject *grads_walk_groups(fl_py_grad_list *self, PyObject *groups)
{
    return fl_py_collect(self, groups, fl_py_add_group);
}

PyDoc_STRVAR(walk_parameters_doc,
             "walk_parameters(parameters, /)\n--\n\nThe same for a list or tuple of parameters.");

static PyObject *grads_walk_parameters(fl_py_grad_list *self, PyObject *parameters)
{
    return fl_py_collect(self, parameters, fl_py_add_gradient);
}

PyDoc_STRVAR(walk_tensors_doc,
             "walk_tensors(tensors, /)\n--\n\nThe same for a list or tuple of tensors themselves.");

static PyObject *grads_walk_tensors(fl_py_grad_list *self, PyObject *tensors)
{
    return fl_py_collect(self, tensors, fl_py_add_tensor);
}

PyDoc_STRVAR(clear_doc, "clear()\n--\n\nLet go of the tensors.");

static PyObject *grads_clear_tensors(fl_py_grad_list *self, PyObject *Py_UNUSED(ignored))
{
    if (fl_py_grad_list_enter(self) != 0) return NULL;
    self->is_plain = false;
    if (self->is_graphs) { /* or its graph's memory could not go */
        self->scratch_bytes = 0;
        Py_CLEAR(self->scratch);
    }
    int status = PyList_SetSlice(self->tensors, 0, PY_SSIZE_T_MAX, NULL);
    self->is_busy = false;
    if (status != 0) return NULL;
    Py_RETURN_NONE;
}

/* ---- passes */

static int enter_pass(fl_py_grad_list *self, fl_py_thread_pool *team, fl_grad_pass *pass)
{
    if (fl_py_grad_list_enter(self) != 0) return -1;
    if (!self->is_plain)
        PyErr_SetString(PyExc_RuntimeError,
                        "no walk has found plain tensors: nothing to pass over");
    else if (fl_py_open_pass(self, team, pass) == 0)
        return 0;
    self->is_busy = false;
    return -1;
}

/* Tells autograd that a pass will write; it may refuse. */
static int announce(fl_py_grad_list *self)
{
    PyObject *answer = PyObject_CallOneArg(self->written, self->tensors);
    Py_XDECREF(answer);
    return answer != NULL ? 0 : -1;
}

static int enter_writing(fl_py_grad_list *self, fl_py_thread_pool *team, fl_grad_pass *pass)
{
    if (enter_pass(self, team, pass) != 0) return -1;
    if (announce(self) == 0) return 0;
    self->is_busy = false;
    return -1;
}

/* Makes the call, a pass of self that gives a status, without the interpreter lock if it is long.
 */
#define RUN_PASS(self, status, call)             \
    do {                                         \
        if ((self)->list.bytes <= SHORT_BYTES) { \
            (status) = (call);                   \
        } else {                                 \
            Py_BEGIN_ALLOW_THREADS(status)       \
            = (call);                            \
            Py_END_ALLOW_THREADS                 \
        }                                        \
        (self)->is_busy = false;                 \
    } while (0)

static PyTypeObject *team_type_of(fl_py_grad_list *self)
{
    fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    return state->thread_pool_type;
}

PyDoc_STRVAR(norm_check_doc,
             "norm_check(team, norm_type, scale, divisor, found_inf, norm, /)\n--\n\n"
             "norm (float64) = the norm of the elements / (scale * divisor), norm_type 0: 2-norm,\n"
             "1: 1-norm, 2: maximum; found_inf (float32) = 1 if one of them is not finite. scale\n"
             "(float32) may be None.");

static PyObject *grads_norm_check(fl_py_grad_list *self, PyObject *args)
{
    fl_py_thread_pool *team;
    PyObject *scale, *found_inf, *norm;
    int norm_type;
    double divisor;
    void *scale_at, *found_at, *norm_at;
    int32_t device = self->device;
    fl_grad_pass pass;
    int status;
    if (!PyArg_ParseTuple(args, "O!iOdOO:norm_check", team_type_of(self), &team, &norm_type, &scale,
                          &divisor, &found_inf, &norm))
        return NULL;
    if (norm_type < 0 || norm_type >= FL_NORMS)
        return PyErr_Format(PyExc_ValueError, "norm_type is 0, 1 or 2, not %d", norm_type);
    if (fl_py_find_scalar(self, scale, 32, &device, &scale_at) != 0) return NULL;
    found_at = fl_py_scalar_address(&self->door, found_inf, kDLFloat, 32, &device);
    norm_at =
        found_at != NULL ? fl_py_scalar_address(&self->door, norm, kDLFloat, 64, &device) : NULL;
    if (norm_at == NULL || enter_pass(self, team, &pass) != 0) return NULL;
    fl_divisor by = {.scale = scale_at, .constant = divisor};
    RUN_PASS(self, status,
             fl_py_grad_ops(device)->norm_check(&pass, norm_type, by, found_at, norm_at));
    return fl_py_close_pass(status, pass.queue);
}

PyDoc_STRVAR(scale_doc, "scale(team, factor, /)\n--\n\nMultiply by a factor (float64).");

static PyObject *grads_scale(fl_py_grad_list *self, PyObject *args)
{
    fl_py_thread_pool *team;
    PyObject *factor;
    int32_t device = self->device;
    fl_grad_pass pass;
    int status;
    if (!PyArg_ParseTuple(args, "O!O:scale", team_type_of(self), &team, &factor)) return NULL;
    const double *factor_at = fl_py_scalar_address(&self->door, factor, kDLFloat, 64, &device);
    if (factor_at == NULL) return NULL;
    if (self->is_plain && device == FL_PY_CPU && *factor_at == 1) Py_RETURN_NONE;
    if (enter_writing(self, team, &pass) != 0) return NULL;
    RUN_PASS(self, status, fl_py_grad_ops(device)->scale(&pass, factor_at));
    return fl_py_close_pass(status, pass.queue);
}

PyDoc_STRVAR(unscale_doc,
             "unscale(team, inv_scale, found_inf, /)\n--\n\n"
             "Multiply by inv_scale (float32); found_inf (float32) = 1 if an element was not\n"
             "finite. By 1: only read.");

static PyObject *grads_unscale(fl_py_grad_list *self, PyObject *args)
{
    fl_py_thread_pool *team;
    PyObject *inv_scale, *found_inf;
    const float *inv_at;
    float *found_at;
    int32_t device = self->device;
    fl_grad_pass pass;
    int status;
    if (!PyArg_ParseTuple(args, "O!OO:unscale", team_type_of(self), &team, &inv_scale, &found_inf))
        return NULL;
    inv_at = fl_py_scalar_address(&self->door, inv_scale, kDLFloat, 32, &device);
    if (inv_at == NULL) return NULL;
    found_at = fl_py_scalar_address(&self->door, found_inf, kDLFloat, 32, &device);
    if (found_at == NULL) return NULL;
    bool is_writing = !(device == FL_PY_CPU && *inv_at == 1); /* else the device alone knows */
    status = is_writing ? enter_writing(self, team, &pass) : enter_pass(self, team, &pass);
    if (status != 0) return NULL;
    RUN_PASS(self, status, fl_py_grad_ops(device)->unscale(&pass, inv_at, found_at));
    return fl_py_close_pass(status, pass.queue);
}

/* Whether one of the tensors is lazily negated, which its memory does not show: 1, 0, -1 exception.
 * Passes over one list do not mind, being odd functions; sums of two do. */
static int has_negated(fl_py_grad_list *self)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(self->tensors); i++) {
        PyObject *answer = PyObject_CallOneArg(self->is_neg, PyList_GET_ITEM(self->tensors, i));
        int is_neg = answer != NULL ? PyObject_IsTrue(answer) : -1;
        Py_XDECREF(answer);
        if (is_neg != 0) return is_neg;
    }
    return 0;
}

/* Whether spans match one by one and the device offers all their types. */
static bool matches(const fl_py_grad_list *self, const fl_py_grad_list *from)
{
    if (self->list.count != from->list.count || self->device != from->device) return false;
    for (int64_t i = 0; i < self->list.count; i++) {
        const fl_span *to = &self->list.spans[i], *of = &from->list.spans[i];
        if (to->count != of->count || self->layouts[i] != from->layouts[i]) return false;
        if (!fl_py_grad_ops(self->device)->can_combine(to->type, of->type)) return false;
    }
    return true;
}

/* Whether the engine combines the two: 1, 0, -1 exception. */
static int is_offered(fl_py_grad_list *self, fl_py_grad_list *from)
{
    if (!matches(self, from)) return 0;
    int is_negated = has_negated(from);
    if (is_negated == 0) is_negated = has_negated(self);
    return is_negated < 0 ? -1 : is_negated == 0;
}

PyDoc_STRVAR(
    combine_doc,
    "combine(team, source, alpha, factor, beta, found_inf, /)\n--\n\n"
    "self = beta * self + alpha * factor * source; factor (float64) and found_inf\n"
    "(float32, = 1 if an element of source is not finite) may be None. False, and nothing\n"
    "is done, where this is not offered for the two.");

static PyObject *grads_combine(fl_py_grad_list *self, PyObject *args)
{
    fl_py_thread_pool *team;
    fl_py_grad_list *from;
    PyObject *factor, *found_inf;
    double alpha, beta;
    void *factor_at, *found_at;
    int32_t device = self->device;
    fl_grad_pass pass;
    if (!PyArg_ParseTuple(args, "O!O!dOdO:combine", team_type_of(self), &team, Py_TYPE(self), &from,
                          &alpha, &factor, &beta, &found_inf))
        return NULL;
    if (fl_py_find_scalar(self, factor, 64, &device, &factor_at) != 0) return NULL;
    if (fl_py_find_scalar(self, found_inf, 32, &device, &found_at) != 0) return NULL;
    if (from == self || !from->is_plain) Py_RETURN_FALSE;
    if (fl_py_grad_list_enter(from) != 0) return NULL;
    if (enter_pass(self, team, &pass) != 0) {
        from->is_busy = false;
        return NULL;
    }
    int status = FL_OK, is_done = is_offered(self, from); /* both are held: it stays so */
    if (is_done == 1 && announce(self) != 0) is_done = -1;
    if (is_done == 1)
        RUN_PASS(
            self, status,
            fl_py_grad_ops(device)->combine(&pass, &from->list, alpha, factor_at, beta, found_at));
    self->is_busy = from->is_busy = false;
    if (status != FL_OK) return fl_py_close_pass(status, pass.queue);
    return is_done >= 0 ? PyBool_FromLong(is_done) : NULL;
}

static PyObject *grads_get_types(fl_py_grad_list *self, void *Py_UNUSED(closure))
{
    long types = 0;
    for (int64_t i = 0; i < self->list.count; i++) types |= 1L << self->list.spans[i].type;
    return PyLong_FromLong(types);
}

static PyObject *grads_get_empty(fl_py_grad_list *self, void *Py_UNUSED(closure))
{
    Py_ssize_t found = self->tensors != NULL ? PyList_GET_SIZE(self->tensors) : 0;
    return PyLong_FromLongLong(found - self->list.count);
}

PyDoc_STRVAR(clip_factor_doc,
             "clip_factor(norm, max_norm, found_inf, scale, divisor, factor, /)\n--\n\n"
             "factor (float64) = min(1, max_norm / (norm + 1e-6)) / (scale * divisor); without\n"
             "the min(...) if norm is None or found_inf (float32, may be None) is not 0.");

PyDoc_STRVAR(invert_doc, "invert(scale, inverse, /)\n--\n\ninverse = 1 / scale, both float32.");

PyDoc_STRVAR(update_scale_doc,
             "update_scale(found_inf, growth, scale, tracker, misses, /)\n--\n\n"
             "The scale (float32) after a step, and its counts (int32) of good and bad steps in a\n"
             "row; growth: (growth_factor, backoff_factor, interval, hysteresis, least, most).");

static PyMemberDef grads_members[] = {{"tensors", Py_T_OBJECT_EX,
                                       offsetof(fl_py_grad_list, tensors), Py_READONLY,
                                       "those that the last walk found"},
                                      {NULL, 0, 0, 0, NULL}};

static PyGetSetDef grads_getset[] = {
    {"types", (getter)grads_get_types, NULL,
     "types of the elements: 1 float64, 2 float32, 4 float16, 8 bfloat16, or'ed", NULL},
    {"empty", (getter)grads_get_empty, NULL, "how many of the tensors have no elements", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef grads_methods[] = {
    {"walk_groups", (PyCFunction)grads_walk_groups, METH_O, walk_groups_doc},
    {"walk_parameters", (PyCFunction)grads_walk_parameters, METH_O, walk_parameters_doc},
    {"walk_tensors", (PyCFunction)grads_walk_tensors, METH_O, walk_tensors_doc},
    {"clear", (PyCFunction)grads_clear_tensors, METH_NOARGS, clear_doc},
    {"norm_check", (PyCFunction)grads_norm_check, METH_VARARGS, norm_check_doc},
    {"clip_factor", (PyCFunction)fl_py_clip_factor, METH_VARARGS, clip_factor_doc},
    {"invert", (PyCFunction)fl_py_invert, METH_VARARGS, invert_doc},
    {"scale", (PyCFunction)grads_scale, METH_VARARGS, scale_doc},
    {"unscale", (PyCFunction)grads_unscale, METH_VARARGS, unscale_doc},
    {"combine", (PyCFunction)grads_combine, METH_VARARGS, combine_doc},
    {"update_scale", (PyCFunction)fl_py_update_scale, METH_VARARGS, update_scale_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(grads_doc,
             "GradList(tensor_type, written, new_scratch=None)\n--\n\n"
             "A list of tensors, and passes over all of them; written(tensors) is called before\n"
             "one that writes. On a CUDA device new_scratch(tensor, bytes) makes a float64 tensor\n"
             "of at least so many bytes next to another, its first 16 bytes zero; without it no\n"
             "list is plain there.");

static PyType_Slot grads_slots[] = {
    {Py_tp_doc, (void *)grads_doc},   {Py_tp_new, grads_new},       {Py_tp_dealloc, grads_dealloc},
    {Py_tp_traverse, grads_traverse}, {Py_tp_clear, grads_clear},   {Py_tp_methods, grads_methods},
    {Py_tp_members, grads_members},   {Py_tp_getset, grads_getset}, {0, NULL}};

PyType_Spec fl_py_grad_list_spec = {.name = "fastloop._core.GradList",
                                    .basicsize = sizeof(fl_py_grad_list),
                                    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                             Py_TPFLAGS_IMMUTABLETYPE,
                                    .slots = grads_slots};
