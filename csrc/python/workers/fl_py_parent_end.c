/* fl_py_parent_end: the heap type _core.ParentEnd, the parent's end of the memory shared with
 * workers.
 *
 * Hands slots out with requests, takes them back with replies and keeps the books: each request's
 * slot and key, and the memory under way. With the interpreter lock. Inert in a forked child. */
#include "fl_py_parent_end.h"

#include "fl_thread.h"

static inline bool is_foreign(const fl_py_parent_end *self)
{
    return self->generation != fl_fork_generation();
}

static int open_shm(fl_py_parent_end *self, fl_err *err)
{
    int64_t bytes = fl_shm_queue_bytes(self->workers, self->depth);
    FL_TRY(fl_arena_get(self->slots->arena, bytes, &self->control, err));
    FL_TRY(fl_shm_queue_open(fl_region_data(self->control), self->workers, self->depth, &self->shm,
                             err));
    self->bookings =
        fl_alloc((int64_t)self->workers * self->depth * (int64_t)sizeof(fl_py_request));
    self->counts = fl_alloc(self->workers * (int64_t)sizeof(fl_py_worker));
    if (self->bookings == NULL || self->counts == NULL)
        return fl_fail(err, FL_ENOMEM, "out of memory for %d workers", (int)self->workers);
    fl_pool_reserve(self->slots->pool, self->depth / 2);
    fl_pool_limit(self->slots->pool, self->budget);
    return FL_OK;
}

static PyObject *hub_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"slots", "tensor_type", "workers", "depth", "budget", "lands", NULL};
    PyObject *slots, *tensor_type;
    int workers, depth, lands = 0;
    long long budget;
    fl_py_state *state = PyType_GetModuleState(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OiiL|p:ParentEnd", keywords,
                                     state->batch_pool_type, &slots, &tensor_type, &workers, &depth,
                                     &budget, &lands))
        return NULL;
    if (((fl_py_batch_pool *)slots)->device >= 0 && !lands)
        return PyErr_Format(PyExc_ValueError, "batches in slots of a device have to land there");
    if (((fl_py_batch_pool *)slots)->arena == NULL || workers < 1 || depth < 1 ||
        (depth & (depth - 1)) != 0 || budget < 1)
        return PyErr_Format(PyExc_ValueError, "no hub for %d workers, depth %d, %lld bytes",
                            workers, depth, budget);
    fl_py_parent_end *self = (fl_py_parent_end *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    fl_err err;
    self->generation = fl_fork_generation();
    self->slots = (fl_py_batch_pool *)Py_NewRef(slots);
    self->workers = workers;
    self->depth = depth;
    self->budget = budget;
    if (fl_py_dlpack_open(tensor_type, &self->door) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    int status = open_shm(self, &err);
    if (status == FL_OK && lands) status = fl_py_reply_destination_open(self, &err);
    if (status == FL_OK) return (PyObject *)self;
    Py_DECREF(self);
    return fl_py_raise(&err, NULL);
}

static int hub_traverse(fl_py_parent_end *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->slots);
    Py_VISIT(self->door.tensor_type);
    for (int64_t i = 0; self->bookings != NULL && i < (int64_t)self->workers * self->depth; i++)
        Py_VISIT(self->bookings[i].key);
    return 0;
}

/* Only keys can be part of a cycle: blocks that batches land in are plain tensors. BatchPool of a
 * hub not released stay out of use with them. */
static int hub_clear(fl_py_parent_end *self)
{
    for (int64_t i = 0; self->bookings != NULL && i < (int64_t)self->workers * self->depth; i++)
        Py_CLEAR(self->bookings[i].key);
    return 0;
}

static void hub_dealloc(fl_py_parent_end *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    fl_py_reply_destination_close(self);
    (void)hub_clear(self);
    fl_shm_queue_free(self->shm);
    fl_free(self->bookings);
    fl_free(self->counts);
    if (self->is_released)
        fl_region_give(self->control);
    else
        fl_region_abandon(self->control); /* a worker that nobody knows of may still look at it */
    fl_py_dlpack_close(&self->door);
    Py_XDECREF(self->slots);
    type->tp_free(self);
    Py_DECREF(type);
}

