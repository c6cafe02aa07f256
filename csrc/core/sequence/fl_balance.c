/* fl_balance: see fl_balance.h. Samples are sorted, the most expensive first. While the first one
 * costs much more than a batch should, a long step is made: each batch gets one such sample, and is
 * then filled up to the same cost. The rest is spread by longest processing time: each sample goes
 * into the batch that costs least of those with room for its tokens. Of these batches, the ones
 * of similar cost share a step. */
#include "fl_balance.h"

#include <math.h>
#include <string.h>

static const double LONG = 0.5;    /* of a batch's cost: a sample above this makes a long step */
static const double SLACK = 0.002; /* of a batch's cost: a batch of a long step may lack this */
static const double SPARE = 1.02;  /* batches are expected to need room for this many times their
                                      tokens */
enum { TRIES = 64 };               /* samples of fitting cost that are tried for fitting tokens */
enum { MOVES = 16 };               /* moves of a batch to the waiting ones, for each sample */

typedef struct entry {
    double key;
    int64_t item;
} entry;

typedef struct cost_batch {
    double cost;
    int64_t tokens, samples;
    int64_t place; /* among all batches, once all are made */
} cost_batch;

/* A binary heap: the entry with the lowest key comes first. */
typedef struct entry_heap {
    entry *entries;
    int64_t count;
} entry_heap;

typedef struct sample {
    double cost;
    int64_t tokens;
    int64_t number;
    int64_t batch; /* once it has one */
    int64_t next;  /* no sample from this one up to `next` is left */
} sample;

/* The arrays lie in one block of memory and have `count` items; samples have one more. */
typedef struct window_plan {
    const fl_balance_rule *rule;
    int64_t width;   /* batches in a step */
    sample *samples; /* the most expensive first */
    cost_batch *batches;
    entry *open, *waiting;         /* room for two heaps, or to sort */
    int64_t left;                  /* samples that have no batch yet */
    double cost_left, tokens_left; /* the sums over these samples */
    bool is_monotone;              /* samples of higher cost have at least as many tokens */
} window_plan;

static bool is_before(entry a, entry b)
{
    return a.key < b.key || (a.key == b.key && a.item < b.item);
}

/* Moves the first entry down to where it belongs. */
static void sink(entry_heap *heap)
{
    entry moved = heap->entries[0];
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < heap->count; at = child) {
        const entry *pair = heap->entries + child;
        if (child + 1 < heap->count && is_before(pair[1], pair[0])) child++;
        if (!is_before(heap->entries[child], moved)) break;
        heap->entries[at] = heap->entries[child];
    }
    heap->entries[at] = moved;
}

static void push(entry_heap *heap, double key, int64_t item)
{
    entry added = {key, item};
    int64_t at = heap->count++;
    for (; at > 0 && is_before(added, heap->entries[(at - 1) / 2]); at = (at - 1) / 2)
        heap->entries[at] = heap->entries[(at - 1) / 2];
    heap->entries[at] = added;
}

static int64_t pop(entry_heap *heap)
{
    int64_t item = heap->entries[0].item;
    heap->entries[0] = heap->entries[--heap->count];
    sink(heap);
    return item;
}

/* Sorts by key, the highest first; entries with equal keys keep their order. Keys are not negative,
 * so their bits have their order. The number of passes is even: the last one ends in `entries`. */
static void sort_down(entry *entries, entry *spare, int64_t count)
{
    entry *from = entries, *to = spare;
    for (int shift = 0; shift < 64; shift += 8) {
        int64_t begins[257] = {0}; /* of each byte, the highest one first */
        uint64_t bits;
        for (int64_t i = 0; i < count; i++) {
            memcpy(&bits, &from[i].key, sizeof bits);
            begins[256 - (bits >> shift & 255)]++;
        }
        for (int i = 1; i < 257; i++) begins[i] += begins[i - 1];
        for (int64_t i = 0; i < count; i++) {
            memcpy(&bits, &from[i].key, sizeof bits);
            to[begins[255 - (bits >> shift & 255)]++] = from[i];
        }
        entry *sorted = to;
        to = from;
        from = sorted;
    }
}

