/* fl_cuda_last_block: which of several blocks finishes last, for kernels. */
#ifndef FL_CUDA_LAST_BLOCK_CUH
#define FL_CUDA_LAST_BLOCK_CUH

#include <cuda_runtime.h>

/* Returns true in the last of `blocks` blocks that call this, once each. That block can then read
 * what thread 0 of each block, and all threads before a barrier, have written. The ticket is 0
 * before, and afterwards again. */
static __device__ bool is_last_block(uint32_t *ticket, uint32_t blocks)
{
    bool is_last = false;
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicInc(ticket, blocks - 1) == blocks - 1;
        __threadfence();
    }
    return __syncthreads_or(is_last);
}

#endif
