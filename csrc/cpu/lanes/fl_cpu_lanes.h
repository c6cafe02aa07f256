/* fl_cpu_lanes: what the passes over gradients do to one run of elements.
 *
 * Floor 2. The same source is compiled for several instruction sets (fl_cpu_lanes_*.c); all give
 * the same bits: element i is added to lane i % 32 in double, and the lanes are added in one order.
 * Squares of floats and halves are exact in double, and their sum cannot overflow, so there the sum
 * is finite exactly when every element is. Any thread; nothing here blocks or allocates. */
#ifndef FL_CPU_LANES_H
#define FL_CPU_LANES_H

#include "fl_grad_ops.h"

typedef struct fl_cpu_lanes {
    const char *name;

    /* The sum of squares, the sum of magnitudes, or the largest magnitude (NaN if there is one).
     * *is_finite: whether every element is. */
    double (*norm[FL_NORMS][FL_FLOATS])(const void *data, int64_t count, bool *is_finite);

    /* data *= (float)factor; *is_finite is about what was there before. */
    void (*unscale[FL_FLOATS])(void *data, int64_t count, double factor, bool *is_finite);

    /* data *= factor, rounded to float first for all but doubles. */
    void (*scale[FL_FLOATS])(void *data, int64_t count, double factor);

    /* dst = beta * dst + alpha * src, by dst's and src's type; NULL where it is not offered. In
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

/* The one for the level of this machine (fl_cpu_level_find). */
const fl_cpu_lanes *fl_cpu_lanes_find(void);

#endif
