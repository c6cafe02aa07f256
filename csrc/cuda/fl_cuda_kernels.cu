/* fl_cuda_kernels: the passes over gradients as kernels, and their launchers.
 *
 * A block takes chunks in steps of the grid. The sum of each chunk is stored by itself, and the
 * last block to finish adds the sums in a fixed order: the result depends only on sizes. */
#include "fl_cuda_kernels.h"
#include "fl_cuda_lanes.cuh"
#include "fl_cuda_last_block.cuh"
#include "fl_cuda_runtime.h"

static constexpr int WARP = 32;
static constexpr int FEW_ROWS = 165;
static constexpr int ROW_WORDS = sizeof(fl_cuda_row) / sizeof(int64_t);

/* The table of a list, as an argument. */
template <int N> struct rows {
    int64_t spans, chunks;     /* in the list */
    const fl_cuda_row *listed; /* the list's rows, if the argument does not carry them */
    fl_cuda_row carried[N];

    __device__ fl_cuda_row operator[](int64_t span) const
    {
        return listed != nullptr ? listed[span] : carried[span];
    }
};

using few = rows<FEW_ROWS>;
using many = rows<FL_CUDA_ROWS>;

static_assert(sizeof(few) + sizeof(fl_cuda_norm) <= 4096, "no longer a small argument");
static_assert(sizeof(many) + sizeof(fl_cuda_norm) <= 32764, "more than a kernel can be given");

/* Returns the span that has a chunk. The chunk is at most a grid's width after a chunk of
 * `span`. */
