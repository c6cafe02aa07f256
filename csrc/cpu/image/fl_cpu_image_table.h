/* fl_cpu_image_table: the end of every table of kernels: the casts of cast_to by type, and the
 * table itself, FL_IMAGE_OPS. The including file has defined the functions. */
#include "fl_cpu_image_ycc.h"

static void
cast_f16(void *dst, int64_t pitch, const fl_image_block *block, const fl_image_cast *cast)
{
    cast_to(FL_IMAGE_F16, dst, pitch, block, cast);
}

static void
cast_bf16(void *dst, int64_t pitch, const fl_image_block *block, const fl_image_cast *cast)
{
    cast_to(FL_IMAGE_BF16, dst, pitch, block, cast);
}

static void
cast_f32(void *dst, int64_t pitch, const fl_image_block *block, const fl_image_cast *cast)
{
    cast_to(FL_IMAGE_F32, dst, pitch, block, cast);
}

const fl_image_ops FL_IMAGE_OPS = {
    .name = FL_IMAGE_OPS_NAME,
    .read_ycc = read_ycc,
    .split = split_channels,
    .join = join_channels,
    .cast = {[FL_IMAGE_U8] = copy_bytes,
             [FL_IMAGE_F16] = cast_f16,
             [FL_IMAGE_BF16] = cast_bf16,
             [FL_IMAGE_F32] = cast_f32},
    .fill = fill_rows,
    .resample_x = resample_x,
    .resample_y = resample_y,
    .tone = FL_TONE_OPS,
};
