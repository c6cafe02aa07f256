/* fl_cpu_grad: passes over gradients on the CPU, the reference that further devices are tested
 * against. */
#ifndef FL_CPU_GRAD_H
#define FL_CPU_GRAD_H

#include "fl_grad_ops.h"

extern const fl_grad_ops fl_cpu_grad_ops;

#endif
