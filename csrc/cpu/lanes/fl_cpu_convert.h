/* fl_cpu_convert: conversion of elements between dtypes on the CPU. */
#ifndef FL_CPU_CONVERT_H
#define FL_CPU_CONVERT_H

#include "fl_column_segments.h"

/* Returns the conversion: integers of up to 32 bits to int64; float32, float64 and integers but
 * uint64 to float32 or float64. NULL: no such pair. */
fl_convert *fl_cpu_find_convert(fl_dtype from, fl_dtype to);

/* Converts int64 to float32 by way of float64, as torch.tensor() does with a number. */
fl_convert fl_cpu_round_twice;

#endif
