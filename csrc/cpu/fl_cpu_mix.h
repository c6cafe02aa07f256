/* fl_cpu_mix: mixes each row of a batch with the row before, in place (MixUp).
 *
 * Floor 2. row[i] = row[i - 1] * rest + row[i] * share, each product and the sum rounded to float;
 * the row before the first is the last. The bits equal torch's
 * roll(1, 0).mul_(rest).add_(x.mul(share)). */
#ifndef FL_CPU_MIX_H
#define FL_CPU_MIX_H

#include "fl_base.h"

typedef struct fl_mix {
    float *rows; /* borrowed: `count` >= 1 rows of `columns` each, without gaps */
    int64_t count, columns;
    float share, rest;
} fl_mix;

/* Returns the number of parts, of a few columns each. Parts may be done in any order and by any
 * thread. */
int64_t fl_mix_parts(const fl_mix *mix);

/* Does parts first, ..., end - 1. An fl_work, whose context is an fl_mix. */
void fl_mix_do(void *mix, int64_t first, int64_t end);

#endif
