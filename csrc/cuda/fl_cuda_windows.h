/* fl_cuda_windows: what fl_cuda calls in fl_cuda_windows.cu. Not for other floors. */
#ifndef FL_CUDA_WINDOWS_H
#define FL_CUDA_WINDOWS_H

#include "fl_row_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues fl_cuda_gather_windows on the current device. Allocates nothing, waits for nothing. */
cudaError_t fl_cuda_queue_windows(void *stream, const fl_window_batch *windows,
                                  const int64_t *starts, int64_t count);

/* As fl_cuda_load_passes. */
cudaError_t fl_cuda_load_windows(void);

#ifdef __cplusplus
}
#endif

#endif
