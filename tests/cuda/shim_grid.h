/* shim_grid.h: kernels compiled as C++, as work of the fake runtime. See shim_grid.c. */
#ifndef SHIM_GRID_H
#define SHIM_GRID_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A launch whose arguments have been copied. */
typedef struct shim_launch {
    void (*run)(void *args); /* what each thread of the grid calls */
    void *args;              /* owned: of malloc */
    unsigned blocks, threads;
} shim_launch;

/* Queues it; frees the arguments when it has run, or failed. */
cudaError_t shim_queue(cudaStream_t stream, shim_launch launch);

/* ---- what a kernel calls */

typedef struct shim_index {
    unsigned x;
} shim_index;

typedef struct shim_place {
    shim_index thread, block, blocks;
} shim_place;

extern __thread const shim_place *shim_here; /* the thread of a grid that runs */

/* Waits for all threads of the block; whether any of them said so. */
bool shim_barrier(bool vote);

/* What lane + delta of the warp gives; its own where there is none. */
double shim_shuffle_down(double value, unsigned delta);

/* Orders what this thread wrote before an atomic operation with what another one, that saw it,
 * reads after its own fence. */
void shim_fence(void);
void shim_before_atomic(void *address);
void shim_after_atomic(void *address);

#ifdef __cplusplus
}
#endif

#endif
