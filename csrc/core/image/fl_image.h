/* fl_image: the types that all files of image plans share.
 *
 * Floor 1. Sizes, operations as requested, their parameters for one sample, the memory of an image.
 * Plain data. */
#ifndef FL_IMAGE_H
#define FL_IMAGE_H

#include "fl_image_ops.h"
#include "fl_jpeg.h"

typedef struct fl_image_size {
    int32_t height, width;
} fl_image_size;

/* Users can reproduce random numbers by these values (fl_image_op.occurrence), so new kinds go
 * last. */
typedef enum fl_image_op_kind {
    FL_OP_PAD,
    FL_OP_CENTER_CROP,
    FL_OP_RANDOM_CROP,
    FL_OP_RESIZE,
    FL_OP_RANDOM_RESIZED_CROP,
    FL_OP_HORIZONTAL_FLIP,
    FL_OP_VERTICAL_FLIP,
    FL_OP_ERASE,
    FL_OP_INVERT,
    FL_OP_SOLARIZE,
    FL_OP_POSTERIZE,
    FL_OP_AUTOCONTRAST,
    FL_OP_EQUALIZE,
    FL_OP_GRAYSCALE,
    FL_OP_RANDOM_GRAYSCALE,
    FL_OP_COLOR_JITTER,
    FL_OP_CHANNEL_PERMUTATION,
    FL_OP_PHOTOMETRIC_DISTORT,
    FL_OP_SHARPNESS,
    FL_OP_BLUR,
    FL_OP_APPLY,  /* holds the next `span` operations */
    FL_OP_CHOICE, /* CHOICE and ORDER hold branches. CHOICE applies one branch, */
    FL_OP_ORDER,  /* ORDER applies all branches in a random order */
    FL_OP_BRANCH,
    FL_OP_ROTATION,
    FL_OP_AFFINE,
    FL_OP_PERSPECTIVE,
    FL_OP_RAND_AUGMENT,
    FL_OP_TRIVIAL_AUGMENT,
    FL_OP_AUTO_AUGMENT,
    FL_OP_NOISE,
    FL_OP_AUG_MIX,
    FL_OP_KINDS
} fl_image_op_kind;

typedef enum fl_padding_mode {
    FL_PAD_CONSTANT,
    FL_PAD_EDGE,
    FL_PAD_REFLECT,
    FL_PAD_SYMMETRIC,
    FL_PADDING_MODES
} fl_padding_mode;

enum {
    FL_MAX_IMAGE_OPS = 32,
    FL_MAX_FILL_BYTES = 4 * FL_MAX_CHANNELS,
    FL_OP_NUMBERS = 11,    /* most arguments of one kind */
    FL_DRAWN_NUMBERS = 16, /* most numbers drawn for one operation */
    FL_GIVEN_WEIGHTS = 31, /* most weights of a blur that torch computes */
    FL_MAX_ORDER = 16,     /* most branches of one operation */
    FL_MAX_POLICY_OPS = 8, /* most operations of RAND_AUGMENT */
    FL_MIX_LEVELS = 10,    /* AUG_MIX: most magnitudes, */
    FL_MAX_CHAINS = 6,     /* most chains, */
    FL_MAX_MIXED = 9       /* and most operations of all chains */
};

enum fl_drawn_parts {
    FL_DRAWS_MOVE = 1,
    FL_DRAWS_SCALE = 2,
    FL_DRAWS_SHEAR_X = 4,
    FL_DRAWS_SHEAR_Y = 8
};

