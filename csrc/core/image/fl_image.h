/* fl_image: the words that all files of image plans share.
 *
 * Floor 1. Sizes, operations as requested, their parameters for one sample, the memory of
 * an image. Plain data. */
#ifndef FL_IMAGE_H
#define FL_IMAGE_H

#include "fl_image_ops.h"

typedef struct fl_image_size {
    int32_t height, width;
} fl_image_size;

/* The numbers are part of what users can reproduce (fl_image_op.occurrence): new ones go last. */
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
    FL_OP_APPLY,  /* holds the `span` operations behind it */
    FL_OP_CHOICE, /* these hold branches, one of which is applied; */
    FL_OP_ORDER,  /* or all, in a random order */
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
    FL_OP_NUMBERS = 10,    /* arguments of a kind's own */
    FL_DRAWN_NUMBERS = 16, /* drawn for one operation */
    FL_MAX_ORDER = 16,     /* branches of one operation */
    FL_MAX_POLICY_OPS = 8, /* of RAND_AUGMENT */
    FL_MIX_LEVELS = 10,    /* AUG_MIX: magnitudes, */
    FL_MAX_CHAINS = 6,     /* and chains, */
    FL_MAX_MIXED = 9       /* and operations of all chains */
};

/* An operation as requested. Fields that its kind does not name are 0. */
typedef struct fl_image_op {
    fl_image_op_kind kind;
    uint8_t occurrence; /* how many of its kind come before it, < 8 for those that draw: its random
                           numbers have slot kind << 3 | occurrence, so other kinds do not change
                           them */
    int32_t span;       /* how many of the operations behind it it holds, theirs included */
    fl_image_size size; /* of the result. BLUR: odd numbers of taps. RESIZE: {n, 0} is n for the
                           shorter edge, {0, 0} is max_size for the longer one */
    int32_t max_size;   /* RESIZE with {n, 0} or {0, 0}: most of the longer edge; 0: none */
    fl_interpolation interpolation;   /* RESIZE, RANDOM_RESIZED_CROP */
    fl_padding_mode padding_mode;     /* PAD, RANDOM_CROP */
    int32_t padding[4];               /* PAD, RANDOM_CROP: left, top, right, bottom */
    bool pad_if_needed;               /* RANDOM_CROP */
    double p;                         /* operations with a probability */
    double scale[2], ratio[2];        /* RANDOM_RESIZED_CROP, ERASE */
    double log_ratio[2];              /* set by the plan */
    int32_t channels;                 /* set by the plan: of the image before it */
    union {                           /* arguments of one kind, or of a few similar kinds */
        double number[FL_OP_NUMBERS]; /* the same memory as a list: Python's `number` */
        double tone;                  /* SOLARIZE: threshold. POSTERIZE: bits. SHARPNESS: factor */
        double grey_channels;         /* GRAYSCALE: of the result */
        double blur_sigma[2];         /* BLUR: the least and the largest */
        double jitter[4][2]; /* COLOR_JITTER, PHOTOMETRIC_DISTORT: least and most brightness,
                                contrast, saturation and hue; NaN: stays */
        double branch_end;   /* BRANCH of CHOICE: the upper end of its part of [0, 1] */
        double distortion;   /* PERSPECTIVE */
        double policy;       /* AUTO_AUGMENT */
        struct {
            double mean, sigma, clips; /* clips: 1 or 0 */
        } noise;
        struct {
            double degrees[2], translate[2], scale[2], shear[2][2];
        } affine; /* translate: parts of the edges. ROTATION: degrees alone */
        struct {
            double ops, magnitude, bins;
        } rand_augment; /* TRIVIAL_AUGMENT: bins alone */
        struct {
            double severity, width, depth, alpha, has_all; /* depth < 1: drawn; has_all: 1 or 0 */
        } aug_mix;
    };
    /* AFFINE, ROTATION, PERSPECTIVE, policies, which sample an image at other places: */
    double center[2];               /* NaN: the middle */
    double border[FL_MAX_CHANNELS]; /* what lies around the image; NaN: nothing */
    /* PAD, RANDOM_CROP, CENTER_CROP: what padding holds as bytes, where an operation after it
     * reads pixels. Else only the speed depends on it: best is what out_fill is cast from. */
    uint8_t fill[FL_MAX_CHANNELS];
    /* PAD, RANDOM_CROP, CENTER_CROP, ERASE: what elements there are in the output, one of its type
     * for each channel. */
    uint8_t out_fill[FL_MAX_FILL_BYTES];
} fl_image_op;

/* The parameters of one operation for one sample. */
typedef struct fl_image_params {
    bool is_applied;    /* operations with a probability, and those that others hold: whether; else
                           true */
    int32_t top, left;  /* crops, in the padded image; ERASE: of the rectangle */
    fl_image_size size; /* crops, ERASE: of the rectangle */
    int32_t padding[4]; /* what is padded in all: left, top, right, bottom */
    fl_image_size out;  /* of the image after this operation */
    union {
        float number[FL_DRAWN_NUMBERS]; /* all of it; policies: magnitudes */
        float change[4]; /* COLOR_JITTER, PHOTOMETRIC_DISTORT: as jitter; NaN: it stays */
        float sigma;     /* BLUR */
        struct {
            float angle, translate[2], scale, shear[2];
        } affine;              /* ROTATION: angle alone */
        float coefficients[8]; /* PERSPECTIVE */
    };
    /* COLOR_JITTER: the order of these four. CHANNEL_PERMUTATION: the channel that becomes channel
     * k. PHOTOMETRIC_DISTORT: likewise; [0] -1: channels stay. Policies: operations. CHOICE: [0]
     * the branch. ORDER: branches. */
    int8_t order[FL_MAX_ORDER];
    uint64_t seed; /* NOISE: of its numbers */
    bool is_early; /* PHOTOMETRIC_DISTORT: contrast comes before the others */
} fl_image_params;

/* One image: element (y, x, c) is data[y * stride_y + x * stride_x + c * stride_c], strides of any
 * sign. */
typedef struct fl_image_source {
    const uint8_t *data; /* borrowed */
    int64_t stride_y, stride_x, stride_c;
    fl_image_size size;
} fl_image_source;

#endif
