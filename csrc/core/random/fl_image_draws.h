/* fl_image_draws: the parameters of an image plan as torchvision's operations draw them.
 *
 * Floor 1. A plan draws its parameters from a key of the sample (fl_philox). Here they come from
 * torch's generator instead, as torchvision's operations draw them, in their order. The draws of
 * one batch are made at once, by the thread that knows its rows; the threads that fill the batch
 * get a copy. One thread at a time calls make and copy; nothing blocks. */
#ifndef FL_IMAGE_DRAWS_H
#define FL_IMAGE_DRAWS_H

#include "fl_image_plan.h"
#include "fl_torch_random.h"

/* torch.exp() of a float32: *out. Asked where the last bit of it decides, because torch's differs
 * from that of C libraries. 0, or -1: it is not known, and the draw fails. */
typedef struct fl_torch_exp {
    int (*call)(void *context, float x, float *out);
    void *context; /* borrowed */
} fl_torch_exp;

typedef struct fl_image_draws fl_image_draws;

/* What torchvision's version and torch decide beside the plan. */
typedef struct fl_draw_ways {
    bool is_v1;                           /* operations are those of torchvision.transforms, not v2:
                                             RandomCrop draws two numbers, unless the size fits, where
                                             v2 draws one for each axis that is longer; RandomApply
                                             applies also where the number is p itself */
    bool is_fused;                        /* as fl_torch_random_uniform has it */
    float log_ratio[FL_MAX_IMAGE_OPS][2]; /* of each operation: torch.log() of its ratio */
} fl_draw_ways;

/* plan: borrowed until close. FL_EINVAL: it has an operation that is not torchvision's as it stands
 * here, or a RandomApply of more than flips; FL_ENOMEM. The caller owns *out. */
int fl_image_draws_open(const fl_image_plan *plan, const fl_draw_ways *ways, fl_image_draws **out,
                        fl_err *err);
void fl_image_draws_close(fl_image_draws *self); /* NULL is fine */

/* How many parameters a row has: as many as the plan has operations. */
int32_t fl_image_draws_count(const fl_image_draws *self);

/* Draws for one image of size `in` into out[count]. Pure but for *random, which is anything after a
 * failure: that of fl_image_plan_draw; FL_EINVAL: exp has failed. Any thread. */
int fl_image_draws_one(const fl_image_draws *self, fl_torch_random *random, fl_image_size in,
                       const fl_torch_exp *exp, fl_image_params *out, fl_err *err);

/* Draws for a batch of so many rows, images of the plan's size, in place of those for the batch
 * before. On failure there are none, and *random is as it was: FL_ENOMEM, or as above. */
int fl_image_draws_make(fl_image_draws *self, fl_torch_random *random, int64_t rows,
                        const fl_torch_exp *exp, fl_err *err);

/* Copies what was made to out[rows * count]; may be called again for the same batch. FL_EINVAL:
 * it was made for another number of rows. */
int fl_image_draws_copy(const fl_image_draws *self, int64_t rows, fl_image_params *out,
                        fl_err *err);

#endif
