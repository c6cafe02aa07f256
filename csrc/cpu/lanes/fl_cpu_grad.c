/* fl_cpu_grad: the passes over gradients on the CPU.
 *
 * Chunks of a list are handed to the threads of a pool. The sum of each chunk is stored by itself,
 * and the sums are added in order at the end, so the result does not depend on which thread did
 * what. */
#include "fl_cpu_grad.h"

#include "fl_cpu_lanes.h"
#include "fl_thread_pool.h"

#include <math.h>
#include <stdatomic.h>

enum {
    SMALL_BYTES = 1 << 20, /* a smaller pass is over sooner than a thread wakes up */
    GRAIN = 8,             /* chunks that a thread takes at a time */
    SPANS_AHEAD = 8        /* spans whose first line is read ahead: small tensors lie anywhere */
};

typedef struct job job;
typedef void chunk_work(job *self, const fl_span *span, int64_t first, int64_t count, double *sum);

struct job {
    const fl_cpu_lanes *lanes;
    chunk_work *work;
    fl_tensor_list *list;       /* borrowed */
    const fl_tensor_list *from; /* borrowed; for a combine */
    int32_t norm_type;
    double factor, beta;
    _Atomic bool is_nonfinite; /* relaxed: read when the job is over */
};

static inline char *element(const fl_span *span, int64_t at)
{
    return span->data + at * fl_float_bytes(span->type);
}

static void note(job *self, bool is_finite)
{
    if (!is_finite) atomic_store_explicit(&self->is_nonfinite, true, memory_order_relaxed);
}

static void norm_chunk(job *self, const fl_span *span, int64_t first, int64_t count, double *sum)
{
    bool is_finite;
    *sum = self->lanes->norm[self->norm_type][span->type](element(span, first), count, &is_finite);
    note(self, is_finite);
}

static void unscale_chunk(job *self, const fl_span *span, int64_t first, int64_t count, double *sum)
{
    (void)sum;
    bool is_finite;
    self->lanes->unscale[span->type](element(span, first), count, self->factor, &is_finite);
    note(self, is_finite);
}

static void scale_chunk(job *self, const fl_span *span, int64_t first, int64_t count, double *sum)
{
    (void)sum;
    self->lanes->scale[span->type](element(span, first), count, self->factor);
}

static void combine_chunk(job *self, const fl_span *span, int64_t first, int64_t count, double *sum)
{
    (void)sum;
    const fl_span *from = &self->from->spans[span - self->list->spans];
    bool is_finite;
    self->lanes->combine[span->type][from->type](element(span, first), element(from, first), count,
                                                 self->factor, self->beta, &is_finite);
    note(self, is_finite);
}

static void run_chunks(void *context, int64_t chunk, int64_t end)
{
    job *self = context;
    fl_tensor_list *list = self->list;
    const fl_span *span = &list->spans[fl_tensor_list_find(list, chunk)];
    const fl_span *last = list->spans + list->count;
    int64_t first = (chunk - span->chunk) * FL_CHUNK;
    for (; chunk < end; chunk++) {
        int64_t count = fl_min(FL_CHUNK, span->count - first);
        self->work(self, span, first, count, &list->sums[chunk]);
        first += count;
        if (first < span->count) continue;
        span++;
        first = 0;
        if (span + SPANS_AHEAD < last) __builtin_prefetch(span[SPANS_AHEAD].data);
    }
}

static void run_job(const fl_grad_pass *pass, job *self)
{
    fl_tensor_list *list = pass->list;
    if (list->chunks == 0) return;
    self->lanes = fl_cpu_lanes_find();
    self->list = list;
    fl_thread_pool_run(list->bytes < SMALL_BYTES ? NULL : pass->queue, run_chunks, self,
                       list->chunks, GRAIN);
}

