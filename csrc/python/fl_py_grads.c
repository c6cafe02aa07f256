/* fl_py_grads: the heap type _core.Grads, a list of tensors and the passes over it.
 *
 * A walk collects the tensors and holds them; the passes then need no Python until the next walk.
 * Scalars that a device would know come and go as tensors of one number. One thread at a time: a
 * pass lets go of the interpreter lock when it is long, and whoever enters then is refused. */
#include "fl_py_grads.h"

#include "fl_cpu.h"

#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_OBJECT_EX T_OBJECT_EX
#define Py_READONLY READONLY
#endif

/* Passes over less keep the interpreter lock: giving it away can cost more. */
enum { SHORT_BYTES = 1 << 18 };

static PyObject *grads_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"tensor_type", "written", NULL};
    PyObject *tensor_type, *written;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Grads", keywords, &tensor_type, &written))
        return NULL;
    fl_py_grads *self = (fl_py_grads *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->backend = &fl_cpu_backend;
    self->written = Py_NewRef(written);
    if (fl_py_door_open(tensor_type, &self->door) != 0) goto fail;
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

static int grads_traverse(fl_py_grads *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->door.tensor_type);
    Py_VISIT(self->is_neg);
    Py_VISIT(self->written);
    Py_VISIT(self->tensors);
    return 0;
}

static int grads_clear(fl_py_grads *self)
{
    self->is_plain = false;
    fl_py_door_close(&self->door);
    Py_CLEAR(self->is_neg);
    Py_CLEAR(self->written);
    Py_CLEAR(self->tensors);
    return 0;
}

static void grads_dealloc(fl_py_grads *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)grads_clear(self);
    Py_CLEAR(self->name_grad);
    Py_CLEAR(self->name_params);
    fl_list_close(&self->list);
    fl_free(self->layouts);
    type->tp_free(self);
    Py_DECREF(type);
}

int fl_py_grads_enter(fl_py_grads *self)
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

static PyObject *grads_walk_groups(fl_py_grads *self, PyObject *groups)
{
    return fl_py_walk(self, groups, fl_py_add_group);
}

PyDoc_STRVAR(walk_parameters_doc,
             "walk_parameters(parameters, /)\n--\n\nThe same for a list or tuple of parameters.");

static PyObject *grads_walk_parameters(fl_py_grads *self, PyObject *parameters)
{
    return fl_py_walk(self, parameters, fl_py_add_gradient);
}

PyDoc_STRVAR(walk_tensors_doc,
             "walk_tensors(tensors, /)\n--\n\nThe same for a list or tuple of tensors themselves.");

static PyObject *grads_walk_tensors(fl_py_grads *self, PyObject *tensors)
{
    return fl_py_walk(self, tensors, fl_py_add_tensor);
}

PyDoc_STRVAR(clear_doc, "clear()\n--\n\nLet go of the tensors.");

static PyObject *grads_clear_tensors(fl_py_grads *self, PyObject *Py_UNUSED(ignored))
{
    if (fl_py_grads_enter(self) != 0) return NULL;
    self->is_plain = false;
    int status = PyList_SetSlice(self->tensors, 0, PY_SSIZE_T_MAX, NULL);
    self->is_busy = false;
    if (status != 0) return NULL;
    Py_RETURN_NONE;
}

/* ---- passes */

/* The address in a tensor of one number, or NULL for None: 0 done, -1 exception. */
static int find_number(fl_py_grads *self, PyObject *tensor, uint8_t bits, void **out)
{
    *out = tensor != Py_None ? fl_py_number(&self->door, tensor, kDLFloat, bits) : NULL;
    return tensor == Py_None || *out != NULL ? 0 : -1;
}

static int enter_pass(fl_py_grads *self)
{
    if (fl_py_grads_enter(self) != 0) return -1;
    if (self->is_plain) return 0;
    self->is_busy = false;
    PyErr_SetString(PyExc_RuntimeError, "no walk has found plain tensors: nothing to pass over");
    return -1;
}

/* Tells autograd that a pass will write; it may refuse. */
static int announce(fl_py_grads *self)
{
    PyObject *answer = PyObject_CallOneArg(self->written, self->tensors);
    Py_XDECREF(answer);
    return answer != NULL ? 0 : -1;
}

