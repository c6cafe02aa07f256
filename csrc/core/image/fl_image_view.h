/* fl_image_view: an image on its way through the operations of a plan.
 *
 * Floor 1. Which samples of a source the image is made of, the resize that lies between the two if
 * there is one, and what is erased. Operations edit it; pixels are only read where the next resize
 * needs them, or the end. Operations that compute pixels do it in planes of the scratch, which the
 * view then owns. One thread; lives for one sample. */
#ifndef FL_IMAGE_VIEW_H
#define FL_IMAGE_VIEW_H

#include "fl_band_reader.h"
#include "fl_resample_cache.h"

/* What `op` erases. */
typedef struct fl_erased {
    int32_t top, left;
    fl_image_size size; /* may be empty */
    int32_t op;
} fl_erased;

/* What each byte becomes. */
typedef uint8_t fl_byte_table[256];

typedef struct fl_image_view {
    fl_image_tools tools;
    fl_resample_cache *cache; /* borrowed from the plan */

    fl_image_source source;
    fl_image_axis y, x; /* of the image, over the source or what a pending resize makes of it */

    /* A resize whose result nobody has read: crops after it make it smaller. resize_y or resize_x
     * is NULL where that length stays. */
    bool is_columns_first; /* of that resize */
    bool is_pending;
    const fl_resample *resize_y, *resize_x; /* borrowed from the cache or the scratch */
    fl_image_axis from_y, from_x;           /* of the image before it, over the source */
    int32_t images;                         /* how many resizes have been run */

    /* The source is planes of the scratch, which may be written to. */
    bool is_own;
    /* The bytes of the own source are yet to be looked up, those of each channel in its table. */
    bool has_tables;
    fl_byte_table table[FL_MAX_CHANNELS];

    fl_color_step *steps; /* borrowed: where those on colours are noted; NULL: they are done */

    int32_t erased_count;
    fl_erased erased[FL_MAX_IMAGE_OPS];
} fl_image_view;

/* All of the source. */
void fl_image_view_start(fl_image_view *view, const fl_image_tools *tools, fl_resample_cache *cache,
                         const fl_image_source *source);

void fl_image_view_crop(fl_image_view *view, int32_t top, int32_t left, fl_image_size size);
void fl_image_view_pad(fl_image_view *view, const int32_t padding[4], fl_padding_mode mode,
                       int32_t op);
void fl_image_view_flip_x(fl_image_view *view);
void fl_image_view_flip_y(fl_image_view *view);
void fl_image_view_erase(fl_image_view *view, int32_t top, int32_t left, fl_image_size size,
                         int32_t op);

/* FL_ENOMEM. Runs the resize that is pending, if there is one. Tools without a scratch: the resize
 * is noted, once, and no table is made. */
int fl_image_view_resize(fl_image_view *view, fl_interpolation how, fl_image_size size,
                         fl_err *err);

/* Runs the resize that is pending, and looks up what is yet to be. FL_ENOMEM. */
int fl_image_view_resolve(fl_image_view *view, fl_err *err);

/* ---- pixels: what follows is for operations that compute them */

/* Makes the image planes of the scratch, with all fills, unless it is. *out is these planes: of the
 * image, or of the image flipped, if is_upright is false. The tables stay. FL_ENOMEM. */
int fl_image_view_own(fl_image_view *view, bool is_upright, fl_image_planes *out, fl_err *err);

/* Planes in the scratch for the image that an operation makes of the own planes, of undefined
 * bytes, as many as it has channels. fl_image_view_replace makes them the image. FL_ENOMEM. */
int fl_image_view_next(fl_image_view *view, fl_image_size size, int32_t channels,
                       fl_image_planes *out, fl_err *err);
void fl_image_view_replace(fl_image_view *view, const fl_image_planes *to, int32_t channels);

/* Looks up what is yet to be looked up. */
void fl_image_view_look_up(fl_image_view *view);

/* Tables of the own planes, one for each channel, to be changed: those that are pending, else
 * v -> v. */
fl_byte_table *fl_image_view_tables(fl_image_view *view);

#endif
