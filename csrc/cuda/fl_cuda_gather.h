/* fl_cuda_gather: the functions of fl_cuda_gather.cu that fl_cuda calls. Not for other floors. */
#ifndef FL_CUDA_GATHER_H
#define FL_CUDA_GATHER_H

#include "fl_row_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The most that one kernel may take. */
typedef struct fl_gather_limits {
    int64_t bytes; /* of a column; INT32_MAX or less */
    int32_t blocks;
} fl_gather_limits;

/* Queues fl_cuda_gather on the current device. Allocates nothing, never waits.
 * cudaErrorInvalidValue: a row is longer than one kernel may copy. */
cudaError_t fl_cuda_queue_gather(void *stream, const fl_row_column *columns, int32_t column_count,
                                 const int64_t *rows, int64_t row_count, fl_gather_limits most);

/* Loads this file's kernels for the current device; fails if no code was compiled for the
 * device. */
cudaError_t fl_cuda_load_gathers(void);

#ifdef __cplusplus
}
#endif

#endif
