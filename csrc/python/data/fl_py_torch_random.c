/* fl_py_torch_random: see fl_py_torch_random.h. Between take and put no Python code runs, so no
 * other thread draws from the generator meanwhile. */
#include "fl_py_torch_random.h"

#include "fl_py_numpy.h"
#include "fl_py_put.h"

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

/* ---- draws from a state alone */

/* Reads a state, or an int, which is a seed: 0, or -1 and an exception. */
static int read_state(PyObject *state, fl_torch_random *out)
{
    fl_err err;
    if (!PyBytes_Check(state)) {
        fl_torch_random_seed(out, PyLong_AsUnsignedLongLong(state));
        return PyErr_Occurred() ? -1 : 0;
    }
    int status =
        PyBytes_GET_SIZE(state) == FL_TORCH_STATE_BYTES
            ? fl_torch_random_load(out, PyBytes_AS_STRING(state), &err)
            : fl_fail(&err, FL_EINVAL, "a state of torch's generator must have %d bytes, got %lld",
                      FL_TORCH_STATE_BYTES, (long long)PyBytes_GET_SIZE(state));
    return fl_py_check(status, &err, NULL);
}

enum { MOST_WEIGHTS = 16 };

/* A kind of draw, with its arguments. */
typedef struct draws {
    int kind;
    double low, high;
    int32_t choices; /* number of weights */
    float weights[MOST_WEIGHTS];
} draws;

static int read_weights(PyObject *tuple, draws *out)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    if (count < 1 || count > MOST_WEIGHTS) {
        PyErr_Format(PyExc_ValueError, "weights must be 1 to %d numbers, got %zd", MOST_WEIGHTS,
                     count);
        return -1;
    }
    out->choices = (int32_t)count;
    for (Py_ssize_t i = 0; i < count; i++)
        out->weights[i] = (float)PyFloat_AsDouble(PyTuple_GET_ITEM(tuple, i));
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *draw_one(fl_torch_random *random, const draws *what)
{
    switch (what->kind) {
    case 'c':
        return PyLong_FromLong(fl_torch_random_choice(random, what->choices, what->weights));
    case 'u':
        return PyFloat_FromDouble(fl_torch_random_unit(random));
    case 'f':
    case 't':
        return PyFloat_FromDouble(fl_torch_random_uniform(random, (float)what->low,
                                                          (float)what->high, what->kind == 'f'));
    case 'i':
        return PyLong_FromLongLong(
            fl_torch_random_int(random, (int64_t)what->low, (int64_t)what->high));
    default:
        return PyLong_FromLongLong(fl_torch_random_int63(random));
    }
}

static PyObject *draw_order(fl_torch_random *random, Py_ssize_t count)
{
    int64_t *data;
    PyObject *numbers = fl_py_int64_vector(count, &data);
    if (numbers != NULL) fl_torch_random_permutation(random, count, data);
    return numbers;
}

const char fl_py_torch_draw_doc[] =
    "torch_draw(state, kind, low, high, count, weights=(), /)\n--\n\n"
    "Draw `count` numbers as torch's generator of the CPU does from this state, the\n"
    "bytes of get_state(), or from the seed `state`. Returns the numbers and the state\n"
    "after the draws. kind: \"u\" for rand(); \"t\" for uniform_(low, high) in float32,\n"
    "rounded twice, \"f\" rounded once; \"i\" for randint(low, high); \"r\" for random_();\n"
    "\"p\" for randperm(count), as an int64 array; \"c\" for multinomial() of one number,\n"
    "from 1 to 16 weights >= 0, on a CPU that is not Intel's.";

PyObject *fl_py_torch_draw(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given, *numbers, *weights = NULL;
    Py_ssize_t count;
    draws what = {0};
    fl_torch_random random;
    char state[FL_TORCH_STATE_BYTES];
    if (!PyArg_ParseTuple(args, "OCddn|O!:torch_draw", &given, &what.kind, &what.low, &what.high,
                          &count, &PyTuple_Type, &weights) ||
        read_state(given, &random) != 0 || (weights != NULL && read_weights(weights, &what) != 0))
        return NULL;
    if (count < 0 || count > UINT32_MAX / 20 || (what.kind == 'i' && what.low >= what.high) ||
        (what.kind == 'c' && what.choices == 0))
        return PyErr_Format(PyExc_ValueError,
                            "count must be in [0, 2**32 / 20), and low below high, got %zd", count);
    numbers = what.kind == 'p' ? draw_order(&random, count) : PyList_New(count);
    for (Py_ssize_t i = 0; what.kind != 'p' && numbers != NULL && i < count; i++)
        fl_py_put(&numbers, i, draw_one(&random, &what));
    fl_torch_random_save(&random, state);
    return numbers != NULL ? Py_BuildValue("Ny#", numbers, state, (Py_ssize_t)sizeof state) : NULL;
}
