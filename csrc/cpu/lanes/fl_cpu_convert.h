/* fl_cpu_convert: elements of one dtype as those of another, on the CPU. */
#ifndef FL_CPU_CONVERT_H
#define FL_CPU_CONVERT_H

#include "fl_column_segments.h"

/* From integers of up to 32 bits to int64, from float64 to float32; NULL for any others. */
fl_convert *fl_cpu_find_convert(fl_dtype from, fl_dtype to);

#endif
