/* fl_mixed_rows: see fl_mixed_rows.h. */
#include "fl_mixed_rows.h"

#include "fl_permutation.h"
#include "fl_philox.h"

#include <stdatomic.h>
#include <string.h>

enum { SOURCE_SLOT = 0x5B, SEGMENT_SLOT = 0x5C }; /* of fl_philox_key */
enum { ORDERS = 64 };                             /* that are kept at a time, of as many sources */

typedef struct mixed_source {
    int64_t length, first_row;
    uint64_t key;
    bool is_endless;
} mixed_source;

typedef struct mixed_segment {
    int64_t begin;
    fl_mixture *mixture; /* owned */
    int64_t *before;     /* owned: samples of each source before the segment, then `sources` */
    int64_t *sources;    /* in the same memory: the source of each source of the mixture */
    int32_t count;
} mixed_segment;

/* The order of a turn of a source. */
typedef struct mixed_order {
    int64_t turn;
    int32_t source; /* ~source: so that memory of zeros has none */
    fl_permutation order;
} mixed_order;

struct fl_mixed_rows {
    int32_t count;
    uint64_t seed;
    bool is_even, is_shuffled, is_alike;
    int64_t length;          /* positions of an epoch */
    mixed_segment *segments; /* owned */
    int64_t segment_count, segment_capacity;
    _Atomic(mixed_order *) orders; /* owned: a reader takes the last orders, and gives its own */
    mixed_source sources[];
};

