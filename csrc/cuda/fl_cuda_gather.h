/* fl_cuda_gather: what fl_cuda calls in fl_cuda_gather.cu. Not for other floors. */
#ifndef FL_CUDA_GATHER_H
#define FL_CUDA_GATHER_H

#include "fl_row_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues fl_cuda_gather on the current device. Allocates nothing, waits for nothing.
 *
 * most_bytes: one kernel copies so much of a column at most, INT32_MAX or less; a row is not
 * longer, or cudaErrorInvalidValue. */
cudaError_t fl_cuda_queue_gather(void *stream, const fl_row_column *columns, int32_t column_count,
                                 const int64_t *rows, int64_t row_count, int64_t most_bytes);

/* As fl_cuda_load_passes. */
cudaError_t fl_cuda_load_gathers(void);

#ifdef __cplusplus
}
#endif

#endif
