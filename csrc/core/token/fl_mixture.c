/* fl_mixture: see fl_mixture.h. */
#include "fl_mixture.h"

#include "fl_philox.h"

#include <math.h>
#include <stdlib.h>

enum { POINT_SLOT = 0x5A };                  /* of fl_philox_of_sample */
enum { SUBSETS = 1 << FL_MIXTURE_SEARCHED }; /* of the sources whose best tree is searched */
enum { SEARCH_STEPS = 14 };                  /* bisections of the bound, which lies in [1, 4] */

typedef unsigned __int128 wide;

/* Nodes are numbered from the root on, a node's first child and all below before its second. A
 * child >= 0 is a node, any other is the source ~child. */
typedef struct mixture_node {
    int64_t light, sum; /* weights of the lighter child, and of the node */
    int32_t child[2];   /* the lighter one first */
} mixture_node;

struct fl_mixture {
    int32_t count;
    bool is_even;
    uint64_t key;
    double bound;
    mixture_node nodes[]; /* count - 1 */
};

/* ---- one node */

/* A period of the lighter child: the positions from j s / a to (j + 1) s / a, as real numbers. The
 * integer part of its begin, and the rest in units of 1 / a. */
typedef struct period {
    int64_t number, begin, rest;
} period;

static inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

static inline period next_period(const mixture_node *node, period p)
{
    int64_t sum = p.rest + node->sum;
    return (period){p.number + 1, p.begin + sum / node->light, sum % node->light};
}

static inline period period_before(const mixture_node *node, period p)
{
    int64_t back = node->sum - p.rest, whole = ceil_div(back, node->light);
    return (period){p.number - 1, p.begin - whole, whole * node->light - back};
}

/* Returns the position of the keyed point in a period. */
static int64_t find_point(const fl_mixture *self, const mixture_node *node, period p)
{
    fl_sample_key key = {
        .seed = self->key, .index = p.number, .epoch = (uint32_t)(node - self->nodes)};
    fl_philox_block block = fl_philox_of_sample(&key, POINT_SLOT, 0);
    uint64_t word = (uint64_t)block.word[0] << 32 | block.word[1];
    int64_t distance = (int64_t)((wide)word * (uint64_t)node->sum >> 64);
    return p.begin + (p.rest + distance) / node->light;
}

/* Returns how many of the first n positions of the node the lighter child has, and in *is_light
 * whether the child has position n. Two neighbouring periods may share the position in which one
 * ends and the next begins. If both points fall there, the later one moves on by one, which is
 * within its period, because periods have a length of 2 or more. */
static int64_t
split_jittered(const fl_mixture *self, const mixture_node *node, int64_t n, bool *is_light)
{
    wide product = (wide)n * (uint64_t)node->light;
    int64_t number = (int64_t)(product / (uint64_t)node->sum);
    int64_t left = (int64_t)(product - (wide)number * (uint64_t)node->sum);
    int64_t back = ceil_div(left, node->light);
    period own = {number, n - back, back * node->light - left};
    int64_t at = find_point(self, node, own);
    if (at == own.begin) at += find_point(self, node, period_before(node, own)) == at;
    period next = next_period(node, own);
    *is_light = at == n || (next.begin == n && find_point(self, node, next) == n);
    return number + (at < n);
}

static inline int64_t count_even(const mixture_node *node, int64_t n)
{
    wide twice = 2 * (wide)n * (uint64_t)node->light + (uint64_t)node->sum;
    return (int64_t)(twice / (2 * (wide)node->sum));
}

static int64_t split(const fl_mixture *self, const mixture_node *node, int64_t n, bool *is_light)
{
    if (!self->is_even) return split_jittered(self, node, n, is_light);
    int64_t light = count_even(node, n);
    *is_light = count_even(node, n + 1) > light;
    return light;
}

/* ---- the tree */

int32_t fl_mixture_find(const fl_mixture *self, int64_t n, int64_t *sample)
{
    int32_t at = self->count > 1 ? 0 : ~0;
    while (at >= 0) {
        const mixture_node *node = &self->nodes[at];
        bool is_light;
        int64_t light = split(self, node, n, &is_light);
        n = is_light ? light : n - light;
        at = node->child[!is_light];
    }
    *sample = n;
    return ~at;
}

