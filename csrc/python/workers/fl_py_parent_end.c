/* fl_py_parent_end: the heap type _core.ParentEnd. Tasks go in and replies come out; fl_inflight
 * handles the steps in between. All methods need the interpreter lock and run in the section of the
 * parent end, like the methods of replies. In a forked child the object is inert. */
#include "fl_py_parent_end.h"

#include "fl_py.h"
#include "fl_py_channel.h"
#include "fl_py_fallbacks.h"
#include "fl_py_put.h"
#include "fl_py_reply.h"
#include "fl_py_section.h"
#include "fl_py_stage.h"
#include "fl_thread.h"

/* ---- open and close */

static void abandon_buffer(void *context, const fl_dest_buffer *buffer, fl_slot *slot)
{
    const fl_py_reply_destination *destination = context;
    fl_py_destination_abandon(&destination->base, buffer, slot);
}

static int64_t count_reading(void *context)
{
    const fl_py_reply_destination *destination = context;
    return fl_py_destination_count_reading(&destination->base);
}

static void drop_key(void *key)
{
    PyObject *task = key;
    Py_DECREF(task);
}

static int open_queues(fl_py_parent_end *self, fl_err *err)
{
    int64_t bytes = fl_shm_queue_bytes(self->workers, self->depth);
    FL_TRY(fl_arena_get(self->pool->arena, bytes, &self->control, err));
    return fl_shm_queue_open(fl_shared_block_data(self->control), self->workers, self->depth,
                             &self->shm, err);
}

static int open_inflight(fl_py_parent_end *self, int64_t budget, bool keeps_tasks,
                         bool has_destination, fl_err *err)
{
    const fl_inflight_config config = {.shm = self->shm,
                                       .workers = self->workers,
                                       .depth = self->depth,
                                       .pool = self->pool->pool,
                                       .base = fl_arena_base(self->pool->arena),
                                       .largest = &self->pool->largest,
                                       .budget = budget,
                                       .keeps_tasks = keeps_tasks,
                                       .has_destination = has_destination,
                                       .context = &self->destination,
                                       .abandon = abandon_buffer,
                                       .count_reading = count_reading,
                                       .drop_key = drop_key};
    fl_pool_reserve(self->pool->pool, self->depth / 2);
    fl_pool_limit(self->pool->pool, budget);
    return fl_inflight_open(&config, &self->inflight, err);
}

static int open_all(fl_py_parent_end *self, int64_t budget, bool keeps_tasks, PyObject *destination)
{
    fl_err err;
    bool has_destination = destination != Py_None;
    int status = open_queues(self, &err);
    if (status == FL_OK) status = open_inflight(self, budget, keeps_tasks, has_destination, &err);
    if (status != FL_OK) fl_py_raise(&err, NULL);
    if (status != FL_OK || !has_destination) return status == FL_OK ? 0 : -1;
    return fl_py_reply_destination_open(&self->destination, destination, &self->dlpack,
                                        self->pool->device, self->inflight);
}

