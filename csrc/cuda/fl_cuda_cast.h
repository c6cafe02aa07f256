/* fl_cuda_cast: the functions of fl_cuda_cast.cu that fl_cuda_transfer calls. Not for other
 * floors. */
#ifndef FL_CUDA_CAST_H
#define FL_CUDA_CAST_H

#include "fl_transfer_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues the kernel for a cast of kind FL_CAST_LOOK_UP, in a buffer of the current device, which
 * has this many multiprocessors. The tables are read before the function returns. Allocates
 * nothing, never waits. */
cudaError_t
fl_cuda_cast(void *stream, int32_t processors, void *buffer, const fl_transfer_cast *cast);

/* Loads this file's kernels for the current device; fails if no code was compiled for the
 * device. */
cudaError_t fl_cuda_load_casts(void);

#ifdef __cplusplus
}
#endif

#endif
