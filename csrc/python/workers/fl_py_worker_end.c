/* fl_py_worker_end: the heap type _core.WorkerEnd, a worker process's end of the memory shared with
 * its parent.
 *
 * Holds the request being worked on and the slot in which its batch is built. If a batch outgrows
 * its slot, the bytes are still counted, so that the parent learns the size of the batch. The
 * worker's main thread uses this object, and so do threads of the dataset that collate; all use its
 * section. A native thread watches the parent, and ends this process soon after the parent's
 * death. */
#define _GNU_SOURCE
#include "fl_py_worker_end.h"

#include "fl_py.h"
#include "fl_hash.h"
#include "fl_pages.h"
#include "fl_py_tensor_slot.h"
#include "fl_py_batch_codec.h"
#include "fl_py_section.h"
#include "fl_stage.h"
#include "fl_thread.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    ALIGNMENT = 64,
    POPULATE_FROM = 16 << 10, /* smaller pieces fault in without help */
    KNOWN_SLOTS = 64,         /* number of slots remembered as populated: 6 bits of a hash */
    GRACE_S = 1               /* from the parent's death until this process ends */
};

typedef struct known_slot {
    int64_t offset, bytes;
} known_slot;

struct fl_py_worker_end {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    char *base;        /* the address of the arena */
    int64_t bytes;     /* of the arena */
    bool is_mapped;    /* this process mapped the arena; false: it inherited the mapping */
    fl_shm_queue *shm; /* owned, over the mapping */
    int32_t worker;
    /* SHARED(request): a user's thread in a worker may also collate; all fields are used in the
     * section. */
    fl_request_message request;
    int64_t used;     /* bytes of the slot; more than its limit if the batch is too large */
    int64_t found;    /* end of the last tensor for which find() returned a slot */
    int64_t begin_ns; /* start of the work on the request */
    int64_t claimed, claimed_bytes; /* offset in the arena, and bytes: the next tensor's memory; 0
                                       bytes: the tensor gets memory of the slot */
    int64_t reclaimed; /* the cursor of fl_stage_claim: rows before it are not the predecessor's */
    fl_reply_message reply;            /* counts since the last reply */
    known_slot populated[KNOWN_SLOTS]; /* indexed by a hash of the offset */
    fl_py_writer writer;               /* its memory is reused */
};

