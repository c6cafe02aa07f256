/* fl_cuda_transfer: transfers to a CUDA device. Copies run while their consumer computes.
 *
 * Floor 2. The contracts are in fl_transfer_ops.h. A copy stream has its own CUDA stream, which
 * copies each batch from its pinned slot to a buffer of device memory. Memory is pinned through the
 * context of the given device. A call that fails with FL_EDEVICE carries the runtime's text. */
#ifndef FL_CUDA_TRANSFER_H
#define FL_CUDA_TRANSFER_H

#include "fl_transfer_ops.h"

extern const fl_transfer_ops fl_cuda_transfer_ops;

#endif