void fl_py_parent_end_release(PyObject *hub, int64_t limit)
{
    ((fl_py_parent_end *)hub)->under_way -= limit;
}

static bool check_worker(const fl_py_parent_end *self, int worker)
{
    if (worker >= 0 && worker < self->workers && !is_foreign(self)) return true;
    PyErr_Format(PyExc_ValueError, "no worker %d here", worker);
    return false;
}

PyDoc_STRVAR(send_doc,
             "send(worker, payload, key, is_forced, /)\n--\n\n"
             "Ask a worker for a batch; False when there is no room in the memory budget (unless\n"
             "forced) or in the queue now.");

static PyObject *hub_send(fl_py_parent_end *self, PyObject *args)
{
    int worker, is_forced;
    Py_buffer payload;
    PyObject *key;
    if (!PyArg_ParseTuple(args, "iy*Op:send", &worker, &payload, &key, &is_forced)) return NULL;
    int sent = -1;
    if (check_worker(self, worker))
        sent = fl_py_parent_end_send(self, worker, key, 0, is_forced, &payload, -1, NULL);
    PyBuffer_Release(&payload);
    return sent < 0 ? NULL : PyBool_FromLong(sent);
}

PyDoc_STRVAR(send_again_doc,
             "send_again(worker, number, bytes, is_forced, /)\n--\n\n"
             "Ask once more for the batch of a request that was too large, with so much memory.");

static PyObject *hub_send_again(fl_py_parent_end *self, PyObject *args)
{
    int worker, is_forced;
    long long number, bytes;
    if (!PyArg_ParseTuple(args, "iLLp:send_again", &worker, &number, &bytes, &is_forced))
        return NULL;
    if (!check_worker(self, worker)) return NULL;
    fl_py_request *booked = fl_py_request_of(self, worker, number);
    Py_buffer nothing = {.len = 0};
    fl_slot *before = booked->before;
    PyObject *key = booked->key;
    if (key == NULL || before == NULL)
        return PyErr_Format(PyExc_ValueError, "request %lld was not too large", number);
    Py_INCREF(key);
    int sent = fl_py_parent_end_send(self, worker, key, bytes, is_forced, &nothing, number, before);
    Py_DECREF(key);
    if (sent == 1 && booked->before == before) booked->before = NULL;
    if (sent == 1) fl_py_request_forget(self, booked);
    return sent < 0 ? NULL : PyBool_FromLong(sent);
}

PyDoc_STRVAR(
    take_doc,
    "take(timeout, /)\n--\n\n"
    "The next reply as (key, parcel), in the order of arrival; where a batch needs more\n"
    "memory, (key, worker, number, bytes). None if there is none, after `timeout` seconds\n"
    "or a signal. RuntimeError where a worker has overwritten what is shared. Waits\n"
    "without the interpreter lock.");

static int take_reply(fl_py_parent_end *self, fl_reply_message *out)
{
    return self->courier != NULL ? fl_copier_receive(self->courier, out)
                                 : fl_shm_queue_receive_reply(self->shm, out);
}

/* The first reply that is wanted, of those that are there: what take() returns. */
static PyObject *take_wanted(fl_py_parent_end *self)
{
    fl_reply_message reply;
    PyObject *result = Py_NewRef(Py_None);
    int status = FL_OK;
    while (result == Py_None && (status = take_reply(self, &reply)) == FL_OK) {
        Py_DECREF(result);
        result = fl_py_parent_end_deliver(self, &reply);
    }
    if (status != FL_EDAMAGE) return result;
    Py_DECREF(result);
    return fl_py_parent_end_blame(self, reply.worker);
}

/* Counts the time without the wait for the interpreter lock afterwards. */
static void await_reply(fl_py_parent_end *self, double seconds)
{
    int64_t begin_ns = fl_now_ns(), end_ns;
    Py_BEGIN_ALLOW_THREADS
    fl_shm_queue_wait(self->shm, begin_ns + (int64_t)(seconds * 1e9));
    end_ns = fl_now_ns();
    Py_END_ALLOW_THREADS
    self->slots->wait_ns += end_ns - begin_ns;
    self->has_waited = true;
}