static PyObject *worker_end_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"tensor_type", "fd",   "bytes",  "offset", "workers",
                               "depth",       "base", "worker", NULL};
    PyObject *tensor_type;
    int fd, workers, depth, worker;
    long long bytes, offset;
    unsigned long long base;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OiLLiiKi:WorkerEnd", keywords, &tensor_type,
                                     &fd, &bytes, &offset, &workers, &depth, &base, &worker))
        return NULL;
    if (worker < 0 || worker >= workers || depth < 1 || (depth & (depth - 1)) != 0)
        return PyErr_Format(PyExc_ValueError,
                            "WorkerEnd: worker must be below workers, and depth a power of two, "
                            "got %d of %d and %d",
                            worker, workers, depth);
    fl_py_worker_end *self = (fl_py_worker_end *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    fl_err err;
    if (fl_py_dlpack_open(tensor_type, &self->dlpack) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->base = (char *)(uintptr_t)base;
    self->bytes = bytes;
    self->worker = worker;
    int status = base == 0 ? fl_arena_attach(fd, bytes, &self->base, &err) : FL_OK;
    self->is_mapped = base == 0 && status == FL_OK;
    if (status == FL_OK)
        status = fl_shm_queue_attach(self->base + offset, workers, depth, &self->shm, &err);
    if (status == FL_OK) return (PyObject *)self;
    Py_DECREF(self);
    return fl_py_raise(&err, NULL);
}

static void worker_end_dealloc(fl_py_worker_end *self)
{
    fl_shm_queue_free(self->shm);
    if (self->is_mapped) munmap(self->base, (size_t)self->bytes);
    fl_free(self->writer.data);
    fl_py_dlpack_close(&self->dlpack);
    fl_py_free(self);
}

static inline char *slot_data(const fl_py_worker_end *self)
{
    return self->base + self->request.offset;
}

/* Maps pages with one call, before this process writes to them for the first time. */
static void populate(fl_py_worker_end *self, int64_t from, int64_t bytes)
{
    uint64_t hash = (uint64_t)self->request.offset * 0x9E3779B97F4A7C15u;
    known_slot *known = &self->populated[hash >> 58];
    if (known->offset != self->request.offset)
        *known = (known_slot){.offset = self->request.offset};
    int64_t begin = fl_max(from, known->bytes), end = from + bytes;
    if (end - begin < POPULATE_FROM) return;
    (void)fl_pages_populate_shared(slot_data(self) + begin, end - begin);
    known->bytes = end;
}

/* Reserves `bytes` of the slot, and returns their offset. *data is the memory; NULL if the slot is
 * too small. */
static int64_t reserve(fl_py_worker_end *self, int64_t bytes, char **data)
{
    int64_t begin = (self->used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    self->used = bytes < INT64_MAX / 2 - begin ? begin + bytes : INT64_MAX / 2;
    *data = NULL;
    if (self->used <= self->request.limit) {
        populate(self, begin, bytes);
        *data = slot_data(self) + begin;
    }
    return begin;
}

/* Returns the memory of the rows that were claimed last, if a tensor of `bytes` fills it; NULL: the
 * tensor is a different one. */
static char *take_claimed(fl_py_worker_end *self, int64_t bytes)
{
    if (bytes == 0 || bytes != self->claimed_bytes) return NULL;
    self->claimed_bytes = 0;
    char *data = self->base + self->claimed;
    if (bytes >= POPULATE_FROM) (void)fl_pages_populate_shared(data, bytes);
    return data;
}

PyObject *fl_py_worker_end_tensor(fl_py_worker_end *self, fl_dtype dtype, int32_t ndim,
                                  const int64_t *shape, char **data)
{
    int64_t bytes = fl_tensor_bytes(dtype, ndim, shape);
    if (bytes < 0) return PyErr_NoMemory();
    FL_PY_BEGIN_SECTION((PyObject *)self);
    int64_t before = self->used;
    *data = take_claimed(self, bytes);
    if (*data == NULL) (void)reserve(self, bytes, data);
    if (*data == NULL) self->used = before; /* packing the tensor counts its bytes */
    FL_PY_END_SECTION();
    if (*data != NULL) return fl_py_tensor_at(&self->dlpack, NULL, *data, dtype, ndim, shape);
    return fl_py_tensor_new(&self->dlpack, dtype, ndim, shape, data);
}

void fl_py_worker_end_count_fallback(fl_py_worker_end *self, int reason)
{
    FL_PY_BEGIN_SECTION((PyObject *)self);
    self->reply.fallbacks[reason]++;
    FL_PY_END_SECTION();
}

/* Returns true if the slot lies in the arena, and the task in the slot. */
static bool is_sane(const fl_py_worker_end *self)
{
    const fl_request_message *request = &self->request;
    return request->offset >= 0 && request->limit >= 0 &&
           request->offset <= self->bytes - request->limit && request->bytes >= 0 &&
           request->bytes <= request->limit;
}

static PyObject *fail_damaged(fl_py_worker_end *self)
{
    fl_shm_queue_report_damage(self->shm, self->worker);
    return PyErr_Format(PyExc_RuntimeError,
                        "the memory that worker %d shares with its parent process has been "
                        "overwritten; look for writes out of bounds in native code of the dataset",
                        (int)self->worker);
}

/* Copies the task and checks the copy, because the slot may go on changing. */
static PyObject *copy_task(fl_py_worker_end *self)
{
    const fl_request_message *request = &self->request;
    if (!is_sane(self)) return fail_damaged(self);
    if (request->repeat_of >= 0) return PyLong_FromLongLong(request->repeat_of);
    PyObject *task = PyBytes_FromStringAndSize(slot_data(self), (Py_ssize_t)request->bytes);
    if (task == NULL || fl_hash(PyBytes_AS_STRING(task), request->bytes) == request->task_check)
        return task;
    Py_DECREF(task);
    return fail_damaged(self);
}

PyDoc_STRVAR(receive_doc,
             "receive(timeout, /)\n--\n\n"
             "Return the payload of the next request. If the worker has to send a batch again\n"
             "with more memory, returns the number of that batch's request instead. Returns\n"
             "None if no more requests follow, and False after `timeout` seconds or a signal.\n"
             "Raises RuntimeError if the shared memory has been overwritten, and tells the\n"
             "parent. Waits without the interpreter lock.");

static PyObject *worker_end_receive(fl_py_worker_end *self, PyObject *timeout)
{
    double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1 && PyErr_Occurred()) return NULL;
    int64_t begin_ns = fl_now_ns();
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = fl_shm_queue_receive_request(self->shm, self->worker, &self->request,
                                          begin_ns + (int64_t)(seconds * 1e9));
    Py_END_ALLOW_THREADS
    self->begin_ns = fl_now_ns();
    self->reply.wait_ns += self->begin_ns - begin_ns;
    self->used = self->found = self->claimed_bytes = self->reclaimed = 0;
    if (PyErr_CheckSignals() != 0) return NULL;
    if (status == FL_EEND) Py_RETURN_NONE;
    if (status == FL_ETIMEOUT) Py_RETURN_FALSE;
    return status == FL_OK ? copy_task(self) : fail_damaged(self);
}

PyDoc_STRVAR(number_doc, "number()\n--\n\n"
                         "Return the number of the request that receive() has returned last.");

static PyObject *worker_end_number(fl_py_worker_end *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLongLong(self->request.number);
}

/* Returns the memory that holds tensors of this batch; empty memory if the batch is too large. */
static fl_py_memory built_memory(const fl_py_worker_end *self)
{
    bool fits = self->used <= self->request.limit;
    return (fl_py_memory){&self->dlpack, slot_data(self), fits ? self->used : -1};
}

PyDoc_STRVAR(find_doc,
             "find(object, /)\n--\n\n"
             "Return the slot of a tensor that was built in the batch, for Reply.split.\n"
             "Returns None for any other object, and False if the tensor may share memory with\n"
             "a tensor that was found before. Call find() for the tensors in the order in\n"
             "which they were built.");

static PyObject *worker_end_find(fl_py_worker_end *self, PyObject *object)
{
    fl_tensor view;
    int64_t offset;
    const fl_py_memory memory = built_memory(self);
    if (!fl_py_memory_has(&memory, object, &view, &offset)) Py_RETURN_NONE;
    if (offset < self->found || !fl_tensor_is_contiguous(&view)) Py_RETURN_FALSE;
    self->found = offset + fl_tensor_bytes(view.dtype, view.ndim, view.shape);
    return fl_py_tensor_slot(offset, view.dtype, view.ndim, view.shape, NULL);
}

PyDoc_STRVAR(copy_doc,
             "copy(address, bytes, /)\n--\n\n"
             "Copy `bytes` bytes at `address` into the batch if the batch has room. Returns\n"
             "the offset in the batch, also if the batch has no room.");

static PyObject *worker_end_copy(fl_py_worker_end *self, PyObject *args)
{
    unsigned long long address;
    long long bytes;
    char *data;
    if (!PyArg_ParseTuple(args, "KL:copy", &address, &bytes)) return NULL;
    int64_t offset = reserve(self, bytes, &data);
    if (data != NULL && bytes > 0) memcpy(data, (const void *)(uintptr_t)address, (size_t)bytes);
    return PyLong_FromLongLong(offset);
}

PyDoc_STRVAR(rewind_doc, "rewind()\n--\n\n"
                         "Drop everything that was built for the batch.");

static PyObject *worker_end_rewind(fl_py_worker_end *self, PyObject *Py_UNUSED(ignored))
{
    self->used = self->found = self->claimed_bytes = 0;
    Py_RETURN_NONE;
}

static bool
send_reply(fl_py_worker_end *self, const char *head, int64_t bytes, int kind, bool host_only)
{
    char *data;
    self->reply.upload = host_only ? 0 : self->used;
    int64_t offset = reserve(self, bytes, &data);
    bool fits = data != NULL;
    if (fits) memcpy(data, head, (size_t)bytes);
    self->reply.number = self->request.number;
    self->reply.kind = fits ? kind : -1;
    self->reply.used = self->used;
    self->reply.head = offset;
    self->reply.head_bytes = bytes;
    self->reply.head_check = fl_hash(head, bytes);
    self->reply.busy_ns = fl_now_ns() - self->begin_ns;
    fl_shm_queue_send_reply(self->shm, self->worker, &self->reply);
    self->reply = (fl_reply_message){0};
    return fits;
}

PyDoc_STRVAR(answer_doc,
             "answer(head, kind, host_only, /)\n--\n\n"
             "Answer the request with the built batch and `head`, its pickled part. If both\n"
             "need more memory than the request allows, tells the parent so and returns False;\n"
             "otherwise returns True. host_only: the batch holds tensors that must not be\n"
             "copied to a destination.");

static PyObject *worker_end_answer(fl_py_worker_end *self, PyObject *args)
{
    Py_buffer head;
    int kind, host_only;
    if (!PyArg_ParseTuple(args, "y*ip:answer", &head, &kind, &host_only)) return NULL;
    bool fits = send_reply(self, head.buf, head.len, kind, host_only);
    PyBuffer_Release(&head);
    return PyBool_FromLong(fits);
}

PyDoc_STRVAR(write_doc,
             "write(batch, kind, /)\n--\n\n"
             "Answer the request with a batch of plain containers, as answer() does. All\n"
             "tensors must have been built in the batch's memory. Returns None, and sends\n"
             "nothing, if the batch holds anything else.");

static PyObject *worker_end_write(fl_py_worker_end *self, PyObject *args)
{
    PyObject *batch;
    int kind;
    if (!PyArg_ParseTuple(args, "Oi:write", &batch, &kind)) return NULL;
    self->writer.memory = built_memory(self);
    if (!fl_py_write_batch(&self->writer, batch)) Py_RETURN_NONE;
    return PyBool_FromLong(send_reply(self, self->writer.data, self->writer.used, kind, false));
}

PyDoc_STRVAR(is_closed_doc, "is_closed()\n--\n\n"
                            "Return True if the parent wants no more work.");

static PyObject *worker_end_is_closed(fl_py_worker_end *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(fl_shm_queue_is_closed(self->shm, self->worker));
}

/* ---- batches that several workers make */

PyDoc_STRVAR(claim_doc,
             "claim(offset, rows, row_bytes, shares, /)\n--\n\n"
             "Claim rows of the batch that ParentEnd.stage() has opened at `offset`, for this\n"
             "worker alone: one of `shares` shares of the rows that are open. Returns (first\n"
             "row, number of rows, address), or None if no row is open. The next tensor of the\n"
             "batch that needs exactly this memory lies there.");

static PyObject *worker_end_claim(fl_py_worker_end *self, PyObject *args)
{
    long long offset, rows, row_bytes, shares;
    int64_t first;
    if (!PyArg_ParseTuple(args, "LLLL:claim", &offset, &rows, &row_bytes, &shares)) return NULL;
    int64_t bytes = fl_stage_bytes(rows, row_bytes);
    if (bytes < 0 || shares < 1 || offset < 0 || offset % ALIGNMENT != 0 ||
        bytes > self->bytes - offset)
        return PyErr_Format(PyExc_ValueError, "claim: the rows must lie in the shared memory");
    char *data = self->base + offset;
    const fl_stage stage = {data, rows, row_bytes};
    int64_t count = fl_stage_claim(&stage, self->worker, shares, &self->reclaimed, &first);
    if (count == 0) Py_RETURN_NONE;
    self->claimed = offset + first * row_bytes;
    self->claimed_bytes = count * row_bytes;
    return Py_BuildValue("LLK", (long long)first, (long long)count,
                         (unsigned long long)(uintptr_t)(data + first * row_bytes));
}

/* ---- the watch on the parent */

typedef struct watch {
    fl_shm_queue *shm; /* borrowed from a worker end, which lives as long as the process */
    int32_t worker;
    pid_t parent;
    int pidfd; /* owned; -1 if the kernel has no pidfds */
} watch;

static bool has_died(const watch *self)
{
    struct pollfd event = {.fd = self->pidfd, .events = POLLIN};
    /* If there is no usable descriptor, the thread looks twice a second instead. */
    bool is_readable = self->pidfd >= 0 && poll(&event, 1, -1) == 1 && event.revents == POLLIN;
    /* The program may have closed the descriptor, and a different file may have its number. */
    if (is_readable && fl_is_pidfd(self->pidfd)) return true;
    (void)poll(NULL, 0, 500);
    return kill(self->parent, 0) != 0 && errno == ESRCH;
}

static void *watch_parent(void *arg)
{
    watch *self = arg;
    while (!has_died(self)) continue;
    fl_shm_queue_close(self->shm, self->worker);
    (void)sleep(GRACE_S);
    _exit(1);
}

PyDoc_STRVAR(watch_doc,
             "watch(pid, /)\n--\n\n"
             "Watch the process `pid` in a thread. When `pid` dies, receive() returns None,\n"
             "and a moment later this process exits, whatever it is doing. This object must\n"
             "live as long as the process.");

static PyObject *worker_end_watch(fl_py_worker_end *self, PyObject *args)
{
    int pid;
    if (!PyArg_ParseTuple(args, "i:watch", &pid)) return NULL;
    watch *started = fl_alloc(sizeof *started); /* owned by the thread, which never ends */
    if (started == NULL) return PyErr_NoMemory();
    *started = (watch){
        .shm = self->shm, .worker = self->worker, .parent = pid, .pidfd = fl_pidfd_open(pid)};
    pthread_t thread;
    fl_err err;
    Py_INCREF(self); /* owned by the thread, which never ends */
    if (fl_thread_start(&thread, watch_parent, started, &err) != FL_OK) {
        fl_free(started);
        Py_DECREF(self);
        return fl_py_raise(&err, NULL);
    }
    pthread_detach(thread);
    Py_RETURN_NONE;
}

#define IN_SECTION(name) FL_PY_METHOD_IN_SECTION(name, fl_py_worker_end, self)
IN_SECTION(worker_end_receive)
IN_SECTION(worker_end_number)
IN_SECTION(worker_end_find)
IN_SECTION(worker_end_copy)
IN_SECTION(worker_end_write)
IN_SECTION(worker_end_rewind)
IN_SECTION(worker_end_answer)
IN_SECTION(worker_end_claim)

static PyMethodDef worker_end_methods[] = {
    {"receive", (PyCFunction)worker_end_receive_in_section, METH_O, receive_doc},
    {"number", (PyCFunction)worker_end_number_in_section, METH_NOARGS, number_doc},
    {"find", (PyCFunction)worker_end_find_in_section, METH_O, find_doc},
    {"copy", (PyCFunction)worker_end_copy_in_section, METH_VARARGS, copy_doc},
    {"write", (PyCFunction)worker_end_write_in_section, METH_VARARGS, write_doc},
    {"rewind", (PyCFunction)worker_end_rewind_in_section, METH_NOARGS, rewind_doc},
    {"answer", (PyCFunction)worker_end_answer_in_section, METH_VARARGS, answer_doc},
    {"claim", (PyCFunction)worker_end_claim_in_section, METH_VARARGS, claim_doc},
    {"is_closed", (PyCFunction)worker_end_is_closed, METH_NOARGS, is_closed_doc},
    {"watch", (PyCFunction)worker_end_watch, METH_VARARGS, watch_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(worker_end_doc,
             "WorkerEnd(tensor_type, fd, bytes, offset, workers, depth, base, worker)\n--\n\n"
             "A worker's end of the shared memory that ParentEnd.address() describes. `base`\n"
             "is the address of the parent's mapping if the process has inherited the mapping,\n"
             "else 0.");

static PyType_Slot worker_end_slots[] = {{Py_tp_doc, (void *)worker_end_doc},
                                         {Py_tp_new, worker_end_new},
                                         {Py_tp_dealloc, worker_end_dealloc},
                                         {Py_tp_methods, worker_end_methods},
                                         {0, NULL}};

PyType_Spec fl_py_worker_end_spec = FL_PY_SPEC("WorkerEnd", fl_py_worker_end, 0, worker_end_slots);
