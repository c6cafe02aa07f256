/* fl_backend: the table of functions a device fills.
 *
 * Floor 1 calls through the table; floor 2 fills it; floor 3 chooses one and passes it in. */
#ifndef FL_BACKEND_H
#define FL_BACKEND_H

#include "fl_tensor_list.h"

enum { FL_NORM_2, FL_NORM_1, FL_NORM_MAX, FL_NORMS };

/* A list for a pass, and where the pass runs: on CUDA an fl_cuda_queue, on the CPU an
 * fl_thread_pool (or NULL: the caller's thread alone). */
typedef struct fl_pass {
    fl_tensor_list *list; /* borrowed, unchanged until the pass is over */
    void *queue;          /* borrowed */
} fl_pass;

/* What gradients are divided by: *scale, which the device knows, times what the host knows. */
typedef struct fl_divisor {
    const float *scale; /* NULL: 1 */
    double rest;
} fl_divisor;

typedef struct fl_growth {
    double growth, backoff;
    int32_t interval;   /* good steps in a row until the scale grows */
    int32_t hysteresis; /* bad steps in a row until it backs off, >= 1 */
    float least, most;  /* the scale stays within */
} fl_growth;

typedef struct fl_backend {
    /* Copies rows first, first + 1, ... to dst, packed; row r begins at src + r * stride.
     * is_large: they are part of a batch larger than a core's caches should keep. Never blocks,
     * any thread. */
    void (*copy_rows)(char *dst, const char *src, int64_t stride, int64_t row_bytes, int64_t first,
                      int64_t count, bool is_large);

    /* Copies rows index[0], ..., index[count - 1] likewise. */
    void (*gather_rows)(char *dst, const char *src, int64_t stride, int64_t row_bytes,
                        const int64_t *index, int64_t count, bool is_large);

    /* Passes over gradients. Pointers are to memory of the device and used when the pass runs; a
     * pass is over on return on the CPU, queued elsewhere. None allocates, none waits for the
     * device. *found_inf becomes 1 if an element is infinite or NaN, and stays as it is otherwise.
     * Sums are in double, in an order that sizes alone decide; on a device that is slow at that,
     * a 2-norm may be wrong by 1.5 * 2^-24 of itself. FL_OK, on the CPU always; FL_EDEVICE: no
     * element will change, the queue has the text. */

    /* *norm = the norm of all elements / |divisor|. Writes no element. */
    int (*norm_check)(const fl_pass *pass, int32_t norm_type, fl_divisor divisor, float *found_inf,
                      double *norm);

    /* *factor = min(1, max_norm / (*norm + 1e-6)) / divisor; without the min(...) if norm is NULL
     * or *found_inf is not 0 (it may be NULL). */
    int (*clip_factor)(void *queue, const double *norm, double max_norm, const float *found_inf,
                       fl_divisor divisor, double *factor);

    /* *inverse = 1 / *scale, computed in double. */
    int (*invert)(void *queue, const float *scale, float *inverse);

    /* Multiplies every element by *factor, rounded to float first for all but doubles; writes
     * nothing if it is 1. */
    int (*scale)(const fl_pass *pass, const double *factor);

    /* The same with *inv_scale, checking the elements as they were. */
    int (*unscale)(const fl_pass *pass, const float *inv_scale, float *found_inf);

    /* into = beta * into + alpha * *factor * from, span by span (as many, of equal counts), in
     * float (double for doubles), rounded once; factor NULL: 1. With beta 0 does not read into.
     * Checks the elements of `from` unless found_inf is NULL. See can_combine. */
    int (*combine)(const fl_pass *into, const fl_tensor_list *from, double alpha,
                   const double *factor, double beta, float *found_inf);
    bool (*can_combine)(int32_t into_type, int32_t from_type);

    /* The scale after a step: torch's _amp_update_scale_, within growth's bounds and never infinite
     * or NaN. *misses counts bad steps in a row; is not used if hysteresis is 1. */
    int (*update_scale)(void *queue, const fl_growth *growth, const float *found_inf, float *scale,
                        int32_t *tracker, int32_t *misses);
} fl_backend;

#endif
