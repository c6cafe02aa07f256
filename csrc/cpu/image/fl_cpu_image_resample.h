/* fl_cpu_image_resample: sums of weighted bytes, two at a time (pmaddwd; smlal and smlal2).
 *
 * Part of fl_cpu_image_body. Sums are int32 and exact, so their order does not matter. Along rows,
 * a block of 16 results of a row is one lane, and LANES rows are worked on at once. The preparation
 * of a block (the positions of its samples, and their weights) serves all rows. A step that would
 * pass the last row or column begins earlier instead.
 *
 * Pillow's weights are longer than int16 and come in two halves, whose sums are added: has_low must
 * be a constant at compile time. */
#ifndef FL_CPU_IMAGE_RESAMPLE_H
#define FL_CPU_IMAGE_RESAMPLE_H

#include "fl_cpu_image_vector.h"

enum { BLOCK = 16, GROUP = 4, GROUPS = BLOCK / GROUP, MAX_PAIRS = 8, DOT = 16 };
enum { AHEAD_ROWS = 16 }; /* rows are prefetched this far ahead */
enum { BAND_ROWS = 256 }; /* rows that a block goes through: caches hold no more lines */

/* Turns four registers of int32 sums, one result an element, into bytes: shifted, clamped, in
 * order. */
FL_INLINE vector bytes_of(const vector sums[4], lane precision)
{
    vector x[4];
    FL_UNROLL for (int g = 0; g < 4; g++) x[g] = FL_V(sra_epi32)(sums[g], precision);
    return FL_V(packus_epi16)(FL_V(packs_epi32)(x[0], x[1]), FL_V(packs_epi32)(x[2], x[3]));
}

FL_INLINE vector half_of(const fl_resample *axis)
{
    return FL_V(set1_epi32)((1 << axis->precision) >> 1);
}

/* Joins the sums with both halves of the weights. */
FL_INLINE vector join_halves(vector high, vector low)
{
    return FL_V(add_epi32)(FL_V(slli_epi32)(high, 8), low);
}

/* ---- functions that fl_cpu_image_arm.h has in a different form */

#if FL_VECTOR_BYTES > 16
/* Returns the shuffle that takes samples from `first` on to int16, a pair in the two halves of an
 * int32. Indices with the highest bit set make zeros. After the last sample weights are 0, so any
 * byte will do there. */
FL_INLINE lane order_of(const int32_t *first, int32_t pair, int32_t from)
{
    lane place = _mm_sub_epi32(load_lane(first), _mm_set1_epi32(from - 2 * pair));
    place = _mm_and_si128(place, _mm_set1_epi32(LANE_BYTES - 1));
    lane next = _mm_and_si128(_mm_add_epi32(place, _mm_set1_epi32(1)), _mm_set1_epi32(15));
    return _mm_or_si128(_mm_or_si128(place, _mm_slli_epi32(next, 16)),
                        _mm_set1_epi32((int)0x80008000));
}

FL_INLINE lane weights_of(const int16_t *weight, int32_t taps)
{
    int32_t pair[GROUP];
    for (int j = 0; j < GROUP; j++) memcpy(&pair[j], weight + j * taps, sizeof *pair);
    return load_lane(pair);
}

/* Returns `sum` plus the products of samples and weights, laid out by order_of and weights_of. */
FL_INLINE vector add_pairs(vector sum, vector x, vector weight)
{
    return FL_V(add_epi32)(sum, FL_V(madd_epi16)(x, weight));
}

typedef __m256i dots;

FL_INLINE dots no_dots(void) { return _mm256_setzero_si256(); }

FL_INLINE dots dot_16(const uint8_t *x, const int16_t *weight, dots sum)
{
    __m256i weights = _mm256_loadu_si256((const void *)weight);
    __m256i products = _mm256_madd_epi16(_mm256_cvtepu8_epi16(load_lane(x)), weights);
    return _mm256_add_epi32(sum, products);
}

/* Adds up each of four sums. */
FL_INLINE lane join_dots(const dots sums[GROUP])
{
    __m256i quarters =
        _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(quarters), _mm256_extracti128_si256(quarters, 1));
}

/* Adds two rows to one register of results: rows a and b are interleaved, so that an int32 holds a
 * pair of samples or their weights. */
