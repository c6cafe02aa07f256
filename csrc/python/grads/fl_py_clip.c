/* fl_py_clip: see fl_py_clip.h.
 *
 * The numbers between passes (norm, factor) stay on the device. No function here waits for the
 * device, except for the question whether to raise. For DTensors on the CPU the norm covers all
 * processes: Python is called for the one message between the passes. */
#include "fl_py_clip.h"

#include "fl_py_passes.h"
#include "fl_py_scalars.h"

#include <math.h>

int32_t fl_py_find_norm(double norm_type)
{
    if (norm_type == 2) return FL_NORM_2;
    if (norm_type == 1) return FL_NORM_1;
    return norm_type == INFINITY ? FL_NORM_MAX : -1;
}

static bool has_one_type(const fl_py_grads *self)
{
    return self->types != 0 && (self->types & (self->types - 1)) == 0;
}

/* Returns true if the engine computes this norm of these gradients as torch does, in one dtype.
 * torch refuses the maximum of a tensor without elements. */
static bool can_clip(const fl_py_grads *self, const fl_py_clip *clip)
{
    int32_t norm = fl_py_find_norm(clip->norm_type);
    if (!self->is_plain || !has_one_type(self) || norm < 0) return false;
    if (norm == FL_NORM_MAX && fl_py_grads_empty(self) > 0) return false;
    if (!self->has_shards) return true;
    if (clip->error_if_nonfinite) return false; /* Python raises */
    uint64_t kinds = self->tensor_kinds | self->missing_kinds;
    bool has_one_kind = self->tensor_kinds != 0 && (kinds & (kinds - 1)) == 0;
    return self->device == FL_PY_CPU && has_one_kind && !(self->types & 1U << FL_F64);
}

/* Casts a norm to the gradients' dtype. New reference. */
static PyObject *as_total_norm(const fl_py_grads *self, PyObject *norm)
{
    int32_t type = 0;
    while (!(self->types & 1U << type)) type++;
    return PyObject_CallMethod(norm, "to", "O", self->dtypes[type]);
}

/* Converts the norm to the object that torch returns; for DTensors a DTensor. Takes the reference
 * to `total`. */
static PyObject *as_torchs(const fl_py_grads *self, PyObject *total)
{
    if (total == NULL || !self->has_shards) return total;
    PyObject *answer = PyObject_CallMethod(self->shard_layouts, "as_total_norm", "KO",
                                           (unsigned long long)self->tensor_kinds, total);
    Py_DECREF(total);
    return answer;
}

/* Tells whether the caller will raise for this norm: 1, 0, -1 exception. SYNC with
 * error_if_nonfinite. */
static int is_error(const fl_py_clip *clip, PyObject *total_norm)
{
    if (!clip->error_if_nonfinite) return 0;
    PyObject *answer = PyObject_CallMethod(total_norm, "isfinite", NULL);
    int is_finite = answer != NULL ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return is_finite < 0 ? -1 : !is_finite;
}

/* Makes a 0-d float64 tensor on the tensors' device, and finds the address of its number: 0, -1
 * exception. */
static int make_number(fl_py_grads *self, PyObject **number, void **at)
{
    int32_t device = self->device;
    PyObject *like = PyList_GetItem(self->tensors, 0);
    *number = like != NULL ? PyObject_CallOneArg(self->new_number, like) : NULL;
    if (*number == NULL) return -1;
    *at = fl_py_scalar_address(&self->dlpack, *number, kDLFloat, 64, &device);
    if (*at != NULL) return 0;
    Py_CLEAR(*number);
    return -1;
}

/* Returns the address of memory for one number that only the caller needs. On the CPU the address
 * is `host`; on a device the memory belongs to a new tensor, *holder, and the caller releases
 * *holder. NULL and an exception. */
static void *make_room(fl_py_grads *self, double *host, PyObject **holder)
{
    void *at = host;
    *holder = NULL;
    return self->device == FL_PY_CPU || make_number(self, holder, &at) == 0 ? at : NULL;
}

/* Replaces *at, the norm of this process's parts of DTensors on the CPU, with the norm of all
 * processes. *at is the number in the tensor `norm`. All processes must call this function
 * together: 0, -1 exception. An element that is not finite makes the norm infinite or NaN; then
 * *found_inf is set in all processes. */
static int
join_norm(const fl_py_grads *self, int32_t norm_type, PyObject *norm, double *at, float *found_inf)
{
    int kind = 0;
    bool is_square = norm_type == FL_NORM_2;
    while (!((self->tensor_kinds | self->missing_kinds) >> kind & 1)) kind++;
    /* Processes compare numbers as integers, and integers order a NaN by its sign. */
    *at = is_square ? *at * *at : fabs(*at);
    PyObject *answer = PyObject_CallMethod(self->shard_layouts, "reduce", "iOi", kind, norm,
                                           norm_type == FL_NORM_MAX);
    if (answer == NULL) return -1;
    Py_DECREF(answer);
    if (!(*at < INFINITY)) *found_inf = 1;
    *at = is_square ? sqrt(fabs(*at)) : fabs(*at);
    return 0;
}

/* Reads the gradients. Returns the norm of gradients / *scale in the gradients' dtype, as a new
 * tensor. *norm becomes the same norm in double, a new tensor, and *norm_at the address of its
 * number. NULL and an exception. */
