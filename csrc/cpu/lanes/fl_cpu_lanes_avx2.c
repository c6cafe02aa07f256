/* fl_cpu_lanes_avx2: fl_cpu_lanes for x86 with AVX2, FMA and F16C. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#define FL_LANES fl_cpu_lanes_avx2
#define FL_LANES_NAME "avx2"
#define FL_LANE_DOUBLES 4
#include "fl_cpu_lanes_body.h"
#endif
