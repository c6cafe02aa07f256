/* fl_balance: a window of samples divided into steps whose batches are of equal cost.
 *
 * Floor 1. The result depends on the arguments only; any thread, does not block. CostBatchSampler
 * has the rule. */
#ifndef FL_BALANCE_H
#define FL_BALANCE_H

#include "fl_base.h"

/* Token counts are added up in doubles, which are exact up to this number. */
#define FL_BALANCE_MAX_TOKENS ((int64_t)1 << 52)

typedef struct fl_balance_rule {
    const int64_t *lengths; /* borrowed: the tokens of each sample, from 0 to max_tokens */
    const double *costs;    /* borrowed: the cost of each sample, finite and >= 0, but not -0 */
    int64_t count;          /* samples */
    int64_t ranks;          /* ranks that share a step, from 1 to 2^31 */
    int64_t accumulate;     /* batches of one rank in a step, from 1 to 2^31 */
    int64_t max_tokens;     /* tokens in a batch, from 1 to FL_BALANCE_MAX_TOKENS */
    bool drop_last;         /* drop an incomplete step */
} fl_balance_rule;

/* Returns the room for the samples of all batches, and for the ends of the batches: in an
 * incomplete step fewer samples than ranks come twice. */
static inline int64_t fl_balance_room(const fl_balance_rule *rule)
{
    return rule->count + rule->ranks;
}

/* Writes the samples of one batch after the other to `order`, each batch with its most expensive
 * sample first, and the end of each batch to `ends`. `order` and `ends` have fl_balance_room. A
 * step is ranks * accumulate batches; in the last step a rank may have fewer batches, if there are
 * too few samples. Sets *batches, a multiple of ranks. No batch is empty.
 * Takes O(count log count). FL_ENOMEM. */
int fl_balance_plan(const fl_balance_rule *rule, int64_t *order, int64_t *ends, int64_t *batches,
                    fl_err *err);

#endif
