/* fl_py_step_log: see fl_py_step_log.h. */
#include "fl_py_step_log.h"

#include "fl_py.h"
#include "fl_py_error.h"
#include "fl_py_section.h"
#include "fl_thread.h"

#include <assert.h>
#include <structmember.h>

enum {
    READ_AT = 2016, /* with 2016 events the log's thread reads; the rest is for other threads */
    LEAST = 4,      /* the recorder reads 4 or more equal steps in a row as an array */
    /* The first methods, in their order, are a step's events. */
    IN_A_STEP = FL_PY_NOTE_GRADIENT,
    NOT_MEASURED = -1, /* as in recorder.py */
};

/* A row of recorder.py's StepRing. */
typedef struct step_row {
    int64_t end, data_wait, host_to_device, forward_backward, clip_optimizer, other, gpu_wait,
        is_first;
} step_row;

int fl_py_step_log_now(fl_py_step_log *self, int64_t *now)
{
    if (self->clock == NULL || self->clock == Py_None) {
        *now = fl_now_ns();
        return 0;
    }
    PyObject *number = PyObject_CallNoArgs(self->clock);
    if (number == NULL) return -1;
    *now = PyLong_AsLongLong(number);
    Py_DECREF(number);
    return *now == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Gives back the references of events [first, end). */
static void drop_events(fl_py_step_log *self, int first, int end)
{
    for (int i = first; i < end; i++) {
        Py_CLEAR(self->events[i].method);
        Py_CLEAR(self->events[i].rest);
    }
}

/* Takes the event out of the log, because the collector may look meanwhile, and calls its method.
 */
static int call_event(fl_py_step_log *self, int i)
{
    enum { MOST = 8 };
    fl_py_event one = self->events[i];
    self->events[i].method = self->events[i].rest = NULL;
    PyObject *args[2 + MOST] = {PyLong_FromLongLong(one.now), PyLong_FromLongLong(one.after)};
    Py_ssize_t extra = one.rest != NULL ? PyTuple_GET_SIZE(one.rest) : 0;
    assert(extra <= MOST);
    for (Py_ssize_t j = 0; j < extra; j++) args[2 + j] = PyTuple_GET_ITEM(one.rest, j);
    PyObject *done = NULL;
    if (args[0] != NULL && args[1] != NULL)
        done = PyObject_Vectorcall(one.method, args, (size_t)(2 + extra), NULL);
    Py_XDECREF(args[0]);
    Py_XDECREF(args[1]);
    Py_DECREF(one.method);
    Py_XDECREF(one.rest);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

/* Returns how many steps of the same iterator and optimizer follow each other from event i on,
 * without any other event between. */
static int count_steps(const fl_py_step_log *self, int i)
{
    int count = 0;
    const PyObject *batch = i + 1 < self->count ? self->events[i + 1].rest : NULL;
    if (batch == NULL || Py_SIZE(batch) == 0) return 0; /* no source: not a batch of next() */
    while (i + IN_A_STEP * (count + 1) <= self->count) {
        const fl_py_event *step = &self->events[i + IN_A_STEP * count], *first = &self->events[i];
        for (int j = 0; j < IN_A_STEP; j++)
            if (step[j].method != self->methods[j] || step[j].rest != first[j].rest) return count;
        count++;
    }
    return count;
}

/* Sums over steps, in ns. */
typedef struct step_sums {
    long long wait, in_steps, other, measuring;
} step_sums;

/* Returns the row of a step, and adds the step to the sums. step[0] to step[3] are the step's
 * events: leave_fetch, enter_step, leave_update and enter_fetch. step[-1] is the event before. */
static step_row make_row(const fl_py_event *step, step_sums *sums)
{
    int64_t parts[IN_A_STEP];
    for (int j = 0; j < IN_A_STEP; j++) {
        parts[j] = step[j].now - step[j - 1].after;
        sums->in_steps += parts[j];
        sums->measuring += step[j].after - step[j].now;
    }
    sums->wait += parts[0];
    sums->other += parts[3];
    return (step_row){.end = step[IN_A_STEP - 1].now,
                      .data_wait = parts[0],
                      .host_to_device = NOT_MEASURED,
                      .forward_backward = parts[1],
                      .clip_optimizer = parts[2],
                      .other = parts[3],
                      .gpu_wait = NOT_MEASURED};
}

/* Calls note_steps() for `count` steps. The first step begins at event `first`, after an event that
 * has been read. */
static int call_steps(fl_py_step_log *self, int first, int count)
{
    int events = IN_A_STEP * count;
    PyObject *bytes = PyByteArray_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(step_row));
    if (bytes == NULL) return -1;
    step_row *rows = (step_row *)(void *)PyByteArray_AS_STRING(bytes);
    step_sums sums = {0, 0, 0, 0};
    for (int i = 0; i < count; i++) rows[i] = make_row(&self->events[first + IN_A_STEP * i], &sums);
    PyObject *source = PyTuple_GET_ITEM(self->events[first].rest, 0);
    long long after = self->events[first + events - 1].after;
    PyObject *done =
        PyObject_CallFunction(self->methods[FL_PY_NOTE_STEPS], "OOLLLLL", bytes, source, sums.wait,
                              sums.in_steps, sums.other, sums.measuring, after);
    Py_DECREF(bytes);
    drop_events(self, first, first + events);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

/* Makes all calls that are due. If a call raises, the remaining calls are dropped. */
static int read_events(fl_py_step_log *self)
{
    int status = 0;
    if (self->is_reading) return 0;
    self->is_reading = true;
    for (int i = 0; i < self->count && status == 0; i++) { /* a call may append events */
        int whole = count_steps(self, i) - 2;
        if (whole < LEAST) {
            status = call_event(self, i);
            continue;
        }
        /* The first step may follow anything, and the last one is not at its end. */
        for (int j = 0; j <= IN_A_STEP && status == 0; j++) status = call_event(self, i++);
        if (status == 0) status = call_steps(self, i, whole);
        i += IN_A_STEP * whole - 1;
    }
    drop_events(self, 0, self->count);
    self->count = 0;
    self->is_reading = false;
    return status;
}

/* Appends an event. An event that comes while a full log is read is lost. Reading may run any code,
 * so the event has its references from the beginning. */
static int append(fl_py_step_log *self, PyObject *method, int64_t now, PyObject *rest)
{
    if (method == NULL) return FL_PY_FAIL(PyExc_RuntimeError, "start() has not been called");
    fl_py_event one = {Py_NewRef(method), Py_XNewRef(rest), now, now};
    int status = self->count < READ_AT ? 0 : read_events(self);
    if (status == 0) status = fl_py_step_log_now(self, &one.after);
    if (status == 0 && self->count < FL_PY_LOG_EVENTS) {
        self->events[self->count++] = one;
        return 0;
    }
    Py_DECREF(one.method);
    Py_XDECREF(one.rest);
    return status;
}

int fl_py_step_log_note(fl_py_step_log *self, int method, int64_t now, PyObject *rest)
{
    int status;
    FL_PY_BEGIN_SECTION((PyObject *)self);
    status = append(self, self->methods[method], now, rest);
    FL_PY_END_SECTION();
    return status;
}

bool fl_py_step_log_expects(const fl_py_expected *one, PyObject *object)
{
    if (one->object != object || one->ref == NULL) return false;
    PyObject *there = PyObject_CallNoArgs(one->ref);
    if (there == NULL) PyErr_Clear();
    Py_XDECREF(there);
    return there == object;
}

/* Takes over the reference to `rest`, which may be NULL after an exception. */
static int expect(fl_py_expected *one, PyObject *object, PyObject *rest)
{
    PyObject *ref = rest != NULL ? PyWeakref_NewRef(object, NULL) : NULL;
    if (ref == NULL) {
        Py_XDECREF(rest);
        return -1;
    }
    one->object = object;
    Py_XSETREF(one->ref, ref);
    Py_XSETREF(one->rest, rest);
    return 0;
}

fl_py_expected *fl_py_step_log_optimizer(fl_py_step_log *self, PyObject *optimizer)
{
    for (int i = 0; i < FL_PY_LOG_OPTIMIZERS; i++)
        if (fl_py_step_log_expects(&self->optimizers[i], optimizer)) return &self->optimizers[i];
    return NULL;
}

PyDoc_STRVAR(start_doc,
             "start(clock, enter_fetch, leave_fetch, enter_step, leave_update, note_gradient,\n"
             "      note_steps)\n--\n\n"
             "Begin to log for these methods of a recorder. `clock` returns ns; None: the\n"
             "clock of perf_counter_ns(). Equal steps in a row are read by\n"
             "note_steps(rows, source, wait, in_steps, other, measuring, after), as recorder.py\n"
             "describes it: `rows` is a bytearray with eight int64 for each step, `source` the\n"
             "first item of the tuple of expect_batches().");

static PyObject *log_start(fl_py_step_log *self, PyObject *args)
{
    PyObject *clock, *methods[FL_PY_LOG_METHODS];
    if (!PyArg_ParseTuple(args, "OOOOOOO:start", &clock, &methods[0], &methods[1], &methods[2],
                          &methods[3], &methods[4], &methods[5]))
        return NULL;
    Py_XSETREF(self->clock, Py_NewRef(clock));
    for (int i = 0; i < FL_PY_LOG_METHODS; i++) Py_XSETREF(self->methods[i], Py_NewRef(methods[i]));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(note_doc, "note(method, now, /, *rest)\n--\n\n"
                       "Write down an event of the time `now`: read() calls method(now, after,\n"
                       "*rest), where `after` is the time at which this call ends. If the log is\n"
                       "full, it is read at once.");

static PyObject *log_note(fl_py_step_log *self, PyObject *const *args, Py_ssize_t count)
{
    if (count < 2) return PyErr_Format(PyExc_TypeError, "note() needs a method and a time");
    long long now = PyLong_AsLongLong(args[1]);
    if (now == -1 && PyErr_Occurred()) return NULL;
    if (count > 10) return PyErr_Format(PyExc_TypeError, "note() takes at most 8 arguments more");
    PyObject *rest = PyTuple_New(count - 2);
    if (rest == NULL) return NULL;
    for (Py_ssize_t i = 2; i < count; i++) PyTuple_SET_ITEM(rest, i - 2, Py_NewRef(args[i]));
    int status;
    FL_PY_BEGIN_SECTION((PyObject *)self);
    status = append(self, args[0], now, rest);
    FL_PY_END_SECTION();
    Py_DECREF(rest);
    if (status != 0) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(read_doc, "read()\n--\n\nMake the calls that are due, in order.");

static PyObject *log_read(fl_py_step_log *self, PyObject *Py_UNUSED(ignored))
{
    int status;
    FL_PY_BEGIN_SECTION((PyObject *)self);
    status = read_events(self);
    FL_PY_END_SECTION();
    if (status != 0) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(expect_batches_doc,
             "expect_batches(iterator, rest, /)\n--\n\n"
             "Log next() of this iterator, and of no other, without Python: enter_fetch(), and\n"
             "leave_fetch() with the tuple `rest`. For None every next() calls Python. No\n"
             "reference to the iterator is kept.");

static PyObject *log_expect_batches(fl_py_step_log *self, PyObject *args)
{
    PyObject *iterator, *rest;
    if (!PyArg_ParseTuple(args, "OO!:expect_batches", &iterator, &PyTuple_Type, &rest)) return NULL;
    if (PyTuple_GET_SIZE(rest) < 1 || PyTuple_GET_SIZE(rest) > 8)
        return PyErr_Format(PyExc_ValueError, "expect_batches: the tuple must have 1 to 8 items");
    if (iterator == Py_None)
        Py_CLEAR(self->iterator.ref);
    else if (expect(&self->iterator, iterator, Py_NewRef(rest)) != 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(expect_steps_doc,
             "expect_steps(optimizer, /)\n--\n\n"
             "Log this optimizer's steps without Python from now on. The last 4 optimizers are\n"
             "kept in mind, without a reference.");

static PyObject *log_expect_steps(fl_py_step_log *self, PyObject *optimizer)
{
    if (fl_py_step_log_optimizer(self, optimizer) != NULL) Py_RETURN_NONE;
    PyObject *id = PyLong_FromVoidPtr(optimizer); /* as id() */
    PyObject *rest = id != NULL ? PyTuple_Pack(1, id) : NULL;
    Py_XDECREF(id);
    if (expect(&self->optimizers[self->turn], optimizer, rest) != 0) return NULL;
    self->turn = (self->turn + 1) % FL_PY_LOG_OPTIMIZERS;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(note_gradient_doc,
             "note_gradient(parameter, /)\n--\n\n"
             "Write down the time of a gradient, on any thread; on CUDA call\n"
             "self.note_device_gradient(). If the log is full, the gradient is left out.");

static PyObject *log_note_gradient(fl_py_step_log *self, PyObject *parameter)
{
    PyObject *is_cuda = PyObject_GetAttrString(parameter, "is_cuda");
    if (is_cuda == NULL) return NULL;
    Py_DECREF(is_cuda);
    if (is_cuda == Py_True)
        return PyObject_CallMethod((PyObject *)self, "note_device_gradient", NULL);
    int64_t now;
    if (self->methods[FL_PY_NOTE_GRADIENT] == NULL)
        return PyErr_Format(PyExc_RuntimeError, "start() has not been called");
    if (fl_py_step_log_now(self, &now) != 0) return NULL;
    FL_PY_BEGIN_SECTION((PyObject *)self);
    if (self->count < FL_PY_LOG_EVENTS)
        self->events[self->count++] =
            (fl_py_event){Py_NewRef(self->methods[FL_PY_NOTE_GRADIENT]), NULL, now, now};
    FL_PY_END_SECTION();
    Py_RETURN_NONE;
}

static int log_traverse(fl_py_step_log *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->clock);
    for (int i = 0; i < FL_PY_LOG_METHODS; i++) Py_VISIT(self->methods[i]);
    Py_VISIT(self->iterator.rest);
    for (int i = 0; i < self->count; i++) {
        Py_VISIT(self->events[i].method);
        Py_VISIT(self->events[i].rest);
    }
    return 0;
}

static int log_clear(fl_py_step_log *self)
{
    Py_CLEAR(self->clock);
    for (int i = 0; i < FL_PY_LOG_METHODS; i++) Py_CLEAR(self->methods[i]);
    Py_CLEAR(self->iterator.ref);
    Py_CLEAR(self->iterator.rest);
    for (int i = 0; i < FL_PY_LOG_OPTIMIZERS; i++) {
        Py_CLEAR(self->optimizers[i].ref);
        Py_CLEAR(self->optimizers[i].rest);
    }
    drop_events(self, 0, self->count);
    self->count = 0;
    return 0;
}

static void log_dealloc(fl_py_step_log *self)
{
    PyObject_GC_UnTrack(self);
    (void)log_clear(self);
    fl_py_free(self);
}

PyDoc_STRVAR(log_doc,
             "StepLog()\n--\n\n"
             "The events of a loop that a recorder has not read yet. The class of an observer,\n"
             "whose leave_next() and note_device_gradient() are called.");

static PyMethodDef log_methods[] = {
    {"start", (PyCFunction)log_start, METH_VARARGS, start_doc},
    {"note", (PyCFunction)(void (*)(void))log_note, METH_FASTCALL, note_doc},
    {"read", (PyCFunction)log_read, METH_NOARGS, read_doc},
    {"expect_batches", (PyCFunction)log_expect_batches, METH_VARARGS, expect_batches_doc},
    {"expect_steps", (PyCFunction)log_expect_steps, METH_O, expect_steps_doc},
    {"note_gradient", (PyCFunction)log_note_gradient, METH_O, note_gradient_doc},
    {NULL, NULL, 0, NULL}};

static PyMemberDef log_members[] = {
    {"thread", T_LONGLONG, offsetof(fl_py_step_log, thread), 0,
     "the thread that is watched; 0: none"},
    {"depth", T_LONGLONG, offsetof(fl_py_step_log, depth), 0, "how many nested calls are running"},
    {"steps_decided", T_LONGLONG, offsetof(fl_py_step_log, steps_decided), 0,
     "the number of steps that were taken or skipped"},
    {"next_look", T_LONGLONG, offsetof(fl_py_step_log, next_look), 0,
     "the time from which calls go to Python"},
    {"next_update", T_LONGLONG, offsetof(fl_py_step_log, next_update), 0, "a time like next_look"},
    {NULL, 0, 0, 0, NULL}};

/* The memory comes from tp_alloc, zeroed: the type has no tp_new of its own. */
static PyType_Slot log_slots[] = {{Py_tp_doc, (void *)log_doc},   {Py_tp_new, PyType_GenericNew},
                                  {Py_tp_traverse, log_traverse}, {Py_tp_clear, log_clear},
                                  {Py_tp_dealloc, log_dealloc},   {Py_tp_methods, log_methods},
                                  {Py_tp_members, log_members},   {0, NULL}};

PyType_Spec fl_py_step_log_spec =
    FL_PY_SPEC("StepLog", fl_py_step_log, Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, log_slots);
