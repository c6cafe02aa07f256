/* fl_py_stack: see fl_py_stack.h.
 *
 * If all arrays or numbers have exactly one type, dtype and shape, this file stacks them. Mixed
 * values go to torch, because torch has its own rules of promotion. For small tensors torch.stack
 * writes into fastloop's memory, because torch reads small tensors faster than fastloop can. All
 * functions enter with the interpreter lock. */
#include "fl_py_stack.h"

#include "fl_cpu_rows.h"
#include "fl_py_numpy.h"
#include "fl_py_put.h"
#include "fl_thread_pool.h"

#include <string.h>

enum {
    LONG_TENSOR = 16 << 10, /* tensors of this size or larger are copied here, not by torch */
    LARGE_STACK = 1 << 20,  /* without workers, stacks of this size or larger get warm memory */
    LARGE_BATCH = 1 << 20,  /* a batch of this size or larger is copied past the caches */
    LONG_COPY = 256 << 10,  /* a copy of this size or longer runs without the interpreter lock */
    SMALL_STACK = 4096,     /* a stack of at most this size gets no pool */
    KEPT_SLOTS = 16,        /* slots that a pool keeps, for loops that hold some batches */
    KEPT_BYTES = 128 << 20  /* most bytes of kept slots; a pool may always keep two slots */
};

PyObject *fl_py_fall_back(fl_py_stacker *self, const fl_py_items *batch, int reason)
{
    if (self->worker_end != NULL)
        fl_py_worker_end_count_fallback(self->worker_end, reason);
    else
        self->fallbacks[reason]++;
    return fl_py_items_call(self->fallback, NULL, batch);
}

/* ---- memory */

static PyObject *
make_in_pool(fl_py_stacker *self, fl_dtype dtype, int32_t ndim, const int64_t *shape, char **data)
{
    int64_t bytes = fl_tensor_bytes(dtype, ndim, shape);
    int32_t number = self->stacks++;
    fl_slot *slot = NULL;
    if (bytes > SMALL_STACK && number < FL_PY_POOLS) {
        fl_pool **pool = &self->pools[number];
        if (*pool == NULL && fl_pool_open(0, NULL, pool, NULL) == FL_OK)
            fl_pool_reserve(*pool, KEPT_SLOTS);
        if (*pool != NULL && bytes <= INT64_MAX / 2)
            fl_pool_limit(*pool, fl_max(KEPT_BYTES, 2 * bytes));
        /* Without memory, or in a forked child, there is no slot; the stack is then made outside of
         * the pools. */
        if (*pool != NULL) (void)fl_pool_get(*pool, bytes, &slot, NULL);
    }
    if (slot == NULL) return fl_py_tensor_new(&self->dlpack, dtype, ndim, shape, data);
    *data = fl_slot_data(slot);
    fl_slot_lend(slot, 1);
    PyObject *tensor = fl_py_tensor_at(&self->dlpack, slot, *data, dtype, ndim, shape);
    fl_slot_give(slot);
    return tensor;
}

PyObject *fl_py_stacker_tensor(fl_py_stacker *self, fl_dtype dtype, int32_t ndim,
                               const int64_t *shape, char **data)
{
    if (self->worker_end == NULL) return make_in_pool(self, dtype, ndim, shape, data);
    return fl_py_worker_end_tensor(self->worker_end, dtype, ndim, shape, data);
}

PyObject *fl_py_stacker_block(fl_py_stacker *self, PyObject *like, Py_ssize_t count)
{
    fl_tensor view;
    int64_t shape[FL_MAX_NDIM + 1];
    char *data;
    fl_py_stacker_drop(self);
    self->stacks = 0;
    if (fl_py_view(&self->dlpack, like, &view) != 0) return NULL;
    if (count < 1 || view.ndim >= FL_MAX_NDIM || !fl_tensor_is_contiguous(&view)) {
        PyErr_SetString(PyExc_ValueError,
                        "block: count must be at least 1, and the tensor contiguous");
        return NULL;
    }
    shape[0] = count;
    memcpy(shape + 1, view.shape, (size_t)view.ndim * sizeof *shape);
    PyObject *block = fl_py_stacker_tensor(self, view.dtype, view.ndim + 1, shape, &data);
    /* A finalizer may have begun a different block meanwhile. */
    Py_XSETREF(self->block, Py_XNewRef(block));
    return block;
}

