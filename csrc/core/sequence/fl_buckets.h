/* fl_buckets: an order of samples cut into steps of samples of similar length.
 *
 * Floor 1. The result depends only on the order and the lengths. LengthBucketBatchSampler has the
 * rule. */
#ifndef FL_BUCKETS_H
#define FL_BUCKETS_H

#include "fl_base.h"

typedef struct fl_bucket_rule {
    const int64_t *lengths; /* the length of each sample, >= 0 */
    int64_t count;          /* samples */
    int64_t ranks;          /* ranks that share a step, >= 1 */
    int64_t batch_size;     /* samples in a rank's batch; 0: as many as max_tokens allows */
    int64_t max_tokens;     /* tokens in a rank's padded batch; 0: any number */
    int64_t mega_steps;     /* steps in a mega-batch, about; 0: all samples form one mega-batch */
    bool drop_last;         /* drop an incomplete last step */
} fl_bucket_rule;

/* Returns the room for steps of `count` samples: the last step may have samples twice. INT64_MAX:
 * the room does not fit int64_t. */
static inline int64_t fl_buckets_room(const fl_bucket_rule *rule, int64_t count)
{
    int64_t room;
    return fl_add(count, rule->ranks, &room) ? room : INT64_MAX;
}

/* Cuts order[count] into steps in place, each with its longest sample first, and writes the end of
 * each step to ends[count + 1]. Returns the number of steps. `spare` and `order` have
 * fl_buckets_room. Takes O(count log count). */
int64_t fl_buckets_split(const fl_bucket_rule *rule, int64_t count, int64_t *order, int64_t *spare,
                         int64_t *ends);

#endif
