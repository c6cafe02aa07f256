/* fl_cpu_sequences: sequences of different length on the CPU. */
#ifndef FL_CPU_SEQUENCES_H
#define FL_CPU_SEQUENCES_H

#include "fl_sequence_ops.h"

extern const fl_sequence_ops fl_cpu_sequence_ops;

#endif
