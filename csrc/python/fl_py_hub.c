/* fl_py_hub: the heap type _core.Hub, the parent's end of the memory shared with workers.
 *
 * Hands slots out with requests, takes them back with replies and keeps the books: each request's
 * slot and key, and the memory under way. With the interpreter lock. Inert in a forked child. */
#include "fl_py.h"

#include "fl_thread.h"

#include <string.h>

enum { LEAST_LIMIT = 64 << 10, MOST_FIRST = 64 << 20 };

typedef struct booking {
    fl_slot *slot;   /* owned, FILLING; NULL when the request is answered */
    fl_slot *before; /* owned: the slot that was too small and may still be read */
    PyObject *key;   /* owned */
    int64_t limit;
    bool is_counted; /* in under_way and unanswered */
} booking;

typedef struct worker_count {
    int64_t batches, busy_ns, wait_ns;
} worker_count;

typedef struct fl_py_hub {
    PyObject_HEAD
    fl_py_door door;
    fl_py_slots *slots;  /* owned */
    fl_region *control;  /* owned: where shm lies */
    fl_shm *shm;         /* borrowed from control */
    uint32_t generation; /* of the process that made it */
    int32_t workers, depth;
    booking *bookings;    /* owned: depth for each worker, at number % depth */
    worker_count *counts; /* owned: one for each worker */
    int64_t fallbacks[FL_SHM_REASONS];
    int64_t budget;      /* bytes that may be under way */
    int64_t first_limit; /* bytes for a request while nothing is known of batches */
    int64_t largest;     /* bytes that batches so far needed */
    int64_t under_way;   /* bytes of requests and of replies not opened */
    int64_t unanswered;  /* requests that workers have */
} fl_py_hub;

static inline bool is_foreign(const fl_py_hub *self)
{
    return self->generation != fl_fork_generation();
}

static inline booking *find_booking(fl_py_hub *self, int32_t worker, int64_t number)
{
    return &self->bookings[(int64_t)worker * self->depth + (number & (self->depth - 1))];
}

static int open_shm(fl_py_hub *self, fl_err *err)
{
    int64_t bytes = fl_shm_bytes(self->workers, self->depth);
    FL_TRY(fl_arena_get(self->slots->arena, bytes, &self->control, err));
    self->shm = fl_shm_init(fl_region_data(self->control), self->workers, self->depth);
    self->bookings = fl_alloc((int64_t)self->workers * self->depth * (int64_t)sizeof(booking));
    self->counts = fl_alloc(self->workers * (int64_t)sizeof(worker_count));
    if (self->bookings == NULL || self->counts == NULL)
        return fl_fail(err, FL_ENOMEM, "out of memory for %d workers", (int)self->workers);
    fl_pool_reserve(self->slots->pool, self->depth / 2);
    fl_pool_limit(self->slots->pool, self->budget);
    return FL_OK;
}

static PyObject *hub_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"slots", "tensor_type", "workers", "depth", "budget", NULL};
    PyObject *slots, *tensor_type;
    int workers, depth;
    long long budget;
    fl_py_state *state = PyType_GetModuleState(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OiiL:Hub", keywords, state->slots_type,
                                     &slots, &tensor_type, &workers, &depth, &budget))
        return NULL;
    if (workers < 1 || depth < 1 || (depth & (depth - 1)) != 0 || budget < 1)
        return PyErr_Format(PyExc_ValueError, "no hub for %d workers, depth %d, %lld bytes",
                            workers, depth, budget);
    fl_py_hub *self = (fl_py_hub *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    fl_err err;
    self->generation = fl_fork_generation();
    self->slots = (fl_py_slots *)Py_NewRef(slots);
    self->workers = workers;
    self->depth = depth;
    self->budget = budget;
    self->first_limit = fl_max(LEAST_LIMIT, fl_min(MOST_FIRST, budget / depth));
    if (fl_py_door_open(tensor_type, &self->door) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (open_shm(self, &err) == FL_OK) return (PyObject *)self;
    Py_DECREF(self);
    return fl_py_raise(&err, NULL);
}

/* The request is answered, or never will be; `freed` bytes are no longer under way. */
static void settle(fl_py_hub *self, booking *booked, int64_t freed)
{
    if (!booked->is_counted) return;
    booked->is_counted = false;
    self->under_way -= freed;
    self->unanswered--;
}

static void forget(fl_py_hub *self, booking *booked)
{
    settle(self, booked, booked->limit);
    fl_slot_return(booked->slot);
    fl_slot_return(booked->before);
    PyObject *key = booked->key;
    *booked = (booking){0};
    Py_XDECREF(key);
}

static int hub_traverse(fl_py_hub *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->slots);
    for (int64_t i = 0; self->bookings != NULL && i < (int64_t)self->workers * self->depth; i++)
        Py_VISIT(self->bookings[i].key);
    return 0;
}

