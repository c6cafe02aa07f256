/* fl_cuda_gather: the functions of fl_cuda_gather.cu that fl_cuda calls. Not for other floors. */
#ifndef FL_CUDA_GATHER_H
#define FL_CUDA_GATHER_H

#include "fl_row_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues fl_cuda_gather on the current device. Allocates nothing, never waits. most_bytes: of a
 * column that one kernel may copy, INT32_MAX or less. cudaErrorInvalidValue: a row is longer, or
 * there are more maps than 30 bits count, or more rows in host memory than an argument holds. */
cudaError_t fl_cuda_queue_gather(void *stream, const fl_gather *of, int64_t most_bytes);

/* Loads this file's kernels for the current device; fails if no code was compiled for the
 * device. */
cudaError_t fl_cuda_load_gathers(void);

#ifdef __cplusplus
}
#endif

#endif
