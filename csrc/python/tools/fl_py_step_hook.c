/* fl_py_step_hook: see fl_py_step_hook.h. */
#include "fl_py_step_hook.h"

#include "fl_py.h"
#include "fl_py_section.h"
#include "fl_py_step_log.h"

#include <string.h>
#include <structmember.h>

typedef struct step_hook {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *slow;   /* owned function: serves all calls that are not usual */
    PyObject *before; /* owned: the function that was there; None for an optimizer's hook */
    PyObject *log;    /* owned step_log; NULL: none. SHARED(log): by the section of the hook */
    PyObject *dict;   /* owned: functools.wraps() writes here */
    PyObject *weakrefs;
} step_hook;

static bool is_this_thread(const fl_py_step_log *self)
{
    return (unsigned long)self->thread == PyThread_get_thread_ident();
}

/* Returns a new reference to the log if this thread is watched, else NULL without an exception. */
static fl_py_step_log *take_log(step_hook *self)
{
    fl_py_step_log *log;
    FL_PY_BEGIN_SECTION((PyObject *)self);
    log = (fl_py_step_log *)Py_XNewRef(self->log);
    FL_PY_END_SECTION();
    if (log != NULL && !is_this_thread(log)) Py_CLEAR(log);
    return log;
}

static bool is_due(const fl_py_step_log *self, int64_t now)
{
    return now >= self->next_look || now >= self->next_update;
}

/* Ends the handling of an exception, and goes back to `outer`, which was handled before. Inside a
 * generator this may be the exception of the generator's caller, and no generator may keep that. */
static void end_handling(PyObject *outer[3])
{
    PyObject *now[3];
    PyErr_SetExcInfo(NULL, NULL, NULL);
    PyErr_GetExcInfo(&now[0], &now[1], &now[2]);
    bool is_callers = now[1] == outer[1];
    for (int i = 0; i < 3; i++) {
        Py_XDECREF(now[i]);
        if (is_callers) Py_CLEAR(outer[i]);
    }
    if (!is_callers) PyErr_SetExcInfo(outer[0], outer[1], outer[2]);
}

/* Lets Python note the end of next(). Takes over `result`, and returns what next() returns. */
static PyObject *leave_by_python(fl_py_step_log *log, PyObject *result)
{
    PyObject *type = NULL, *value = NULL, *traceback = NULL, *outer[3];
    if (result == NULL) {
        PyErr_Fetch(&type, &value, &traceback);
        PyErr_NormalizeException(&type, &value, &traceback);
        if (traceback != NULL) (void)PyException_SetTraceback(value, traceback);
        /* As in a `finally`: this exception becomes the context of any error of the call. */
        PyErr_GetExcInfo(&outer[0], &outer[1], &outer[2]);
        PyErr_SetExcInfo(Py_NewRef(type), Py_NewRef(value), Py_XNewRef(traceback));
    }
    PyObject *done = PyObject_CallMethod((PyObject *)log, "leave_next", "OOO", Py_None, Py_None,
                                         type != NULL ? type : Py_None);
    if (type != NULL) end_handling(outer);
    if (done != NULL) {
        Py_DECREF(done);
        if (type != NULL) PyErr_Restore(type, value, traceback);
        return result;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    Py_XDECREF(result);
    return NULL;
}

static PyObject *next_batch(step_hook *self, fl_py_step_log *log, PyObject *iterator, int64_t now)
{
    PyObject *rest = Py_NewRef(log->iterator.rest), *result = NULL;
    if (fl_py_step_log_note(log, FL_PY_ENTER_FETCH, now, NULL) != 0) goto done;
    log->depth = 1;
    result = PyObject_CallOneArg(self->before, iterator);
    if (result != NULL && fl_py_step_log_now(log, &now) != 0) Py_CLEAR(result);
    if (result == NULL || is_due(log, now)) {
        result = leave_by_python(log, result);
        goto done;
    }
    log->depth = 0;
    if (fl_py_step_log_note(log, FL_PY_LEAVE_FETCH, now, rest) != 0) Py_CLEAR(result);
done:
    Py_DECREF(rest);
    return result;
}

static PyObject *
call_next(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    step_hook *self = (step_hook *)callable;
    fl_py_step_log *log = take_log(self);
    int64_t now = 0;
    PyObject *result = NULL;
    bool is_usual = log != NULL && PyVectorcall_NARGS(nargsf) == 1 && names == NULL &&
                    log->depth == 0 && fl_py_step_log_expects(&log->iterator, args[0]);
    int status = is_usual ? fl_py_step_log_now(log, &now) : 0;
    if (status == 0 && is_usual && !is_due(log, now))
        result = next_batch(self, log, args[0], now);
    else if (status == 0)
        result = PyObject_Vectorcall(self->slow, args, nargsf, names);
    Py_XDECREF(log);
    return result;
}

/* Tells whether step() was called without a closure. */
static bool has_no_closure(PyObject *args, PyObject *kwargs)
{
    if (!PyTuple_Check(args) || !PyDict_Check(kwargs) || PyDict_GET_SIZE(kwargs) != 0) return false;
    Py_ssize_t count = PyTuple_GET_SIZE(args);
    return count == 1 || (count == 2 && PyTuple_GET_ITEM(args, 1) == Py_None);
}

/* Returns 1 if the event of an optimizer's hook was noted, 0 if Python has to serve the call, -1
 * with an exception. */
static int note_step(fl_py_step_log *log, PyObject *const *args, bool begins)
{
    int64_t now;
    fl_py_expected *one = fl_py_step_log_optimizer(log, args[0]);
    if (one == NULL || !has_no_closure(args[1], args[2])) return 0;
    PyObject *rest = Py_NewRef(one->rest); /* a clock, or reading, may replace the entry */
    int noted = fl_py_step_log_now(log, &now) != 0 ? -1 : now < log->next_update;
    if (noted > 0) {
        log->steps_decided += begins;
        int method = begins ? FL_PY_ENTER_STEP : FL_PY_LEAVE_UPDATE;
        if (fl_py_step_log_note(log, method, now, rest) != 0) noted = -1;
    }
    Py_DECREF(rest);
    return noted;
}

static PyObject *
call_step(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names, bool begins)
{
    step_hook *self = (step_hook *)callable;
    fl_py_step_log *log = take_log(self);
    bool is_usual = log != NULL && PyVectorcall_NARGS(nargsf) == 3 && names == NULL;
    int noted = is_usual ? note_step(log, args, begins) : 0;
    Py_XDECREF(log);
    if (noted == 0) return PyObject_Vectorcall(self->slow, args, nargsf, names);
    return noted > 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
call_enter_step(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    return call_step(callable, args, nargsf, names, true);
}

static PyObject *
call_leave_step(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    return call_step(callable, args, nargsf, names, false);
}

static PyObject *hook_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"event", "slow", "before", NULL};
    static const struct {
        const char *name;
        vectorcallfunc call;
    } kinds[] = {
        {"next", call_next}, {"enter_step", call_enter_step}, {"leave_step", call_leave_step}};
    const char *name;
    PyObject *slow, *before = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO|O:StepHook", keywords, &name, &slow,
                                     &before))
        return NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(name, kinds[i].name) != 0) continue;
        step_hook *self = (step_hook *)type->tp_alloc(type, 0);
        if (self == NULL) return NULL;
        self->call = kinds[i].call;
        self->slow = Py_NewRef(slow);
        self->before = Py_NewRef(before);
        return (PyObject *)self;
    }
    return PyErr_Format(PyExc_ValueError, "StepHook: no event %s", name);
}