static void
count_below(const fl_mixture *self, int32_t at, int64_t n, const int64_t *places, int64_t *counts)
{
    if (at < 0) {
        counts[places[~at]] += n;
        return;
    }
    const mixture_node *node = &self->nodes[at];
    bool is_light;
    int64_t light = split(self, node, n, &is_light);
    count_below(self, node->child[0], light, places, counts);
    count_below(self, node->child[1], n - light, places, counts);
}

void fl_mixture_count(const fl_mixture *self, int64_t n, const int64_t *places, int64_t *counts)
{
    count_below(self, self->count > 1 ? 0 : ~0, n, places, counts);
}

double fl_mixture_bound(const fl_mixture *self) { return self->bound; }

/* Returns the largest of the sums of a source: its weight divided by the weight of each node above,
 * except the root. */
static double find_worst(const fl_mixture *self, const int64_t *weights, int32_t at, double above)
{
    const mixture_node *node = &self->nodes[at];
    double worst = 0;
    for (int i = 0; i < 2; i++) {
        int64_t weight = i == 0 ? node->light : node->sum - node->light;
        double here = above + 1 / (double)weight;
        int32_t child = node->child[i];
        double found =
            child >= 0 ? find_worst(self, weights, child, here) : (double)weights[~child] * here;
        worst = found > worst ? found : worst;
    }
    return worst;
}

/* ---- how the tree is made */

/* The parts of the tree. Of few sources: the best split of each subset. Of many sources: the pairs
 * that Huffman's algorithm has joined, numbered from `count` on. */
typedef struct mixture_plan {
    const int64_t *weights; /* borrowed */
    int32_t count, made;    /* made: nodes that are numbered so far */
    int64_t *sums;          /* owned: of subsets, or of pairs */
    double *slack;          /* owned; only for subsets */
    int32_t (*parts)[2];    /* owned */
} mixture_plan;

static inline bool is_searched(const mixture_plan *plan)
{
    return plan->count <= FL_MIXTURE_SEARCHED;
}

/* Finds the tree of the subset of all sources that has the most slack below this bound: a subset's
 * slack is the least, over its sources, of (bound - sum so far) / weight. */
static bool search_trees(mixture_plan *plan, double bound)
{
    int32_t all = (1 << plan->count) - 1;
    for (int32_t set = 1; set <= all; set++) {
        if ((set & (set - 1)) == 0) {
            plan->slack[set] = (bound - 1) / (double)plan->sums[set];
            continue;
        }
        double best = -INFINITY;
        for (int32_t left = (set - 1) & set; left >= (set ^ left); left = (left - 1) & set) {
            double one = plan->slack[left], other = plan->slack[set ^ left];
            double found = other < one ? other : one;
            if (found <= best) continue;
            best = found;
            plan->parts[set][0] = left;
            plan->parts[set][1] = set ^ left;
        }
        plan->slack[set] = set == all ? best : best - 1 / (double)plan->sums[set];
    }
    return plan->slack[all] >= -1e-12;
}

static void search_best(mixture_plan *plan)
{
    double low = 1, high = 4;
    for (int32_t set = 1; set < 1 << plan->count; set++)
        plan->sums[set] = plan->sums[set & (set - 1)] + plan->weights[__builtin_ctz((unsigned)set)];
    for (int step = 0; step < SEARCH_STEPS; step++) {
        double middle = (low + high) / 2;
        if (search_trees(plan, middle))
            high = middle;
        else
            low = middle;
    }
    (void)search_trees(plan, high);
}

typedef struct weighed {
    int64_t weight;
    int32_t source;
} weighed;

static int compare_weighed(const void *a, const void *b)
{
    const weighed *one = a, *other = b;
    if (one->weight != other->weight) return one->weight < other->weight ? -1 : 1;
    return one->source < other->source ? -1 : 1;
}

/* Joins the two lightest, again and again. Pairs become heavier and heavier, so they wait in a
 * queue; of equal weights the earlier one is taken. */
static int join_lightest(mixture_plan *plan)
{
    int32_t count = plan->count, taken = 0, first = 0;
    weighed *sorted = fl_alloc(count * (int64_t)sizeof *sorted);
    if (sorted == NULL) return FL_ENOMEM;
    for (int32_t i = 0; i < count; i++) sorted[i] = (weighed){plan->weights[i], i};
    qsort(sorted, (size_t)count, sizeof *sorted, compare_weighed);
    for (int32_t made = 0; made < count - 1; made++) {
        plan->sums[made] = 0;
        for (int i = 0; i < 2; i++) {
            bool is_single =
                taken < count && (first == made || sorted[taken].weight <= plan->sums[first]);
            plan->sums[made] += is_single ? sorted[taken].weight : plan->sums[first];
            plan->parts[made][i] = is_single ? sorted[taken++].source : count + first++;
        }
    }
    fl_free(sorted);
    return FL_OK;
}

