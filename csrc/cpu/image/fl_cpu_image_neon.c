/* fl_cpu_image_neon: fl_image_ops for 64-bit Arm. */
#if defined(__aarch64__)
#define FL_IMAGE_OPS fl_cpu_image_neon
#define FL_IMAGE_OPS_NAME "neon"
#define FL_VECTOR_BYTES 16
#define FL_NARROWER fl_cpu_image_plain

#include "fl_cpu_image_body.h"
#endif
