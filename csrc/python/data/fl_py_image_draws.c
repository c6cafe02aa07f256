/* fl_py_image_draws: see fl_py_image_draws.h. */
#include "fl_py_image_draws.h"

#include "fl_py.h"
#include "fl_py_arrow.h"
#include "fl_py_numpy.h"
#include "fl_py_torch_random.h"

/* Bytes of a result. A larger result is made without the interpreter lock. */
enum { LARGE_BYTES = 64 * 1024 };

/* Answers that are kept after a draw. */
enum { MOST_ANSWERS = 1024 };

/* Gets torch.log() of a bound of a ratio from the function `log`: 0, or -1 and an exception. */
static int ask_log(PyObject *log, double bound, float *out)
{
    PyObject *argument = PyFloat_FromDouble(bound);
    PyObject *value = argument != NULL ? PyObject_CallOneArg(log, argument) : NULL;
    Py_XDECREF(argument);
    *out = value != NULL ? (float)PyFloat_AsDouble(value) : 0;
    Py_XDECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

static int read_ratios(const fl_image_plan *plan, PyObject *log, fl_draw_ways *out)
{
    for (int32_t i = 0; i < fl_image_plan_count(plan); i++) {
        const fl_image_op *op = fl_image_plan_op(plan, i);
        if (op->kind != FL_OP_RANDOM_RESIZED_CROP && op->kind != FL_OP_ERASE) continue;
        for (int k = 0; k < 2; k++)
            if (ask_log(log, op->ratio[k], &out->log_ratio[i][k]) != 0) return -1;
    }
    return 0;
}

static PyObject *draws_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"plan", "is_v1", "is_fused", "exp", "log", "tilt", "weigh", NULL};
    const fl_py_state *state = PyType_GetModuleState(type);
    PyObject *plan, *exp, *log, *tilt, *weigh;
    int is_v1, is_fused;
    fl_err err;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!ppOOOO:ImageDraws", keywords,
                                     state->image_plan_type, &plan, &is_v1, &is_fused, &exp, &log,
                                     &tilt, &weigh))
        return NULL;
    fl_draw_ways ways = {.is_v1 = is_v1, .is_fused = is_fused};
    if (read_ratios(((fl_py_image_plan *)plan)->plan, log, &ways) != 0) return NULL;
    fl_py_image_draws *self = (fl_py_image_draws *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->plan = (fl_py_image_plan *)Py_NewRef(plan);
    self->exp = Py_NewRef(exp);
    self->tilt = Py_NewRef(tilt);
    self->weigh = Py_NewRef(weigh);
    self->answers = PyDict_New();
    self->missing = PyList_New(0);
    int status = self->answers != NULL && self->missing != NULL
                     ? fl_py_dlpack_open_torch(&self->dlpack)
                     : -1;
    if (status == 0) status = fl_image_draws_open(self->plan->plan, &ways, &self->draws, &err);
    status = fl_py_check(status, &err, NULL);
    if (status == 0) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int draws_traverse(fl_py_image_draws *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->exp);
    Py_VISIT(self->tilt);
    Py_VISIT(self->weigh);
    Py_VISIT(self->plan);
    return 0;
}

/* There is no tp_clear: a table may still read the plan, like the table's sources (fl_py_table). */

static void draws_dealloc(fl_py_image_draws *self)
{
    PyObject_GC_UnTrack(self);
    fl_image_draws_close(self->draws);
    fl_free(self->streams);
    fl_py_dlpack_close(&self->dlpack);
    Py_XDECREF(self->answers);
    Py_XDECREF(self->missing);
    Py_XDECREF(self->exp);
    Py_XDECREF(self->tilt);
    Py_XDECREF(self->weigh);
    Py_XDECREF(self->plan);
    fl_py_free(self);
}

PyDoc_STRVAR(seed_doc,
             "seed(base_seed, workers)\n--\n\n"
             "Give each worker k the random stream of torch's worker k: manual_seed(base_seed\n"
             "+ k). Workers that already have a stream continue it.");

