/* fl_cuda_cast: what fl_cuda_transfer calls in fl_cuda_cast.cu. Not for other floors. */
#ifndef FL_CUDA_CAST_H
#define FL_CUDA_CAST_H

#include "fl_transfer_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues the kernel that makes this cast, FL_CAST_LOOK_UP, in a buffer of the current device, which
 * has so many multiprocessors. The tables are read before it returns. Allocates nothing, waits for
 * nothing. */
cudaError_t
fl_cuda_cast(void *stream, int32_t processors, void *buffer, const fl_transfer_cast *cast);

/* As fl_cuda_load_passes. */
cudaError_t fl_cuda_load_casts(void);

#ifdef __cplusplus
}
#endif

#endif
