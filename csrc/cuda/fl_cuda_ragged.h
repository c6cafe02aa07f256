/* fl_cuda_ragged: the functions of fl_cuda_ragged.cu that fl_cuda calls. Not for other floors. */
#ifndef FL_CUDA_RAGGED_H
#define FL_CUDA_RAGGED_H

#include "fl_piece.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues fl_cuda_gather_pieces on the current device. Allocates nothing, never waits. */
cudaError_t fl_cuda_queue_pieces(void *stream, const fl_piece_batch *outputs, int32_t count);

/* Loads this file's kernels for the current device; fails if no code was compiled for the
 * device. */
cudaError_t fl_cuda_load_pieces(void);

#ifdef __cplusplus
}
#endif

#endif
