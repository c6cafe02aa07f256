/* fl_cpu_image: chooses the table for this machine; see fl_cpu_image.h. */
#include "fl_cpu_image.h"

#include "fl_cpu_level.h"

const fl_image_ops *fl_cpu_image_ops_find(void)
{
    switch (fl_cpu_level_find()) {
#if defined(__x86_64__)
    case FL_CPU_AVX512:
        return &fl_cpu_image_avx512;
    case FL_CPU_AVX2:
        return &fl_cpu_image_avx2;
#elif defined(__aarch64__)
    case FL_CPU_NEON:
        return &fl_cpu_image_neon;
#endif
    default:
        return &fl_cpu_image_plain;
    }
}
