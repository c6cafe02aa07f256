/* fl_image_plan: operations on images as one pass from a source to the memory of a batch.
 *
 * Floor 1. A plan is read-only once open: any thread may draw and apply with a plan, also in forked
 * children. A sample takes two steps: fl_image_plan_draw computes the parameters of each operation
 * from plan, key and size alone; fl_image_plan_apply writes the image that the parameters make. An
 * operation is one row of the table in fl_image_plan.c and one file fl_op_*.c.
 * docs/internals/image-plan.md describes plans. */
#ifndef FL_IMAGE_PLAN_H
#define FL_IMAGE_PLAN_H

#include "fl_image_steps.h"
#include "fl_map_axis.h"

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
    fl_image_size in;       /* of every image; {0, 0}: images differ in size */
    fl_image_type type;     /* of the output */
    fl_image_layout layout; /* of the output in memory */
    const void *tables;     /* copied: [channels of results][256] elements of `type`; bytes: NULL */
    const float *linear; /* copied: scale, mean, std of each channel, or NULL; the plan finds out if
                            they give the tables (fl_image_cast) */
    uint64_t seed;
    const fl_image_ops *image_ops; /* borrowed, static */
} fl_image_config;

/* An image between two operations, or the result. */
typedef struct fl_image_trace {
    fl_image_size size; /* {0, 0}: not known before there is an image */
    int32_t channels;
} fl_image_trace;

/* Computes the image before each operation, and the result as the last: trace[config->count + 1].
 * FL_EINVAL: an argument is wrong, or an operation cannot take its image. */
int fl_image_ops_trace(const fl_image_config *config, fl_image_trace *trace, fl_err *err);

/* Opens a plan; the caller owns *out. FL_ENOMEM. FL_EINVAL: the operations cannot work for any
 * image, or not for config->in. For example, a crop is larger than the image, or sizes of results
 * differ; the text names operation, argument, value and remedy. */
int fl_image_plan_open(const fl_image_config *config, fl_image_plan **out, fl_err *err);
void fl_image_plan_close(fl_image_plan *plan); /* NULL is fine; no thread may be using the plan */

fl_image_size fl_image_plan_in(const fl_image_plan *plan);  /* {0, 0}: images differ in size */
fl_image_size fl_image_plan_out(const fl_image_plan *plan); /* of every result */
int32_t fl_image_plan_count(const fl_image_plan *plan);     /* operations */
const fl_image_op *fl_image_plan_op(const fl_image_plan *plan, int32_t i);
int32_t fl_image_plan_channels(const fl_image_plan *plan);     /* of images */
int32_t fl_image_plan_out_channels(const fl_image_plan *plan); /* of results */
uint64_t fl_image_plan_seed(const fl_image_plan *plan);
bool fl_image_plan_resizes(const fl_image_plan *plan);      /* or computes pixels in any way */
int64_t fl_image_plan_out_bytes(const fl_image_plan *plan); /* of one result */

/* Draws the parameters of each operation into params[fl_image_plan_count]; the result depends on
 * the arguments only. If key is NULL, draws for all operations, also those that a gate would leave
 * out: what is not random then is right. FL_EINVAL: the image does not have the size of the plan,
 * or an operation cannot take an image of this size. */
int fl_image_plan_draw(const fl_image_plan *plan, const fl_sample_key *key, fl_image_size in,
                       fl_image_params *params, fl_err *err);

/* Writes the image that the parameters make from `source` to out, fl_image_plan_out_bytes long.
 * Allocates only if more threads than ever before are here at once, or if the image is larger than
 * ever. FL_OK, FL_ENOMEM. */
int fl_image_plan_apply(const fl_image_plan *plan, const fl_image_params *params,
                        const fl_image_source *source, void *out, fl_err *err);

/* Applies the plan, and then the steps. The images must have 3 channels if there are steps, and
 * fl_image_steps_check must have accepted the steps for the size of the results. */
int fl_image_plan_apply_steps(const fl_image_plan *plan, const fl_image_params *params,
                              const fl_image_steps *steps, const fl_image_source *source, void *out,
                              fl_err *err);

