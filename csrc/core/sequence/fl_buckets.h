/* fl_buckets: an order of samples cut into steps of samples of similar length.
 *
 * Floor 1. Pure: a function of the order and the lengths. LengthBucketBatchSampler has the rule. */
#ifndef FL_BUCKETS_H
#define FL_BUCKETS_H

#include "fl_base.h"

typedef struct fl_bucket_rule {
    const int64_t *lengths; /* of all samples, >= 0 */
    int64_t count;          /* of them */
    int64_t ranks;          /* that share a step, >= 1 */
    int64_t batch_size;     /* samples of a rank's batch; 0: as many as max_tokens takes */
    int64_t max_tokens;     /* of a rank's padded batch; 0: any number */
    int64_t mega_steps;     /* of a mega-batch, about; 0: all samples are one */
    bool drop_last;         /* an incomplete last step */
} fl_bucket_rule;

/* Room for steps of `count` samples: the last step may have samples twice. INT64_MAX: too much. */
static inline int64_t fl_buckets_room(const fl_bucket_rule *rule, int64_t count)
{
    int64_t room;
    return fl_add(count, rule->ranks, &room) ? room : INT64_MAX;
}

/* Cuts order[count] into steps in place, each longest first, and writes where each ends to
 * ends[count + 1]. Returns the number of steps. `spare` and `order` have room for steps. Takes
 * O(count log count). */
int64_t fl_buckets_cut(const fl_bucket_rule *rule, int64_t count, int64_t *order, int64_t *spare,
                       int64_t *ends);

#endif
