/* fl_cpu: the backend in plain C, the reference every other backend is tested against. */
#ifndef FL_CPU_H
#define FL_CPU_H

#include "fl_backend.h"

extern const fl_backend fl_cpu_backend;

#endif
