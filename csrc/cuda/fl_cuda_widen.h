/* fl_cuda_widen: the functions of fl_cuda_widen.cu that fl_cuda_transfer calls. Not for other
 * floors. */
#ifndef FL_CUDA_WIDEN_H
#define FL_CUDA_WIDEN_H

#include "fl_transfer_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues the kernel for a cast of kind FL_CAST_WIDEN, in a buffer of the current device, which has
 * this many multiprocessors. Allocates nothing, never waits. */
cudaError_t
fl_cuda_widen(void *stream, int32_t processors, void *buffer, const fl_transfer_cast *cast);

/* Loads this file's kernels for the current device; fails if no code was compiled for the
 * device. */
cudaError_t fl_cuda_load_widens(void);

#ifdef __cplusplus
}
#endif

#endif