static PyObject *read_norm(fl_py_grads *self, fl_thread_pool *pool, const fl_py_clip *clip,
                           const float *scale, float *found_inf, PyObject **norm, void **norm_at)
{
    fl_divisor by = {.scale = self->has_shards ? NULL : scale, .constant = 1};
    int32_t norm_type = fl_py_find_norm(clip->norm_type);
    if (make_number(self, norm, norm_at) != 0) return NULL;
    if (fl_py_pass_norm_check(self, pool, norm_type, by, found_inf, *norm_at) != 0) return NULL;
    if (self->has_shards) {
        double *at = *norm_at;
        if (join_norm(self, norm_type, *norm, at, found_inf) != 0) return NULL;
        if (scale != NULL) *at /= *scale;
    }
    return as_total_norm(self, *norm);
}

/* Multiplies the gradients by the factor that divides by *scale and also clips, unless norm is NULL
 * or *found_inf is set. `room` is the memory for the factor. 0, -1 exception. */
static int divide(fl_py_grads *self, fl_thread_pool *pool, const fl_py_clip *clip,
                  const float *scale, const float *found_inf, const double *norm, double *room)
{
    fl_divisor by = {.scale = scale, .constant = 1};
    if (fl_py_find_clip_factor(&self->launcher, &self->dlpack, self->device, norm, clip->max_norm,
                               found_inf, by, room) != 0)
        return -1;
    return fl_py_pass_scale(self, pool, room);
}

static int
unscale(fl_py_grads *self, fl_thread_pool *pool, const float *scale, float *found_inf, float *room)
{
    if (fl_py_invert(&self->launcher, &self->dlpack, self->device, scale, room) != 0) return -1;
    return fl_py_pass_unscale(self, pool, room, found_inf);
}

static PyObject *read_and_divide(fl_py_grads *self, fl_thread_pool *pool, const fl_py_clip *clip,
                                 const float *scale, float *found_inf, void *room)
{
    PyObject *norm = NULL;
    void *norm_at;
    PyObject *total = read_norm(self, pool, clip, scale, found_inf, &norm, &norm_at);
    int must_raise = total != NULL ? is_error(clip, total) : -1;
    if (must_raise == 1) norm_at = NULL; /* the caller raises: gradients are not clipped */
    if (must_raise < 0 || divide(self, pool, clip, scale, found_inf, norm_at, room) != 0)
        Py_CLEAR(total);
    Py_XDECREF(norm);
    return as_torchs(self, total);
}

static PyObject *unscale_collected(fl_py_grads *self, fl_thread_pool *pool, const float *scale,
                                   float *found_inf, const fl_py_clip *clip)
{
    double host;
    PyObject *holder, *answer;
    void *room = make_room(self, &host, &holder);
    if (room == NULL) return NULL;
    if (clip != NULL && can_clip(self, clip))
        answer = read_and_divide(self, pool, clip, scale, found_inf, room);
    else
        answer = unscale(self, pool, scale, found_inf, room) == 0 ? Py_NewRef(Py_True) : NULL;
    Py_XDECREF(holder);
    return answer;
}

PyObject *fl_py_unscale_and_clip(fl_py_grads *self, fl_thread_pool *pool, PyObject *groups,
                                 PyObject *scale, PyObject *found_inf, const fl_py_clip *clip)
{
    int32_t device = FL_PY_ANYWHERE;
    PyObject *answer = NULL;
    float *scale_at = NULL, *found_at = NULL;
    /* Take the addresses after the collection, because collecting runs the user's code. */
    if (fl_py_grads_collect(self, groups, FL_PY_GROUPS) == 0)
        scale_at = fl_py_scalar_address(&self->dlpack, scale, kDLFloat, 32, &device);
    if (scale_at != NULL)
        found_at = fl_py_scalar_address(&self->dlpack, found_inf, kDLFloat, 32, &device);
    if (found_at != NULL) {
        bool has_any = self->is_plain && PyList_GET_SIZE(self->tensors) > 0;
        bool is_here = has_any && self->device == device && !(self->types & 1U << FL_F16);
        bool is_covered = is_here && (!self->has_shards || (clip != NULL && can_clip(self, clip)));
        answer = is_covered ? unscale_collected(self, pool, scale_at, found_at, clip)
                            : Py_NewRef(Py_False);
    }
    if (answer != Py_False && fl_py_grads_release(self) != 0) Py_CLEAR(answer);
    return answer;
}

static PyObject *clip_collected(fl_py_grads *self, fl_thread_pool *pool, const fl_py_clip *clip)
{
    double host = 0;
    PyObject *holder, *norm = NULL;
    void *norm_at, *room = make_room(self, &host, &holder);
    if (room == NULL) return NULL;
    /* The pass writes its found_inf flag to `room`. This function ignores the flag, and reuses the
     * memory for the factor. */
    PyObject *total = read_norm(self, pool, clip, NULL, room, &norm, &norm_at);
    int must_raise = total != NULL ? is_error(clip, total) : -1;
    if (must_raise < 0 ||
        (must_raise == 0 && divide(self, pool, clip, NULL, NULL, norm_at, room) != 0))
        Py_CLEAR(total);
    if (must_raise == 0) total = as_torchs(self, total);
    if (must_raise == 1) Py_SETREF(total, Py_NewRef(Py_None));
    Py_XDECREF(norm);
    Py_XDECREF(holder);
    return total;
}

PyObject *fl_py_clip_parameters(fl_py_grads *self, fl_thread_pool *pool, PyObject *parameters,
                                const fl_py_clip *clip)
{
    PyObject *norm = NULL;
    if (fl_py_grads_collect(self, parameters, FL_PY_PARAMETERS) == 0)
        norm = can_clip(self, clip) ? clip_collected(self, pool, clip) : Py_NewRef(Py_None);
    if (norm != Py_None && fl_py_grads_release(self) != 0) Py_CLEAR(norm);
    return norm;
}