static PyObject *parent_end_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"pool",   "tensor_type", "workers",     "depth",
                               "budget", "destination", "keeps_tasks", NULL};
    PyObject *object, *tensor_type, *destination = Py_None;
    int workers, depth, keeps_tasks = 0;
    long long budget;
    fl_py_state *state = PyType_GetModuleState(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OiiL|Op:ParentEnd", keywords,
                                     state->batch_pool_type, &object, &tensor_type, &workers,
                                     &depth, &budget, &destination, &keeps_tasks))
        return NULL;
    fl_py_batch_pool *pool = (fl_py_batch_pool *)object;
    if (pool->device >= 0 && destination == Py_None)
        return PyErr_Format(PyExc_ValueError, "a pool for a device must come with a destination");
    if (pool->arena == NULL || workers < 1 || depth < 1 || (depth & (depth - 1)) != 0 || budget < 1)
        return PyErr_Format(PyExc_ValueError,
                            "ParentEnd: workers, depth (a power of two) and budget must be at "
                            "least 1, got %d, %d and %lld",
                            workers, depth, budget);
    fl_py_parent_end *self = (fl_py_parent_end *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->generation = fl_fork_generation();
    self->pool = (fl_py_batch_pool *)Py_NewRef(object);
    self->workers = workers;
    self->depth = depth;
    if (fl_py_dlpack_open(tensor_type, &self->dlpack) == 0 &&
        open_all(self, budget, keeps_tasks, destination) == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

typedef struct visit_args {
    visitproc visit;
    void *arg;
} visit_args;

static int visit_key(void **key, void *arg)
{
    const visit_args *args = arg;
    return args->visit(*key, args->arg);
}

static int parent_end_traverse(fl_py_parent_end *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->pool);
    Py_VISIT(self->dlpack.tensor_type);
    visit_args args = {visit, arg};
    int status =
        self->inflight != NULL ? fl_inflight_each_key(self->inflight, visit_key, &args) : 0;
    return status != 0 ? status : fl_py_destination_traverse(&self->destination.base, visit, arg);
}

static int take_key(void **key, void *arg)
{
    *(void **)arg = *key;
    *key = NULL;
    return 1;
}

/* Only tasks can be part of a reference cycle. A task keeps the memory to which its worker writes,
 * so a task is never dropped while its worker may live. */
static int parent_end_clear(fl_py_parent_end *self)
{
    void *key;
    while (self->inflight != NULL && fl_inflight_each_key(self->inflight, take_key, &key) != 0)
        if (self->is_released || fl_py_parent_end_is_foreign(self)) drop_key(key);
    return 0;
}

static void parent_end_dealloc(fl_py_parent_end *self)
{
    PyObject_GC_UnTrack(self);
    fl_py_reply_destination_stop(&self->destination);
    fl_copier_close(self->destination.copier);
    (void)parent_end_clear(self);
    fl_inflight_close(self->inflight);
    /* Closing waits for copies of batches that were dropped meanwhile. */
    fl_py_destination_close(&self->destination.base);
    fl_shm_queue_free(self->shm);
    if (self->is_released)
        fl_shared_block_give(self->control);
    else
        /* A worker may still be alive and use the queues, so their memory is never reused. */
        fl_shared_block_abandon(self->control);
    fl_py_dlpack_close(&self->dlpack);
    Py_XDECREF(self->pool);
    fl_py_free(self);
}

static bool check_worker(const fl_py_parent_end *self, int worker)
{
    if (worker >= 0 && worker < self->workers && !fl_py_parent_end_is_foreign(self)) return true;
    PyErr_Format(PyExc_ValueError, "there is no worker %d in this process", worker);
    return false;
}

/* Parses an argument as the number of a worker. Returns -1 with an exception if it is not one. */
static int32_t parse_worker(const fl_py_parent_end *self, PyObject *object)
{
    long number = PyLong_AsLong(object);
    if (number == -1 && PyErr_Occurred()) return -1;
    bool is_int = number >= INT32_MIN && number <= INT32_MAX;
    return check_worker(self, is_int ? (int)number : -1) ? (int32_t)number : -1;
}

/* ---- requests and replies */

/* Returns the number in (number, indices); -1 for any other task. */
static int64_t turn_of(PyObject *task)
{
    if (!PyTuple_CheckExact(task) || PyTuple_GET_SIZE(task) == 0) return -1;
    long long turn = PyLong_AsLongLong(PyTuple_GET_ITEM(task, 0));
    if (turn == -1 && PyErr_Occurred()) PyErr_Clear();
    return turn;
}

PyDoc_STRVAR(submit_doc,
             "submit(worker, payload, task, /)\n--\n\n"
             "Request a batch from a worker. The request is sent as soon as the memory budget\n"
             "and the worker's queue have room. `payload` is the task in bytes, as the worker\n"
             "receives the task. For a batch, `task` is (number, indices); the numbers count\n"
             "up in the order in which the program takes the batches.");

static PyObject *parent_end_submit(fl_py_parent_end *self, PyObject *args)
{
    fl_err err;
    int worker, status = FL_OK;
    Py_buffer payload;
    PyObject *task;
    if (!PyArg_ParseTuple(args, "iy*O:submit", &worker, &payload, &task)) return NULL;
    bool is_here = check_worker(self, worker);
    if (is_here)
        status = fl_inflight_submit(self->inflight, worker, payload.buf, payload.len,
                                    Py_NewRef(task), turn_of(task), NULL, &err);
    PyBuffer_Release(&payload);
    if (status != FL_OK) Py_DECREF(task);
    if (status != FL_OK) return fl_py_raise(&err, NULL);
    return is_here ? Py_NewRef(Py_None) : NULL;
}

PyDoc_STRVAR(receive_doc,
             "receive(timeout, /)\n--\n\n"
             "Return the next reply as (task, reply), in the order of arrival. Waits without\n"
             "the interpreter lock. Returns None if no reply arrives within `timeout` seconds,\n"
             "or if a signal ends the wait; all replies that were sent before the call have\n"
             "then been received. Raises RuntimeError if a worker has overwritten the shared\n"
             "memory.");

/* Makes (task, reply) of an answered request, and takes over the request. */
static PyObject *make_reply(fl_py_parent_end *self, fl_request *request)
{
    const fl_reply_message *reply = &request->reply;
    PyObject *task = request->key != NULL ? request->key : Py_NewRef(Py_None);
    request->key = NULL; /* the pair takes the key */
    if (reply->kind > 0) {
        self->pool->bytes += reply->used;
        fl_py_reply_destination_expect(&self->destination, reply->upload);
    }
    self->pool->waits += self->has_waited;
    self->has_waited = false;
    PyObject *object = fl_py_reply_new(self, request);
    PyObject *pair = object != NULL ? PyTuple_Pack(2, task, object) : NULL;
    Py_XDECREF(object);
    Py_DECREF(task);
    return pair;
}

/* Returns the next reply that has arrived, or None. */
static PyObject *receive_now(fl_py_parent_end *self)
{
    fl_err err;
    fl_request *request;
    int status = fl_inflight_receive(self->inflight, &request, &err);
    if (status == FL_OK) return make_reply(self, request);
    if (status == FL_ETIMEOUT) Py_RETURN_NONE;
    if (status == FL_EDAMAGE) return fl_py_report_corruption(self, (int32_t)err.value);
    return fl_py_raise(&err, NULL);
}

/* Waits for a reply. The counted time excludes the wait for the interpreter lock afterwards. */
static void await_reply(fl_py_parent_end *self, double seconds)
{
    int64_t begin_ns = fl_now_ns(), end_ns;
    Py_BEGIN_ALLOW_THREADS
    fl_shm_queue_wait(self->shm, begin_ns + (int64_t)(seconds * 1e9));
    end_ns = fl_now_ns();
    Py_END_ALLOW_THREADS
    self->pool->wait_ns += end_ns - begin_ns;
    self->has_waited = true;
}

static PyObject *parent_end_receive(fl_py_parent_end *self, PyObject *timeout)
{
    double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1 && PyErr_Occurred()) return NULL;
    if (!check_worker(self, 0)) return NULL;
    PyObject *result = receive_now(self);
    if (result != Py_None || seconds <= 0) return result;
    Py_DECREF(result);
    await_reply(self, seconds);
    return PyErr_CheckSignals() == 0 ? receive_now(self) : NULL;
}

