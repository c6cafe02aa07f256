/* fl_cuda_images: what fl_cuda calls in fl_cuda_images.cu. Not for other floors. */
#ifndef FL_CUDA_IMAGES_H
#define FL_CUDA_IMAGES_H

#include "fl_image_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues fl_cuda_gather_images on the current device; `rows` NULL: images 0, 1, ... Allocates
 * nothing, waits for nothing. cudaErrorInvalidValue for more blocks than a kernel has, or more
 * elements of an image than 31 bits count. */
cudaError_t fl_cuda_queue_images(void *stream, const fl_image_batch *images, const int64_t *rows,
                                 int64_t count);

/* As fl_cuda_load_passes. */
cudaError_t fl_cuda_load_images(void);

#ifdef __cplusplus
}
#endif

#endif
