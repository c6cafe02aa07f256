/* fl_cpu_lanes_avx512: fl_cpu_lanes for x86 with AVX-512. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq,prefer-vector-width=512")
#define FL_LANES fl_cpu_lanes_avx512
#define FL_LANES_NAME "avx512"
#define FL_LANE_DOUBLES 8
#include "fl_cpu_lanes_body.h"
#endif
