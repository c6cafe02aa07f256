/* fl_cpu_lanes_plain: fl_cpu_lanes for any machine, and the reference for all further tables. */
#define FL_LANES fl_cpu_lanes_plain
#define FL_LANES_NAME "plain"
#define FL_LANE_DOUBLES 2
#include "fl_cpu_lanes_body.h"