void fl_py_stacker_drop(fl_py_stacker *self) { Py_CLEAR(self->block); }

typedef struct copy_job {
    char *to;                /* borrowed during the job, like all pointers here */
    const char *const *from; /* the address of each item */
    int64_t bytes;           /* of one item */
    bool is_streamed;
} copy_job;

static void copy_some(void *context, int64_t first, int64_t end)
{
    const copy_job *job = context;
    for (int64_t i = first; i < end; i++)
        fl_cpu_row_ops.copy_rows(job->to + i * job->bytes, job->from[i], job->bytes, job->bytes, 0,
                                 1, job->is_streamed);
}

/* Copies `count` items of `bytes` each into consecutive memory. A long copy runs without the
 * interpreter lock, and a large one with the help of other threads. */
static void
copy_items(fl_py_stacker *self, char *to, const char *const *from, int64_t bytes, Py_ssize_t count)
{
    bool is_large = bytes * count >= LARGE_BATCH;
    if (bytes == 0) return;
    copy_job job = {.to = to, .from = from, .bytes = bytes, .is_streamed = is_large};
    fl_thread_pool *threads =
        is_large && self->thread_pool != NULL ? self->thread_pool->pool : NULL;
    PyThreadState *saved = bytes * count >= LONG_COPY ? PyEval_SaveThread() : NULL;
    fl_thread_pool_run(threads, copy_some, &job, count, fl_max(1, LONG_COPY / bytes));
    if (saved != NULL) PyEval_RestoreThread(saved);
}

/* ---- tensors and arrays */

static bool is_alike(const fl_tensor *a, const fl_tensor *b)
{
    if (a->ndim != b->ndim || memcmp(&a->dtype, &b->dtype, sizeof a->dtype) != 0) return false;
    return memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

/* Returns the truth of an object, whose reference it takes: 1 yes, 0 no, -1 exception. */
static int is_true(PyObject *owned)
{
    int answer = owned != NULL ? PyObject_IsTrue(owned) : -1;
    Py_XDECREF(owned);
    return answer;
}

/* Finds properties that the exchange table does not tell: 0 the tensor is plain, 1 it requires a
 * gradient or is lazily negated, -1 exception. */
static int has_strings_attached(const fl_py_stacker *self, PyObject *tensor)
{
    int answer = is_true(PyObject_GetAttr(tensor, self->requires_grad));
    if (answer != 0) return answer;
    return is_true(PyObject_CallOneArg(self->is_neg, tensor));
}

/* The exchange table describes torch.int4 and similar dtypes as bytes, and pairs of float4 as
 * vectors; torch stacks these. 1 such a dtype, 0 not, -1 exception. */
static int has_odd_dtype(const fl_py_stacker *self, PyObject *tensor, const fl_tensor *view)
{
    bool is_byte =
        view->dtype.bits == 8 && (view->dtype.code == kDLInt || view->dtype.code == kDLUInt);
    if (view->dtype.lanes != 1) return 1;
    if (!is_byte) return 0;
    PyObject *dtype = PyObject_GetAttrString(tensor, "dtype");
    if (dtype == NULL) return -1;
    Py_DECREF(dtype); /* torch never frees its dtypes */
    return dtype != self->int8 && dtype != self->uint8;
}

int fl_py_stacker_look(fl_py_stacker *self, PyObject *item, fl_tensor *view)
{
    int attached = has_strings_attached(self, item);
    if (attached != 0) return attached < 0 ? -1 : FL_PY_NOT_PLAIN;
    if (fl_py_view(&self->dlpack, item, view) != 0) {
        PyErr_Clear();
        return FL_PY_NOT_PLAIN;
    }
    /* A conjugate view looks like any complex tensor. */
    if (view->dtype.code == kDLComplex) return FL_PY_NOT_PLAIN;
    int odd = has_odd_dtype(self, item, view);
    if (odd != 0) return odd < 0 ? -1 : FL_PY_NOT_PLAIN;
    return FL_PY_FINE;
}

/* Returns true if the values are the rows of a block, all rows and in order. */
static bool are_rows_of(fl_py_stacker *self, PyObject *owner, const fl_py_items *batch)
{
    fl_tensor block, row;
    if (fl_py_view(&self->dlpack, owner, &block) != 0) return false;
    if (block.shape[0] != batch->count) return false;
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        if (!fl_py_is_tensor(&self->dlpack, batch->items[i]) ||
            fl_py_stacker_look(self, batch->items[i], &row) != FL_PY_FINE)
            return false;
        bool fits = row.ndim == block.ndim - 1 && row.data == block.data + i * block.stride[0] &&
                    memcmp(&row.dtype, &block.dtype, sizeof row.dtype) == 0 &&
                    fl_tensor_is_contiguous(&row);
        if (!fits || memcmp(row.shape, block.shape + 1, (size_t)row.ndim * sizeof *row.shape) != 0)
            return false;
    }
    return true;
}

