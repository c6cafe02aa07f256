/* fl_cpu_transfer: transfers whose buffers are host memory, copied by the thread that starts them.
 *
 * Floor 2. The contracts are in fl_transfer_ops.h. Up to three helpers share a copy of more than
 * a megabyte. A copy is over when start, part_filled or copy returns, so no stream waits, and a
 * finished slot goes back to its pool at once. pin does nothing, because the CPU reads any
 * memory. */
#ifndef FL_CPU_TRANSFER_H
#define FL_CPU_TRANSFER_H

#include "fl_transfer_ops.h"

extern const fl_transfer_ops fl_cpu_transfer_ops;

#endif