template <class Rows>
static __device__ int64_t find_span(const Rows &table, int64_t span, int64_t chunk)
{
    int64_t low = span, high = span + gridDim.x + 1;
    if (high > table.spans) high = table.spans;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (table[middle].place >> 2 <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static __device__ int bytes_of(fl_cuda_row row)
{
    int type = (int)(row.place & 3);
    return type == FL_F64 ? 8 : type == FL_F32 ? 4 : 2;
}

/* Returns how many elements lie before a multiple of 16 bytes. */
static __device__ int find_head(fl_cuda_row row)
{
    return (int)(-(uintptr_t)row.data % 16) / bytes_of(row);
}

/* Returns the piece for a chunk that is moved by `head` elements: the elements before belong to the
 * chunk before, and the first chunk has all elements from the start. */
static __device__ piece find_piece(fl_cuda_row row, int64_t chunk, int head)
{
    __builtin_assume(__isGlobal(row.data));
    int64_t begin = (chunk - (row.place >> 2)) * FL_CHUNK, left = row.count - begin - head;
    return {row.data + (begin + head) * bytes_of(row), begin == 0 ? -head : 0,
            left < FL_CHUNK ? (int)left : (int)FL_CHUNK, (int)(row.place & 3)};
}

/* ---- communication between blocks and threads */

/* Sets found_inf to 1 if any thread of the block is bad; NULL: no thread may be bad. */
static __device__ void note(bool is_bad, float *found_inf)
{
    if (__syncthreads_or(is_bad) && threadIdx.x == 0) atomicExch(found_inf, 1.0F);
}

/* Joins the sums of all threads, for thread 0. Consecutive calls must alternate between two
 * `lanes`: with one, warp 0 might still be reading while other warps are in the next call. */
template <int NORM> static __device__ double join_threads(double sum, double *lanes)
{
    lanes[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= WARP) return 0;
    for (int i = (int)threadIdx.x + WARP; i < THREADS; i += WARP) sum = join<NORM>(sum, lanes[i]);
    for (int half = WARP / 2; half > 0; half /= 2)
        sum = join<NORM>(sum, __shfl_down_sync(0xffffffff, sum, (unsigned)half));
    return sum;
}

/* ---- passes */

static __device__ double value_of(const fl_divisor &divisor)
{
    return divisor.scale != nullptr ? *divisor.scale * divisor.constant : divisor.constant;
}

template <int NORM, class Rows>
static __device__ void
check_norm(const Rows &table, const fl_cuda_norm &norm, double (*lanes)[THREADS])
{
    bool is_bad = false;
    int64_t span = 0;
    int turn = 0;
    for (int64_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x, turn ^= 1) {
        span = find_span(table, span, chunk);
        partial part = sum_piece<NORM>(find_piece(table[span], chunk, 0));
        if (!part.is_finite) is_bad = true;
        double sum = join_threads<NORM>(part.sum, lanes[turn]);
        if (threadIdx.x == 0) norm.sums[chunk] = sum;
    }
    note(is_bad, norm.found_inf);
    if (!is_last_block(norm.ticket, gridDim.x)) return;
    double sum = 0;
    for (int64_t chunk = threadIdx.x; chunk < table.chunks; chunk += THREADS)
        sum = join<NORM>(sum, __ldcg(&norm.sums[chunk]));
    sum = join_threads<NORM>(sum, lanes[turn]);
    if (threadIdx.x != 0) return;
    constexpr bool IS_ROOT = NORM == FL_NORM_2 || NORM == GROUPED_NORM_2;
    *norm.norm = (IS_ROOT ? sqrt(sum) : sum) / fabs(value_of(norm.divisor));
}

template <class Rows>
static __global__ void __launch_bounds__(THREADS, FL_CUDA_BLOCKS_PER_SM)
    k_norm_check(const Rows __grid_constant__ table, fl_cuda_norm norm)
{
    __shared__ double lanes[2][THREADS];
    switch (norm.is_grouped ? GROUPED_NORM_2 : norm.norm_type) {
    case GROUPED_NORM_2:
        check_norm<GROUPED_NORM_2>(table, norm, lanes);
        break;
    case FL_NORM_2:
        check_norm<FL_NORM_2>(table, norm, lanes);
        break;
    case FL_NORM_1:
        check_norm<FL_NORM_1>(table, norm, lanes);
        break;
    default:
        check_norm<FL_NORM_MAX>(table, norm, lanes);
    }
}

template <class Rows>
static __global__ void __launch_bounds__(THREADS, FL_CUDA_BLOCKS_PER_SM)
    k_scale(const Rows __grid_constant__ table, const double *factor, const float *inverse,
            float *found_inf)
{
    double by = factor != nullptr ? *factor : *inverse;
    if (by == 1 && found_inf == nullptr) return;
    bool is_bad = false;
    int64_t span = 0;
    for (int64_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
        span = find_span(table, span, chunk);
        fl_cuda_row row = table[span];
        if (!scale_piece(find_piece(row, chunk, find_head(row)), by)) is_bad = true;
    }
    note(is_bad && found_inf != nullptr, found_inf);
}

template <class Rows>
static __global__ void __launch_bounds__(THREADS, FL_CUDA_BLOCKS_PER_SM)
    k_combine(const Rows __grid_constant__ table, double alpha, const double *factor, double beta,
              float *found_inf)
{
    if (factor != nullptr) alpha *= *factor;
    bool is_bad = false;
    int64_t span = 0;
    for (int64_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
        span = find_span(table, span, chunk);
        fl_cuda_row row = table[span];
        int head = find_head(row);
        piece into = find_piece(row, chunk, head);
        piece from = find_piece(table[table.spans + span], chunk, head);
        if (!combine_piece(into, from, alpha, beta)) is_bad = true;
    }
    note(is_bad && found_inf != nullptr, found_inf);
}

/* ---- kernels of one thread; fl_grad_ops.h says what they compute */

static __global__ void k_clip_factor(const double *norm, double max_norm, const float *found_inf,
                                     fl_divisor divisor, double *factor)
{
    bool is_clipped = norm != nullptr && (found_inf == nullptr || *found_inf == 0);
    double coef = is_clipped ? max_norm / (*norm + 1e-6) : 1;
    *factor = (coef > 1 ? 1 : coef) / value_of(divisor);
}

static __global__ void k_invert(const float *scale, float *inverse)
{
    *inverse = (float)(1 / (double)*scale);
}

static __global__ void k_update_scale(fl_scale_rule rule, const float *found_inf, float *scale,
                                      int32_t *tracker, int32_t *misses)
{
    bool is_bad = *found_inf != 0;
    if (rule.hysteresis > 1) *misses = is_bad ? *misses + 1 : 0;
    float next = *scale;
    if (is_bad) {
        *tracker = 0;
        if (rule.hysteresis > 1 && *misses < rule.hysteresis) return;
        next = (float)(next * rule.backoff);
    } else if (++*tracker == rule.interval) {
        *tracker = 0;
        next = (float)(next * rule.growth);
    }
    if (next < rule.least) next = rule.least;
    if (next > rule.most) next = rule.most;
    if (isfinite(next)) *scale = next;
}

/* Writes rows to the device, one word a thread. */
static __global__ void k_write_rows(const many __grid_constant__ table, int words, fl_cuda_row *to)
{
    int word = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (word < words) ((int64_t *)to)[word] = ((const int64_t *)table.carried)[word];
}

/* ---- launchers */

template <class T> struct same {
    using type = T;
};

template <class... Params>
static cudaError_t launch(void (*kernel)(Params...), int64_t blocks, int threads, void *stream,
                          const typename same<Params>::type &...args)
{
    const void *pointers[] = {&args...};
    return cudaLaunchKernel(kernel, dim3((unsigned)blocks), dim3((unsigned)threads),
                            (void **)pointers, 0, (cudaStream_t)stream);
}

static void fill_rows(fl_cuda_row *rows, const fl_tensor_list *list, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const fl_span &span = list->spans[first + i];
        rows[i] = {span.data, span.count, span.chunk << 2 | span.type};
    }
}

template <int N> static rows<N> carry(const fl_cuda_table *table, bool is_carried)
{
    const fl_tensor_list *list = table->list, *from = table->from;
    rows<N> out;
    out.spans = list->count;
    out.chunks = list->chunks;
    out.listed = is_carried ? nullptr : table->rows;
    if (is_carried) fill_rows(out.carried, list, 0, list->count);
    if (is_carried && from != nullptr) fill_rows(out.carried + list->count, from, 0, from->count);
    return out;
}

/* Launches one of two kernels, which carry tables of different size. */
template <class Few, class Many, class... Args>
static cudaError_t launch_over(void *stream, const fl_cuda_table *table, Few *with_few,
                               Many *with_many, const Args &...args)
{
    int64_t count = table->list->count + (table->from != nullptr ? table->from->count : 0);
    if (count > FEW_ROWS && count <= FL_CUDA_ROWS)
        return launch(with_many, table->blocks, THREADS, stream, carry<FL_CUDA_ROWS>(table, true),
                      args...);
    return launch(with_few, table->blocks, THREADS, stream,
                  carry<FEW_ROWS>(table, count <= FEW_ROWS), args...);
}

cudaError_t fl_cuda_norm_check(void *stream, const fl_cuda_table *table, const fl_cuda_norm *norm)
{
    return launch_over(stream, table, k_norm_check<few>, k_norm_check<many>, *norm);
}

cudaError_t fl_cuda_scale(void *stream, const fl_cuda_table *table, const double *factor,
                          const float *inverse, float *found_inf)
{
    return launch_over(stream, table, k_scale<few>, k_scale<many>, factor, inverse, found_inf);
}

cudaError_t fl_cuda_combine(void *stream, const fl_cuda_table *table, double alpha,
                            const double *factor, double beta, float *found_inf)
{
    return launch_over(stream, table, k_combine<few>, k_combine<many>, alpha, factor, beta,
                       found_inf);
}

cudaError_t
fl_cuda_write_rows(void *stream, const fl_tensor_list *list, int64_t first, fl_cuda_row *to)
{
    int64_t count = fl_min(list->count - first, FL_CUDA_ROWS);
    int words = (int)count * ROW_WORDS;
    many table;
    fill_rows(table.carried, list, first, count);
    return launch(k_write_rows, (words - 1) / THREADS + 1, THREADS, stream, table, words, to);
}

cudaError_t fl_cuda_clip_factor(void *stream, const double *norm, double max_norm,
                                const float *found_inf, fl_divisor divisor, double *factor)
{
    return launch(k_clip_factor, 1, 1, stream, norm, max_norm, found_inf, divisor, factor);
}

cudaError_t fl_cuda_invert(void *stream, const float *scale, float *inverse)
{
    return launch(k_invert, 1, 1, stream, scale, inverse);
}

cudaError_t fl_cuda_update_scale(void *stream, const fl_scale_rule *rule, const float *found_inf,
                                 float *scale, int32_t *tracker, int32_t *misses)
{
    return launch(k_update_scale, 1, 1, stream, *rule, found_inf, scale, tracker, misses);
}

cudaError_t fl_cuda_load_passes(void)
{
    const void *kernels[] = {
        (const void *)k_norm_check<few>, (const void *)k_norm_check<many>,
        (const void *)k_scale<few>,      (const void *)k_scale<many>,
        (const void *)k_combine<few>,    (const void *)k_combine<many>,
        (const void *)k_write_rows,      (const void *)k_clip_factor,
        (const void *)k_invert,          (const void *)k_update_scale,
    };
    return fl_cuda_load(kernels, (int)(sizeof kernels / sizeof *kernels));
}