static void hub_dealloc(fl_py_hub *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (int64_t i = 0; self->bookings != NULL && i < (int64_t)self->workers * self->depth; i++)
        forget(self, &self->bookings[i]);
    fl_free(self->bookings);
    fl_free(self->counts);
    fl_region_give(self->control);
    fl_py_door_close(&self->door);
    Py_XDECREF(self->slots);
    type->tp_free(self);
    Py_DECREF(type);
}

void fl_py_hub_release(PyObject *hub, int64_t limit) { ((fl_py_hub *)hub)->under_way -= limit; }

static bool check_worker(const fl_py_hub *self, int worker)
{
    if (worker >= 0 && worker < self->workers && !is_foreign(self)) return true;
    PyErr_Format(PyExc_ValueError, "no worker %d here", worker);
    return false;
}

/* What batches so far needed, and a quarter more. */
static int64_t next_limit(const fl_py_hub *self)
{
    if (self->largest == 0) return self->first_limit;
    return fl_max(LEAST_LIMIT, self->largest + self->largest / 4);
}

/* 1 sent, 0 no room in the budget or the queue now, -1 exception. `before` is taken when sent. */
static int send_request(fl_py_hub *self, int worker, PyObject *key, int64_t limit, bool is_forced,
                        const Py_buffer *payload, fl_shm_request *request, fl_slot *before)
{
    bool fits = limit <= self->budget - self->under_way;
    if (!fits && !is_forced) return 0;
    fl_err err;
    fl_slot *slot;
    if (fl_pool_get(self->slots->pool, limit, &slot, &err) != FL_OK) {
        fl_py_raise(&err, NULL);
        return -1;
    }
    if (payload->len > 0) memcpy(fl_slot_data(slot), payload->buf, (size_t)payload->len);
    request->offset = fl_slot_data(slot) - fl_arena_base(self->slots->arena);
    request->limit = limit;
    request->bytes = payload->len;
    if (!fl_shm_send(self->shm, worker, request)) {
        fl_slot_return(slot);
        return 0;
    }
    booking *booked = find_booking(self, worker, request->number);
    forget(self, booked); /* skipped by the worker, whose later requests were answered */
    *booked = (booking){
        .slot = slot, .before = before, .key = Py_NewRef(key), .limit = limit, .is_counted = true};
    self->under_way += limit;
    self->unanswered++;
    return 1;
}

PyDoc_STRVAR(send_doc,
             "send(worker, payload, key, is_forced, /)\n--\n\n"
             "Ask a worker for a batch; False when there is no room in the memory budget (unless\n"
             "forced) or in the queue now.");

static PyObject *hub_send(fl_py_hub *self, PyObject *args)
{
    int worker, is_forced;
    Py_buffer payload;
    PyObject *key;
    if (!PyArg_ParseTuple(args, "iy*Op:send", &worker, &payload, &key, &is_forced)) return NULL;
    int sent = -1;
    if (check_worker(self, worker)) {
        fl_shm_request request = {.again = -1};
        int64_t limit = fl_max(next_limit(self), payload.len);
        sent = send_request(self, worker, key, limit, is_forced, &payload, &request, NULL);
    }
    PyBuffer_Release(&payload);
    return sent < 0 ? NULL : PyBool_FromLong(sent);
}

PyDoc_STRVAR(send_again_doc,
             "send_again(worker, number, bytes, is_forced, /)\n--\n\n"
             "Ask once more for the batch of a request that was too large, with so much memory.");

static PyObject *hub_send_again(fl_py_hub *self, PyObject *args)
{
    int worker, is_forced;
    long long number, bytes;
    if (!PyArg_ParseTuple(args, "iLLp:send_again", &worker, &number, &bytes, &is_forced))
        return NULL;
    if (!check_worker(self, worker)) return NULL;
    booking *booked = find_booking(self, worker, number);
    fl_shm_request request = {.again = number};
    Py_buffer nothing = {.len = 0};
    fl_slot *before = booked->before;
    PyObject *key = booked->key;
    if (key == NULL || before == NULL)
        return PyErr_Format(PyExc_ValueError, "request %lld was not too large", number);
    Py_INCREF(key);
    int sent = send_request(self, worker, key, bytes, is_forced, &nothing, &request, before);
    Py_DECREF(key);
    if (sent == 1 && booked->before == before) booked->before = NULL;
    if (sent == 1) forget(self, booked);
    return sent < 0 ? NULL : PyBool_FromLong(sent);
}

