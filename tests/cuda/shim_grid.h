/* shim_grid.h: kernels compiled as C++, as work of the fake runtime. See shim_grid.c. */
#ifndef SHIM_GRID_H
#define SHIM_GRID_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shim_extent {
    unsigned x, y, z;
} shim_extent;

/* A launch whose arguments have been copied. */
typedef struct shim_launch {
    void (*run)(void *args);     /* what each thread of the grid calls */
    void *args;                  /* owned: of malloc */
    shim_extent blocks, threads; /* y and z are 1 in what can be run here */
    size_t parameter_bytes, shared_bytes;
    const void *kernel; /* what is loaded */
} shim_launch;

/* Queues the launch; frees the arguments when it has run or failed. Beyond a limit it fails as in
 * CUDA. */
cudaError_t shim_queue(cudaStream_t stream, shim_launch launch);

/* The limits of a device and its driver. */
typedef struct shim_limits {
    size_t parameter_bytes;
    size_t shared_bytes;         /* of a block, static and dynamic */
    unsigned registers;          /* of a block */
    unsigned thread_registers;   /* of each thread of any kernel */
    shim_extent blocks, threads; /* in each direction */
    unsigned block_threads;      /* of a block in all */
    unsigned launch_bound;       /* of each kernel, in __launch_bounds__ */
} shim_limits;

extern const shim_limits shim_usual_limits;
void shim_set_limits(const shim_limits *limits); /* borrowed */

/* ---- what a kernel calls */

typedef struct shim_index {
    unsigned x;
} shim_index;

typedef struct shim_place {
    shim_index thread, block, blocks;
} shim_place;

extern __thread const shim_place *shim_here; /* the thread of a grid that runs */

/* Waits for all threads of the block; returns true if any of them voted so. */
bool shim_barrier(bool vote);

/* Returns the value of lane + delta of the warp; its own value if there is no such lane. */
double shim_shuffle_down(double value, unsigned delta);

/* Orders this thread's writes before an atomic operation with the reads of a second thread, after
 * that thread has seen the operation and passed its own fence. */
void shim_fence(void);
void shim_before_atomic(void *address);
void shim_after_atomic(void *address);

#ifdef __cplusplus
}
#endif

#endif
