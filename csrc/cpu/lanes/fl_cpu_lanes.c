/* fl_cpu_lanes: chooses the table for this machine; see fl_cpu_lanes.h. */
#include "fl_cpu_lanes.h"

#include "fl_cpu_level.h"

const fl_cpu_lanes *fl_cpu_lanes_find(void)
{
    fl_cpu_level level = fl_cpu_level_find();
    return FL_CPU_TABLE(level, fl_cpu_lanes);
}
