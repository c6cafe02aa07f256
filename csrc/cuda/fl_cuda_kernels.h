/* fl_cuda_kernels: the functions of fl_cuda_kernels.cu for host code. A launcher queues one kernel
 * on a stream of the current device and returns the status of the launch; it allocates nothing and
 * never waits. Not for other floors. */
#ifndef FL_CUDA_KERNELS_H
#define FL_CUDA_KERNELS_H

#include "fl_grad_ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A span as kernels see it. */
typedef struct fl_cuda_row {
    char *data;
    int64_t count;
    int64_t place; /* number of the span's first chunk, times 4, plus its type */
} fl_cuda_row;

enum {
    FL_CUDA_ROWS = 1360,      /* rows that travel with a launch */
    FL_CUDA_BLOCKS_PER_SM = 4 /* blocks that run on a multiprocessor at a time */
};

/* The table of a pass: a row for each span of `list`, then a row for each span of `from`. */
typedef struct fl_cuda_table {
    const fl_tensor_list *list, *from; /* from: NULL except for a combine */
    const fl_cuda_row *rows; /* on the device; read if there are more than FL_CUDA_ROWS rows */
    int32_t blocks;          /* of the grid, > 0; no result depends on the number */
} fl_cuda_table;

/* The arguments of norm_check; pointers are to memory of the device. */
typedef struct fl_cuda_norm {
    uint32_t *ticket; /* 0, and 0 again when the kernel is over */
    double *sums;     /* one for each chunk */
    int32_t norm_type;
    /* For FL_NORM_2 without doubles: squares are summed in float, 16 bytes of elements at a time;
     * the relative error of the norm is at most 1.5 * 2^-24. */
    bool is_grouped;
    fl_divisor divisor;
    float *found_inf;
    double *norm;
} fl_cuda_norm;

cudaError_t
fl_cuda_write_rows(void *stream, const fl_tensor_list *list, int64_t first, fl_cuda_row *to);

cudaError_t fl_cuda_norm_check(void *stream, const fl_cuda_table *table, const fl_cuda_norm *norm);

/* Scales by *factor, or by *inverse if factor is NULL; elements are checked unless found_inf is
 * NULL. */
cudaError_t fl_cuda_scale(void *stream, const fl_cuda_table *table, const double *factor,
                          const float *inverse, float *found_inf);

cudaError_t fl_cuda_combine(void *stream, const fl_cuda_table *table, double alpha,
                            const double *factor, double beta, float *found_inf);

cudaError_t fl_cuda_clip_factor(void *stream, const double *norm, double max_norm,
                                const float *found_inf, fl_divisor divisor, double *factor);
cudaError_t fl_cuda_invert(void *stream, const float *scale, float *inverse);
cudaError_t fl_cuda_update_scale(void *stream, const fl_scale_rule *rule, const float *found_inf,
                                 float *scale, int32_t *tracker, int32_t *misses);

/* Loads this file's kernels for the current device; fails if no code was compiled for the
 * device. */
cudaError_t fl_cuda_load_passes(void);

#ifdef __cplusplus
}
#endif

#endif
