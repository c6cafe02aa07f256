/* fl_image_draws: the parameters of an image plan as torchvision's operations draw them.
 *
 * Floor 1. A plan draws its parameters from a key of the sample (fl_philox). Here the parameters
 * come from torch's generator instead, as torchvision's operations draw them, in their order. The
 * draws of one batch are made at once, by the thread that knows the batch's rows; the threads that
 * fill the batch get a copy. One thread at a time calls make and copy; nothing blocks. */
#ifndef FL_IMAGE_DRAWS_H
#define FL_IMAGE_DRAWS_H

#include "fl_image_drawing.h"
#include "fl_image_plan.h"

typedef struct fl_image_draws fl_image_draws;

/* Opens draws for a plan, which is borrowed until close. The caller owns *out. FL_EINVAL: the plan
 * has an operation that torchvision draws in a different way, or whose pixels depend on the machine
 * for images of the plan's size; FL_ENOMEM. */
int fl_image_draws_open(const fl_image_plan *plan, const fl_draw_ways *ways, fl_image_draws **out,
                        fl_err *err);
void fl_image_draws_close(fl_image_draws *self); /* NULL is fine */

/* Returns how many parameters a row has: one for each operation of the plan. */
int32_t fl_image_draws_count(const fl_image_draws *self);

/* Draws for one image of size `in` into out[count]. Changes only *out and *random. Fails as
 * fl_image_plan_draw does, and with FL_EINVAL if an answer is not known; after a failure *random is
 * undefined. Any thread. */
int fl_image_draws_one(const fl_image_draws *self, fl_torch_random *random, fl_image_size in,
                       const fl_torch_answers *answers, fl_image_params *out, fl_err *err);

/* Returns a bit for each operation, from the parameters of an image: whether it is applied; of
 * operations that may pad: whether it pads. Bits of operations inside a gate or a branch that is
 * not applied are 0. */
uint32_t fl_image_draws_applied(const fl_image_draws *self, const fl_image_params *params);

/* Draws for a batch of `rows` images of the plan's size, and drops the draws for the batch before.
 * On failure there are no draws, and *random has not changed: FL_ENOMEM, or the errors of
 * fl_image_draws_one. */
int fl_image_draws_make(fl_image_draws *self, fl_torch_random *random, int64_t rows,
                        const fl_torch_answers *answers, fl_err *err);

/* Copies the draws of the last make to out[rows * count]; may be called again for the same batch.
 * FL_EINVAL: the draws were made for a different number of rows. */
int fl_image_draws_copy(const fl_image_draws *self, int64_t rows, fl_image_params *out,
                        fl_err *err);

#endif