/* Fills the plan's samples: the most expensive come first, of those the longest. */
static void sort_samples(window_plan *plan)
{
    const fl_balance_rule *rule = plan->rule;
    entry *sorted = plan->open;
    for (int64_t i = 0; i < rule->count; i++) sorted[i] = (entry){(double)rule->lengths[i], i};
    sort_down(sorted, plan->waiting, rule->count);
    for (int64_t i = 0; i < rule->count; i++) sorted[i].key = rule->costs[sorted[i].item];
    sort_down(sorted, plan->waiting, rule->count);
    plan->left = rule->count;
    plan->is_monotone = true;
    for (int64_t i = 0; i < rule->count; i++) {
        int64_t tokens = rule->lengths[sorted[i].item];
        plan->samples[i] = (sample){sorted[i].key, tokens, sorted[i].item, 0, i};
        plan->cost_left += sorted[i].key;
        plan->tokens_left += (double)tokens;
        if (i > 0 && tokens > plan->samples[i - 1].tokens) plan->is_monotone = false;
    }
    plan->samples[rule->count].next = rule->count;
}

/* Returns the first sample from `at` on that is left, or the count. */
static int64_t find_left(window_plan *plan, int64_t at)
{
    sample *samples = plan->samples;
    while (samples[at].next != at) at = samples[at].next = samples[samples[at].next].next;
    return at;
}

static void add_to_batch(window_plan *plan, int64_t i, int64_t batch)
{
    plan->batches[batch].cost += plan->samples[i].cost;
    plan->batches[batch].tokens += plan->samples[i].tokens;
    plan->batches[batch].samples++;
    plan->samples[i].batch = batch;
}

static void take(window_plan *plan, int64_t i, int64_t batch)
{
    add_to_batch(plan, i, batch);
    plan->samples[i].next = i + 1;
    plan->left--;
    plan->cost_left -= plan->samples[i].cost;
    plan->tokens_left -= (double)plan->samples[i].tokens;
}

/* Returns the number of steps that have room for `tokens`. */
static double steps_for(const window_plan *plan, double tokens)
{
    double step = (double)plan->rule->max_tokens * (double)plan->width;
    return fmax(1.0, ceil(tokens / step));
}

/* Returns the most expensive sample left of at most this cost and these tokens, or the count. */
static int64_t find_fitting(window_plan *plan, double cost, int64_t tokens)
{
    int64_t low = 0, high = plan->rule->count, count = high;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        bool fits = plan->samples[middle].cost <= cost &&
                    (!plan->is_monotone || plan->samples[middle].tokens <= tokens);
        if (fits)
            high = middle;
        else
            low = middle + 1;
    }
    int64_t found = find_left(plan, low);
    for (int i = 0; i < TRIES && found < count; i++) {
        if (plan->samples[found].tokens <= tokens) return found;
        found = find_left(plan, found + 1);
    }
    return count;
}

/* Makes a step with the most expensive samples left, from batch `first` on. Returns false if these
 * samples are not long. */
static bool add_long_step(window_plan *plan, int64_t first)
{
    if (plan->left < plan->width || plan->left - plan->width < plan->width) return false;
    double steps = steps_for(plan, floor(plan->tokens_left * SPARE));
    double mean = plan->cost_left / ((double)plan->width * steps);
    double most = plan->samples[find_left(plan, 0)].cost;
    if (most <= LONG * mean) return false;
    double cost = fmax(most, mean);
    for (int64_t i = 0; i < plan->width; i++) take(plan, find_left(plan, 0), first + i);
    for (int64_t i = first; i < first + plan->width; i++) {
        const cost_batch *batch = plan->batches + i;
        while (batch->cost < cost * (1 - SLACK)) {
            int64_t room = plan->rule->max_tokens - batch->tokens;
            int64_t found = find_fitting(plan, cost - batch->cost, room);
            if (found == plan->rule->count) break;
            take(plan, found, i);
        }
    }
    return true;
}

/* Spreads the samples left over `count` batches from `first` on. Batches without room for a sample
 * wait until a sample has few enough tokens. Returns false if a sample fits nowhere. */
