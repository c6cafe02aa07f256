/* fl_cpu_lanes: the steps of passes over gradients for one run of elements.
 *
 * Floor 2. The same source is compiled for several instruction sets (fl_cpu_lanes_*.c); all give
 * the same bits: element i is added to lane i % 32 in double, and the lanes are added in one order.
 * Squares of floats and halves are exact in double, and their sum cannot overflow, so the sum is
 * finite exactly if every element is finite. Any thread; nothing here blocks or allocates. */
#ifndef FL_CPU_LANES_H
#define FL_CPU_LANES_H

#include "fl_grad_ops.h"

typedef struct fl_cpu_lanes {
    const char *name;

    /* Returns the sum of squares, the sum of magnitudes, or the largest magnitude (NaN if there is
     * a NaN). *is_finite: every element is finite. */
    double (*norm[FL_NORMS][FL_FLOATS])(const void *data, int64_t count, bool *is_finite);

    /* data *= (float)factor; *is_finite: every element was finite before. */
    void (*unscale[FL_FLOATS])(void *data, int64_t count, double factor, bool *is_finite);

    /* data *= factor; for all types but double the factor is first rounded to float. */
    void (*scale[FL_FLOATS])(void *data, int64_t count, double factor);

    /* dst = beta * dst + alpha * src, by dst's and src's type; NULL: the pair is not offered. In
     * float (double for doubles), rounded once. With beta 0, dst is not read. */
    void (*combine[FL_FLOATS][FL_FLOATS])(void *dst, const void *src, int64_t count, double alpha,
                                          double beta, bool *is_finite);
} fl_cpu_lanes;

extern const fl_cpu_lanes fl_cpu_lanes_plain;
#if defined(__x86_64__)
extern const fl_cpu_lanes fl_cpu_lanes_avx2;
extern const fl_cpu_lanes fl_cpu_lanes_avx512;
#elif defined(__aarch64__)
extern const fl_cpu_lanes fl_cpu_lanes_neon;
#endif

/* Returns the table for the level of this machine (fl_cpu_level_find). */
const fl_cpu_lanes *fl_cpu_lanes_find(void);

#endif
