/* fl_py_step_log: the heap type _core.StepLog, the events of a training loop that a recorder has
 * not read yet.
 *
 * A Python function that runs between two long computations finds none of its code and data in
 * caches. A hook in C that appends 32 bytes to an array does not have to. A log belongs to one
 * thread, which alone calls the functions and methods; only note_gradient() may be called on any
 * thread. All functions need the interpreter lock. */
#ifndef FL_PY_STEP_LOG_H
#define FL_PY_STEP_LOG_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

enum {
    FL_PY_LOG_EVENTS = 2048,
    FL_PY_LOG_OPTIMIZERS = 4, /* a loop with more optimizers calls Python */
};

/* The methods of a recorder, in the order of StepLog.start(). */
enum {
    FL_PY_ENTER_FETCH,
    FL_PY_LEAVE_FETCH,
    FL_PY_ENTER_STEP,
    FL_PY_LEAVE_UPDATE,
    FL_PY_NOTE_GRADIENT,
    FL_PY_NOTE_STEPS,
    FL_PY_LOG_METHODS
};

/* A call method(now, after, *rest) that is due. */
typedef struct fl_py_event {
    PyObject *method; /* owned */
    PyObject *rest;   /* owned tuple; NULL: no further arguments */
    int64_t now, after;
} fl_py_event;

/* An iterator or an optimizer whose calls need no Python. */
typedef struct fl_py_expected {
    PyObject *object; /* only compared: the object may be gone */
    PyObject *ref;    /* owned weakref to the object; NULL: none */
    PyObject *rest;   /* owned tuple for the event */
} fl_py_expected;

typedef struct fl_py_step_log {
    PyObject_HEAD
    PyObject *clock;                      /* owned function; None: fl_now_ns */
    PyObject *methods[FL_PY_LOG_METHODS]; /* owned */
    fl_py_expected iterator, optimizers[FL_PY_LOG_OPTIMIZERS];
    int turn; /* the expected optimizer to replace next */
    long long thread, depth, steps_decided, next_look, next_update;
    /* SHARED(events): by the section of the log, as are count and is_reading */
    fl_py_event events[FL_PY_LOG_EVENTS];
    int count;
    bool is_reading;
} fl_py_step_log;

extern PyType_Spec fl_py_step_log_spec;

/* Reads the log's clock. Returns 0, or -1 with an exception of a clock in Python. */
int fl_py_step_log_now(fl_py_step_log *self, int64_t *now);

/* Appends an event of one of the methods. `rest` may be NULL; the log takes its own reference. If
 * the log is nearly full, it is read first. Returns 0, or -1 with an exception of the recorder. */
int fl_py_step_log_note(fl_py_step_log *self, int method, int64_t now, PyObject *rest);

/* Tells whether `object` is the expected one, which lives. Sets no exception. */
bool fl_py_step_log_expects(const fl_py_expected *one, PyObject *object);

/* Returns the entry of an optimizer that the log expects, or NULL without an exception. */
fl_py_expected *fl_py_step_log_optimizer(fl_py_step_log *self, PyObject *optimizer);

#endif
