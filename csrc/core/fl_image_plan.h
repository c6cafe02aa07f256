/* fl_image_plan: operations on images as one pass from a source to the memory of a batch.
 *
 * Floor 1. A plan is read-only once open: any thread may draw and apply with it, in forked children
 * too. Two steps a sample: fl_image_plan_draw computes the parameters of each operation, a pure
 * function of plan, key and size; fl_image_plan_apply writes the image they make. An operation is
 * one row of the table in fl_image_plan.c and one file fl_op_*.c. docs/transforms.md tells how. */
#ifndef FL_IMAGE_PLAN_H
#define FL_IMAGE_PLAN_H

#include "fl_image_ops.h"
#include "fl_philox.h"

typedef struct fl_image_plan fl_image_plan;

typedef struct fl_image_size {
    int32_t height, width;
} fl_image_size;

typedef enum fl_image_op_kind {
    FL_OP_PAD,
    FL_OP_CENTER_CROP,
    FL_OP_RANDOM_CROP,
    FL_OP_RESIZE,
    FL_OP_RANDOM_RESIZED_CROP,
    FL_OP_HORIZONTAL_FLIP,
    FL_OP_VERTICAL_FLIP,
    FL_OP_ERASE,
    FL_OP_KINDS
} fl_image_op_kind;

typedef enum fl_padding_mode {
    FL_PAD_CONSTANT,
    FL_PAD_EDGE,
    FL_PAD_REFLECT,
    FL_PAD_SYMMETRIC,
    FL_PADDING_MODES
} fl_padding_mode;

enum { FL_MAX_IMAGE_OPS = 32, FL_MAX_FILL_BYTES = 4 * FL_MAX_CHANNELS };

/* An operation as it is asked for. Fields that its kind does not name are 0. */
typedef struct fl_image_op {
    fl_image_op_kind kind;
    uint8_t occurrence; /* how many of its kind come before it in the plan, < 8: its random numbers
                           have slot kind << 3 | occurrence, so other kinds do not change them */
    fl_image_size size; /* of the result. RESIZE: {n, 0} is n for the shorter edge */
    int32_t max_size;   /* RESIZE with {n, 0}: most of the longer edge; 0: none */
    fl_interpolation interpolation; /* RESIZE, RANDOM_RESIZED_CROP */
    fl_padding_mode padding_mode;   /* PAD, RANDOM_CROP */
    int32_t padding[4];             /* PAD, RANDOM_CROP: left, top, right, bottom */
    bool pad_if_needed;             /* RANDOM_CROP */
    double p;                       /* flips, ERASE: probability */
    double scale[2], ratio[2];      /* RANDOM_RESIZED_CROP, ERASE */
    /* PAD, RANDOM_CROP, CENTER_CROP: what padding holds, where a RESIZE comes after it. */
    uint8_t fill[FL_MAX_CHANNELS];
    /* PAD, RANDOM_CROP, CENTER_CROP, ERASE: what elements there are in the output, one of its type
     * for each channel. */
    uint8_t out_fill[FL_MAX_FILL_BYTES];
} fl_image_op;

/* The parameters of one operation for one sample. */
typedef struct fl_image_params {
    bool is_applied;    /* flips and ERASE: whether; else true */
    int32_t top, left;  /* crops, in the padded image; ERASE: of the rectangle */
    fl_image_size size; /* crops, ERASE: of the rectangle */
    int32_t padding[4]; /* what is padded in all: left, top, right, bottom */
    fl_image_size out;  /* of the image after this operation */
} fl_image_params;

typedef enum fl_image_layout { FL_CHW, FL_HWC, FL_IMAGE_LAYOUTS } fl_image_layout;

typedef struct fl_image_config {
    const fl_image_op *ops; /* copied */
    int32_t count;          /* <= FL_MAX_IMAGE_OPS */
    int32_t channels;       /* 1 to FL_MAX_CHANNELS */
    fl_image_size in;       /* of every image; {0, 0}: they differ */
    fl_image_type type;     /* of the output */
    fl_image_layout layout; /* of the output in memory */
    const void *tables;     /* copied: [channels][256] elements of `type`; NULL for FL_IMAGE_U8 */
    const float *linear;    /* copied: scale, mean, std of each channel, or NULL; the plan finds out
                               whether they give the tables (fl_image_cast) */
    uint64_t seed;
    const fl_image_ops *image_ops; /* borrowed, static */
} fl_image_config;

/* FL_EINVAL (what cannot be for any image, or for config->in: a crop that is larger, reflection of
 * more than there is, sizes of results that differ; the text names operation, argument, value and
 * remedy), FL_ENOMEM. The caller owns *out. */
int fl_image_plan_open(const fl_image_config *config, fl_image_plan **out, fl_err *err);
void fl_image_plan_close(fl_image_plan *plan); /* NULL is fine; nobody may be applying it */

fl_image_size fl_image_plan_in(const fl_image_plan *plan);  /* {0, 0}: images differ */
fl_image_size fl_image_plan_out(const fl_image_plan *plan); /* of every result */
int32_t fl_image_plan_count(const fl_image_plan *plan);     /* of operations */
const fl_image_op *fl_image_plan_op(const fl_image_plan *plan, int32_t i);
int32_t fl_image_plan_channels(const fl_image_plan *plan);
uint64_t fl_image_plan_seed(const fl_image_plan *plan);
int64_t fl_image_plan_out_bytes(const fl_image_plan *plan); /* of one result */

/* The parameters of each operation, params[fl_image_plan_count]. Pure. FL_EINVAL where the size of
 * the image is not that of the plan, or does not go with an operation. */
int fl_image_plan_draw(const fl_image_plan *plan, const fl_sample_key *key, fl_image_size in,
                       fl_image_params *params, fl_err *err);

/* One image: element (y, x, c) is data[y * stride_y + x * stride_x + c * stride_c], strides of any
 * sign. */
typedef struct fl_image_source {
    const uint8_t *data; /* borrowed */
    int64_t stride_y, stride_x, stride_c;
    fl_image_size size;
} fl_image_source;

/* Writes the image that the parameters make of `source` to out, fl_image_plan_out_bytes long.
 * Allocates only if never before so many threads were here at once, or images so large. FL_OK,
 * FL_ENOMEM. */
int fl_image_plan_apply(const fl_image_plan *plan, const fl_image_params *params,
                        const fl_image_source *source, void *out, fl_err *err);

#endif
