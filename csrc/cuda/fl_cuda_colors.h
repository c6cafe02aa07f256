/* fl_cuda_colors: what fl_cuda_images and fl_cuda call in fl_cuda_colors.cu. Not for other floors.
 */
#ifndef FL_CUDA_COLORS_H
#define FL_CUDA_COLORS_H

#include "fl_image_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The batch of the bytes that the colours of `images` begin with, at the end of each result. */
fl_image_batch fl_cuda_color_bytes(const fl_image_batch *images);

/* Queues the kernel that makes the results of these bytes on the current device. Allocates nothing,
 * waits for nothing. */
cudaError_t fl_cuda_queue_colors(void *stream, const fl_image_batch *images, uint32_t count);

/* As fl_cuda_load_passes. */
cudaError_t fl_cuda_load_colors(void);

#ifdef __cplusplus
}
#endif

#endif
