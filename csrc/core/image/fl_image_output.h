/* fl_image_output: the layout of a plan's results in memory, and writing a result.
 *
 * Floor 1. Casts, fills and erases. A description is read-only once made: any thread. */
#ifndef FL_IMAGE_OUTPUT_H
#define FL_IMAGE_OUTPUT_H

#include "fl_image_view.h"

typedef struct fl_image_output {
    fl_image_size size;
    int32_t channels;
    fl_image_type type;
    bool is_joined;                      /* channels of a pixel lie next to each other */
    void *tables;                        /* owned; NULL: bytes stay */
    fl_image_cast cast[FL_MAX_CHANNELS]; /* borrow from `tables` */
    uint32_t typed_fills; /* bit i: out_fill of operation i differs from the cast of its `fill` */
} fl_image_output;

/* Completes a description whose size, channels, type and is_joined are set. Copies the tables,
 * [channels][256] elements, or NULL; `linear` as in fl_image_config. The caller closes the output.
 * FL_ENOMEM. */
int fl_image_output_open(fl_image_output *output, const void *tables, const float *linear,
                         const fl_image_op *ops, int32_t count, fl_err *err);
void fl_image_output_close(fl_image_output *output);

int64_t fl_image_output_bytes(const fl_image_output *output);

/* Writes the image of a resolved view. FL_ENOMEM. */
int fl_image_output_write(const fl_image_output *output, const fl_image_view *view, char *out,
                          fl_err *err);

#endif
