/* fl_image_steps: operations that the caller has drawn, on an image of PIL, with Pillow's bits.
 *
 * Floor 1. Some libraries draw the operations of an image from generators that fastloop does not
 * replay. The caller then draws, and fl_image_plan_apply_steps applies the steps after the plan's
 * own operations.
 * Plain data, one thread. */
#ifndef FL_IMAGE_STEPS_H
#define FL_IMAGE_STEPS_H

#include "fl_image.h"

typedef struct fl_image_view fl_image_view;

enum { FL_DRAWN_STEP_NUMBERS = 6, FL_MAX_STEPS = 16 /* of one image */ };

typedef enum fl_step_kind {
    FL_STEP_TONE,   /* number: of the tone */
    FL_STEP_ADD,    /* adds number to bytes below 128, at most up to 255; 0 <= number <= 255 */
    FL_STEP_ROTATE, /* Image.rotate(); number: degrees */
    FL_STEP_AFFINE, /* Image.transform(); number: the matrix */
} fl_step_kind;

typedef struct fl_image_step {
    fl_step_kind kind;
    fl_tone tone;         /* TONE: FL_TONE_INVERT to FL_TONE_SHARPNESS, but no FL_TONE_HUE */
    fl_interpolation how; /* ROTATE, AFFINE: FL_NEAREST, FL_BILINEAR or FL_BICUBIC */
    double number[FL_DRAWN_STEP_NUMBERS];
} fl_image_step;

/* The steps for one image, in their order. */
typedef struct fl_image_steps {
    fl_image_step step[FL_MAX_STEPS];
    int32_t count;
    double border[3]; /* each channel outside of the image */
} fl_image_steps;

/* Sets kind and tone of the step with this name, for example "Rotate". FL_EINVAL. */
int fl_image_step_find(const char *name, fl_image_step *out, fl_err *err);

/* Checks the numbers of steps for an image of `size`. FL_EINVAL. */
int fl_image_steps_check(const fl_image_steps *steps, fl_image_size size, fl_err *err);

/* Applies checked steps to a view of 3 channels. FL_ENOMEM. */
int fl_image_steps_apply(const fl_image_steps *steps, fl_image_view *view, fl_err *err);

#endif
