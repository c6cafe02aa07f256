/* fl_cuda_draw: the functions of fl_cuda_draw.cu that fl_cuda calls. Not for other floors. */
#ifndef FL_CUDA_DRAW_H
#define FL_CUDA_DRAW_H

#include "fl_map_axis.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues fl_cuda_draw_maps on the current device. Allocates nothing, never waits.
 * cudaErrorInvalidValue: the batch needs more blocks than a kernel has. */
cudaError_t fl_cuda_queue_maps(void *stream, const fl_map_batch *maps);

/* Loads this file's kernel for the current device; fails if no code was compiled for the device. */
cudaError_t fl_cuda_load_maps(void);

#ifdef __cplusplus
}
#endif

#endif
