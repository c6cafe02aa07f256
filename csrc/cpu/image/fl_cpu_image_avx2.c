/* fl_cpu_image_avx2: fl_image_ops for x86 with AVX2, FMA and F16C. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#define FL_IMAGE_OPS fl_cpu_image_avx2
#define FL_IMAGE_OPS_NAME "avx2"
#define FL_VECTOR_BYTES 32
#define FL_NARROWER fl_cpu_image_plain

#include "fl_cpu_image_body.h"
#endif
