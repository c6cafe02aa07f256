/* fl_cuda_windows: the functions of fl_cuda_windows.cu that fl_cuda calls. Not for other floors. */
#ifndef FL_CUDA_WINDOWS_H
#define FL_CUDA_WINDOWS_H

#include "fl_row_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues fl_cuda_gather_windows on the current device. Allocates nothing, never waits. */
cudaError_t fl_cuda_queue_windows(void *stream, const fl_window_batch *windows,
                                  const int64_t *starts, int64_t count);

/* Loads this file's kernels for the current device; fails if no code was compiled for the
 * device. */
cudaError_t fl_cuda_load_windows(void);

#ifdef __cplusplus
}
#endif

#endif
