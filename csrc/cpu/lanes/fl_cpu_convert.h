/* fl_cpu_convert: conversion of elements between dtypes on the CPU. */
#ifndef FL_CPU_CONVERT_H
#define FL_CPU_CONVERT_H

#include "fl_column_segments.h"

/* Returns the conversion: integers of up to 32 bits to int64, or float64 to float32. NULL: no such
 * pair. */
fl_convert *fl_cpu_find_convert(fl_dtype from, fl_dtype to);

#endif