PyDoc_STRVAR(start_epoch_doc, "start_epoch()\n--\n\n"
                              "Begin an epoch: drop the requests that have not been sent.");

static PyObject *parent_end_start_epoch(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    fl_inflight_start_epoch(self->inflight);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(cancel_doc,
             "cancel(worker, is_gone)\n--\n\n"
             "Drop all requests that were submitted to the worker so far; their replies no\n"
             "longer count. is_gone: the worker's process has ended, so the memory of the\n"
             "requests is free at once.");

static PyObject *parent_end_cancel(fl_py_parent_end *self, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"worker", "is_gone", NULL};
    int worker, is_gone;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ip:cancel", keywords, &worker, &is_gone))
        return NULL;
    if (!check_worker(self, worker)) return NULL;
    FL_PY_BEGIN_SECTION((PyObject *)self);
    fl_inflight_cancel(self->inflight, worker, is_gone);
    FL_PY_END_SECTION();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(owes_doc,
             "owes(worker, /)\n--\n\n"
             "Return True if a batch of the worker was too large for its memory, and the\n"
             "worker still has to send the batch again.");

static PyObject *parent_end_owes(fl_py_parent_end *self, PyObject *number)
{
    int32_t worker = parse_worker(self, number);
    if (worker < 0) return NULL;
    return PyBool_FromLong(fl_inflight_owes(self->inflight, worker));
}

PyDoc_STRVAR(is_idle_doc, "is_idle()\n--\n\n"
                          "Return True if no reply is expected from any worker.");

static PyObject *parent_end_is_idle(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(fl_inflight_is_idle(self->inflight));
}

PyDoc_STRVAR(first_task_doc,
             "first_task(worker, /)\n--\n\n"
             "Return the task of the first batch that the worker has not made; None if the\n"
             "worker has made all batches.");

static PyObject *parent_end_first_task(fl_py_parent_end *self, PyObject *number)
{
    int32_t worker = parse_worker(self, number);
    if (worker < 0) return NULL;
    /* SHARED(first_task): the table lends the task, and the reference is taken in the same
     * section. */
    PyObject *task = fl_inflight_first_key(self->inflight, worker);
    return Py_NewRef(task != NULL ? task : Py_None);
}

/* ---- the workers' life */

PyDoc_STRVAR(release_doc,
             "release()\n--\n\n"
             "Release the memory of all workers. All workers must have ended. Waits for\n"
             "running copies without the interpreter lock.");

static PyObject *parent_end_release(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    if (fl_py_parent_end_is_foreign(self)) Py_RETURN_NONE;
    fl_py_reply_destination_stop(&self->destination);
    for (int32_t w = 0; w < self->workers; w++) fl_inflight_cancel(self->inflight, w, true);
    self->is_released = true;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(has_replies_doc,
             "has_replies(worker, /)\n--\n\n"
             "Return True if the worker has sent replies that receive() has not returned yet.");

static PyObject *parent_end_has_replies(fl_py_parent_end *self, PyObject *number)
{
    int32_t worker = parse_worker(self, number);
    if (worker < 0) return NULL;
    return PyBool_FromLong(fl_shm_queue_has_replies(self->shm, worker));
}

PyDoc_STRVAR(begun_doc,
             "begun(worker, /)\n--\n\n"
             "Return (count, task): the number of requests that the worker's process has\n"
             "taken, and the task that the process works on or was working on when it died;\n"
             "the task is None if there is none. Both come from the process itself.");

static PyObject *parent_end_begun(fl_py_parent_end *self, PyObject *number)
{
    int64_t count;
    int32_t worker = parse_worker(self, number);
    if (worker < 0) return NULL;
    PyObject *task = fl_inflight_begun_key(self->inflight, worker, &count);
    /* Take the reference before the tuple is made: the collector may run then and drop the
     * request. */
    return Py_BuildValue("LN", (long long)count, Py_NewRef(task != NULL ? task : Py_None));
}

PyDoc_STRVAR(progress_doc,
             "progress(worker, /)\n--\n\n"
             "Return (count, number): the number of requests that the worker's process has\n"
             "taken, and the first request that it has not answered. None: the process has\n"
             "nothing to do. Equal pairs mean that the process has made no progress.");

static PyObject *parent_end_progress(fl_py_parent_end *self, PyObject *number)
{
    int32_t worker = parse_worker(self, number);
    if (worker < 0) return NULL;
    int64_t first = fl_inflight_first_sent(self->inflight, worker);
    if (first < 0) Py_RETURN_NONE;
    return Py_BuildValue("LL", (long long)fl_shm_queue_begun(self->shm, worker), (long long)first);
}

PyDoc_STRVAR(restart_doc,
             "restart(worker, /)\n--\n\n"
             "Request again all unanswered batches of the worker in this epoch, in the same\n"
             "order. The worker's process must have ended, and a new process is about to\n"
             "start. Returns False, and does nothing, after close().");

static PyObject *parent_end_restart(fl_py_parent_end *self, PyObject *number)
{
    int32_t worker = parse_worker(self, number);
    if (worker < 0) return NULL;
    if (self->is_closed) Py_RETURN_FALSE;
    fl_inflight_restart(self->inflight, worker);
    /* Dropping buffers and tasks may have run code that has closed this parent end. */
    if (self->is_closed) fl_shm_queue_close(self->shm, worker);
    return PyBool_FromLong(!self->is_closed);
}

PyDoc_STRVAR(end_doc, "end(worker, /)\n--\n\n"
                      "Tell the worker that no more requests follow.");

static PyObject *parent_end_end(fl_py_parent_end *self, PyObject *number)
{
    int32_t worker = parse_worker(self, number);
    if (worker < 0) return NULL;
    fl_shm_queue_end(self->shm, worker);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(close_doc, "close()\n--\n\n"
                        "Tell all workers to stop. Does not wait for the workers.");

static PyObject *parent_end_close(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    if (fl_py_parent_end_is_foreign(self)) Py_RETURN_NONE;
    for (int32_t w = 0; w < self->workers; w++) fl_shm_queue_close(self->shm, w);
    self->is_closed = true;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(is_closed_doc, "is_closed()\n--\n\n"
                            "Return True after close(), and in a forked child.");

static PyObject *parent_end_is_closed(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(fl_py_parent_end_is_foreign(self) || self->is_closed);
}

PyDoc_STRVAR(address_doc,
             "address()\n--\n\n"
             "Return the arguments for a worker's WorkerEnd: (file descriptor, bytes, offset,\n"
             "workers, depth, address of the parent's mapping). Only a forked worker uses the\n"
             "address.");

static PyObject *parent_end_address(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    const fl_arena *arena = self->pool->arena;
    return Py_BuildValue("iLLiiK", fl_arena_fd(arena), (long long)fl_arena_bytes(arena),
                         (long long)fl_shared_block_offset(self->control), (int)self->workers,
                         (int)self->depth, (unsigned long long)(uintptr_t)fl_arena_base(arena));
}

PyDoc_STRVAR(count_doc,
             "count()\n--\n\n"
             "Return (workers, fallbacks): a tuple with (batches, ns at work, ns waiting) for\n"
             "each worker, and a dict from the reason of a fallback to its count.");

static PyObject *parent_end_count(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    const fl_inflight_counts *counts = fl_inflight_count(self->inflight);
    PyObject *workers = PyTuple_New(self->workers);
    for (int32_t w = 0; workers != NULL && w < self->workers; w++) {
        const fl_worker_counts *worker = &counts->workers[w];
        fl_py_put(&workers, w,
                  Py_BuildValue("LLL", (long long)worker->batches, (long long)worker->busy_ns,
                                (long long)worker->wait_ns));
    }
    PyObject *fallbacks = fl_py_fallbacks_dict(counts->fallbacks);
    if (workers != NULL && fallbacks != NULL) return Py_BuildValue("NN", workers, fallbacks);
    Py_XDECREF(workers);
    Py_XDECREF(fallbacks);
    return NULL;
}

/* ---- the destination */

PyDoc_STRVAR(run_ahead_doc,
             "run_ahead(first, /)\n--\n\n"
             "From now on copy batches to the destination when the batches arrive, beginning\n"
             "with batch number `first`; with -1 in the order of arrival. Copies ahead only if\n"
             "memory is available.");

static PyObject *parent_end_run_ahead(fl_py_parent_end *self, PyObject *first)
{
    long long number = PyLong_AsLongLong(first);
    if ((number == -1 && PyErr_Occurred()) || !check_worker(self, 0)) return NULL;
    if (fl_py_reply_destination_is_open(&self->destination) &&
        fl_py_reply_destination_run_ahead(&self->destination, number) != 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(release_buffers_doc, "release_buffers()\n--\n\n"
                                  "Release the destination's buffers that hold no batch.");

static PyObject *parent_end_release_buffers(fl_py_parent_end *self, PyObject *Py_UNUSED(ignored))
{
    if (fl_py_reply_destination_is_open(&self->destination))
        fl_py_reply_destination_release_buffers(&self->destination);
    Py_RETURN_NONE;
}

/* ---- the type */

PyDoc_STRVAR(is_overwritten_doc, "True if a worker has overwritten the shared memory");

static PyObject *get_is_overwritten(fl_py_parent_end *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->is_overwritten);
}

PyDoc_STRVAR(has_destination_doc,
             "True if batches are copied from the shared memory to a destination");

static PyObject *get_has_destination(fl_py_parent_end *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(fl_py_reply_destination_is_open(&self->destination));
}

static PyGetSetDef parent_end_getset[] = {
    {"is_overwritten", (getter)get_is_overwritten, NULL, is_overwritten_doc, NULL},
    {"has_destination", (getter)get_has_destination, NULL, has_destination_doc, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

#define IN_SECTION(name) FL_PY_METHOD_IN_SECTION(name, fl_py_parent_end, self)
IN_SECTION(parent_end_submit)
IN_SECTION(parent_end_receive)
IN_SECTION(parent_end_start_epoch)
IN_SECTION(parent_end_owes)
IN_SECTION(parent_end_is_idle)
IN_SECTION(parent_end_first_task)
IN_SECTION(parent_end_run_ahead)
IN_SECTION(parent_end_release_buffers)
IN_SECTION(parent_end_release)
IN_SECTION(parent_end_has_replies)
IN_SECTION(parent_end_begun)
IN_SECTION(parent_end_progress)
IN_SECTION(parent_end_restart)
IN_SECTION(parent_end_end)
IN_SECTION(parent_end_close)
IN_SECTION(parent_end_is_closed)
IN_SECTION(parent_end_count)
IN_SECTION(fl_py_stage_open)

static PyMethodDef parent_end_methods[] = {
    {"submit", (PyCFunction)parent_end_submit_in_section, METH_VARARGS, submit_doc},
    {"receive", (PyCFunction)parent_end_receive_in_section, METH_O, receive_doc},
    {"start_epoch", (PyCFunction)parent_end_start_epoch_in_section, METH_NOARGS, start_epoch_doc},
    {"cancel", (PyCFunction)(void (*)(void))parent_end_cancel, METH_VARARGS | METH_KEYWORDS,
     cancel_doc},
    {"owes", (PyCFunction)parent_end_owes_in_section, METH_O, owes_doc},
    {"is_idle", (PyCFunction)parent_end_is_idle_in_section, METH_NOARGS, is_idle_doc},
    {"first_task", (PyCFunction)parent_end_first_task_in_section, METH_O, first_task_doc},
    {"run_ahead", (PyCFunction)parent_end_run_ahead_in_section, METH_O, run_ahead_doc},
    {"release_buffers", (PyCFunction)parent_end_release_buffers_in_section, METH_NOARGS,
     release_buffers_doc},
    {"release", (PyCFunction)parent_end_release_in_section, METH_NOARGS, release_doc},
    {"has_replies", (PyCFunction)parent_end_has_replies_in_section, METH_O, has_replies_doc},
    {"begun", (PyCFunction)parent_end_begun_in_section, METH_O, begun_doc},
    {"progress", (PyCFunction)parent_end_progress_in_section, METH_O, progress_doc},
    {"restart", (PyCFunction)parent_end_restart_in_section, METH_O, restart_doc},
    {"end", (PyCFunction)parent_end_end_in_section, METH_O, end_doc},
    {"close", (PyCFunction)parent_end_close_in_section, METH_NOARGS, close_doc},
    {"is_closed", (PyCFunction)parent_end_is_closed_in_section, METH_NOARGS, is_closed_doc},
    {"address", (PyCFunction)parent_end_address, METH_NOARGS, address_doc},
    {"count", (PyCFunction)parent_end_count_in_section, METH_NOARGS, count_doc},
    {"stage", (PyCFunction)fl_py_stage_open_in_section, METH_VARARGS, FL_PY_STAGE_DOC},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(
    parent_end_doc,
    "ParentEnd(pool, tensor_type, workers, depth, budget, destination=None, keeps_tasks=False)\n"
    "--\n\n"
    "The parent's end of the memory that the parent shares with `workers` processes.\n"
    "`depth` is the largest number of unanswered requests for each worker, a power of\n"
    "two; `budget` is the limit in bytes for all batches under way. destination:\n"
    "None, or an object with the methods allocate and split, which provides memory\n"
    "for the batches; a pool with a device needs a destination. keeps_tasks: True if\n"
    "restart() may be called. Raises ValueError for wrong numbers.");

static PyType_Slot parent_end_slots[] = {
    {Py_tp_doc, (void *)parent_end_doc}, {Py_tp_new, parent_end_new},
    {Py_tp_dealloc, parent_end_dealloc}, {Py_tp_traverse, parent_end_traverse},
    {Py_tp_clear, parent_end_clear},     {Py_tp_methods, parent_end_methods},
    {Py_tp_getset, parent_end_getset},   {0, NULL}};

PyType_Spec fl_py_parent_end_spec =
    FL_PY_SPEC("ParentEnd", fl_py_parent_end, Py_TPFLAGS_HAVE_GC, parent_end_slots);
