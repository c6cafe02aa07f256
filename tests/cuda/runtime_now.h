/* runtime_now.h: a CUDA runtime whose kernels are over when they are launched, and what a test may
 * ask of it. Device memory is memory. */
#ifndef RUNTIME_NOW_H
#define RUNTIME_NOW_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

enum { RUNTIME_DEVICES = 2 };

typedef struct runtime_now {
    int processors;    /* of each device */
    bool has_code;     /* for these devices, in this program */
    int64_t refuse;    /* the call that fails, counted from 1; 0: none */
    cudaError_t error; /* with this */
    int64_t calls;     /* so far, of those that may fail */
    int64_t launches;  /* of kernels that ran */
    int device;        /* the current one */
    cudaError_t last;  /* what cudaGetLastError will say */
} runtime_now;

extern runtime_now runtime;

#endif