/* Takes the block if the values are its rows. New reference; NULL without an exception: the values
 * are different. This function holds a reference to the block: torch's functions give up the
 * interpreter lock, and a different thread may end the block's batch meanwhile. */
static PyObject *take_block(fl_py_stacker *self, const fl_py_items *batch)
{
    PyObject *block = Py_XNewRef(self->block);
    if (block == NULL) return NULL;
    if (!are_rows_of(self, block, batch)) {
        PyErr_Clear();
        Py_CLEAR(block);
        return NULL;
    }
    if (self->block == block) fl_py_stacker_drop(self);
    self->stacks++; /* making the block has counted a stack; count it again for this batch */
    return block;
}

/* NumPy makes arrays with strides that torch refuses. */
static bool has_odd_stride(const fl_tensor *view)
{
    int64_t bytes = fl_dtype_bytes(view->dtype);
    for (int32_t d = 0; d < view->ndim; d++)
        if (view->stride[d] < 0 || view->stride[d] % bytes != 0) return true;
    return false;
}

static int look_at_array(fl_py_stacker *self, PyObject *item, fl_tensor *view)
{
    if (fl_py_view(&self->dlpack, item, view) != 0) {
        PyErr_Clear();
        return FL_PY_NOT_PLAIN;
    }
    if (has_odd_stride(view)) return FL_PY_NOT_PLAIN;
    if (!self->has_warned && fl_py_is_read_only(item)) {
        self->has_warned = true; /* torch warns once per process, for the first array */
        PyObject *tensor = PyObject_CallOneArg(self->as_tensor, item);
        if (tensor == NULL) return -1;
        Py_DECREF(tensor);
    }
    return FL_PY_FINE;
}

/* Checks that all values are alike and contiguous. Returns the results of look_at_array and
 * fl_py_stacker_look. The values' addresses go to `from`. */
static int
look_at_all(fl_py_stacker *self, const fl_py_items *batch, fl_tensor *first, const char **from)
{
    PyTypeObject *type = Py_TYPE(batch->items[0]);
    bool is_tensor = type == self->dlpack.tensor_type;
    fl_tensor other;
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        fl_tensor *view = i == 0 ? first : &other;
        if (Py_TYPE(batch->items[i]) != type) return FL_PY_MIXED;
        int look = is_tensor ? fl_py_stacker_look(self, batch->items[i], view)
                             : look_at_array(self, batch->items[i], view);
        if (look != FL_PY_FINE) return look;
        if (i > 0 && !is_alike(first, view)) return FL_PY_MIXED;
        if (!fl_tensor_is_contiguous(view)) return FL_PY_STRIDED;
        from[i] = view->data;
    }
    return first->ndim < FL_MAX_NDIM ? FL_PY_FINE : FL_PY_NOT_PLAIN;
}

static PyObject *
make_stacked(fl_py_stacker *self, const fl_py_items *batch, const fl_tensor *one, char **data)
{
    int64_t shape[FL_MAX_NDIM + 1];
    shape[0] = batch->count;
    memcpy(shape + 1, one->shape, (size_t)one->ndim * sizeof *shape);
    return fl_py_stacker_tensor(self, one->dtype, one->ndim + 1, shape, data);
}