static void count_reply(fl_py_hub *self, const fl_shm_reply *reply)
{
    worker_count *count = &self->counts[reply->worker];
    count->busy_ns += reply->busy_ns;
    count->wait_ns += reply->wait_ns;
    if (reply->kind > 0) count->batches++;
    if (reply->kind > 0) self->slots->bytes += reply->used;
    for (int i = 0; i < FL_SHM_REASONS; i++) self->fallbacks[i] += reply->fallbacks[i];
    self->largest = fl_max(self->largest, reply->used);
}

static bool is_sane(const fl_shm_reply *reply, const booking *booked)
{
    if (booked->slot == NULL) return false;
    if (reply->kind < 0) return reply->used > booked->limit && reply->used < INT64_MAX / 2;
    return reply->used >= 0 && reply->used <= booked->limit && reply->head >= 0 &&
           reply->head_bytes >= 0 && reply->head <= reply->used - reply->head_bytes;
}

static PyObject *make_parcel(fl_py_hub *self, const fl_shm_reply *reply, booking *booked)
{
    fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    fl_py_parcel *parcel = PyObject_GC_New(fl_py_parcel, state->parcel_type);
    if (parcel == NULL) return NULL;
    parcel->hub = Py_NewRef((PyObject *)self);
    parcel->door = self->door;
    Py_INCREF(parcel->door.tensor_type);
    parcel->is_open = false;
    parcel->reply = *reply;
    parcel->slot = booked->slot;
    parcel->limit = booked->is_counted ? booked->limit : 0;
    booked->slot = NULL;
    settle(self, booked, 0);
    PyObject_GC_Track(parcel);
    return (PyObject *)parcel;
}

/* (key, parcel), or (key, worker, number, bytes needed). */
static PyObject *deliver(fl_py_hub *self, const fl_shm_reply *reply)
{
    booking *booked = find_booking(self, reply->worker, reply->number);
    if (!is_sane(reply, booked))
        return PyErr_Format(PyExc_RuntimeError,
                            "worker %d has overwritten the memory it shares with this process; "
                            "look for writes out of bounds in native code of the dataset",
                            (int)reply->worker);
    count_reply(self, reply);
    if (reply->kind >= 0) {
        PyObject *parcel = make_parcel(self, reply, booked);
        if (parcel == NULL) return NULL;
        PyObject *pair = PyTuple_Pack(2, booked->key, parcel);
        Py_DECREF(parcel);
        forget(self, booked);
        return pair;
    }
    settle(self, booked, booked->limit);
    booked->before = booked->slot;
    booked->slot = NULL;
    return Py_BuildValue("OiLL", booked->key, (int)reply->worker, (long long)reply->number,
                         (long long)reply->used);
}

PyDoc_STRVAR(take_doc,
             "take(timeout, /)\n--\n\n"
             "The next reply as (key, parcel), in the order of arrival; where a batch needs more\n"
             "memory, (key, worker, number, bytes). None after `timeout` seconds or a signal.\n"
             "Waits without the interpreter lock.");

static PyObject *hub_take(fl_py_hub *self, PyObject *timeout)
{
    double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1 && PyErr_Occurred()) return NULL;
    if (!check_worker(self, 0)) return NULL;
    fl_shm_reply reply;
    bool is_there = fl_shm_take(self->shm, &reply);
    if (!is_there && seconds > 0) {
        int64_t deadline_ns = fl_now_ns() + (int64_t)(seconds * 1e9);
        Py_BEGIN_ALLOW_THREADS(void)
        fl_shm_wait(self->shm, deadline_ns);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() != 0) return NULL;
        is_there = fl_shm_take(self->shm, &reply);
    }
    if (is_there) return deliver(self, &reply);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(cancel_doc, "cancel(worker, is_gone, /)\n--\n\nThe worker answers no request sent so "
                         "far: they count no longer. When it is gone, let go of their memory.");

