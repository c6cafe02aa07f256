/* fl_py_torch_random: see fl_py_torch_random.h. Between take and put no Python code runs, so no
 * other thread draws from the generator meanwhile. */
#include "fl_py_torch_random.h"

#include "fl_py_put.h"

typedef struct fl_py_torch_random {
    PyObject_HEAD
    fl_torch_random random;
} fl_py_torch_random;

/* ---- a generator of torch */

/* Returns the address of the state in a tensor; NULL and an exception. */
static char *state_in(const fl_py_dlpack *dlpack, PyObject *tensor)
{
    fl_tensor view;
    if (fl_py_view(dlpack, tensor, &view) != 0) return NULL;
    if (view.ndim == 1 && view.shape[0] == FL_TORCH_STATE_BYTES && view.dtype.bits == 8 &&
        view.stride[0] == 1)
        return (char *)(uintptr_t)view.data;
    PyErr_SetString(PyExc_ValueError, "get_state() must return the state of a CPU generator");
    return NULL;
}

/* Calls get_state() with the collector off: get_state() makes an object while it holds the
 * generator's mutex. If the new object caused a collection, Python could run and let a different
 * thread continue; this thread could then wait for the mutex with the interpreter lock. */
static PyObject *get_state(PyObject *generator)
{
    int was_on = PyGC_Disable();
    PyObject *tensor = PyObject_CallMethod(generator, "get_state", NULL);
    if (was_on) PyGC_Enable();
    return tensor;
}

PyObject *
fl_py_torch_state_take(const fl_py_dlpack *dlpack, PyObject *generator, fl_torch_random *out)
{
    fl_err err;
    PyObject *tensor = get_state(generator);
    char *state = tensor != NULL ? state_in(dlpack, tensor) : NULL;
    if (state != NULL && fl_torch_random_load(out, state, &err) == FL_OK) return tensor;
    if (state != NULL) fl_py_raise(&err, NULL);
    Py_XDECREF(tensor);
    return NULL;
}

int fl_py_torch_state_put(const fl_py_dlpack *dlpack, PyObject *generator, PyObject *tensor,
                          const fl_torch_random *state)
{
    char *to = state_in(dlpack, tensor);
    PyObject *done = NULL;
    if (to != NULL) {
        fl_torch_random_save(state, to);
        done = PyObject_CallMethod(generator, "set_state", "O", tensor);
    }
    Py_DECREF(tensor);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

/* ---- the type */

static PyObject *random_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"seed", NULL};
    unsigned long long seed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "K:TorchRandom", keywords, &seed)) return NULL;
    fl_py_torch_random *self = (fl_py_torch_random *)type->tp_alloc(type, 0);
    if (self != NULL) fl_torch_random_seed(&self->random, seed);
    return (PyObject *)self;
}

static void random_dealloc(fl_py_torch_random *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(get_state_doc, "get_state()\n--\n\n"
                            "Return the state as bytes, in the layout of torch's get_state().");

static PyObject *random_get_state(fl_py_torch_random *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *state = PyBytes_FromStringAndSize(NULL, FL_TORCH_STATE_BYTES);
    if (state != NULL) fl_torch_random_save(&self->random, PyBytes_AS_STRING(state));
    return state;
}

PyDoc_STRVAR(set_state_doc,
             "set_state(state, /)\n--\n\n"
             "Set the state from bytes. Raises ValueError for a state that torch's generator\n"
             "cannot have.");

static PyObject *random_set_state(fl_py_torch_random *self, PyObject *args)
{
    Py_buffer state;
    fl_err err;
    if (!PyArg_ParseTuple(args, "y*:set_state", &state)) return NULL;
    int status =
        state.len == FL_TORCH_STATE_BYTES
            ? fl_torch_random_load(&self->random, state.buf, &err)
            : fl_fail(&err, FL_EINVAL, "a state of torch's generator must have %d bytes, got %lld",
                      FL_TORCH_STATE_BYTES, (long long)state.len);
    PyBuffer_Release(&state);
    if (status != FL_OK) return fl_py_raise(&err, NULL);
    Py_RETURN_NONE;
}

/* Makes a list of `count` numbers from `draw`. New reference. */
static PyObject *list_of(Py_ssize_t count, PyObject *(*draw)(void *), void *with)
{
    if (count < 0)
        return PyErr_Format(PyExc_ValueError, "count must be at least 0, got %zd", count);
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) fl_py_put(&list, i, draw(with));
    return list;
}

/* The bounds of numbers, and the generator that draws them. */
typedef struct bounds {
    fl_torch_random *random;
    float from, to;
    long long first, last;
    int is_fused;
} bounds;

static PyObject *draw_uniform(void *with)
{
    bounds *b = with;
    return PyFloat_FromDouble(fl_torch_random_uniform(b->random, b->from, b->to, b->is_fused));
}

PyDoc_STRVAR(uniform_doc,
             "uniform(start, end, count, is_fused)\n--\n\n"
             "Return a list with the results of `count` calls of\n"
             "torch.empty(1).uniform_(start, end) in float32. is_fused: torch computes each\n"
             "number with one rounding.");

