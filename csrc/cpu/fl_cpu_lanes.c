/* fl_cpu_lanes: which instruction set this machine has; see fl_cpu_lanes.h. */
#include "fl_cpu_lanes.h"

const fl_cpu_lanes *fl_cpu_lanes_find(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return &fl_cpu_lanes_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        return &fl_cpu_lanes_avx2;
#endif
    return &fl_cpu_lanes_plain;
}
