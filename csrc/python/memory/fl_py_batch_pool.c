/* fl_py_batch_pool: see fl_py_batch_pool.h. A pool outlives iterators, so the next epoch finds
 * memory with its pages present. Lent batches outlive the pool. */
#include "fl_py_batch_pool.h"

#include "fl_py.h"
#include "fl_cuda.h"
#include "fl_cuda_transfer.h"
#include "fl_pages.h"
#include "fl_py_dlpack.h"
#include "fl_py_error.h"
#include "fl_thread.h"

#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_INT T_INT
#define Py_READONLY READONLY
#endif

/* A smaller address space is of no use for sharing memory. */
static const int64_t LEAST_ARENA = 1 << 28;

/* Tries to pin memory, because some systems cannot pin memory, and more systems cannot pin the
 * memory of a shared file. The pool keeps the slot of this try, and does not use the slot for
 * batches: unpinning would wait for the device. */
static int try_pinning(fl_py_batch_pool *self, fl_err *err)
{
    FL_TRY(fl_pool_get(self->pool, 1, &self->probe, err));
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = fl_slot_pin(self->probe, 1, err);
    Py_END_ALLOW_THREADS
    return status;
}

static void place(fl_py_batch_pool *self, uint64_t nodes)
{
    fl_pool_place(self->pool, nodes);
    if (self->arena != NULL)
        fl_pages_place(fl_arena_base(self->arena), fl_arena_bytes(self->arena), nodes);
}

static PyObject *pool_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"fields", "is_shared", "device", "nodes", NULL};
    int fields, is_shared = 0, device = -1;
    unsigned long long nodes = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|piK:BatchPool", keywords, &fields, &is_shared,
                                     &device, &nodes))
        return NULL;
    if (fields < 0)
        return PyErr_Format(PyExc_ValueError, "BatchPool: fields must be at least 0, got %d",
                            fields);
    fl_py_batch_pool *self = (fl_py_batch_pool *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    fl_err err;
    self->fields = fields;
    self->device = device;
    self->generation = fl_fork_generation();
    int64_t header_bytes = fields * (int64_t)sizeof(DLManagedTensorVersioned);
    int status = device >= 0 ? fl_cuda_check(device, &err) : FL_OK;
    if (status == FL_OK && is_shared) status = fl_arena_open(LEAST_ARENA, &self->arena, &err);
    if (status == FL_OK) status = fl_pool_open(header_bytes, self->arena, &self->pool, &err);
    if (status == FL_OK) place(self, nodes);
    if (status == FL_OK && device >= 0)
        fl_pool_pin(self->pool,
                    (fl_pinner){fl_cuda_transfer_ops.pin, fl_cuda_transfer_ops.unpin, device});
    if (status == FL_OK && device >= 0) status = try_pinning(self, &err);
    if (status == FL_OK) return (PyObject *)self;
    Py_DECREF(self);
    return fl_py_raise(&err, NULL);
}

void fl_py_batch_pool_leave(fl_py_batch_pool *self, fl_ring *ring, void *copies)
{
    ring = atomic_exchange(&self->ring, ring);
    copies = atomic_exchange(&self->copies, copies);
    Py_BEGIN_ALLOW_THREADS
    fl_ring_close(ring);
    if (copies != NULL) fl_cuda_transfer_ops.close(copies);
    Py_END_ALLOW_THREADS
}

/* Releases the interpreter lock, because unpinning waits for the device. */
static void close_pinned(fl_py_batch_pool *self)
{
    fl_py_batch_pool_leave(self, NULL, NULL);
    Py_BEGIN_ALLOW_THREADS
    fl_pool_close(self->pool);
    Py_END_ALLOW_THREADS
}

static void pool_dealloc(fl_py_batch_pool *self)
{
    fl_slot_return(self->probe);
    if (self->device >= 0)
        close_pinned(self);
    else
        fl_pool_close(self->pool);
    fl_arena_close(self->arena);
    fl_py_free(self);
}

PyDoc_STRVAR(count_doc, "count()\n--\n\n"
                        "Return all counts of the loader's iterators as a dict of integers.");

static PyObject *pool_count(fl_py_batch_pool *self, PyObject *Py_UNUSED(ignored))
{
    fl_pool_stats stats;
    fl_pool_count(self->pool, &stats);
    return Py_BuildValue("{s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L}", "batches",
                         (long long)self->batches, "samples", (long long)self->samples, "bytes",
                         (long long)self->bytes, "waits", (long long)self->waits, "wait_ns",
                         (long long)self->wait_ns, "lent", (long long)stats.lent, "made",
                         (long long)stats.made, "replaced", (long long)stats.replaced, "empty",
                         (long long)stats.empty);
}

PyDoc_STRVAR(trim_doc,
             "trim()\n--\n\n"
             "Give unused memory back to the system, and end idle threads. Waits for the\n"
             "threads without the interpreter lock.");

static PyObject *pool_trim(fl_py_batch_pool *self, PyObject *Py_UNUSED(ignored))
{
    fl_py_batch_pool_leave(self, NULL, NULL);
    Py_BEGIN_ALLOW_THREADS
    fl_pool_trim(self->pool);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyDoc_STRVAR(is_own_doc, "is_own()\n--\n\n"
                         "Return False in a forked child: there the parent's pool does nothing.");

static PyObject *pool_is_own(fl_py_batch_pool *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(self->generation == fl_fork_generation());
}

static PyMemberDef pool_members[] = {
    {"fields", Py_T_INT, offsetof(fl_py_batch_pool, fields), Py_READONLY,
     "the number of tensors in a batch"},
    {"device", Py_T_INT, offsetof(fl_py_batch_pool, device), Py_READONLY,
     "the index of the CUDA device that gets the batches; -1: the CPU"},
    {NULL, 0, 0, 0, NULL}};

static PyMethodDef pool_methods[] = {{"count", (PyCFunction)pool_count, METH_NOARGS, count_doc},
                                     {"trim", (PyCFunction)pool_trim, METH_NOARGS, trim_doc},
                                     {"is_own", (PyCFunction)pool_is_own, METH_NOARGS, is_own_doc},
                                     {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(
    pool_doc,
    "BatchPool(fields, is_shared=False, device=-1, nodes=0)\n--\n\n"
    "The memory of a loader's batches, with room for `fields` tensors in each batch.\n"
    "is_shared: worker processes share the memory. device: the memory is pinned for\n"
    "copies to the CUDA device with this index; with -1 batches stay on the CPU. nodes: the\n"
    "nodes of the machine that hold the memory, one bit for each; 0: the system's choice.");

static PyType_Slot pool_slots[] = {{Py_tp_doc, (void *)pool_doc}, {Py_tp_new, pool_new},
                                   {Py_tp_dealloc, pool_dealloc}, {Py_tp_methods, pool_methods},
                                   {Py_tp_members, pool_members}, {0, NULL}};

PyType_Spec fl_py_batch_pool_spec = FL_PY_SPEC("BatchPool", fl_py_batch_pool, 0, pool_slots);