static PyObject *random_uniform(fl_py_torch_random *self, PyObject *args)
{
    bounds b = {.random = &self->random};
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "ffnp:uniform", &b.from, &b.to, &count, &b.is_fused)) return NULL;
    return list_of(count, draw_uniform, &b);
}

static PyObject *draw_unit(void *with)
{
    return PyFloat_FromDouble(fl_torch_random_unit(((bounds *)with)->random));
}

PyDoc_STRVAR(rand_doc, "rand(count, /)\n--\n\n"
                       "Return a list with the results of `count` calls of torch.rand(1).");

static PyObject *random_rand(fl_py_torch_random *self, PyObject *args)
{
    bounds b = {.random = &self->random};
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "n:rand", &count)) return NULL;
    return list_of(count, draw_unit, &b);
}

static PyObject *draw_int(void *with)
{
    bounds *b = with;
    return PyLong_FromLongLong(fl_torch_random_int(b->random, b->first, b->last));
}

PyDoc_STRVAR(randint_doc, "randint(low, high, count)\n--\n\n"
                          "Return a list with the numbers of torch.randint(low, high, ...).");

static PyObject *random_randint(fl_py_torch_random *self, PyObject *args)
{
    bounds b = {.random = &self->random};
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "LLn:randint", &b.first, &b.last, &count)) return NULL;
    if (b.first >= b.last)
        return PyErr_Format(PyExc_ValueError, "low must be below high=%lld, got %lld", b.last,
                            b.first);
    return list_of(count, draw_int, &b);
}

PyDoc_STRVAR(random_doc, "random_()\n--\n\n"
                         "Return the number that random_() writes to an int64 tensor.");

static PyObject *random_int63(fl_py_torch_random *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLongLong(fl_torch_random_int63(&self->random));
}

PyDoc_STRVAR(randperm_doc,
             "randperm(count, /)\n--\n\n"
             "Return a list with the numbers of torch.randperm(count), for count < 2**32 / 20.");

static PyObject *random_randperm(fl_py_torch_random *self, PyObject *args)
{
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "n:randperm", &count)) return NULL;
    if (count < 0 || count > UINT32_MAX / 20)
        return PyErr_Format(PyExc_ValueError, "count must be in [0, 2**32 / 20), got %zd", count);
    int64_t *numbers = fl_alloc(count * (int64_t)sizeof *numbers);
    if (numbers == NULL) return PyErr_NoMemory();
    fl_torch_random_permutation(&self->random, count, numbers);
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++)
        PyList_SET_ITEM(list, i, PyLong_FromLongLong(numbers[i]));
    fl_free(numbers);
    return list;
}

PyDoc_STRVAR(choice_doc,
             "choice(weights, /)\n--\n\n"
             "Return the number of torch.multinomial() for one number, from a tuple of\n"
             "1 to 16 weights >= 0, on a CPU that is not Intel's.");

static PyObject *random_choice(fl_py_torch_random *self, PyObject *args)
{
    enum { MOST = 16 };
    PyObject *tuple;
    float weights[MOST];
    if (!PyArg_ParseTuple(args, "O!:choice", &PyTuple_Type, &tuple)) return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    if (count < 1 || count > MOST)
        return PyErr_Format(PyExc_ValueError, "weights must be 1 to %d numbers, got %zd", MOST,
                            count);
    for (Py_ssize_t i = 0; i < count; i++)
        weights[i] = (float)PyFloat_AsDouble(PyTuple_GET_ITEM(tuple, i));
    if (PyErr_Occurred()) return NULL;
    return PyLong_FromLong(fl_torch_random_choice(&self->random, (int32_t)count, weights));
}

static PyMethodDef random_methods[] = {
    {"get_state", (PyCFunction)random_get_state, METH_NOARGS, get_state_doc},
    {"set_state", (PyCFunction)random_set_state, METH_VARARGS, set_state_doc},
    {"rand", (PyCFunction)random_rand, METH_VARARGS, rand_doc},
    {"uniform", (PyCFunction)random_uniform, METH_VARARGS, uniform_doc},
    {"randint", (PyCFunction)random_randint, METH_VARARGS, randint_doc},
    {"random_", (PyCFunction)random_int63, METH_NOARGS, random_doc},
    {"randperm", (PyCFunction)random_randperm, METH_VARARGS, randperm_doc},
    {"choice", (PyCFunction)random_choice, METH_VARARGS, choice_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(torch_random_doc,
             "TorchRandom(seed)\n--\n\n"
             "torch's random generator of the CPU after manual_seed(seed): gives the same\n"
             "numbers, and has the same states.");

static PyType_Slot random_slots[] = {{Py_tp_doc, (void *)torch_random_doc},
                                     {Py_tp_new, random_new},
                                     {Py_tp_dealloc, random_dealloc},
                                     {Py_tp_methods, random_methods},
                                     {0, NULL}};

PyType_Spec fl_py_torch_random_spec =
    FL_PY_SPEC("TorchRandom", fl_py_torch_random, 0, random_slots);
