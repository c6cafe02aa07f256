/* fl_cuda_ragged: what fl_cuda calls in fl_cuda_ragged.cu. Not for other floors. */
#ifndef FL_CUDA_RAGGED_H
#define FL_CUDA_RAGGED_H

#include "fl_piece.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues fl_cuda_gather_pieces on the current device. Allocates nothing, waits for nothing. */
cudaError_t fl_cuda_queue_pieces(void *stream, const fl_piece_batch *outputs, int32_t count);

/* As fl_cuda_load_passes. */
cudaError_t fl_cuda_load_pieces(void);

#ifdef __cplusplus
}
#endif

#endif