static bool spread(window_plan *plan, int64_t first, int64_t count)
{
    entry_heap open = {plan->open, count}, waiting = {plan->waiting, 0};
    int64_t moves = MOVES * (plan->left + count), most = plan->rule->max_tokens;
    memset(plan->batches + first, 0, (size_t)count * sizeof *plan->batches);
    for (int64_t i = 0; i < count; i++) open.entries[i] = (entry){0.0, first + i};
    int64_t i = find_left(plan, 0);
    for (; i < plan->rule->count; i = find_left(plan, i + 1)) {
        int64_t tokens = plan->samples[i].tokens;
        while (waiting.count > 0 && (double)tokens <= -waiting.entries[0].key) {
            int64_t number = pop(&waiting);
            push(&open, plan->batches[number].cost, number);
        }
        while (open.count > 0 && plan->batches[open.entries[0].item].tokens + tokens > most) {
            if (moves-- == 0) return false;
            int64_t number = pop(&open);
            push(&waiting, (double)(plan->batches[number].tokens - most), number);
        }
        if (open.count == 0) return false;
        add_to_batch(plan, i, open.entries[0].item);
        open.entries[0].key = plan->batches[open.entries[0].item].cost;
        sink(&open);
    }
    return true;
}

/* Gives each empty batch of [first, end) the cheapest sample that is not alone in its batch. There
 * are at least `end` samples. */
static void fill_empty(window_plan *plan, int64_t first, int64_t end)
{
    int64_t i = plan->rule->count - 1;
    for (int64_t batch = first; batch < end; batch++) {
        if (plan->batches[batch].samples > 0) continue;
        while (plan->batches[plan->samples[i].batch].samples < 2) i--;
        cost_batch *from = plan->batches + plan->samples[i].batch;
        from->cost = fmax(0, from->cost - plan->samples[i].cost); /* rounded, it may be below 0 */
        from->samples--;
        add_to_batch(plan, i, batch);
    }
}

/* Makes whole steps of the samples left, if there are enough samples, from batch `first` on.
 * Returns the number of batches. */
static int64_t add_last_steps(window_plan *plan, int64_t first)
{
    if (plan->left == 0) return first;
    int64_t steps = (int64_t)steps_for(plan, plan->tokens_left);
    /* With as many batches as samples, each sample finds an empty batch. */
    while (!spread(plan, first, fl_min(steps * plan->width, plan->left))) steps++;
    int64_t end = fl_min(first + steps * plan->width, plan->rule->count);
    fill_empty(plan, first, end);
    return end;
}

/* Writes the batches, from `first` on in the order of their cost. */
static void
write_batches(window_plan *plan, int64_t first, int64_t count, int64_t *order, int64_t *ends)
{
    int64_t begin = 0;
    for (int64_t i = 0; i < count; i++) plan->open[i] = (entry){plan->batches[i].cost, i};
    sort_down(plan->open + first, plan->waiting, count - first);
    for (int64_t i = 0; i < count; i++) {
        cost_batch *batch = plan->batches + plan->open[i].item;
        ends[i] = begin; /* where its next sample is written; thus the end, after the last one */
        begin += batch->samples;
        batch->place = i;
    }
    for (sample *each = plan->samples; each < plan->samples + plan->rule->count; each++)
        order[ends[plan->batches[each->batch].place]++] = each->number;
}

/* Completes the last round of ranks: the cheapest samples come twice. */
static int64_t
repeat_cheapest(const window_plan *plan, int64_t batches, int64_t *order, int64_t *ends)
{
    for (int64_t i = plan->rule->count; batches % plan->rule->ranks != 0; batches++) {
        i = (i > 0 ? i : plan->rule->count) - 1;
        order[ends[batches - 1]] = plan->samples[i].number;
        ends[batches] = ends[batches - 1] + 1;
    }
    return batches;
}

int fl_balance_plan(const fl_balance_rule *rule, int64_t *order, int64_t *ends, int64_t *batches,
                    fl_err *err)
{
    int64_t count = rule->count, first = 0;
    size_t each = sizeof(sample) + sizeof(cost_batch) + 2 * sizeof(entry);
    sample *memory = fl_alloc((count + 1) * (int64_t)each);
    if (memory == NULL) return fl_fail(err, FL_ENOMEM, "no memory for a window of samples");
    window_plan plan = {.rule = rule, .width = rule->ranks * rule->accumulate, .samples = memory};
    plan.batches = (cost_batch *)(memory + count + 1);
    plan.open = (entry *)(plan.batches + count);
    plan.waiting = plan.open + count;
    sort_samples(&plan);
    while (add_long_step(&plan, first)) first += plan.width;
    int64_t made = add_last_steps(&plan, first);
    write_batches(&plan, first, made, order, ends);
    if (rule->drop_last) made -= made % plan.width;
    *batches = repeat_cheapest(&plan, made, order, ends);
    fl_free(memory);
    return FL_OK;
}
