/* fl_image_plan: operations on images as one pass from a source to the memory of a batch.
 *
 * Floor 1. A plan is read-only once open: any thread may draw and apply with it, in forked children
 * too. Two steps a sample: fl_image_plan_draw computes the parameters of each operation, a pure
 * function of plan, key and size; fl_image_plan_apply writes the image they make. An operation is
 * one row of the table in fl_image_plan.c and one file fl_op_*.c. docs/internals/image-plan.md
 * tells how. */
#ifndef FL_IMAGE_PLAN_H
#define FL_IMAGE_PLAN_H

#include "fl_image.h"
#include "fl_philox.h"

typedef struct fl_image_plan fl_image_plan;
typedef struct fl_image_output fl_image_output;
typedef struct fl_image_view fl_image_view;
typedef struct fl_resample_cache fl_resample_cache;

/* Returns torchvision's name for this kind of operation. The string is static. */
const char *fl_image_op_name(fl_image_op_kind kind);

typedef enum fl_image_layout { FL_CHW, FL_HWC, FL_IMAGE_LAYOUTS } fl_image_layout;

typedef struct fl_image_config {
    const fl_image_op *ops; /* copied */
    int32_t count;          /* <= FL_MAX_IMAGE_OPS */
    int32_t channels;       /* of every image, 1 to FL_MAX_CHANNELS */
    fl_image_size in;       /* of every image; {0, 0}: they differ */
    fl_image_type type;     /* of the output */
    fl_image_layout layout; /* of the output in memory */
    const void *tables;     /* copied: [channels of results][256] elements of `type`; NULL for
                               FL_IMAGE_U8 */
    const float *linear;    /* copied: scale, mean, std of each channel, or NULL; the plan finds out
                               whether they give the tables (fl_image_cast) */
    uint64_t seed;
    const fl_image_ops *image_ops; /* borrowed, static */
} fl_image_config;

/* An image on its way: before an operation, or at the end. */
typedef struct fl_image_trace {
    fl_image_size size; /* {0, 0}: not known before there is an image */
    int32_t channels;
} fl_image_trace;

/* The images before each operation, and the result behind them: trace[config->count + 1]. FL_EINVAL
 * for arguments that are wrong, or such images. */
int fl_image_ops_trace(const fl_image_config *config, fl_image_trace *trace, fl_err *err);

/* FL_EINVAL (what cannot be for any image, or for config->in: a crop that is larger, reflection of
 * more than there is, sizes of results that differ; the text names operation, argument, value and
 * remedy), FL_ENOMEM. The caller owns *out. */
int fl_image_plan_open(const fl_image_config *config, fl_image_plan **out, fl_err *err);
void fl_image_plan_close(fl_image_plan *plan); /* NULL is fine; nobody may be applying it */

fl_image_size fl_image_plan_in(const fl_image_plan *plan);  /* {0, 0}: images differ */
fl_image_size fl_image_plan_out(const fl_image_plan *plan); /* of every result */
int32_t fl_image_plan_count(const fl_image_plan *plan);     /* of operations */
const fl_image_op *fl_image_plan_op(const fl_image_plan *plan, int32_t i);
int32_t fl_image_plan_channels(const fl_image_plan *plan);     /* of images */
int32_t fl_image_plan_out_channels(const fl_image_plan *plan); /* of results */
uint64_t fl_image_plan_seed(const fl_image_plan *plan);
bool fl_image_plan_resizes(const fl_image_plan *plan);      /* or computes pixels otherwise */
int64_t fl_image_plan_out_bytes(const fl_image_plan *plan); /* of one result */

/* The parameters of each operation, params[fl_image_plan_count]. Pure. FL_EINVAL where the size of
 * the image is not that of the plan, or does not go with an operation. */
int fl_image_plan_draw(const fl_image_plan *plan, const fl_sample_key *key, fl_image_size in,
                       fl_image_params *params, fl_err *err);

/* Writes the image that the parameters make of `source` to out, fl_image_plan_out_bytes long.
 * Allocates only if never before so many threads were here at once, or images so large. FL_OK,
 * FL_ENOMEM. */
int fl_image_plan_apply(const fl_image_plan *plan, const fl_image_params *params,
                        const fl_image_source *source, void *out, fl_err *err);

/* ---- plans for a device, which moves bytes, resizes once, changes colours and looks bytes up:
 * fl_image_plan_map */

/* How many numbers fl_image_plan_map writes; 0: the plan computes pixels otherwise, or pads before
 * a resize, or does more than flip and erase once colours change, or its taps are too many. */
int32_t fl_image_plan_map_length(const fl_image_plan *plan);

/* Where the pixels of a result come from, for an image of fl_image_plan_in: of each row, then of
 * each column, the one of the image that is read, or -1 - i, which operation i fills. Where both
 * are filled the lower number counts. Then five numbers for each operation that erases: top, left,
 * bottom and right of what is erased, and its -1 - i; later ones count. Then the steps on colours,
 * an fl_color_step each. Where the plan resizes, rows and columns are those of its result, and six
 * numbers follow: how many rows of the image are resized, the first, the step to the next (1 or
 * -1); likewise columns. Pure. */
void fl_image_plan_map(const fl_image_plan *plan, const fl_image_params *params, int32_t *map);

/* What such a plan says of a batch; addresses and steps are the caller's. */
void fl_image_plan_describe(const fl_image_plan *plan, fl_image_batch *out);

/* The taps of rows and of columns; false: the plan does not resize, or images of many sizes. */
bool fl_image_plan_taps(const fl_image_plan *plan, fl_image_taps taps[2]);

/* Elements of each channel: of the 256 bytes, then what each operation fills. */
int32_t fl_image_plan_values(const fl_image_plan *plan);
/* Bytes of these of all channels, rounded up to whole numbers of 4; and writing them to `out`, a
 * multiple of 4, those of channel 0 first. Where there are steps on colours, the same as bytes
 * follow, which these steps begin with. */
int64_t fl_image_plan_values_bytes(const fl_image_plan *plan);
void fl_image_plan_write_values(const fl_image_plan *plan, char *out);

/* Bytes of the taps of every length: of rows, then of columns; 0: nothing is resized. */
int64_t fl_image_plan_taps_bytes(const fl_image_plan *plan);
int fl_image_plan_write_taps(const fl_image_plan *plan, int32_t *out, fl_err *err); /* FL_ENOMEM */

/* Taps of the two lengths that one map names, for callers without the table of all lengths: how
 * many numbers they are, and writing them behind the map. Any thread. FL_ENOMEM. */
int32_t fl_image_plan_own_taps(const fl_image_plan *plan);
int fl_image_plan_write_own_taps(const fl_image_plan *plan, int32_t *map, fl_err *err);

/* For these functions: what results are, the weights of resizes, and the view after operations that
 * move pixels, of an image without memory; steps on colours are noted. */
const fl_image_output *fl_image_plan_output(const fl_image_plan *plan);
fl_resample_cache *fl_image_plan_cache(const fl_image_plan *plan);
void fl_image_plan_move(const fl_image_plan *plan, const fl_image_params *params,
                        fl_color_step *steps, fl_image_view *view);

#endif