static double join_sums(const job *self)
{
    const fl_tensor_list *list = self->list;
    double joined = 0;
    for (int64_t i = 0; list != NULL && i < list->chunks; i++) {
        double sum = list->sums[i];
        if (self->norm_type != FL_NORM_MAX)
            joined += sum;
        else if (sum > joined || isnan(sum))
            joined = sum;
    }
    return self->norm_type == FL_NORM_2 ? sqrt(joined) : joined;
}

static bool is_nonfinite(const job *self)
{
    return atomic_load_explicit(&self->is_nonfinite, memory_order_relaxed);
}

static double divisor_value(fl_divisor divisor)
{
    return divisor.scale != NULL ? *divisor.scale * divisor.constant : divisor.constant;
}

static int norm_check(const fl_grad_pass *pass, int32_t norm_type, fl_divisor divisor,
                      float *found_inf, double *norm)
{
    job self = {.work = norm_chunk, .norm_type = norm_type};
    run_job(pass, &self);
    *norm = join_sums(&self) / fabs(divisor_value(divisor));
    if (is_nonfinite(&self)) *found_inf = 1;
    return FL_OK;
}

static int clip_factor(void *queue, const double *norm, double max_norm, const float *found_inf,
                       fl_divisor divisor, double *factor)
{
    (void)queue;
    bool is_clipped = norm != NULL && (found_inf == NULL || *found_inf == 0);
    double coef = is_clipped ? max_norm / (*norm + 1e-6) : 1;
    *factor = (coef > 1 ? 1 : coef) / divisor_value(divisor);
    return FL_OK;
}

static int invert(void *queue, const float *scale, float *inverse)
{
    (void)queue;
    *inverse = (float)(1 / (double)*scale);
    return FL_OK;
}

static int scale(const fl_grad_pass *pass, const double *factor)
{
    job self = {.work = scale_chunk, .factor = *factor};
    if (self.factor != 1) run_job(pass, &self);
    return FL_OK;
}

static int unscale(const fl_grad_pass *pass, const float *inv_scale, float *found_inf)
{
    job self = {.work = *inv_scale == 1 ? norm_chunk : unscale_chunk, .factor = *inv_scale};
    run_job(pass, &self);
    if (is_nonfinite(&self)) *found_inf = 1;
    return FL_OK;
}

static int combine(const fl_grad_pass *into, const fl_tensor_list *from, double alpha,
                   const double *factor, double beta, float *found_inf)
{
    double product = factor != NULL ? alpha * *factor : alpha;
    job self = {.work = combine_chunk, .from = from, .factor = product, .beta = beta};
    run_job(into, &self);
    if (found_inf != NULL && is_nonfinite(&self)) *found_inf = 1;
    return FL_OK;
}

static bool can_combine(int32_t into_type, int32_t from_type)
{
    return fl_cpu_lanes_plain.combine[into_type][from_type] != NULL;
}

static int update_scale(void *queue, const fl_scale_rule *rule, const float *found_inf,
                        float *scale, int32_t *tracker, int32_t *misses)
{
    (void)queue;
    bool is_bad = *found_inf != 0;
    if (rule->hysteresis > 1) *misses = is_bad ? *misses + 1 : 0;
    float next = *scale;
    if (is_bad) {
        *tracker = 0;
        if (rule->hysteresis > 1 && *misses < rule->hysteresis) return FL_OK;
        next = (float)(next * rule->backoff);
    } else if (++*tracker == rule->interval) {
        *tracker = 0;
        next = (float)(next * rule->growth);
    }
    if (next < rule->least) next = rule->least;
    if (next > rule->most) next = rule->most;
    if (isfinite(next)) *scale = next;
    return FL_OK;
}

const fl_grad_ops fl_cpu_grad_ops = {.norm_check = norm_check,
                                     .clip_factor = clip_factor,
                                     .invert = invert,
                                     .scale = scale,
                                     .unscale = unscale,
                                     .combine = combine,
                                     .can_combine = can_combine,
                                     .update_scale = update_scale};