FL_INLINE void add_rows(vector sums[4], vector a, vector b, vector weights)
{
    vector low = FL_V(unpacklo_epi8)(a, b), high = FL_V(unpackhi_epi8)(a, b);
    vector pairs[4] = {FL_V(unpacklo_epi8)(low, zeros()), FL_V(unpackhi_epi8)(low, zeros()),
                       FL_V(unpacklo_epi8)(high, zeros()), FL_V(unpackhi_epi8)(high, zeros())};
    FL_UNROLL for (int g = 0; g < 4; g++) sums[g] =
        FL_V(add_epi32)(sums[g], FL_V(madd_epi16)(pairs[g], weights));
}
#endif

/* ---- along rows, few taps: samples are shuffled to the positions of their weights */

/* Results at .. at + 15, in groups of four. Pair p of the samples of a group lies in 16 bytes from
 * `from[p]` of a row; order[p] makes int16 from the bytes, in the form for add_pairs. */
typedef struct group_of {
    int32_t from[MAX_PAIRS];
    lane order[MAX_PAIRS], weight[MAX_PAIRS], low[MAX_PAIRS];
} group_of;

typedef struct block_of {
    group_of group[GROUPS];
    int32_t pairs;
    bool is_one_window; /* from[0] serves all pairs */
    bool is_first;      /* the first block of its rows, which may be far away in memory */
} block_of;

/* Returns how many pairs a block needs for the result with the most samples. */
FL_INLINE int32_t pairs_of(const fl_resample *axis, int32_t at)
{
    int64_t most = 0;
    for (int32_t j = 0; j < BLOCK; j++) most = fl_max(most, axis->count[at + j]);
    return (int32_t)(most + 1) / 2;
}

/* Returns true if the samples before `taps` of four results lie in 16 bytes from `from`. */
FL_INLINE bool fits(const fl_resample *axis, int32_t at, int32_t from, int32_t taps)
{
    for (int32_t j = at; j < at + GROUP; j++)
        if (axis->first[j] + fl_min(taps, axis->count[j]) - from > LANE_BYTES) return false;
    return true;
}

/* Prepares a block; returns false if a pair of four results does not fit into 16 bytes. */
static bool prepare_block(block_of *block, const fl_resample *axis, int32_t at)
{
    int32_t last = axis->in - LANE_BYTES;
    block->pairs = pairs_of(axis, at);
    block->is_one_window = true;
    if (block->pairs > MAX_PAIRS) return false;
    for (int32_t g = 0; g < GROUPS; g++, at += GROUP) {
        group_of *group = &block->group[g];
        int32_t start = axis->first[at];
        bool is_one = fits(axis, at, (int32_t)fl_min(start, last), 2 * block->pairs);
        block->is_one_window = block->is_one_window && is_one;
        for (int32_t p = 0; p < block->pairs; p++) {
            int32_t from = (int32_t)fl_min(is_one ? start : start + 2 * p, last);
            if (!is_one && !fits(axis, at, from, 2 * p + 2)) return false;
            group->from[p] = from;
            group->order[p] = order_of(axis->first + at, p, from);
            int64_t k = (int64_t)at * axis->taps + 2 * p;
            group->weight[p] = weights_of(axis->weight + k, axis->taps);
            if (axis->low != NULL) group->low[p] = weights_of(axis->low + k, axis->taps);
        }
    }
    return true;
}

/* Sums four results of LANES rows. */
FL_INLINE vector sum_group(const group_of *group, const uint8_t *src, int64_t pitch, int32_t pairs,
                           bool is_one_window, bool has_low, vector half)
{
    vector sum = has_low ? zeros() : half, low = half;
    vector window = load_lanes(src + group->from[0], pitch);
    FL_UNROLL for (int32_t p = 0; p < pairs; p++)
    {
        if (p > 0 && !is_one_window) window = load_lanes(src + group->from[p], pitch);
        vector x = FL_V(shuffle_epi8)(window, same_lanes(group->order[p]));
        sum = add_pairs(sum, x, same_lanes(group->weight[p]));
        if (has_low) low = add_pairs(low, x, same_lanes(group->low[p]));
    }
    return has_low ? join_halves(sum, low) : sum;
}

/* Prefetches everything that all blocks will need of LANES rows. The hardware foresees the lines of
 * one row, but a block takes one line of each row. */
FL_INLINE void prefetch_rows(const uint8_t *src, int64_t pitch, const fl_resample *axis)
{
    for (int row = 0; row < LANES; row++)
        for (int32_t x = axis->first[0]; x < axis->in; x += 64)
            __builtin_prefetch(src + row * pitch + x);
}

