/* fl_cpu: the backend in plain C, the reference every other backend is tested against. */
#ifndef FL_CPU_H
#define FL_CPU_H

#include "fl_backend.h"

extern const fl_backend fl_cpu_backend;

/* What the table holds; contracts in fl_backend.h. */

void fl_cpu_copy_rows(char *dst, const char *src, int64_t stride, int64_t row_bytes, int64_t first,
                      int64_t count, bool is_large);
void fl_cpu_gather_rows(char *dst, const char *src, int64_t stride, int64_t row_bytes,
                        const int64_t *index, int64_t count, bool is_large);

int fl_cpu_norm_check(const fl_pass *pass, int32_t norm_type, fl_divisor divisor, float *found_inf,
                      double *norm);
int fl_cpu_clip_factor(void *queue, const double *norm, double max_norm, const float *found_inf,
                       fl_divisor divisor, double *factor);
int fl_cpu_invert(void *queue, const float *scale, float *inverse);
int fl_cpu_scale(const fl_pass *pass, const double *factor);
int fl_cpu_unscale(const fl_pass *pass, const float *inv_scale, float *found_inf);
int fl_cpu_combine(const fl_pass *into, const fl_tensor_list *from, double alpha,
                   const double *factor, double beta, float *found_inf);
bool fl_cpu_can_combine(int32_t into_type, int32_t from_type);
int fl_cpu_update_scale(void *queue, const fl_growth *growth, const float *found_inf, float *scale,
                        int32_t *tracker, int32_t *misses);

#endif
