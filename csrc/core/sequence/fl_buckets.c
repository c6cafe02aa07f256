/* fl_buckets: see fl_buckets.h. Samples that do not fill a step stay at the end of the sorted part,
 * and the next mega-batch is added to them. */
#include "fl_buckets.h"

#include <string.h>

/* Returns the samples of a step, for all ranks together, if the longest sample has `longest`
 * tokens. */
static int64_t samples_of_step(const fl_bucket_rule *rule, int64_t longest)
{
    int64_t size = rule->batch_size > 0 ? rule->batch_size : INT64_MAX, samples;
    if (rule->max_tokens > 0) size = fl_min(size, rule->max_tokens / fl_max(longest, 1));
    size = fl_max(size, 1);
    return fl_mul(size, rule->ranks, &samples) ? samples : INT64_MAX;
}

static int64_t samples_of_mega_batch(const fl_bucket_rule *rule)
{
    enum { MEGA_BATCHES = 4 }; /* at least this many, if there are enough samples */
    if (rule->mega_steps == 0 || rule->count == 0) return INT64_MAX;
    double tokens = 0.0;
    for (int64_t i = 0; i < rule->count; i++) tokens += (double)rule->lengths[i];
    int64_t step = samples_of_step(rule, (int64_t)(tokens / (double)rule->count));
    if (step > rule->count / MEGA_BATCHES) return step;
    return step * fl_max(1, fl_min(rule->mega_steps, rule->count / (MEGA_BATCHES * step)));
}

/* Merges two sorted runs, [0, middle) and [middle, count). Among samples of equal length the
 * samples of the first run come first. */
static void
merge(const int64_t *lengths, const int64_t *from, int64_t middle, int64_t count, int64_t *to)
{
    int64_t a = 0, b = middle;
    for (int64_t i = 0; i < count; i++) {
        bool is_first = b == count || (a < middle && lengths[from[a]] >= lengths[from[b]]);
        to[i] = from[is_first ? a++ : b++];
    }
}

/* Sorts samples by length, longest first; samples of equal length keep their order. */
static void sort_samples(const int64_t *lengths, int64_t *samples, int64_t count, int64_t *spare)
{
    int64_t *from = samples, *to = spare;
    for (int64_t run = 1; run < count; run *= 2) {
        for (int64_t at = 0; at < count; at += 2 * run) {
            int64_t rest = fl_min(2 * run, count - at);
            merge(lengths, from + at, fl_min(run, rest), rest, to + at);
        }
        int64_t *sorted = to;
        to = from;
        from = sorted;
    }
    if (from != samples) memcpy(samples, from, (size_t)count * sizeof *samples);
}

int64_t fl_buckets_split(const fl_bucket_rule *rule, int64_t count, int64_t *order, int64_t *spare,
                         int64_t *ends)
{
    int64_t mega = samples_of_mega_batch(rule), taken = 0, done = 0, steps = 0;
    while (taken < count) {
        taken += fl_min(mega, count - taken);
        sort_samples(rule->lengths, order + done, taken - done, spare);
        while (done < taken) {
            int64_t samples = samples_of_step(rule, rule->lengths[order[done]]);
            if (samples > taken - done) break;
            done += samples;
            ends[steps++] = done;
        }
    }
    int64_t rest = count - done;
    if (rest == 0 || rule->drop_last) return steps;
    int64_t shared = (rest + rule->ranks - 1) / rule->ranks * rule->ranks;
    for (int64_t i = rest; i < shared; i++) order[done + i] = order[done + i - rest];
    ends[steps++] = done + shared;
    return steps;
}
