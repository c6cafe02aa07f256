/* fl_grad_ops: the table of functions that a device fills for passes over gradients.
 *
 * Floor 1. csrc/cpu fills fl_cpu_grad_ops, csrc/cuda fl_cuda_grad_ops; csrc/python chooses a table
 * by the device of the gradients. */
#ifndef FL_GRAD_OPS_H
#define FL_GRAD_OPS_H

#include "fl_tensor_list.h"

enum { FL_NORM_2, FL_NORM_1, FL_NORM_MAX, FL_NORMS };

/* The tensors of one pass, and the queue or threads that run the pass. */
typedef struct fl_grad_pass {
    fl_tensor_list *list; /* borrowed, unchanged until the pass is over */
    void *queue; /* borrowed: an fl_cuda_queue for CUDA; for the CPU an fl_thread_pool, or NULL for
                    the calling thread alone */
} fl_grad_pass;

/* The number that gradients are divided by: *scale * constant. */
typedef struct fl_divisor {
    const float *scale; /* borrowed: in memory of the device; NULL: 1 */
    double constant;    /* known on the host */
} fl_divisor;

/* The rule by which a step changes the loss scale. */
typedef struct fl_scale_rule {
    double growth, backoff; /* factors */
    int32_t interval;       /* good steps in a row until the scale grows */
    int32_t hysteresis;     /* bad steps in a row until the scale backs off, >= 1 */
    float least, most;      /* bounds of the scale */
} fl_scale_rule;

/* Pointers are to memory of the device and are used when the pass runs. On the CPU a pass is over
 * on return; on CUDA the pass is queued. No function allocates, and none waits for the device.
 * *found_inf becomes 1 if an element is infinite or NaN, and is left alone otherwise. Sums are in
 * double, in an order that depends only on sizes; on a device with slow doubles, the relative error
 * of a 2-norm may be 1.5 * 2^-24. FL_OK, on the CPU always; FL_EDEVICE: no element will change, and
 * the queue has the error. */
typedef struct fl_grad_ops {
    /* *norm = the norm of all elements / |divisor|. Writes no element. */
    int (*norm_check)(const fl_grad_pass *pass, int32_t norm_type, fl_divisor divisor,
                      float *found_inf, double *norm);

    /* *factor = min(1, max_norm / (*norm + 1e-6)) / divisor. Without the min(...) if norm is NULL
     * or *found_inf is not 0; found_inf may be NULL. */
    int (*clip_factor)(void *queue, const double *norm, double max_norm, const float *found_inf,
                       fl_divisor divisor, double *factor);

    /* *inverse = 1 / *scale, computed in double. */
    int (*invert)(void *queue, const float *scale, float *inverse);

    /* Multiplies every element by *factor; for all types but double the factor is first rounded to
     * float. Writes nothing if the factor is 1. */
    int (*scale)(const fl_grad_pass *pass, const double *factor);

    /* Scales by *inv_scale, and checks the elements as they were before. */
    int (*unscale)(const fl_grad_pass *pass, const float *inv_scale, float *found_inf);

    /* into = beta * into + alpha * *factor * from, span by span (both lists have equally many
     * spans, of equal counts), in float (double for doubles), rounded once; factor NULL: 1. With
     * beta 0 `into` is not read. Checks the elements of `from` unless found_inf is NULL. See
     * can_combine. */
    int (*combine)(const fl_grad_pass *into, const fl_tensor_list *from, double alpha,
                   const double *factor, double beta, float *found_inf);
    bool (*can_combine)(int32_t into_type, int32_t from_type);

    /* Sets the scale after a step, like torch's _amp_update_scale_, but within the rule's
     * bounds and never infinite or NaN. *misses counts bad steps in a row; if hysteresis is 1,
     * misses is not used. */
    int (*update_scale)(void *queue, const fl_scale_rule *rule, const float *found_inf,
                        float *scale, int32_t *tracker, int32_t *misses);
} fl_grad_ops;

#endif
