/* fl_cpu_lanes_neon: fl_cpu_lanes for 64-bit Arm. Every such machine has these instructions. */
#if defined(__aarch64__)
#define FL_LANES fl_cpu_lanes_neon
#define FL_LANES_NAME "neon"
#define FL_LANE_NEON
#define FL_LANE_DOUBLES 2
#define FL_LANE_FLOATS 4
#include "fl_cpu_lanes_body.h"
#endif
