/* fl_cpu_rows: copying rows on the CPU.
 *
 * Short rows are copied by overlapping fixed-size moves, chosen once per call, because a call of
 * libc's memcpy costs more than the row. Random rows are prefetched a few rows ahead, because the
 * time goes into cache misses, not into copying. Long rows are written past the caches if the
 * machine can: batches of long rows are larger than a core's caches, and a plain store would first
 * read the line that it overwrites (docs/results/benchmarks.md has the figures). */
#include "fl_cpu_rows.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include "fl_cpu_neon.h"
#endif

enum {
    LINE_BYTES = 64,
    AHEAD_BYTES = 2048,       /* rows are prefetched this far ahead of the copy, */
    AHEAD_ROWS = 24,          /* but at most this many rows, */
    AHEAD_LINES = 16,         /* and this many lines of each row; the hardware does the rest */
    LONG_ROW = 2 * 1024,      /* rows from this length on are written past the caches, */
    VERY_LONG_ROW = 32 * 1024 /* and from this length on the hardware prefetches well enough */
};

typedef void copy_fn(char *dst, const char *src, size_t bytes);

/* Two moves of `unit` bytes that may overlap cover every length from unit to 2 * unit. */
#define DEFINE_COPY(name, unit)                                       \
    static inline void name(char *dst, const char *src, size_t bytes) \
    {                                                                 \
        char head[unit], tail[unit];                                  \
        memcpy(head, src, unit);                                      \
        memcpy(tail, src + bytes - unit, unit);                       \
        memcpy(dst, head, unit);                                      \
        memcpy(dst + bytes - unit, tail, unit);                       \
    }
DEFINE_COPY(copy_2_to_4, 2)
DEFINE_COPY(copy_4_to_8, 4)
DEFINE_COPY(copy_8_to_16, 8)
DEFINE_COPY(copy_16_to_32, 16)
DEFINE_COPY(copy_32_to_64, 32)
DEFINE_COPY(copy_64_to_128, 64)

static inline void copy_1(char *dst, const char *src, size_t bytes)
{
    (void)bytes;
    *dst = *src;
}

static inline void copy_any(char *dst, const char *src, size_t bytes) { memcpy(dst, src, bytes); }

#if defined(__x86_64__)
/* Copies with non-temporal stores; call end_streaming before dst is published. */
__attribute__((target("avx"))) static void copy_long(char *dst, const char *src, size_t bytes)
{
    size_t head = -(uintptr_t)dst & 31, at = head;
    memcpy(dst, src, head);
    for (; at + 64 <= bytes; at += 64) {
        __m256i first = _mm256_loadu_si256((const __m256i *)(const void *)(src + at));
        __m256i second = _mm256_loadu_si256((const __m256i *)(const void *)(src + at + 32));
        _mm256_stream_si256((__m256i *)(void *)(dst + at), first);
        _mm256_stream_si256((__m256i *)(void *)(dst + at + 32), second);
    }
    memcpy(dst + at, src + at, bytes - at);
}

static inline bool can_stream(int64_t row_bytes)
{
    return row_bytes >= LONG_ROW && __builtin_cpu_supports("avx");
}

static inline void end_streaming(void) { _mm_sfence(); }
#elif defined(__aarch64__)
static void copy_long(char *dst, const char *src, size_t bytes)
{
    size_t at = -(uintptr_t)dst & 31;
    memcpy(dst, src, at);
    for (; at + 64 <= bytes; at += 64) {
        const uint8_t *from = (const uint8_t *)src + at;
        uint8x16_t x[4] = {vld1q_u8(from), vld1q_u8(from + 16), vld1q_u8(from + 32),
                           vld1q_u8(from + 48)};
        stream_pair(dst + at, x[0], x[1]);
        stream_pair(dst + at + 32, x[2], x[3]);
    }
    memcpy(dst + at, src + at, bytes - at);
}

static inline bool can_stream(int64_t row_bytes) { return row_bytes >= LONG_ROW; }