static PyObject *hub_cancel(fl_py_hub *self, PyObject *args)
{
    int worker, is_gone;
    if (!PyArg_ParseTuple(args, "ip:cancel", &worker, &is_gone)) return NULL;
    if (!check_worker(self, worker)) return NULL;
    for (int32_t i = 0; i < self->depth; i++) {
        booking *booked = &self->bookings[(int64_t)worker * self->depth + i];
        settle(self, booked, booked->limit);
        if (is_gone) forget(self, booked);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(tasks_doc, "tasks(worker, /)\n--\n\nThe keys of all that it has not answered.");

static PyObject *hub_tasks(fl_py_hub *self, PyObject *args)
{
    int worker;
    if (!PyArg_ParseTuple(args, "i:tasks", &worker) || !check_worker(self, worker)) return NULL;
    PyObject *tasks = PyList_New(0);
    for (int32_t i = 0; tasks != NULL && i < self->depth; i++) {
        PyObject *key = self->bookings[(int64_t)worker * self->depth + i].key;
        if (key != NULL && PyList_Append(tasks, key) != 0) Py_CLEAR(tasks);
    }
    return tasks;
}

PyDoc_STRVAR(end_doc, "end(worker, /)\n--\n\nNo more requests for this worker.");

static PyObject *hub_end(fl_py_hub *self, PyObject *args)
{
    int worker;
    if (!PyArg_ParseTuple(args, "i:end", &worker) || !check_worker(self, worker)) return NULL;
    fl_shm_end(self->shm, worker);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(close_doc, "close()\n--\n\nTell all workers to stop.");

static PyObject *hub_close(fl_py_hub *self, PyObject *Py_UNUSED(ignored))
{
    if (!is_foreign(self)) fl_shm_close(self->shm);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(is_closed_doc, "is_closed()\n--\n\nWhether close() was called.");

static PyObject *hub_is_closed(fl_py_hub *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(is_foreign(self) || fl_shm_is_closed(self->shm));
}

PyDoc_STRVAR(address_doc, "address()\n--\n\n"
                          "Where a worker finds it: (file descriptor, bytes, offset, and for a\n"
                          "forked one the address of the parent's mapping).");

static PyObject *hub_address(fl_py_hub *self, PyObject *Py_UNUSED(ignored))
{
    const fl_arena *arena = self->slots->arena;
    return Py_BuildValue("iLLK", fl_arena_fd(arena), (long long)fl_arena_bytes(arena),
                         (long long)fl_region_offset(self->control),
                         (unsigned long long)(uintptr_t)fl_arena_base(arena));
}

PyDoc_STRVAR(count_doc, "count()\n--\n\n"
                        "((batches, ns at work, ns waiting) of each worker, {reason: fallbacks}).");

static PyObject *hub_count(fl_py_hub *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *workers = PyTuple_New(self->workers);
    for (int32_t w = 0; workers != NULL && w < self->workers; w++) {
        const worker_count *count = &self->counts[w];
        PyObject *item = Py_BuildValue("LLL", (long long)count->batches, (long long)count->busy_ns,
                                       (long long)count->wait_ns);
        if (item == NULL)
            Py_CLEAR(workers);
        else
            PyTuple_SET_ITEM(workers, w, item);
    }
    PyObject *fallbacks = fl_py_count_reasons(self->fallbacks);
    if (workers != NULL && fallbacks != NULL) return Py_BuildValue("NN", workers, fallbacks);
    Py_XDECREF(workers);
    Py_XDECREF(fallbacks);
    return NULL;
}

PyDoc_STRVAR(unanswered_doc, "how many requests workers have");

static PyObject *get_unanswered(fl_py_hub *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->unanswered);
}

static PyGetSetDef hub_getset[] = {
    {"unanswered", (getter)get_unanswered, NULL, unanswered_doc, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef hub_methods[] = {
    {"send", (PyCFunction)hub_send, METH_VARARGS, send_doc},
    {"send_again", (PyCFunction)hub_send_again, METH_VARARGS, send_again_doc},
    {"take", (PyCFunction)hub_take, METH_O, take_doc},
    {"cancel", (PyCFunction)hub_cancel, METH_VARARGS, cancel_doc},
    {"tasks", (PyCFunction)hub_tasks, METH_VARARGS, tasks_doc},
    {"end", (PyCFunction)hub_end, METH_VARARGS, end_doc},
    {"close", (PyCFunction)hub_close, METH_NOARGS, close_doc},
    {"is_closed", (PyCFunction)hub_is_closed, METH_NOARGS, is_closed_doc},
    {"address", (PyCFunction)hub_address, METH_NOARGS, address_doc},
    {"count", (PyCFunction)hub_count, METH_NOARGS, count_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(hub_doc,
             "Hub(slots, tensor_type, workers, depth, budget)\n--\n\n"
             "The parent's end of the memory shared with `workers` processes: at most `depth` (a\n"
             "power of two) unanswered requests each, `budget` bytes under way.");

static PyType_Slot hub_slots[] = {{Py_tp_doc, (void *)hub_doc},
                                  {Py_tp_new, hub_new},
                                  {Py_tp_dealloc, hub_dealloc},
                                  {Py_tp_traverse, hub_traverse},
                                  {Py_tp_methods, hub_methods},
                                  {Py_tp_getset, hub_getset},
                                  {0, NULL}};

PyType_Spec fl_py_hub_spec = {.name = "fastloop._core.Hub",
                              .basicsize = sizeof(fl_py_hub),
                              .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                       Py_TPFLAGS_IMMUTABLETYPE,
                              .slots = hub_slots};