PyDoc_STRVAR(serve_doc, "serve(log, /)\n--\n\n"
                        "Write usual calls into this StepLog from now on. For None all calls go\n"
                        "to the Python function.");

static PyObject *hook_serve(step_hook *self, PyObject *log)
{
    fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    if (log != Py_None && !PyObject_TypeCheck(log, state->step_log_type))
        return PyErr_Format(PyExc_TypeError, "serve() needs a StepLog or None");
    PyObject *old;
    FL_PY_BEGIN_SECTION((PyObject *)self);
    old = self->log;
    self->log = log != Py_None ? Py_NewRef(log) : NULL;
    FL_PY_END_SECTION();
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

/* Is pickled and copied as functions are: by the name. */
static PyObject *hook_reduce(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyObject_GetAttrString(self, "__qualname__");
}

/* Binds a hook that is a method, as functions do. */
static PyObject *hook_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static int hook_traverse(step_hook *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->slow);
    Py_VISIT(self->before);
    Py_VISIT(self->log);
    Py_VISIT(self->dict);
    return 0;
}

static int hook_clear(step_hook *self)
{
    Py_CLEAR(self->log);
    Py_CLEAR(self->dict);
    return 0;
}

static void hook_dealloc(step_hook *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    (void)hook_clear(self);
    Py_CLEAR(self->slow);
    Py_CLEAR(self->before);
    fl_py_free(self);
}

PyDoc_STRVAR(hook_doc,
             "StepHook(event, slow, before=None)\n--\n\n"
             "A function that stands in place of `before`, or is a hook of optimizers, and logs\n"
             "usual calls. `event` is \"next\", \"enter_step\" or \"leave_step\". All other calls\n"
             "go to slow(), which has to call before() itself.");

static PyMethodDef hook_methods[] = {{"serve", (PyCFunction)hook_serve, METH_O, serve_doc},
                                     {"__reduce__", hook_reduce, METH_NOARGS, NULL},
                                     {NULL, NULL, 0, NULL}};

static PyMemberDef hook_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(step_hook, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(step_hook, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(step_hook, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyGetSetDef hook_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot hook_slots[] = {{Py_tp_doc, (void *)hook_doc},
                                   {Py_tp_new, hook_new},
                                   {Py_tp_call, PyVectorcall_Call},
                                   {Py_tp_descr_get, hook_get},
                                   {Py_tp_traverse, hook_traverse},
                                   {Py_tp_clear, hook_clear},
                                   {Py_tp_dealloc, hook_dealloc},
                                   {Py_tp_methods, hook_methods},
                                   {Py_tp_members, hook_members},
                                   {Py_tp_getset, hook_getset},
                                   {0, NULL}};

PyType_Spec fl_py_step_hook_spec = FL_PY_SPEC(
    "StepHook", step_hook,
    Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, hook_slots);