static PyObject *draws_seed(fl_py_image_draws *self, PyObject *args)
{
    unsigned long long base_seed;
    long long workers;
    int64_t bytes;
    if (!PyArg_ParseTuple(args, "KL:seed", &base_seed, &workers)) return NULL;
    if (self->streams != NULL) Py_RETURN_NONE;
    if (workers < 0 || !fl_mul(workers, sizeof *self->streams, &bytes))
        return PyErr_Format(PyExc_ValueError,
                            "workers must be at least 0, and few enough for memory, got %lld",
                            workers);
    fl_torch_random *streams = fl_alloc(bytes);
    if (streams == NULL) return PyErr_NoMemory();
    for (long long k = 0; k < workers; k++)
        fl_torch_random_seed(&streams[k], base_seed + (unsigned long long)k);
    self->streams = streams;
    self->workers = workers;
    Py_RETURN_NONE;
}

/* Looks up an earlier answer of torch, borrowed; takes `key`. NULL: the argument is now among the
 * missing ones, or an exception is set. */
static PyObject *look_up(fl_py_image_draws *self, PyObject *key)
{
    PyObject *value = key != NULL ? PyDict_GetItemWithError(self->answers, key) : NULL;
    if (value == NULL && key != NULL && !PyErr_Occurred()) PyList_Append(self->missing, key);
    Py_XDECREF(key);
    return value;
}

/* Implements fl_torch_answers.exp. */
static int look_up_exp(void *context, float x, float *out)
{
    PyObject *value = look_up(context, PyFloat_FromDouble((double)x));
    if (value != NULL) *out = (float)PyFloat_AS_DOUBLE(value);
    return value != NULL ? 0 : -1;
}

/* Copies an answer, a tuple of floats, or zeros if it is NULL: 0; -1: an exception is set. */
static int copy_answer(PyObject *value, Py_ssize_t count, float *out)
{
    for (Py_ssize_t k = 0; k < count; k++)
        out[k] = value != NULL ? (float)PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(value, k)) : 0;
    return PyErr_Occurred() ? -1 : 0;
}

/* Implements fl_torch_answers.tilt. A missing answer does not end the draws, so that all missing
 * answers of a batch are found at once. */
static int look_up_tilt(void *context, const fl_torch_tilt *tilt, float out[8])
{
    const int32_t(*at)[2] = tilt->corner;
    PyObject *key =
        Py_BuildValue("iiiiiiiiii", tilt->size.height, tilt->size.width, at[0][0], at[0][1],
                      at[1][0], at[1][1], at[2][0], at[2][1], at[3][0], at[3][1]);
    return copy_answer(look_up(context, key), 8, out);
}

/* Implements fl_torch_answers.weigh; see look_up_tilt. */
static int look_up_weights(void *context, int32_t taps, float sigma, float *out)
{
    PyObject *key = Py_BuildValue("id", taps, (double)sigma);
    return copy_answer(look_up(context, key), taps / 2 + 1, out);
}

/* Returns true for a float, if 0 numbers are wanted, or for a tuple of `count` floats. */
static bool is_answer(PyObject *value, Py_ssize_t count)
{
    if (count == 0) return PyFloat_Check(value);
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != count) return false;
    for (Py_ssize_t k = 0; k < count; k++)
        if (!PyFloat_Check(PyTuple_GET_ITEM(value, k))) return false;
    return true;
}

/* Asks torch for the answer to a key of look_up: a new reference, or NULL and an exception. */
static PyObject *ask_one(fl_py_image_draws *self, PyObject *key)
{
    const bool is_exp = PyFloat_Check(key), is_tilt = !is_exp && PyTuple_GET_SIZE(key) != 2;
    const char *name = is_exp ? "exp" : is_tilt ? "tilt" : "weigh";
    Py_ssize_t count = is_exp ? 0 : is_tilt ? 8 : PyLong_AsLong(PyTuple_GET_ITEM(key, 0)) / 2 + 1;
    PyObject *value = is_exp ? PyObject_CallOneArg(self->exp, key)
                             : PyObject_CallObject(is_tilt ? self->tilt : self->weigh, key);
    if (value == NULL || is_answer(value, count)) return value;
    Py_DECREF(value);
    return PyErr_Format(PyExc_TypeError, "ImageDraws: %s must return %s", name,
                        is_exp    ? "a float"
                        : is_tilt ? "eight floats"
                                  : "the weights of half the taps");
}