static PyObject *hub_take(fl_py_parent_end *self, PyObject *timeout)
{
    double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1 && PyErr_Occurred()) return NULL;
    if (!check_worker(self, 0)) return NULL;
    PyObject *result = take_wanted(self);
    if (result == Py_None && seconds > 0) {
        Py_DECREF(result);
        await_reply(self, seconds);
        result = PyErr_CheckSignals() == 0 ? take_wanted(self) : NULL;
    }
    if (result != Py_None && result != NULL) {
        self->slots->waits += self->has_waited;
        self->has_waited = false;
    }
    return result;
}

PyDoc_STRVAR(cancel_doc, "cancel(worker, is_gone, /)\n--\n\nThe worker answers no request sent so "
                         "far: they count no longer. When it is gone, let go of their memory.");

static PyObject *hub_cancel(fl_py_parent_end *self, PyObject *args)
{
    int worker, is_gone;
    if (!PyArg_ParseTuple(args, "ip:cancel", &worker, &is_gone)) return NULL;
    if (!check_worker(self, worker)) return NULL;
    for (int32_t i = 0; i < self->depth; i++) {
        fl_py_request *booked = &self->bookings[(int64_t)worker * self->depth + i];
        if (is_gone)
            fl_py_request_forget(self, booked);
        else
            fl_py_request_settle(self, booked, booked->limit);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(release_doc, "release()\n--\n\nAll workers have ended: let go of what they had.");

static PyObject *hub_release(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    if (is_foreign(self)) Py_RETURN_NONE;
    fl_py_reply_destination_stop(self);
    for (int64_t i = 0; i < (int64_t)self->workers * self->depth; i++)
        fl_py_request_forget(self, &self->bookings[i]);
    self->is_released = true;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(tasks_doc, "tasks(worker, /)\n--\n\nThe keys of all that it has not answered.");

static PyObject *hub_tasks(fl_py_parent_end *self, PyObject *args)
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

static PyObject *hub_end(fl_py_parent_end *self, PyObject *args)
{
    int worker;
    if (!PyArg_ParseTuple(args, "i:end", &worker) || !check_worker(self, worker)) return NULL;
    fl_shm_queue_end(self->shm, worker);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(close_doc, "close()\n--\n\nTell all workers to stop.");

static PyObject *hub_close(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    if (is_foreign(self)) Py_RETURN_NONE;
    for (int32_t w = 0; w < self->workers; w++) fl_shm_queue_close(self->shm, w);
    self->is_closed = true;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(is_closed_doc, "is_closed()\n--\n\nWhether close() was called.");

static PyObject *hub_is_closed(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(is_foreign(self) || self->is_closed);
}

PyDoc_STRVAR(address_doc, "address()\n--\n\n"
                          "What a worker makes its WorkerEnd of: (file descriptor, bytes, offset,\n"
                          "workers, depth, and for a forked one the address of the parent's\n"
                          "mapping).");

static PyObject *hub_address(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    const fl_arena *arena = self->slots->arena;
    return Py_BuildValue("iLLiiK", fl_arena_fd(arena), (long long)fl_arena_bytes(arena),
                         (long long)fl_region_offset(self->control), (int)self->workers,
                         (int)self->depth, (unsigned long long)(uintptr_t)fl_arena_base(arena));
}

PyDoc_STRVAR(count_doc, "count()\n--\n\n"
                        "((batches, ns at work, ns waiting) of each worker, {reason: fallbacks}).");

static PyObject *hub_count(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *workers = PyTuple_New(self->workers);
    for (int32_t w = 0; workers != NULL && w < self->workers; w++) {
        const fl_py_worker *count = &self->counts[w];
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

PyDoc_STRVAR(expect_doc, "expect(first, /)\n--\n\n"
                         "Batches land: from now on those from number `first` on (-1: whichever\n"
                         "come first) are carried when they arrive. How many blocks of `room`\n"
                         "bytes that wants.");

static PyObject *hub_expect(fl_py_parent_end *self, PyObject *first)
{
    long long number = PyLong_AsLongLong(first);
    if ((number == -1 && PyErr_Occurred()) || !check_worker(self, 0)) return NULL;
    return PyLong_FromLong(self->courier != NULL ? fl_py_reply_destination_expect(self, number)
                                                 : 0);
}

PyDoc_STRVAR(rest_doc, "rest()\n--\n\nGive up the blocks that nothing has been carried to.");

static PyObject *hub_rest(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    if (self->courier != NULL) fl_py_reply_destination_rest(self);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(supply_doc, "supply(block, /)\n--\n\n"
                         "Lend a block of `room` bytes where batches land: a tensor, on a device\n"
                         "of the current stream's.");

static PyObject *hub_supply(fl_py_parent_end *self, PyObject *block)
{
    if (self->courier == NULL || !check_worker(self, 0))
        return PyErr_Format(PyExc_ValueError, "these batches land nowhere");
    if (fl_py_reply_destination_supply(self, block, self->room) != 0) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(unanswered_doc, "how many requests workers have");

static PyObject *get_unanswered(fl_py_parent_end *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->unanswered);
}

PyDoc_STRVAR(is_overwritten_doc, "whether a worker was found to have overwritten what it shares");

static PyObject *get_is_overwritten(fl_py_parent_end *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->is_overwritten);
}

PyDoc_STRVAR(room_doc, "how many bytes batches of late need where they land");

static PyObject *get_room(fl_py_parent_end *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->room);
}

PyDoc_STRVAR(lands_doc, "whether batches land elsewhere than in CPU memory of ours");

static PyObject *get_lands(fl_py_parent_end *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->courier != NULL);
}

static PyGetSetDef hub_getset[] = {
    {"unanswered", (getter)get_unanswered, NULL, unanswered_doc, NULL},
    {"is_overwritten", (getter)get_is_overwritten, NULL, is_overwritten_doc, NULL},
    {"room", (getter)get_room, NULL, room_doc, NULL},
    {"lands", (getter)get_lands, NULL, lands_doc, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef hub_methods[] = {
    {"send", (PyCFunction)hub_send, METH_VARARGS, send_doc},
    {"send_again", (PyCFunction)hub_send_again, METH_VARARGS, send_again_doc},
    {"take", (PyCFunction)hub_take, METH_O, take_doc},
    {"expect", (PyCFunction)hub_expect, METH_O, expect_doc},
    {"supply", (PyCFunction)hub_supply, METH_O, supply_doc},
    {"rest", (PyCFunction)hub_rest, METH_NOARGS, rest_doc},
    {"cancel", (PyCFunction)hub_cancel, METH_VARARGS, cancel_doc},
    {"release", (PyCFunction)hub_release, METH_NOARGS, release_doc},
    {"tasks", (PyCFunction)hub_tasks, METH_VARARGS, tasks_doc},
    {"end", (PyCFunction)hub_end, METH_VARARGS, end_doc},
    {"close", (PyCFunction)hub_close, METH_NOARGS, close_doc},
    {"is_closed", (PyCFunction)hub_is_closed, METH_NOARGS, is_closed_doc},
    {"address", (PyCFunction)hub_address, METH_NOARGS, address_doc},
    {"count", (PyCFunction)hub_count, METH_NOARGS, count_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(
    hub_doc,
    "ParentEnd(slots, tensor_type, workers, depth, budget, lands=False)\n--\n\n"
    "The parent's end of the memory shared with `workers` processes: at most `depth` (a\n"
    "power of two) unanswered requests each, `budget` bytes under way. lands: batches are\n"
    "carried to blocks, on the slots' device if they have one.");

static PyType_Slot hub_slots[] = {{Py_tp_doc, (void *)hub_doc}, {Py_tp_new, hub_new},
                                  {Py_tp_dealloc, hub_dealloc}, {Py_tp_traverse, hub_traverse},
                                  {Py_tp_clear, hub_clear},     {Py_tp_methods, hub_methods},
                                  {Py_tp_getset, hub_getset},   {0, NULL}};

PyType_Spec fl_py_parent_end_spec = {.name = "fastloop._core.ParentEnd",
                                     .basicsize = sizeof(fl_py_parent_end),
                                     .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                              Py_TPFLAGS_IMMUTABLETYPE,
                                     .slots = hub_slots};
