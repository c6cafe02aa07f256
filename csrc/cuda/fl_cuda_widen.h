/* fl_cuda_widen: what fl_cuda_transfer calls in fl_cuda_widen.cu. Not for other floors. */
#ifndef FL_CUDA_WIDEN_H
#define FL_CUDA_WIDEN_H

#include "fl_transfer_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues the kernel that makes this cast, FL_CAST_WIDEN, in a buffer of the current device, which
 * has so many multiprocessors. Allocates nothing, waits for nothing. */
cudaError_t
fl_cuda_widen(void *stream, int32_t processors, void *buffer, const fl_transfer_cast *cast);

/* As fl_cuda_load_passes. */
cudaError_t fl_cuda_load_widens(void);

#ifdef __cplusplus
}
#endif

#endif