static bool is_source(const mixture_plan *plan, int32_t part)
{
    return is_searched(plan) ? (part & (part - 1)) == 0 : part < plan->count;
}

/* Numbers a part and all below, and returns its node, or ~source. Trees are at most 90 deep,
 * because the sum of all weights is below 2^62. */
static int32_t add_part(mixture_plan *plan, int32_t part, fl_mixture *out)
{
    if (is_source(plan, part)) return is_searched(plan) ? ~__builtin_ctz((unsigned)part) : ~part;
    int32_t number = plan->made++, entry = is_searched(plan) ? part : part - plan->count;
    mixture_node *node = &out->nodes[number];
    int64_t weight[2];
    for (int i = 0; i < 2; i++) {
        int32_t below = plan->parts[entry][i];
        node->child[i] = add_part(plan, below, out);
        int32_t child = node->child[i];
        weight[i] = child >= 0 ? out->nodes[child].sum : plan->weights[~child];
    }
    if (weight[0] > weight[1]) {
        int32_t heavier = node->child[0];
        node->child[0] = node->child[1];
        node->child[1] = heavier;
    }
    node->light = fl_min(weight[0], weight[1]);
    node->sum = weight[0] + weight[1];
    return number;
}

static int make_tree(mixture_plan *plan, fl_mixture *out)
{
    int64_t room = is_searched(plan) ? SUBSETS : plan->count;
    plan->sums = fl_alloc(room * (int64_t)sizeof *plan->sums);
    plan->slack = fl_alloc(is_searched(plan) ? room * (int64_t)sizeof *plan->slack : 1);
    plan->parts = fl_alloc(room * (int64_t)sizeof *plan->parts);
    bool has_memory = plan->sums != NULL && plan->slack != NULL && plan->parts != NULL;
    int status = has_memory ? FL_OK : FL_ENOMEM;
    if (status == FL_OK && is_searched(plan))
        search_best(plan);
    else if (status == FL_OK)
        status = join_lightest(plan);
    int32_t all = is_searched(plan) ? (1 << plan->count) - 1 : 2 * plan->count - 2;
    if (status == FL_OK) (void)add_part(plan, all, out);
    fl_free(plan->sums);
    fl_free(plan->slack);
    fl_free(plan->parts);
    return status;
}

static int check_weights(const int64_t *weights, int32_t count, fl_err *err)
{
    int64_t sum = 0;
    if (count < 1 || count > FL_MIXTURE_SOURCES)
        return fl_fail(err, FL_EINVAL, "a mixture must have 1 to %d sources, got %d",
                       FL_MIXTURE_SOURCES, count);
    for (int32_t i = 0; i < count; i++)
        if (weights[i] < 1 || !fl_add(sum, weights[i], &sum) || sum >= FL_MIXTURE_MAX)
            return fl_fail(err, FL_EINVAL,
                           "weights must be at least 1, and below 2^62 together, got %lld",
                           (long long)weights[i]);
    return FL_OK;
}

int fl_mixture_open(const int64_t *weights, int32_t count, bool is_even, uint64_t key,
                    fl_mixture **out, fl_err *err)
{
    *out = NULL;
    FL_TRY(check_weights(weights, count, err));
    fl_mixture *self = fl_alloc((int64_t)sizeof *self + count * (int64_t)sizeof *self->nodes);
    mixture_plan plan = {.weights = weights, .count = count};
    if (self != NULL) *self = (fl_mixture){.count = count, .is_even = is_even, .key = key};
    if (self == NULL || make_tree(&plan, self) != FL_OK) {
        fl_free(self);
        return fl_fail(err, FL_ENOMEM, "out of memory for a mixture");
    }
    double worst = count > 1 ? find_worst(self, weights, 0, 0) / 2 : 0;
    self->bound = is_even ? worst : 2 * worst;
    *out = self;
    return FL_OK;
}

void fl_mixture_close(fl_mixture *self) { fl_free(self); }