static int enter_writing(fl_py_grads *self)
{
    if (enter_pass(self) != 0) return -1;
    if (announce(self) == 0) return 0;
    self->is_busy = false;
    return -1;
}

/* Runs the statement as a pass of self, without the interpreter lock if it is long. */
#define RUN_PASS(self, statement)                \
    do {                                         \
        if ((self)->list.bytes <= SHORT_BYTES) { \
            statement;                           \
        } else {                                 \
            Py_BEGIN_ALLOW_THREADS               \
            statement;                           \
            Py_END_ALLOW_THREADS                 \
        }                                        \
        (self)->is_busy = false;                 \
    } while (0)

static PyTypeObject *team_type_of(fl_py_grads *self)
{
    fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    return state->team_type;
}

PyDoc_STRVAR(norm_check_doc,
             "norm_check(team, norm_type, scale, divisor, found_inf, norm, /)\n--\n\n"
             "norm (float64) = the norm of the elements / (scale * divisor), norm_type 0: 2-norm,\n"
             "1: 1-norm, 2: maximum; found_inf (float32) = 1 if one of them is not finite. scale\n"
             "(float32) may be None.");

static PyObject *grads_norm_check(fl_py_grads *self, PyObject *args)
{
    fl_py_team *team;
    PyObject *scale, *found_inf, *norm;
    int norm_type;
    double divisor;
    void *scale_at, *found_at, *norm_at;
    if (!PyArg_ParseTuple(args, "O!iOdOO:norm_check", team_type_of(self), &team, &norm_type, &scale,
                          &divisor, &found_inf, &norm))
        return NULL;
    if (norm_type < 0 || norm_type >= FL_NORMS)
        return PyErr_Format(PyExc_ValueError, "norm_type is 0, 1 or 2, not %d", norm_type);
    if (find_number(self, scale, 32, &scale_at) != 0) return NULL;
    if ((found_at = fl_py_number(&self->door, found_inf, kDLFloat, 32)) == NULL) return NULL;
    if ((norm_at = fl_py_number(&self->door, norm, kDLFloat, 64)) == NULL) return NULL;
    if (enter_pass(self) != 0) return NULL;
    fl_pass pass = {.list = &self->list, .queue = team->team};
    fl_divisor by = {.scale = scale_at, .rest = divisor};
    RUN_PASS(self, self->backend->norm_check(&pass, norm_type, by, found_at, norm_at));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(clip_factor_doc,
             "clip_factor(norm, max_norm, found_inf, scale, divisor, factor, /)\n--\n\n"
             "factor (float64) = min(1, max_norm / (norm + 1e-6)) / (scale * divisor); without\n"
             "the min(...) if norm is None or found_inf (float32, may be None) is not 0.");

static PyObject *grads_clip_factor(fl_py_grads *self, PyObject *args)
{
    PyObject *norm, *found_inf, *scale, *factor;
    double max_norm, divisor;
    void *norm_at, *found_at, *scale_at, *factor_at;
    if (!PyArg_ParseTuple(args, "OdOOdO:clip_factor", &norm, &max_norm, &found_inf, &scale,
                          &divisor, &factor))
        return NULL;
    if (find_number(self, norm, 64, &norm_at) != 0) return NULL;
    if (find_number(self, found_inf, 32, &found_at) != 0) return NULL;
    if (find_number(self, scale, 32, &scale_at) != 0) return NULL;
    if ((factor_at = fl_py_number(&self->door, factor, kDLFloat, 64)) == NULL) return NULL;
    fl_divisor by = {.scale = scale_at, .rest = divisor};
    self->backend->clip_factor(NULL, norm_at, max_norm, found_at, by, factor_at);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(invert_doc, "invert(scale, inverse, /)\n--\n\ninverse = 1 / scale, both float32.");

static PyObject *grads_invert(fl_py_grads *self, PyObject *args)
{
    PyObject *scale, *inverse;
    if (!PyArg_ParseTuple(args, "OO:invert", &scale, &inverse)) return NULL;
    const float *scale_at = fl_py_number(&self->door, scale, kDLFloat, 32);
    float *inverse_at = scale_at != NULL ? fl_py_number(&self->door, inverse, kDLFloat, 32) : NULL;
    if (inverse_at == NULL) return NULL;
    self->backend->invert(NULL, scale_at, inverse_at);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(scale_doc, "scale(team, factor, /)\n--\n\nMultiply by a factor (float64).");

static PyObject *grads_scale(fl_py_grads *self, PyObject *args)
{
    fl_py_team *team;
    PyObject *factor;
    if (!PyArg_ParseTuple(args, "O!O:scale", team_type_of(self), &team, &factor)) return NULL;
    const double *factor_at = fl_py_number(&self->door, factor, kDLFloat, 64);
    if (factor_at == NULL) return NULL;
    if (self->is_plain && *factor_at == 1) Py_RETURN_NONE;
    if (enter_writing(self) != 0) return NULL;
    fl_pass pass = {.list = &self->list, .queue = team->team};
    RUN_PASS(self, self->backend->scale(&pass, factor_at));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(unscale_doc,
             "unscale(team, inv_scale, found_inf, /)\n--\n\n"
             "Multiply by inv_scale (float32); found_inf (float32) = 1 if an element was not\n"
             "finite. By 1: only read.");

static PyObject *grads_unscale(fl_py_grads *self, PyObject *args)
{
    fl_py_team *team;
    PyObject *inv_scale, *found_inf;
    const float *inv_at;
    float *found_at;
    if (!PyArg_ParseTuple(args, "O!OO:unscale", team_type_of(self), &team, &inv_scale, &found_inf))
        return NULL;
    if ((inv_at = fl_py_number(&self->door, inv_scale, kDLFloat, 32)) == NULL) return NULL;
    if ((found_at = fl_py_number(&self->door, found_inf, kDLFloat, 32)) == NULL) return NULL;
    if ((*inv_at == 1 ? enter_pass(self) : enter_writing(self)) != 0) return NULL;
    fl_pass pass = {.list = &self->list, .queue = team->team};
    RUN_PASS(self, self->backend->unscale(&pass, inv_at, found_at));
    Py_RETURN_NONE;
}

/* Whether one of the tensors is lazily negated, which its memory does not show: 1, 0, -1 exception.
 * Passes over one list do not mind, being odd functions; sums of two do. */
static int has_negated(fl_py_grads *self)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(self->tensors); i++) {
        PyObject *answer = PyObject_CallOneArg(self->is_neg, PyList_GET_ITEM(self->tensors, i));
        int is_neg = answer != NULL ? PyObject_IsTrue(answer) : -1;
        Py_XDECREF(answer);
        if (is_neg != 0) return is_neg;
    }
    return 0;
}

/* Whether spans match one by one and the backend offers all their types. */
static bool matches(const fl_py_grads *self, const fl_py_grads *from)
{
    if (self->list.count != from->list.count) return false;
    for (int64_t i = 0; i < self->list.count; i++) {
        const fl_span *to = &self->list.spans[i], *of = &from->list.spans[i];
        if (to->count != of->count || self->layouts[i] != from->layouts[i]) return false;
        if (!self->backend->can_combine(to->type, of->type)) return false;
    }
    return true;
}

/* Whether the engine combines the two: 1, 0, -1 exception. */
static int is_offered(fl_py_grads *self, fl_py_grads *from)
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

static PyObject *grads_combine(fl_py_grads *self, PyObject *args)
{
    fl_py_team *team;
    fl_py_grads *from;
    PyObject *factor, *found_inf;
    double alpha, beta;
    void *factor_at, *found_at;
    if (!PyArg_ParseTuple(args, "O!O!dOdO:combine", team_type_of(self), &team, Py_TYPE(self), &from,
                          &alpha, &factor, &beta, &found_inf))
        return NULL;
    if (find_number(self, factor, 64, &factor_at) != 0) return NULL;
    if (find_number(self, found_inf, 32, &found_at) != 0) return NULL;
    if (from == self) Py_RETURN_FALSE;
    if (enter_pass(from) != 0) return NULL;
    if (enter_pass(self) != 0) {
        from->is_busy = false;
        return NULL;
    }
    int status = is_offered(self, from); /* both are held: what matches now still does below */
    if (status == 1) status = announce(self) == 0 ? 1 : -1;
    if (status == 1) {
        fl_pass pass = {.list = &self->list, .queue = team->team};
        RUN_PASS(self,
                 self->backend->combine(&pass, &from->list, alpha, factor_at, beta, found_at));
    }
    self->is_busy = from->is_busy = false;
    return status >= 0 ? PyBool_FromLong(status) : NULL;
}

PyDoc_STRVAR(update_scale_doc,
             "update_scale(found_inf, growth, scale, tracker, misses, /)\n--\n\n"
             "The scale (float32) after a step, and its counts (int32) of good and bad steps in a\n"
             "row; growth: (growth_factor, backoff_factor, interval, hysteresis, least, most).");

static PyObject *grads_update_scale(fl_py_grads *self, PyObject *args)
{
    PyObject *found_inf, *scale, *tracker, *misses;
    fl_growth growth;
    void *found_at, *scale_at, *tracker_at, *misses_at;
    if (!PyArg_ParseTuple(args, "O(ddiiff)OOO:update_scale", &found_inf, &growth.growth,
                          &growth.backoff, &growth.interval, &growth.hysteresis, &growth.least,
                          &growth.most, &scale, &tracker, &misses))
        return NULL;
    const fl_py_door *door = &self->door;
    if ((found_at = fl_py_number(door, found_inf, kDLFloat, 32)) == NULL) return NULL;
    if ((scale_at = fl_py_number(door, scale, kDLFloat, 32)) == NULL) return NULL;
    if ((tracker_at = fl_py_number(door, tracker, kDLInt, 32)) == NULL) return NULL;
    if ((misses_at = fl_py_number(door, misses, kDLInt, 32)) == NULL) return NULL;
    self->backend->update_scale(NULL, &growth, found_at, scale_at, tracker_at, misses_at);
    Py_RETURN_NONE;
}

static PyObject *grads_get_types(fl_py_grads *self, void *Py_UNUSED(closure))
{
    long types = 0;
    for (int64_t i = 0; i < self->list.count; i++) types |= 1L << self->list.spans[i].type;
    return PyLong_FromLong(types);
}

static PyObject *grads_get_empty(fl_py_grads *self, void *Py_UNUSED(closure))
{
    Py_ssize_t found = self->tensors != NULL ? PyList_GET_SIZE(self->tensors) : 0;
    return PyLong_FromLongLong(found - self->list.count);
}

static PyMemberDef grads_members[] = {{"tensors", Py_T_OBJECT_EX, offsetof(fl_py_grads, tensors),
                                       Py_READONLY, "those that the last walk found"},
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
    {"clip_factor", (PyCFunction)grads_clip_factor, METH_VARARGS, clip_factor_doc},
    {"invert", (PyCFunction)grads_invert, METH_VARARGS, invert_doc},
    {"scale", (PyCFunction)grads_scale, METH_VARARGS, scale_doc},
    {"unscale", (PyCFunction)grads_unscale, METH_VARARGS, unscale_doc},
    {"combine", (PyCFunction)grads_combine, METH_VARARGS, combine_doc},
    {"update_scale", (PyCFunction)grads_update_scale, METH_VARARGS, update_scale_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(grads_doc,
             "Grads(tensor_type, written)\n--\n\nA list of tensors, and passes over all of them;"
             " written(tensors) is called\nbefore one that writes.");

static PyType_Slot grads_slots[] = {
    {Py_tp_doc, (void *)grads_doc},   {Py_tp_new, grads_new},       {Py_tp_dealloc, grads_dealloc},
    {Py_tp_traverse, grads_traverse}, {Py_tp_clear, grads_clear},   {Py_tp_methods, grads_methods},
    {Py_tp_members, grads_members},   {Py_tp_getset, grads_getset}, {0, NULL}};

PyType_Spec fl_py_grads_spec = {.name = "fastloop._core.Grads",
                                .basicsize = sizeof(fl_py_grads),
                                .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                         Py_TPFLAGS_IMMUTABLETYPE,
                                .slots = grads_slots};