int fl_mixed_rows_open(const fl_mixed_config *config, fl_mixed_rows **out, fl_err *err)
{
    int64_t first = 0;
    *out = NULL;
    fl_mixed_rows *self =
        fl_alloc((int64_t)sizeof *self + config->count * (int64_t)sizeof *self->sources);
    if (self == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a mixture");
    self->count = config->count;
    self->seed = config->seed;
    self->is_even = config->is_even;
    self->is_shuffled = config->is_shuffled;
    for (int32_t i = 0; i < config->count; i++) {
        uint64_t key = fl_philox_key(config->seed, config->names[i], SOURCE_SLOT);
        bool is_endless = config->endless != NULL && config->endless[i] != 0;
        self->sources[i] = (mixed_source){config->lengths[i], first, key, is_endless};
        int64_t rows = 0;
        bool fits = config->lengths[i] > 0 &&
                    fl_mul(config->lengths[i], is_endless ? FL_MIXED_TURNS : 1, &rows) &&
                    fl_add(first, rows, &first);
        if (fits && first < FL_MIXTURE_MAX) continue;
        fl_free(self);
        return fl_fail(err, FL_EINVAL, "lengths must be at least 1, and below 2^62 together");
    }
    *out = self;
    return FL_OK;
}

void fl_mixed_rows_close(fl_mixed_rows *self)
{
    if (self == NULL) return;
    for (int64_t i = 0; i < self->segment_count; i++) {
        fl_mixture_close(self->segments[i].mixture);
        fl_free(self->segments[i].before);
    }
    fl_free(self->segments);
    fl_free(atomic_load_explicit(&self->orders, memory_order_acquire));
    fl_free(self);
}

static int check_segment(const fl_mixed_rows *self, int64_t begin, const int64_t *sources,
                         int32_t count, fl_err *err)
{
    int64_t least = 0;
    if (self->segment_count > 0) least = self->segments[self->segment_count - 1].begin + 1;
    if (begin < least || begin >= FL_MIXTURE_MAX || (least == 0 && begin > 0))
        return fl_fail(err, FL_EINVAL, "a segment must begin at %lld or later, got %lld",
                       (long long)least, (long long)begin);
    for (int32_t i = 0; i < count; i++)
        if (sources[i] < 0 || sources[i] >= self->count)
            return fl_fail(err, FL_EINVAL, "a segment has no source %lld", (long long)sources[i]);
    return FL_OK;
}

int fl_mixed_rows_add(fl_mixed_rows *self, int64_t begin, const int64_t *sources,
                      const int64_t *weights, int32_t count, fl_err *err)
{
    FL_TRY(check_segment(self, begin, sources, count, err));
    FL_TRY(fl_grow((void **)&self->segments, &self->segment_capacity, self->segment_count + 1,
                   sizeof *self->segments, err));
    uint64_t key = fl_philox_key(self->seed, begin, SEGMENT_SLOT);
    mixed_segment made = {.begin = begin, .count = count};
    FL_TRY(fl_mixture_open(weights, count, self->is_even, key, &made.mixture, err));
    made.before = fl_alloc((self->count + (int64_t)count) * (int64_t)sizeof *made.before);
    if (made.before == NULL) {
        fl_mixture_close(made.mixture);
        return fl_fail(err, FL_ENOMEM, "out of memory for a mixture");
    }
    if (self->segment_count > 0) fl_mixed_rows_seen(self, begin, made.before);
    made.sources = made.before + self->count;
    memcpy(made.sources, sources, (size_t)count * sizeof *sources);
    self->segments[self->segment_count++] = made;
    return FL_OK;
}

void fl_mixed_rows_set_epochs(fl_mixed_rows *self, int64_t length, bool is_alike)
{
    self->length = length;
    self->is_alike = is_alike;
}

int64_t fl_mixed_rows_length(const fl_mixed_rows *self) { return self->length; }

int32_t fl_mixed_rows_segments(const fl_mixed_rows *self) { return (int32_t)self->segment_count; }

double fl_mixed_rows_bound(const fl_mixed_rows *self, int32_t segment)
{
    return fl_mixture_bound(self->segments[segment].mixture);
}

/* Returns the last segment that begins at or before n. */
static const mixed_segment *find_segment(const fl_mixed_rows *self, int64_t n)
{
    int64_t first = 0, count = self->segment_count;
    while (count > 1) {
        int64_t half = count / 2;
        first = self->segments[first + half].begin <= n ? first + half : first;
        count -= half;
    }
    return &self->segments[first];
}

/* Returns the row at a place of a turn of a source. orders: NULL if rows are not shuffled. */
static int64_t find_row(const fl_mixed_rows *self, mixed_order *orders, int32_t number,
                        int64_t turn, int64_t place)
{
    const mixed_source *source = &self->sources[number];
    if (source->is_endless) place += turn % FL_MIXED_TURNS * source->length;
    if (source->is_endless || orders == NULL) return source->first_row + place;
    mixed_order *kept = &orders[number % ORDERS];
    if (kept->source != ~number || kept->turn != turn) {
        kept->source = ~number;
        kept->turn = turn;
        uint64_t key = source->key + ((uint64_t)turn >> 32);
        kept->order = fl_permutation_make(source->length, key, (uint32_t)turn);
    }
    return source->first_row + fl_permutation_at(&kept->order, place);
}

/* Returns the row at position n of all epochs. */
static int64_t find_at(const fl_mixed_rows *self, mixed_order *orders, int64_t n)
{
    int64_t sample, turn = 0;
    if (self->is_alike) {
        turn = n / self->length;
        n %= self->length;
    }
    const mixed_segment *segment = find_segment(self, n);
    int32_t own = fl_mixture_find(segment->mixture, n - segment->begin, &sample);
    int32_t number = (int32_t)segment->sources[own];
    int64_t length = self->sources[number].length;
    sample += segment->before[number];
    return find_row(self, orders, number, turn + sample / length, sample % length);
}

int fl_mixed_rows_find(fl_mixed_rows *self, uint32_t epoch, const int64_t *position, int64_t count,
                       int64_t *row, fl_err *err)
{
    int64_t begin = 0, n = 0;
    mixed_order *orders = NULL;
    int status = FL_OK;
    if (self->is_shuffled) {
        orders = atomic_exchange_explicit(&self->orders, NULL, memory_order_acquire);
        if (orders == NULL)
            orders = fl_alloc(fl_min(self->count, ORDERS) * (int64_t)sizeof *orders);
        if (orders == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for orders of rows");
    }
    bool fits = fl_mul(epoch, self->length, &begin);
    for (int64_t i = 0; i < count && status == FL_OK; i++) {
        if (fits && position[i] >= 0 && fl_add(begin, position[i], &n) && n < FL_MIXTURE_MAX)
            row[i] = find_at(self, orders, n);
        else
            status = fl_fail(err, FL_EINVAL, "position %lld of epoch %u is beyond 2^62 in all",
                             (long long)position[i], epoch);
    }
    if (orders != NULL)
        fl_free(atomic_exchange_explicit(&self->orders, orders, memory_order_acq_rel));
    return status;
}

void fl_mixed_rows_seen(const fl_mixed_rows *self, int64_t n, int64_t *counts)
{
    int64_t turns = self->is_alike ? n / self->length : 0;
    n -= turns * self->length;
    const mixed_segment *segment = find_segment(self, n);
    for (int32_t i = 0; i < self->count; i++)
        counts[i] = segment->before[i] + turns * self->sources[i].length;
    fl_mixture_count(segment->mixture, n - segment->begin, segment->sources, counts);
}
