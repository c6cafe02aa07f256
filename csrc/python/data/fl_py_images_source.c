/* fl_py_images_source: a field of images, a pair (array, plan). The plan makes the images of a
 * batch from the rows of the array. ImageDraws stand for a plan whose random parameters torch
 * draws. */
#include "fl_py_source.h"

#include "fl_column_image.h"
#include "fl_cpu_rows.h"
#include "fl_py_image_draws.h"

static PyObject *object_of(const fl_py_source *self) { return PyTuple_GET_ITEM(self->object, 1); }

/* Returns the ImageDraws of a source; NULL: the plan draws its own parameters. */
static const fl_py_image_draws *draws_of(const fl_py_source *self)
{
    bool has_draws = Py_IS_TYPE(object_of(self), self->state->image_draws_type);
    return has_draws ? (const fl_py_image_draws *)object_of(self) : NULL;
}

static const fl_py_image_plan *plan_of(const fl_py_source *self)
{
    const fl_py_image_draws *draws = draws_of(self);
    return draws != NULL ? draws->plan : (const fl_py_image_plan *)object_of(self);
}

static int64_t list(const fl_py_source *self, fl_py_part *parts)
{
    if (draws_of(self) != NULL || Py_IS_TYPE(object_of(self), self->state->image_plan_type))
        return fl_py_source_list_array(self, PyTuple_GET_ITEM(self->object, 0), parts);
    return FL_PY_FAIL(PyExc_TypeError, "the plan of images must be an ImagePlan or ImageDraws");
}

/* Returns true if the device runs the whole plan. */
static bool is_made_there(const fl_py_source *self)
{
    return self->share == FL_PY_HOST_LEAST && fl_image_plan_map_length(plan_of(self)->plan) > 0;
}

static bool is_cast(const fl_py_source *self)
{
    return is_made_there(self) ||
           (self->share != FL_PY_HOST_ALL && plan_of(self)->host_part != NULL);
}

static int
open_images(const fl_py_source *self, const fl_py_part *parts, fl_column **out, fl_err *err)
{
    const fl_py_image_plan *plan = plan_of(self);
    const fl_py_image_draws *draws = draws_of(self);
    fl_column_image_config config = {.view = parts->view,
                                     .layout = plan->layout,
                                     .is_volatile = self->is_volatile,
                                     .plan = plan->plan,
                                     .draws = draws != NULL ? draws->draws : NULL,
                                     .dtype = plan->dtype,
                                     .row_ops = &fl_cpu_row_ops};
    if (is_cast(self)) config.cast = fl_py_image_plan_cast(plan, is_made_there(self));
    if (config.cast.count > 0 && config.cast.kind == FL_CAST_LOOK_UP) config.plan = plan->host_part;
    memcpy(config.shape, plan->shape, sizeof config.shape);
    memcpy(config.stride, plan->stride, sizeof config.stride);
    return fl_column_image_open(&config, out, err);
}

const fl_py_source_ops fl_py_images_source_ops = {
    .list = list, .open = open_images, .is_cast = is_cast, .has_views = true};
