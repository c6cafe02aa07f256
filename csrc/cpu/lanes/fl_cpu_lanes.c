/* fl_cpu_lanes: chooses the table for this machine; see fl_cpu_lanes.h. */
#include "fl_cpu_lanes.h"

#include "fl_cpu_level.h"

const fl_cpu_lanes *fl_cpu_lanes_find(void)
{
    switch (fl_cpu_level_find()) {
#if defined(__x86_64__)
    case FL_CPU_AVX512:
        return &fl_cpu_lanes_avx512;
    case FL_CPU_AVX2:
        return &fl_cpu_lanes_avx2;
#elif defined(__aarch64__)
    case FL_CPU_NEON:
        return &fl_cpu_lanes_neon;
#endif
    default:
        return &fl_cpu_lanes_plain;
    }
}