/* Asks torch for the missing answers: 0, or -1 and an exception. This runs Python code, and other
 * threads may draw meanwhile; so the caller must not have taken a state. */
static int ask(fl_py_image_draws *self)
{
    PyObject *missing = self->missing;
    int status = (self->missing = PyList_New(0)) != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i < PyList_GET_SIZE(missing); i++) {
        PyObject *key = PyList_GET_ITEM(missing, i);
        PyObject *value = ask_one(self, key);
        status = value != NULL ? PyDict_SetItem(self->answers, key, value) : -1;
        Py_XDECREF(value);
    }
    Py_DECREF(missing);
    return status;
}

/* The draws that are wanted: for a batch of `rows` rows, or for one image of size `in`. */
typedef struct request {
    Py_ssize_t rows;
    fl_image_size in;        /* only if params != NULL */
    fl_image_params *params; /* borrowed; NULL: a batch */
} request;

/* Draws: 0: done; 1: answers are missing, see ask; -1: an exception. *random changes only if the
 * draw is done. */
static int draw(fl_py_image_draws *self, fl_torch_random *random, const request *what)
{
    fl_err err;
    fl_torch_answers answers = {
        .exp = look_up_exp, .tilt = look_up_tilt, .weigh = look_up_weights, .context = self};
    fl_torch_random copy = *random;
    int status =
        what->params == NULL
            ? fl_image_draws_make(self->draws, &copy, what->rows, &answers, &err)
            : fl_image_draws_one(self->draws, &copy, what->in, &answers, what->params, &err);
    if (PyErr_Occurred()) return -1;
    if (PyList_GET_SIZE(self->missing) > 0) return 1;
    if (PyDict_GET_SIZE(self->answers) > MOST_ANSWERS) PyDict_Clear(self->answers);
    if (status != FL_OK) return fl_py_check(status, &err, NULL);
    *random = copy;
    return 0;
}

/* Draws from a torch.Generator, and puts the state back; returns the statuses of draw. No Python
 * code runs meanwhile, not even in a collection of garbage, because a different thread might
 * draw. */
static int draw_once(fl_py_image_draws *self, PyObject *generator, const request *what)
{
    fl_torch_random random;
    int is_collecting = PyGC_Disable(), status = -1;
    PyObject *tensor = fl_py_torch_state_take(&self->dlpack, generator, &random);
    if (tensor != NULL) status = draw(self, &random, what);
    if (status == 0)
        status = fl_py_torch_state_put(&self->dlpack, generator, tensor, &random);
    else
        Py_XDECREF(tensor);
    if (is_collecting) PyGC_Enable();
    return status;
}

/* Draws from a torch.Generator, and puts the state back: 0, or -1 and an exception, and then the
 * generator has not changed. */
static int draw_from(fl_py_image_draws *self, PyObject *generator, const request *what)
{
    int status = 1;
    while (status > 0) {
        status = draw_once(self, generator, what);
        if (status > 0 && ask(self) != 0) return -1;
    }
    return status;
}

PyDoc_STRVAR(draw_doc, "draw(rows, worker)\n--\n\n"
                       "Draw the parameters for a batch of `rows` rows that torch's worker number\n"
                       "`worker` would make.");

