/* fl_cuda_colors: the functions of fl_cuda_colors.cu that fl_cuda_images and fl_cuda call. Not for
 * other floors. */
#ifndef FL_CUDA_COLORS_H
#define FL_CUDA_COLORS_H

#include "fl_image_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the batch of bytes that the colours of `images` start from, at the end of each result. */
fl_image_batch fl_cuda_color_bytes(const fl_image_batch *images);

/* Queues the kernel that makes the results from these bytes on the current device. Allocates
 * nothing, never waits. */
cudaError_t fl_cuda_queue_colors(void *stream, const fl_image_batch *images, uint32_t count);

/* Loads this file's kernels for the current device; fails if no code was compiled for the
 * device. */
cudaError_t fl_cuda_load_colors(void);

#ifdef __cplusplus
}
#endif

#endif