/* An operation as requested. A field whose comment does not name the operation's kind is 0. */
typedef struct fl_image_op {
    fl_image_op_kind kind;
    uint8_t occurrence; /* how many operations of the same kind come before; < 8 for kinds that
                           draw. Random numbers have slot kind << 3 | occurrence, so operations of
                           different kinds do not change each other's numbers */
    fl_image_arithmetic arithmetic;
    bool is_v1;   /* AFFINE and policies: matrices and thresholds are computed as in
                     torchvision.transforms, not as in v2 */
    int32_t span; /* how many of the next operations this operation holds, including operations that
                     they hold */
    fl_image_size size; /* of the result. BLUR: odd numbers of taps. RESIZE: {n, 0}: the shorter
                           edge is n; {0, 0}: the longer edge is max_size */
    int32_t max_size;   /* RESIZE with {n, 0} or {0, 0}: bound of the longer edge; 0: none */
    fl_interpolation interpolation; /* RESIZE, RANDOM_RESIZED_CROP */
    fl_padding_mode padding_mode;   /* PAD, RANDOM_CROP */
    int32_t padding[4];             /* PAD, RANDOM_CROP: left, top, right, bottom */
    bool pad_if_needed;             /* RANDOM_CROP */
    double p; /* operations with a probability. BRANCH of CHOICE: torchvision's weight of it */
    double scale[2], ratio[2]; /* RANDOM_RESIZED_CROP, ERASE */
    double log_ratio[2];       /* set by the plan */
    int32_t channels;          /* set by the plan: channels of the image before the operation */
    fl_image_size out; /* set by the plan: the size after the operation, if images have one size */
    union {            /* arguments of one kind, or of a few similar kinds */
        double number[FL_OP_NUMBERS]; /* the same memory as a list: Python's `number` */
        double tone;                  /* SOLARIZE: threshold. POSTERIZE: bits. SHARPNESS: factor */
        double grey_channels;         /* GRAYSCALE: channels of the result */
        double blur_sigma[2];         /* BLUR: the least and the largest */
        double jitter[4][2]; /* COLOR_JITTER, PHOTOMETRIC_DISTORT: least and most brightness,
                                contrast, saturation and hue; NaN: no change */
        double branch_end;   /* BRANCH of CHOICE: the upper end of the branch's part of [0, 1] */
        double distortion;   /* PERSPECTIVE */
        double policy;       /* AUTO_AUGMENT */
        struct {
            double mean, sigma, clips; /* clips: 1 or 0 */
        } noise;
        struct {
            double degrees[2], translate[2], scale[2], shear[2][2];
            double drawn; /* sum of fl_drawn_parts: what torchvision draws beside the angle */
        } affine;         /* translate: shares of the edges. ROTATION: only degrees */
        struct {
            double ops, magnitude, bins;
        } rand_augment; /* TRIVIAL_AUGMENT: only bins */
        struct {
            double severity, width, depth, alpha, has_all; /* depth < 1: drawn; has_all: 1 or 0 */
        } aug_mix;
    };
    /* AFFINE, ROTATION, PERSPECTIVE and policies sample the image at computed positions: */
    double center[2];               /* NaN: the middle */
    double border[FL_MAX_CHANNELS]; /* the value around the image; NaN: no value */
    /* PAD, RANDOM_CROP, CENTER_CROP: the bytes of padding, if a later operation reads pixels. If no
     * operation does, only the speed depends on these bytes: the fastest are the bytes that
     * out_fill is cast from. */
    uint8_t fill[FL_MAX_CHANNELS];
    /* PAD, RANDOM_CROP, CENTER_CROP, ERASE: the elements of padding in the output, one element of
     * the output's type for each channel. */
    uint8_t out_fill[FL_MAX_FILL_BYTES];
} fl_image_op;

/* The parameters of one operation for one sample. */
typedef struct fl_image_params {
    bool is_applied; /* operations with a probability, and operations that are held: applied to this
                        sample; else true */
    bool is_early;   /* PHOTOMETRIC_DISTORT: contrast is changed before saturation and hue */
    int32_t top, left;  /* crops: in the padded image; ERASE: of the rectangle */
    fl_image_size size; /* crops, ERASE: of the rectangle */
    int32_t padding[4]; /* the whole padding: left, top, right, bottom */
    fl_image_size out;  /* of the image after this operation */
    union {
        float number[FL_DRAWN_NUMBERS]; /* the same memory as a list; policies: magnitudes */
        float change[4]; /* COLOR_JITTER, PHOTOMETRIC_DISTORT: in the order of jitter; NaN: no
                            change */
        struct {
            /* Weights that torch has computed, from the middle outwards: in x and, if the taps in y
             * are not as many, in y. The first is 0: the weights follow from sigma. */
            float sigma, weight[FL_GIVEN_WEIGHTS];
        } blur;
        struct {
            float angle, translate[2], scale, shear[2];
        } affine;              /* ROTATION: only angle */
        float coefficients[8]; /* PERSPECTIVE */
    };
    /* COLOR_JITTER: the order of its four changes. CHANNEL_PERMUTATION: order[k] is the channel
     * that becomes channel k. PHOTOMETRIC_DISTORT: the same; [0] -1: channels stay. Policies:
     * operations. CHOICE: [0] is the branch. ORDER: branches. */
    int8_t order[FL_MAX_ORDER];
    uint64_t seed; /* NOISE: seed of the noise */
} fl_image_params;

/* The parts of a map for a device, which the plan finds at open: fl_image_plan_map. */
typedef struct fl_image_map {
    int32_t numbers; /* in the whole map; 0: a device cannot run the plan */
    int32_t runs_at; /* place of the runs that a resize reads: they are the last numbers */
    int32_t erases;  /* operations that erase */
    int32_t steps;   /* the most steps on colours that any image may need */
    int32_t resize;  /* the first operation that resizes; the number of operations: none */
} fl_image_map;

/* Clips samples [*from, *from + *length) to [0, limit). */
FL_HOST_DEVICE void fl_image_clip(int32_t *from, int32_t *length, int32_t limit)
{
    int32_t end = *from + *length;
    if (*from < 0) *from = 0;
    if (end > limit) end = limit;
    *length = end > *from ? end - *from : 0;
}

/* One image: element (y, x, c) is data[y * stride_y + x * stride_x + c * stride_c], with strides of
 * any sign. */
typedef struct fl_image_source {
    const uint8_t *data; /* borrowed */
    int64_t stride_y, stride_x, stride_c;
    fl_image_size size;
    bool is_padded; /* each pixel has FL_MAX_CHANNELS bytes, and all of these bytes may be read */
    /* The image, as RGB, if it is not in `data`; else NULL. */
    const fl_ycc *ycc;   /* borrowed */
    const fl_jpeg *jpeg; /* borrowed: a file. Only the part that is read is decoded */
} fl_image_source;

#endif
