/* fl_image_view: an image on its way through the operations of a plan.
 *
 * Floor 1. A view knows which samples of a source make the image, a pending resize between the two,
 * and which rectangles are erased. Operations edit the view; pixels are only read when the next
 * resize needs them, or at the end. Operations that compute pixels write planes of the scratch, and
 * the view then owns these planes. One thread; lives for one sample. */
#ifndef FL_IMAGE_VIEW_H
#define FL_IMAGE_VIEW_H

#include "fl_band_reader.h"
#include "fl_resample_cache.h"

/* A rectangle that `op` erases. */
typedef struct fl_erased {
    int32_t top, left;
    fl_image_size size; /* may be empty */
    int32_t op;
} fl_erased;

/* The new value of each byte. */
typedef uint8_t fl_byte_table[256];

typedef struct fl_image_view {
    fl_image_tools tools;
    fl_resample_cache *cache; /* borrowed from the plan */

    fl_image_source source;
    fl_image_axis y, x; /* of the image, over the source or over the result of a pending resize */

    /* A resize whose result nobody has read yet: later crops make the result smaller. If one length
     * stays, resize_y or resize_x is NULL. */
    bool is_columns_first; /* order of the pending resize */
    bool is_pending;
    const fl_resample *resize_y, *resize_x; /* borrowed from the cache or the scratch */
    fl_image_axis from_y, from_x;           /* of the image before the resize, over the source */
    int32_t images;                         /* resizes that have been run */

    /* The source is planes of the scratch, which may be written to. */
    bool is_own;
    /* The bytes of the own source still have to be looked up, each channel in its table. */
    bool has_tables;
    fl_byte_table table[FL_MAX_CHANNELS];

    fl_image_arithmetic arithmetic; /* of the operation that is applied; the plan sets it */

    int32_t erased_count;
    fl_erased erased[FL_MAX_IMAGE_OPS];
} fl_image_view;

/* Starts a view of the whole source. */
void fl_image_view_start(fl_image_view *view, const fl_image_tools *tools, fl_resample_cache *cache,
                         const fl_image_source *source);

void fl_image_view_crop(fl_image_view *view, int32_t top, int32_t left, fl_image_size size);
void fl_image_view_pad(fl_image_view *view, const int32_t padding[4], fl_padding_mode mode,
                       int32_t op);
void fl_image_view_flip_x(fl_image_view *view);
void fl_image_view_flip_y(fl_image_view *view);
void fl_image_view_erase(fl_image_view *view, int32_t top, int32_t left, fl_image_size size,
                         int32_t op);

/* Resizes the view; the resize is then pending. A resize that is already pending is run first. If
 * the tools have no scratch, the resize is noted, once, and no table is made. FL_ENOMEM. */
int fl_image_view_resize(fl_image_view *view, fl_interpolation how, fl_image_size size,
                         fl_err *err);

/* Runs the pending resize and looks up bytes that still have to be looked up. FL_ENOMEM. */
int fl_image_view_resolve(fl_image_view *view, fl_err *err);

/* ---- pixels: these functions are for operations that compute pixels */

/* Copies the image to planes of the scratch, with all fills, unless the image already lies there.
 * *out is the planes of the image. If is_upright is false, the planes may be flipped. The tables
 * stay. FL_ENOMEM. */
int fl_image_view_own(fl_image_view *view, bool is_upright, fl_image_planes *out, fl_err *err);

/* Makes planes in the scratch for the image that an operation computes from the own planes. The
 * planes have `channels` channels of undefined bytes. fl_image_view_replace makes them the image.
 * FL_ENOMEM. */
int fl_image_view_next(fl_image_view *view, fl_image_size size, int32_t channels,
                       fl_image_planes *out, fl_err *err);
void fl_image_view_replace(fl_image_view *view, const fl_image_planes *to, int32_t channels);

/* Looks up bytes that still have to be looked up. */
void fl_image_view_look_up(fl_image_view *view);

/* Returns the tables of the own planes, one for each channel, for the caller to change: the pending
 * tables, or tables with v -> v. */
fl_byte_table *fl_image_view_tables(fl_image_view *view);

#endif