/* ---- plans for a device, which moves bytes, resizes once, changes colours and looks bytes up:
 * fl_image_plan_map */

/* Returns how many numbers fl_image_plan_map writes. 0: a device cannot run the plan. Such a plan
 * computes pixels in a further way, pads before a resize, does more than flip and erase after a
 * change of colours, or has too many taps. */
int32_t fl_image_plan_map_length(const fl_image_plan *plan);

fl_image_map fl_image_plan_find_map(const fl_image_plan *plan);
const fl_image_map *fl_image_plan_get_map(const fl_image_plan *plan);

/* Writes where the pixels of a result come from, for an image of fl_image_plan_in. First comes, for
 * each row and then for each column, the row or column of the image that is read, or -1 - i if
 * operation i fills it; if both are filled, the lower number counts. Then come five numbers for
 * each operation that erases: top, left, bottom and right of the rectangle, and -1 - i; later
 * rectangles count. Then come the steps on colours, an fl_color_step each, and a 0 if there are
 * any.
 *
 * If the plan resizes, the rows and columns above belong to the resized image, and six numbers
 * follow: how many rows of the image are resized, the first row, the step to the next row (1 or
 * -1); then the same for columns. The result depends on the arguments only. */
void fl_image_plan_map(const fl_image_plan *plan, const fl_image_params *params, int32_t *map);

/* Describes the maps of a batch for the kernel that writes what fl_image_plan_map writes. The
 * second function returns the bytes of the operations, a multiple of 8, and the third writes them.
 */
void fl_image_plan_describe_maps(const fl_image_plan *plan, fl_map_batch *out);
int64_t fl_image_plan_ops_bytes(const fl_image_plan *plan);
void fl_image_plan_write_ops(const fl_image_plan *plan, char *out);

/* Returns the bytes of all that kernels read of a plan: operations, elements, and the taps of every
 * length. The second function writes them, FL_ENOMEM. */
int64_t fl_image_plan_all_bytes(const fl_image_plan *plan);
int fl_image_plan_write_all(const fl_image_plan *plan, char *out, fl_err *err);

/* Describes a batch of this plan; the caller sets addresses and steps. */
void fl_image_plan_describe(const fl_image_plan *plan, fl_image_batch *out);

/* Computes the taps of rows and of columns; false: the plan does not resize, or images differ in
 * size. */
bool fl_image_plan_taps(const fl_image_plan *plan, fl_image_taps taps[2]);

/* Returns the elements of each channel: 256 for the bytes, and one for the fill of each
 * operation. */
int32_t fl_image_plan_values(const fl_image_plan *plan);
/* Returns the bytes of these elements for all channels, rounded up to a multiple of 4. The second
 * function writes the elements to `out`, a multiple of 4, channel 0 first. If there are steps on
 * colours, the elements are repeated as bytes, because these steps start from bytes. */
int64_t fl_image_plan_values_bytes(const fl_image_plan *plan);
void fl_image_plan_write_values(const fl_image_plan *plan, char *out);

/* Returns the bytes of the taps of every length, rows and then columns; 0: the plan does not
 * resize. */
int64_t fl_image_plan_taps_bytes(const fl_image_plan *plan);
int fl_image_plan_write_taps(const fl_image_plan *plan, int32_t *out, fl_err *err); /* FL_ENOMEM */

/* These serve callers without the table of all lengths: the first counts the numbers of the taps
 * for the two lengths that one map names, the second writes these numbers after the map. Any
 * thread. FL_ENOMEM. */
int32_t fl_image_plan_own_taps(const fl_image_plan *plan);
int fl_image_plan_write_own_taps(const fl_image_plan *plan, int32_t *map, fl_err *err);

/* These serve the functions above: the description of results, and the weights of resizes. */
const fl_image_output *fl_image_plan_output(const fl_image_plan *plan);
fl_resample_cache *fl_image_plan_cache(const fl_image_plan *plan);

#endif