static inline void end_streaming(void) {}
#else
#define copy_long copy_any
static inline bool can_stream(int64_t row_bytes)
{
    (void)row_bytes;
    return false;
}
static inline void end_streaming(void) {}
#endif

static inline void prefetch_row(const char *row, int64_t lines)
{
    for (int64_t line = 0; line < lines; line++) __builtin_prefetch(row + line * LINE_BYTES, 0, 3);
}

static inline __attribute__((always_inline)) void
gather_with(copy_fn *copy, char *dst, const char *src, int64_t stride, int64_t row_bytes,
            const int64_t *index, int64_t count)
{
    int64_t ahead = fl_min(count, fl_max(1, fl_min(AHEAD_ROWS, AHEAD_BYTES / row_bytes)));
    int64_t lines = fl_min(AHEAD_LINES, (row_bytes + LINE_BYTES - 1) / LINE_BYTES + 1);
    for (int64_t i = 0; i < ahead; i++) prefetch_row(src + index[i] * stride, lines);
    int64_t i = 0;
    for (; i < count - ahead; i++, dst += row_bytes) {
        prefetch_row(src + index[i + ahead] * stride, lines);
        copy(dst, src + index[i] * stride, (size_t)row_bytes);
    }
    for (; i < count; i++, dst += row_bytes) copy(dst, src + index[i] * stride, (size_t)row_bytes);
}

static inline __attribute__((always_inline)) void
copy_with(copy_fn *copy, char *dst, const char *src, int64_t stride, int64_t row_bytes,
          int64_t count)
{
    for (int64_t i = 0; i < count; i++, dst += row_bytes, src += stride)
        copy(dst, src, (size_t)row_bytes);
}

/* Calls `loop` with the copy function for rows of `bytes`, so that each loop is compiled for each
 * function. */
#define WITH_COPY(bytes, loop, ...)            \
    do {                                       \
        if ((bytes) > 128)                     \
            loop(copy_any, __VA_ARGS__);       \
        else if ((bytes) >= 64)                \
            loop(copy_64_to_128, __VA_ARGS__); \
        else if ((bytes) >= 32)                \
            loop(copy_32_to_64, __VA_ARGS__);  \
        else if ((bytes) >= 16)                \
            loop(copy_16_to_32, __VA_ARGS__);  \
        else if ((bytes) >= 8)                 \
            loop(copy_8_to_16, __VA_ARGS__);   \
        else if ((bytes) >= 4)                 \
            loop(copy_4_to_8, __VA_ARGS__);    \
        else if ((bytes) >= 2)                 \
            loop(copy_2_to_4, __VA_ARGS__);    \
        else                                   \
            loop(copy_1, __VA_ARGS__);         \
    } while (0)

static void gather_rows(char *dst, const char *src, int64_t stride, int64_t row_bytes,
                        const int64_t *index, int64_t count, bool is_large)
{
    if (!is_large || !can_stream(row_bytes)) {
        WITH_COPY(row_bytes, gather_with, dst, src, stride, row_bytes, index, count);
        return;
    }
    int64_t lines = row_bytes < VERY_LONG_ROW ? AHEAD_LINES : 0;
    for (int64_t i = 0; i < count; i++, dst += row_bytes) {
        if (i + 1 < count) prefetch_row(src + index[i + 1] * stride, lines);
        copy_long(dst, src + index[i] * stride, (size_t)row_bytes);
    }
    end_streaming();
}

static void copy_rows(char *dst, const char *src, int64_t stride, int64_t row_bytes, int64_t first,
                      int64_t count, bool is_large)
{
    src += first * stride;
    if (is_large && can_stream(row_bytes)) {
        for (int64_t i = 0; i < count; i++, dst += row_bytes, src += stride)
            copy_long(dst, src, (size_t)row_bytes);
        end_streaming();
    } else if (stride == row_bytes) {
        memcpy(dst, src, (size_t)(row_bytes * count));
    } else {
        WITH_COPY(row_bytes, copy_with, dst, src, stride, row_bytes, count);
    }
}

const fl_row_ops fl_cpu_row_ops = {.copy_rows = copy_rows, .gather_rows = gather_rows};
