/* fl_cpu_image_body: the source of a table of SIMD kernels. fl_cpu_image_neon.c,
 * fl_cpu_image_avx2.c and fl_cpu_image_avx512.c each include this file once. They set the length of
 * a register (FL_VECTOR_BYTES), the table's name (FL_IMAGE_OPS), and the table for rows that are
 * shorter than a register (FL_NARROWER). */
#include "fl_cpu_image_cast.h"
#include "fl_cpu_image_layout.h"
#include "fl_cpu_image_noise.h"
#include "fl_cpu_image_resample.h"
#include "fl_cpu_image_rows.h"
#include "fl_cpu_image_table.h"