/* Calls torch.stack(tensors, 0, out=out) as torch does in a worker; `out` is fastloop's memory. */
static PyObject *
stack_into(fl_py_stacker *self, PyObject *tensors, const fl_py_items *batch, const fl_tensor *one)
{
    char *data;
    PyObject *out = make_stacked(self, batch, one, &data), *result = NULL;
    if (out != NULL && tensors != NULL) {
        PyObject *args[] = {tensors, self->zero, out};
        result = PyObject_Vectorcall(self->stack, args, 2, self->out_name);
    }
    Py_XDECREF(out);
    return result;
}

/* Returns true if all values still have the same layout and lie at these addresses. A finalizer may
 * have resized a value when an object was made. This function makes no object. */
static bool are_unmoved(const fl_py_stacker *self, const fl_py_items *batch, const fl_tensor *one,
                        const char *const *from)
{
    fl_tensor view;
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        if (fl_py_view(&self->dlpack, batch->items[i], &view) != 0) {
            PyErr_Clear();
            return false;
        }
        if (view.data != from[i] || !is_alike(one, &view) || !fl_tensor_is_contiguous(&view))
            return false;
    }
    return true;
}

static PyObject *copy_all(fl_py_stacker *self, const fl_py_items *batch, const fl_tensor *one,
                          const char *const *from)
{
    char *data;
    PyObject *tensor = make_stacked(self, batch, one, &data);
    if (tensor == NULL) return NULL;
    if (!are_unmoved(self, batch, one, from)) {
        Py_DECREF(tensor);
        return fl_py_fall_back(self, batch, FL_PY_MIXED);
    }
    copy_items(self, data, from, fl_tensor_bytes(one->dtype, one->ndim, one->shape), batch->count);
    return tensor;
}

static PyObject *stack_in_worker(fl_py_stacker *self, const fl_py_items *batch,
                                 const fl_tensor *first, const char **from)
{
    fl_tensor view;
    if (fl_tensor_bytes(first->dtype, first->ndim, first->shape) >= LONG_TENSOR) {
        int look = look_at_all(self, batch, &view, from);
        if (look < 0) return NULL;
        if (look == FL_PY_FINE) return copy_all(self, batch, &view, from);
    }
    PyObject *tensors = fl_py_items_object(batch);
    PyObject *result = stack_into(self, tensors, batch, first);
    Py_XDECREF(tensors);
    if (result != NULL || !PyErr_ExceptionMatches(PyExc_Exception)) return result;
    PyErr_Clear(); /* the fallback raises torch's own error */
    return fl_py_fall_back(self, batch, FL_PY_MIXED);
}

/* Stacks tensors outside of workers. torch's own stack may choose dtype and layout, and is fast for
 * small tensors. */
static PyObject *
stack_here(fl_py_stacker *self, const fl_py_items *batch, const fl_tensor *first, const char **from)
{
    fl_tensor view;
    int64_t bytes = fl_tensor_bytes(first->dtype, first->ndim, first->shape);
    int look = FL_PY_STRIDED;
    if (bytes >= LONG_TENSOR || bytes >= LARGE_STACK / batch->count)
        look = look_at_all(self, batch, &view, from);
    if (look < 0) return NULL;
    /* torch would split the copy of every tensor among its threads, and wait for the threads each
     * time. */
    if (look == FL_PY_FINE && bytes >= LONG_TENSOR) return copy_all(self, batch, &view, from);
    PyObject *tensors = fl_py_items_object(batch), *result = NULL;
    if (tensors != NULL && look == FL_PY_FINE)
        result = stack_into(self, tensors, batch, &view);
    else if (tensors != NULL)
        result = PyObject_CallOneArg(self->fallback, tensors);
    Py_XDECREF(tensors);
    return result;
}

