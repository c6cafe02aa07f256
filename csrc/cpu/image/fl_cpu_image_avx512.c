/* fl_cpu_image_avx512: fl_image_ops for x86 with AVX-512 (F, VL, BW, DQ). */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq,prefer-vector-width=512")
#define FL_IMAGE_OPS fl_cpu_image_avx512
#define FL_IMAGE_OPS_NAME "avx512"
#define FL_VECTOR_BYTES 64
#define FL_NARROWER fl_cpu_image_avx2

#include "fl_cpu_image_body.h"
#endif