static PyObject *draws_draw(fl_py_image_draws *self, PyObject *args)
{
    request what = {0};
    long long worker;
    int status = 1;
    if (!PyArg_ParseTuple(args, "nL:draw", &what.rows, &worker)) return NULL;
    if (worker < 0 || worker >= self->workers)
        return PyErr_Format(PyExc_ValueError, "worker must have a stream, got %lld (call seed())",
                            worker);
    while (status > 0) {
        status = draw(self, &self->streams[worker], &what);
        if (status > 0 && ask(self) != 0) status = -1;
    }
    if (status != 0) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(draw_from_doc,
             "draw_from(rows, generator)\n--\n\n"
             "Draw the parameters for a batch of `rows` rows from a torch.Generator, and\n"
             "advance the generator. After an exception the generator has not moved.");

static PyObject *draws_draw_from(fl_py_image_draws *self, PyObject *args)
{
    request what = {0};
    PyObject *generator;
    if (!PyArg_ParseTuple(args, "nO:draw_from", &what.rows, &generator)) return NULL;
    if (draw_from(self, generator, &what) != 0) return NULL;
    Py_RETURN_NONE;
}

/* Returns true unless Pillow says that the pixels are its own. Pillow before 13 crashes if it is
 * asked where the pixels of an array or of a mapped file lie. */
static bool is_mapped(PyObject *image)
{
    PyObject *flag = PyObject_GetAttrString(image, "readonly");
    int answer = flag != NULL ? PyObject_IsTrue(flag) : -1;
    Py_XDECREF(flag);
    PyErr_Clear();
    return answer != 0;
}

/* Reads the pixels of a PIL image where they lie: Pillow stores RGB in four bytes a pixel, and rows
 * of one channel in a multiple of four bytes. Returns what keeps the pixels alive, a new reference;
 * NULL without an exception: this Pillow does not say, or the image is in several pieces. */
static PyObject *borrow_pil(int32_t channels, PyObject *image, fl_image_source *out)
{
    const bool is_padded = channels == 3;
    const int64_t count = (int64_t)out->size.height * out->size.width;
    if (!is_padded && (channels != 1 || out->size.width % 4 != 0)) return NULL;
    if (is_mapped(image)) return NULL;
    PyObject *core = PyObject_GetAttrString(image, "im"), *owner = NULL;
    if (core != NULL) owner = fl_py_arrow_bytes(core, count, is_padded ? 4 : 1, &out->data);
    Py_XDECREF(core);
    PyErr_Clear();
    out->is_padded = is_padded;
    out->stride_x = is_padded ? 4 : 1;
    return owner;
}

/* Reads the pixels of a PIL image. Returns what keeps the pixels alive, a new reference; *out
 * borrows from it. NULL and an exception. */
static PyObject *read_pil(const fl_py_image_plan *plan, PyObject *image, fl_image_source *out)
{
    int32_t channels = fl_image_plan_channels(plan->plan);
    PyObject *size = PyObject_GetAttrString(image, "size"), *owner = NULL;
    *out = (fl_image_source){.stride_c = 1};
    bool is_sized = size != NULL && PyArg_Parse(size, "(ii)", &out->size.width, &out->size.height);
    Py_XDECREF(size);
    if (!is_sized) return NULL;
    if (plan->layout == FL_HWC) owner = borrow_pil(channels, image, out);
    if (owner == NULL) {
        const int64_t row = (int64_t)out->size.width * channels;
        owner = PyObject_CallMethod(image, "tobytes", NULL);
        if (owner == NULL) return NULL;
        if (plan->layout != FL_HWC || !PyBytes_Check(owner) ||
            PyBytes_GET_SIZE(owner) != row * out->size.height) {
            Py_DECREF(owner);
            return PyErr_Format(PyExc_ValueError,
                                "apply: the image must be uint8, HWC, with %d channels", channels);
        }
        out->data = (const uint8_t *)PyBytes_AS_STRING(owner);
        out->stride_x = channels;
        out->is_padded = false;
    }
    out->stride_y = out->size.width * out->stride_x;
    return owner;
}

/* Makes the image: its fl_image_draws_applied, or -1 and an exception. */
static int64_t
apply(fl_py_image_draws *self, const fl_image_source *source, PyObject *out, PyObject *generator)
{
    fl_image_params params[FL_MAX_IMAGE_OPS];
    fl_err err = {0};
    int status;
    char *data = fl_py_image_plan_memory(self->plan, out);
    request what = {.in = source->size, .params = params};
    if (data == NULL || draw_from(self, generator, &what) != 0) return -1;
    if (fl_image_plan_out_bytes(self->plan->plan) < LARGE_BYTES && source->jpeg == NULL) {
        status = fl_image_plan_apply(self->plan->plan, params, source, data, &err);
    } else {
        Py_BEGIN_ALLOW_THREADS
        status = fl_image_plan_apply(self->plan->plan, params, source, data, &err);
        Py_END_ALLOW_THREADS
    }
    if (fl_py_check(status, &err, NULL) != 0) return -1;
    return fl_image_draws_applied(self->draws, params);
}

PyDoc_STRVAR(apply_doc,
             "apply(image, out, generator)\n--\n\n"
             "Draw the parameters for one image from a torch.Generator, advance the generator,\n"
             "and write the plan's result to `out`. The image is a tensor, an ndarray or a PIL\n"
             "image. Releases the interpreter lock. After ValueError or TypeError neither the\n"
             "generator nor `out` has changed, unless libjpeg has refused a JpegImage.\n\n"
             "Returns a number with bit i set if operation i was applied, or for Pad and crops if\n"
             "it has padded.");

static PyObject *draws_apply(fl_py_image_draws *self, PyObject *args)
{
    PyObject *image, *out, *generator, *owner = NULL;
    fl_image_source source;
    if (!PyArg_ParseTuple(args, "OOO:apply", &image, &out, &generator)) return NULL;
    if (fl_py_is_tensor(&self->dlpack, image) || fl_py_is_array(image) ||
        fl_py_image_plan_is_encoded(self->plan, image)) {
        if (fl_py_image_plan_source(self->plan, image, &source) != 0) return NULL;
    } else if ((owner = read_pil(self->plan, image, &source)) == NULL) {
        return NULL;
    }
    int64_t applied = apply(self, &source, out, generator);
    Py_XDECREF(owner);
    return applied >= 0 ? PyLong_FromLongLong(applied) : NULL;
}

static PyObject *draws_map_length(fl_py_image_draws *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(fl_image_plan_map_length(self->plan->plan));
}

static PyGetSetDef draws_getset[] = {
    {"map_length", (getter)draws_map_length, NULL, "map_length of the plan", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef draws_methods[] = {
    {"seed", (PyCFunction)draws_seed, METH_VARARGS, seed_doc},
    {"draw", (PyCFunction)draws_draw, METH_VARARGS, draw_doc},
    {"draw_from", (PyCFunction)draws_draw_from, METH_VARARGS, draw_from_doc},
    {"apply", (PyCFunction)draws_apply, METH_VARARGS, apply_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(draws_doc,
             "ImageDraws(plan, is_v1, is_fused, exp, log, tilt, weigh)\n--\n\n"
             "An ImagePlan with parameters drawn as torchvision's operations draw them.\n\n"
             "is_v1: draws as torchvision.transforms, otherwise as torchvision.transforms.v2.\n"
             "is_fused: see torch_draw. exp, log: functions that return torch's\n"
             "results for a float32. tilt: a function that returns the eight coefficients of\n"
             "a perspective from height, width, and x and y of four corners. weigh: a function\n"
             "that returns half the weights of a blur, the middle one first, from taps and\n"
             "sigma.");

static PyType_Slot draws_slots[] = {{Py_tp_doc, (void *)draws_doc},
                                    {Py_tp_new, draws_new},
                                    {Py_tp_traverse, draws_traverse},
                                    {Py_tp_dealloc, draws_dealloc},
                                    {Py_tp_methods, draws_methods},
                                    {Py_tp_getset, draws_getset},
                                    {0, NULL}};

PyType_Spec fl_py_image_draws_spec =
    FL_PY_SPEC("ImageDraws", fl_py_image_draws, Py_TPFLAGS_HAVE_GC, draws_slots);