static PyObject *stack_tensors(fl_py_stacker *self, const fl_py_items *batch)
{
    fl_tensor first;
    PyObject *block = take_block(self, batch);
    if (block != NULL) return block;
    if (fl_py_view(&self->dlpack, batch->items[0], &first) != 0 || first.ndim >= FL_MAX_NDIM) {
        PyErr_Clear();
        return fl_py_fall_back(self, batch, FL_PY_NOT_PLAIN);
    }
    int odd = has_odd_dtype(self, batch->items[0], &first);
    /* In a worker torch cannot stack after a conjugate or negative view. */
    if (odd == 0) odd = is_true(PyObject_CallOneArg(self->is_neg, batch->items[0]));
    if (odd < 0) return NULL;
    if (odd > 0 || first.dtype.code == kDLComplex)
        return fl_py_fall_back(self, batch, FL_PY_NOT_PLAIN);
    const char **from = PyMem_New(const char *, (size_t)batch->count);
    if (from == NULL) return PyErr_NoMemory();
    PyObject *result = self->worker_end != NULL ? stack_in_worker(self, batch, &first, from)
                                                : stack_here(self, batch, &first, from);
    PyMem_Free(from);
    return result;
}

static PyObject *tensors_of(fl_py_stacker *self, const fl_py_items *batch)
{
    PyObject *tensors = PyTuple_New(batch->count);
    for (Py_ssize_t i = 0; tensors != NULL && i < batch->count; i++)
        fl_py_put(&tensors, i, PyObject_CallOneArg(self->as_tensor, batch->items[i]));
    return tensors;
}

static PyObject *stack_arrays(fl_py_stacker *self, const fl_py_items *batch)
{
    fl_tensor first;
    const char **from = PyMem_New(const char *, (size_t)batch->count);
    if (from == NULL) return PyErr_NoMemory();
    int look = look_at_all(self, batch, &first, from);
    PyObject *result = NULL;
    if (look == FL_PY_FINE) {
        result = copy_all(self, batch, &first, from);
    } else if (look == FL_PY_STRIDED && self->worker_end != NULL && first.ndim < FL_MAX_NDIM) {
        PyObject *tensors = tensors_of(self, batch);
        result = tensors != NULL ? stack_into(self, tensors, batch, &first) : NULL;
        Py_XDECREF(tensors);
    } else if (look >= 0) {
        result = fl_py_fall_back(self, batch, look);
    }
    PyMem_Free(from);
    return result;
}

/* ---- numbers */

static PyObject *
make_vector(fl_py_stacker *self, const fl_py_items *batch, fl_dtype dtype, char **data)
{
    int64_t shape = batch->count;
    return fl_py_stacker_tensor(self, dtype, 1, &shape, data);
}

static bool are_of_type(const fl_py_items *batch, PyTypeObject *type)
{
    for (Py_ssize_t i = 0; i < batch->count; i++)
        if (!Py_IS_TYPE(batch->items[i], type)) return false;
    return true;
}

static PyObject *stack_floats(fl_py_stacker *self, const fl_py_items *batch)
{
    char *data;
    if (!are_of_type(batch, &PyFloat_Type)) return fl_py_fall_back(self, batch, FL_PY_MIXED);
    PyObject *vector = make_vector(self, batch, (fl_dtype){kDLFloat, 64, 1}, &data);
    if (vector == NULL) return NULL;
    for (Py_ssize_t i = 0; i < batch->count; i++)
        ((double *)(void *)data)[i] = PyFloat_AS_DOUBLE(batch->items[i]);
    return vector;
}

static bool are_int64(const fl_py_items *batch)
{
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        int overflow;
        (void)PyLong_AsLongLongAndOverflow(batch->items[i], &overflow);
        if (overflow != 0) return false;
    }
    return true;
}

static PyObject *stack_ints(fl_py_stacker *self, const fl_py_items *batch)
{
    char *data;
    if (!are_of_type(batch, &PyLong_Type) || !are_int64(batch))
        return fl_py_fall_back(self, batch, FL_PY_MIXED);
    PyObject *vector = make_vector(self, batch, (fl_dtype){kDLInt, 64, 1}, &data);
    if (vector == NULL) return NULL;
    for (Py_ssize_t i = 0; i < batch->count; i++)
        ((int64_t *)(void *)data)[i] = PyLong_AsLongLong(batch->items[i]);
    return vector;
}