FL_INLINE void work_block(const block_of *block, uint8_t *dst, int64_t dst_pitch,
                          const uint8_t *src, int64_t src_pitch, int64_t rows,
                          const fl_resample *axis, int32_t pairs, bool is_one_window, bool has_low)
{
    const vector half = half_of(axis);
    const lane precision = FL_L(cvtsi32_si128)(axis->precision);
    for (int64_t at = 0; at < rows; at += LANES) {
        int64_t row = fl_min(at, rows - LANES);
        const uint8_t *from = src + row * src_pitch;
        if (block->is_first && row + AHEAD_ROWS + LANES <= rows)
            prefetch_rows(from + AHEAD_ROWS * src_pitch, src_pitch, axis);
        vector sums[GROUPS];
        FL_UNROLL for (int g = 0; g < GROUPS; g++) sums[g] =
            sum_group(&block->group[g], from, src_pitch, pairs, is_one_window, has_low, half);
        store_lanes(dst + row * dst_pitch, dst_pitch, bytes_of(sums, precision));
    }
}

FL_INLINE void
shuffle_halves(const block_of *block, uint8_t *dst, int64_t dst_pitch, const uint8_t *src,
               int64_t src_pitch, int64_t rows, const fl_resample *axis, bool has_low)
{
    if (!block->is_one_window || block->pairs > 4)
        work_block(block, dst, dst_pitch, src, src_pitch, rows, axis, block->pairs, false, has_low);
    else if (block->pairs == 1)
        work_block(block, dst, dst_pitch, src, src_pitch, rows, axis, 1, true, has_low);
    else if (block->pairs == 2)
        work_block(block, dst, dst_pitch, src, src_pitch, rows, axis, 2, true, has_low);
    else if (block->pairs == 3)
        work_block(block, dst, dst_pitch, src, src_pitch, rows, axis, 3, true, has_low);
    else
        work_block(block, dst, dst_pitch, src, src_pitch, rows, axis, 4, true, has_low);
}

static void
shuffle_block(const block_of *block, uint8_t *dst, int64_t dst_pitch, const uint8_t *src,
              int64_t src_pitch, int64_t rows, const fl_resample *axis)
{
    if (axis->low == NULL)
        shuffle_halves(block, dst, dst_pitch, src, src_pitch, rows, axis, false);
    else
        shuffle_halves(block, dst, dst_pitch, src, src_pitch, rows, axis, true);
}

/* ---- along rows, many taps: one result is a sum over adjacent samples */

/* The last samples of a result; if there are fewer than 16, all samples. Bytes from .. from + 15 of
 * a row, with weight 0 for a byte that is not a sample or belongs to an earlier step. */
typedef struct tail_of {
    int32_t from;
    int16_t weight[DOT];
} tail_of;

static tail_of tail_of_result(const fl_resample *axis, int32_t i, const int16_t *weights)
{
    int32_t first = axis->first[i], count = axis->count[i], done = count / DOT * DOT;
    const int16_t *weight = weights + (int64_t)i * axis->taps;
    tail_of tail = {.from = count >= DOT ? first + count - DOT
                                         : (int32_t)fl_min(first, axis->in - DOT)};
    for (int32_t k = done; k < count; k++) tail.weight[first + k - tail.from] = weight[k];
    return tail;
}

FL_INLINE dots sum_result(const uint8_t *row, const fl_resample *axis, int32_t i,
                          const int16_t *weights, const tail_of *tail)
{
    const uint8_t *x = row + axis->first[i];
    const int16_t *weight = weights + (int64_t)i * axis->taps;
    dots sum = dot_16(row + tail->from, tail->weight, no_dots());
    for (int32_t k = DOT; k <= axis->count[i]; k += DOT)
        sum = dot_16(x + k - DOT, weight + k - DOT, sum);
    return sum;
}

/* Computes four results of a row as int32. */
FL_INLINE lane sum_results(const uint8_t *row, const fl_resample *axis, int32_t at,
                           const int16_t *weights, const tail_of tails[GROUP])
{
    dots sums[GROUP];
    FL_UNROLL for (int j = 0; j < GROUP; j++) sums[j] =
        sum_result(row, axis, at + j, weights, &tails[j]);
    return join_dots(sums);
}

