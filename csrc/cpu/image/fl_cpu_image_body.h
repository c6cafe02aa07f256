/* fl_cpu_image_body: the source of a table of SIMD kernels. fl_cpu_image_neon.c,
 * fl_cpu_image_avx2.c and fl_cpu_image_avx512.c each include this file once. They set the length of
 * a register (FL_VECTOR_BYTES), the table's name (FL_IMAGE_OPS), and the table for rows that are
 * shorter than a register (FL_NARROWER). */
#include "fl_cpu_image_cast.h"
#include "fl_cpu_image_layout.h"
#include "fl_cpu_image_noise.h"
#include "fl_cpu_image_resample.h"
#include "fl_cpu_image_rows.h"

const fl_image_ops FL_IMAGE_OPS = {
    .name = FL_IMAGE_OPS_NAME,
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