static PyObject *stack_bools(fl_py_stacker *self, const fl_py_items *batch)
{
    char *data;
    if (!are_of_type(batch, &PyBool_Type)) return fl_py_fall_back(self, batch, FL_PY_MIXED);
    PyObject *vector = make_vector(self, batch, (fl_dtype){kDLBool, 8, 1}, &data);
    if (vector == NULL) return NULL;
    for (Py_ssize_t i = 0; i < batch->count; i++) data[i] = batch->items[i] == Py_True;
    return vector;
}

static PyObject *stack_scalars(fl_py_stacker *self, const fl_py_items *batch, fl_dtype dtype)
{
    char *data;
    int64_t bytes = fl_dtype_bytes(dtype);
    if (!are_of_type(batch, Py_TYPE(batch->items[0])))
        return fl_py_fall_back(self, batch, FL_PY_MIXED);
    PyObject *vector = make_vector(self, batch, dtype, &data);
    if (vector == NULL) return NULL;
    for (Py_ssize_t i = 0; i < batch->count; i++)
        fl_py_scalar_value(batch->items[i], data + i * bytes);
    return vector;
}

PyObject *fl_py_stack(fl_py_stacker *self, const fl_py_items *batch)
{
    PyObject *first = batch->items[0];
    PyTypeObject *type = Py_TYPE(first);
    fl_dtype dtype;
    if (type == self->dlpack.tensor_type) return stack_tensors(self, batch);
    if (fl_py_is_array(first) || (PyObject *)type == self->memmap_type)
        return stack_arrays(self, batch);
    if (type == &PyFloat_Type) return stack_floats(self, batch);
    if (type == &PyLong_Type) return stack_ints(self, batch);
    if (type == &PyBool_Type) return stack_bools(self, batch);
    if (type == &PyUnicode_Type || type == &PyBytes_Type) return fl_py_items_object(batch);
    if (fl_py_scalar_dtype(first, &dtype)) return stack_scalars(self, batch, dtype);
    return Py_NewRef(Py_NotImplemented);
}

/* ---- open and close */

static int find_in_torch(fl_py_stacker *self, PyObject *torch)
{
    const struct {
        PyObject **to, *from;
        const char *name;
    } wanted[] = {{&self->is_neg, (PyObject *)self->dlpack.tensor_type, "is_neg"},
                  {&self->stack, torch, "stack"},
                  {&self->as_tensor, torch, "as_tensor"},
                  {&self->int8, torch, "int8"},
                  {&self->uint8, torch, "uint8"}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].to = PyObject_GetAttrString(wanted[i].from, wanted[i].name);
        if (*wanted[i].to == NULL) return -1;
    }
    return 0;
}

int fl_py_stacker_open(fl_py_stacker *self, PyObject *torch)
{
    PyObject *tensor_type = PyObject_GetAttrString(torch, "Tensor");
    int status = tensor_type != NULL ? fl_py_dlpack_open(tensor_type, &self->dlpack) : -1;
    Py_XDECREF(tensor_type);
    if (status != 0 || find_in_torch(self, torch) != 0) return -1;
    self->zero = PyLong_FromLong(0);
    self->out_name = Py_BuildValue("(s)", "out");
    self->requires_grad = PyUnicode_InternFromString("requires_grad");
    bool is_there = self->zero != NULL && self->out_name != NULL && self->requires_grad != NULL;
    return is_there ? 0 : -1;
}

void fl_py_stacker_close(fl_py_stacker *self)
{
    Py_CLEAR(self->fallback);
    fl_py_stacker_drop(self);
    Py_CLEAR(self->worker_end);
    Py_CLEAR(self->thread_pool);
    for (int i = 0; i < FL_PY_POOLS; i++) fl_pool_close(self->pools[i]);
    Py_CLEAR(self->memmap_type);
    Py_CLEAR(self->is_neg);
    Py_CLEAR(self->stack);
    Py_CLEAR(self->as_tensor);
    Py_CLEAR(self->zero);
    Py_CLEAR(self->out_name);
    Py_CLEAR(self->requires_grad);
    Py_CLEAR(self->int8);
    Py_CLEAR(self->uint8);
    fl_py_dlpack_close(&self->dlpack);
}