static void dot_block(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch,
                      int64_t rows, const fl_resample *axis, int32_t at)
{
    const lane precision = FL_L(cvtsi32_si128)(axis->precision);
    const lane half = FL_L(set1_epi32)((1 << axis->precision) >> 1);
    tail_of tails[BLOCK], low_tails[BLOCK];
    for (int32_t j = 0; j < BLOCK; j++) {
        tails[j] = tail_of_result(axis, at + j, axis->weight);
        if (axis->low != NULL) low_tails[j] = tail_of_result(axis, at + j, axis->low);
    }
    for (int64_t row = 0; row < rows; row++) {
        lane x[GROUPS];
        FL_UNROLL for (int g = 0; g < GROUPS; g++)
        {
            const uint8_t *from = src + row * src_pitch;
            int32_t i = at + g * GROUP;
            x[g] = sum_results(from, axis, i, axis->weight, tails + g * GROUP);
            if (axis->low != NULL) {
                lane low = sum_results(from, axis, i, axis->low, low_tails + g * GROUP);
                x[g] = FL_L(add_epi32)(FL_L(slli_epi32)(x[g], 8), low);
            }
            x[g] = FL_L(sra_epi32)(FL_L(add_epi32)(x[g], half), precision);
        }
        store_lane(dst + row * dst_pitch, FL_L(packus_epi16)(FL_L(packs_epi32)(x[0], x[1]),
                                                             FL_L(packs_epi32)(x[2], x[3])));
    }
}

/* ---- the functions of the table */

/* Computes all results of at least LANES rows. */
static void resample_rows(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch,
                          int64_t rows, const fl_resample *axis)
{
    for (int32_t at = 0; at < axis->out; at += BLOCK) {
        block_of block;
        int32_t i = (int32_t)fl_min(at, axis->out - BLOCK);
        block.is_first = at == 0;
        if (prepare_block(&block, axis, i))
            shuffle_block(&block, dst + i, dst_pitch, src, src_pitch, rows, axis);
        else
            dot_block(dst + i, dst_pitch, src, src_pitch, rows, axis, i);
    }
}

static void resample_x(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch,
                       int64_t rows, const fl_resample *axis)
{
    if (axis->weight == NULL || axis->in - axis->first[0] < LANE_BYTES || axis->out < BLOCK ||
        rows < LANES) {
        FL_NARROWER.resample_x(dst, dst_pitch, src, src_pitch, rows, axis);
        return;
    }
    for (int64_t at = 0; at < rows; at += BAND_ROWS) {
        int64_t row = fl_min(at, rows - LANES);
        resample_rows(dst + row * dst_pitch, dst_pitch, src + row * src_pitch, src_pitch,
                      fl_min(BAND_ROWS, rows - row), axis);
    }
}

/* Returns weights k and k + 1 of a result, in each pair of int16. */
FL_INLINE vector pair_of(const int16_t *weight, int32_t k)
{
    int32_t pair;
    memcpy(&pair, weight + k, sizeof pair);
    return FL_V(set1_epi32)(pair);
}

/* Computes a register of row i of the result. */
FL_INLINE vector weigh_rows(const uint8_t *src, int64_t pitch, const fl_resample *axis, int32_t i,
                            bool has_low, vector half, lane precision)
{
    int64_t at = (int64_t)i * axis->taps;
    int32_t count = axis->count[i];
    vector first = has_low ? zeros() : half;
    vector sums[4] = {first, first, first, first}, low[4] = {half, half, half, half};
    for (int32_t k = 0; k < count; k += 2) {
        vector a = load(src + k * pitch);
        /* The weight after the last sample is 0. */
        vector b = k + 1 < count ? load(src + (k + 1) * pitch) : a;
        add_rows(sums, a, b, pair_of(axis->weight + at, k));
        if (has_low) add_rows(low, a, b, pair_of(axis->low + at, k));
    }
    FL_UNROLL for (int g = 0; has_low && g < 4; g++) sums[g] = join_halves(sums[g], low[g]);
    return bytes_of(sums, precision);
}

static void resample_y(uint8_t *dst, int64_t dst_pitch, const uint8_t *src, int64_t src_pitch,
                       int64_t width, const fl_resample *axis)
{
    if (axis->weight == NULL || width < VECTOR_BYTES) {
        FL_NARROWER.resample_y(dst, dst_pitch, src, src_pitch, width, axis);
        return;
    }
    const vector half = half_of(axis);
    const lane precision = FL_L(cvtsi32_si128)(axis->precision);
    for (int32_t i = 0; i < axis->out; i++) {
        const uint8_t *from = src + axis->first[i] * src_pitch;
        for (int64_t at = 0; at < width; at += VECTOR_BYTES) {
            int64_t x = fl_min(at, width - VECTOR_BYTES);
            store(dst + i * dst_pitch + x,
                  axis->low == NULL
                      ? weigh_rows(from + x, src_pitch, axis, i, false, half, precision)
                      : weigh_rows(from + x, src_pitch, axis, i, true, half, precision));
        }
    }
}

#endif
