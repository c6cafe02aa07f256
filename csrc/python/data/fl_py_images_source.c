/* fl_py_images_source: a field of images. An ImagePlan makes the rows of a batch from them. If the
 * field has ImageDraws instead, these hold the plan and draw its parameters. */
#include "fl_py_source.h"

#include "fl_column_image.h"
#include "fl_cpu_rows.h"
#include "fl_py_image_draws.h"

/* NULL: the plan draws its parameters. */
static const fl_py_image_draws *draws_of(const fl_py_source *self)
{
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE(self->plan));
    bool is_drawn = Py_IS_TYPE(self->plan, state->image_draws_type);
    return is_drawn ? (const fl_py_image_draws *)self->plan : NULL;
}

static const fl_py_image_plan *plan_of(const fl_py_source *self)
{
    const fl_py_image_draws *draws = draws_of(self);
    return draws != NULL ? draws->plan : (const fl_py_image_plan *)self->plan;
}

/* True if the destination of the batch runs the whole plan. */
static bool is_made_there(const fl_py_source *self)
{
    return self->is_whole && fl_image_plan_map_length(plan_of(self)->plan) > 0;
}

static bool is_cast(const fl_py_source *self)
{
    return is_made_there(self) || (self->is_cut && plan_of(self)->cut != NULL);
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
    if (config.cast.count > 0 && config.cast.kind == FL_CAST_LOOK_UP) config.plan = plan->cut;
    memcpy(config.shape, plan->shape, sizeof config.shape);
    memcpy(config.stride, plan->stride, sizeof config.stride);
    return fl_column_image_open(&config, out, err);
}

const fl_py_source_ops fl_py_images_source_ops = {
    .list = fl_py_source_list_array, .open = open_images, .is_cast = is_cast};
