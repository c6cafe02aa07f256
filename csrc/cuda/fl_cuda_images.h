/* fl_cuda_images: the functions of fl_cuda_images.cu that fl_cuda calls. Not for other floors. */
#ifndef FL_CUDA_IMAGES_H
#define FL_CUDA_IMAGES_H

#include "fl_image_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues fl_cuda_gather_images on the current device; `rows` NULL: images 0, 1, ... Allocates
 * nothing, never waits. cudaErrorInvalidValue: the batch needs more blocks than a kernel has, or an
 * image has more elements than 31 bits count. */
cudaError_t fl_cuda_queue_images(void *stream, const fl_image_batch *images, const int64_t *rows,
                                 int64_t count);

/* Loads this file's kernels for the current device; fails if no code was compiled for the
 * device. */
cudaError_t fl_cuda_load_images(void);

#ifdef __cplusplus
}
#endif

#endif
