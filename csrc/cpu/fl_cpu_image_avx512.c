/* fl_cpu_image_avx512: fl_image_ops for x86 with AVX-512 (F, VL, BW, DQ). */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq,prefer-vector-width=512")
#define FL_VECTOR_BYTES 64
#define FL_NARROWER fl_cpu_image_avx2

#include "fl_cpu_image_cast.h"
#include "fl_cpu_image_layout.h"
#include "fl_cpu_image_resample.h"

const fl_image_ops fl_cpu_image_avx512 = {
    .name = "avx512",
    .split = split_channels,
    .join = join_channels,
    .reverse = reverse_bytes,
    .cast = {[FL_IMAGE_F16] = cast_f16, [FL_IMAGE_BF16] = cast_bf16, [FL_IMAGE_F32] = cast_f32},
    .fill = fill_elements,
    .resample_x = resample_x,
    .resample_y = resample_y,
};
#endif
