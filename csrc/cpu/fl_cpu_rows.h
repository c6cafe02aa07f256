/* fl_cpu_rows: copying rows on the CPU. */
#ifndef FL_CPU_ROWS_H
#define FL_CPU_ROWS_H

#include "fl_row_ops.h"

extern const fl_row_ops fl_cpu_row_ops;

#endif
