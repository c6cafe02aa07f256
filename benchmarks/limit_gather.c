/* limit_gather: what no loader can beat: rows gathered by a permutation into buffers that are
 * already in memory, with nothing around it. Also the arithmetic that stands for a training step.
 *
 * Not part of the library: _harness.py builds it with `cc -O3 -march=native` and calls it through
 * ctypes, that is, without the interpreter lock. Each of the `threads` makes every threads-th
 * batch, into its own buffer. */
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

enum { LINE = 64, AHEAD_LINES = 16, MAX_THREADS = 64 };

typedef struct limit_field {
    const char *src;        /* borrowed from the caller, as all pointers here */
    char *dst[MAX_THREADS]; /* one batch each, aligned to 64 bytes */
    int64_t row_bytes;
} limit_field;

typedef struct limit_epoch {
    const limit_field *fields;
    int64_t n_fields;
    const int64_t *order;
    int64_t rows, batch;
    int64_t threads, streaming; /* streaming: non-temporal stores where rows allow them */
} limit_epoch;

typedef struct share {
    const limit_epoch *epoch;
    int64_t thread;
    pthread_t id;
} share;

/* A row that streaming stores can write: whole lines, so that each stays aligned. */
static inline int can_stream(int64_t row_bytes)
{
#ifdef __SSE2__
    return row_bytes % LINE == 0;
#else
    (void)row_bytes;
    return 0;
#endif
}

static inline void stream_row(char *dst, const char *src, int64_t bytes)
{
#if defined(__AVX512F__)
    for (int64_t at = 0; at < bytes; at += 64)
        _mm512_stream_si512((__m512i *)(dst + at), _mm512_loadu_si512(src + at));
#elif defined(__AVX__)
    for (int64_t at = 0; at < bytes; at += 32)
        _mm256_stream_si256((__m256i *)(dst + at), _mm256_loadu_si256((const __m256i *)(src + at)));
#elif defined(__SSE2__)
    for (int64_t at = 0; at < bytes; at += 16)
        _mm_stream_si128((__m128i *)(dst + at), _mm_loadu_si128((const __m128i *)(src + at)));
#else
    memcpy(dst, src, (size_t)bytes);
#endif
}

/* Streaming stores gain from the next row's lines being fetched early; memcpy measured without. */
static void
gather_streaming(char *dst, const char *src, int64_t bytes, const int64_t *order, int64_t rows)
{
    for (int64_t row = 0; row < rows; row++, dst += bytes) {
        const char *next = src + order[row + 1 < rows ? row + 1 : row] * bytes;
        for (int64_t line = 0; line < AHEAD_LINES && line * LINE < bytes; line++)
            __builtin_prefetch(next + line * LINE);
        stream_row(dst, src + order[row] * bytes, bytes);
    }
}

/* `bytes` is a constant where the caller has one: then the copy is a few moves, not a call. */
static inline __attribute__((always_inline)) void
gather_plain(char *dst, const char *src, int64_t bytes, const int64_t *order, int64_t rows)
{
    for (int64_t row = 0; row < rows; row++, dst += bytes)
        memcpy(dst, src + order[row] * bytes, (size_t)bytes);
}

static void gather_field(const limit_field *field, int64_t thread, const int64_t *order,
                         int64_t rows, int64_t streaming)
{
    char *dst = field->dst[thread];
    const char *src = field->src;
    if (streaming && can_stream(field->row_bytes)) {
        gather_streaming(dst, src, field->row_bytes, order, rows);
        return;
    }
    switch (field->row_bytes) {
    case 8:
        gather_plain(dst, src, 8, order, rows);
        break;
    case 20:
        gather_plain(dst, src, 20, order, rows);
        break;
    case 80:
        gather_plain(dst, src, 80, order, rows);
        break;
    default:
        gather_plain(dst, src, field->row_bytes, order, rows);
    }
}

static void *run_share(void *arg)
{
    const share *mine = arg;
    const limit_epoch *epoch = mine->epoch;
    for (int64_t first = mine->thread * epoch->batch; first < epoch->rows;
         first += epoch->threads * epoch->batch) {
        int64_t left = epoch->rows - first;
        int64_t rows = left < epoch->batch ? left : epoch->batch;
        for (int64_t f = 0; f < epoch->n_fields; f++)
            gather_field(&epoch->fields[f], mine->thread, epoch->order + first, rows,
                         epoch->streaming);
    }
#ifdef __SSE2__
    _mm_sfence();
#endif
    return NULL;
}

/* Gathers the whole epoch; 0, or -1 if a thread could not be started. */
int limit_run(const limit_epoch *epoch)
{
    share shares[MAX_THREADS];
    int64_t started = 1;
    for (; started < epoch->threads; started++) {
        shares[started] = (share){.epoch = epoch, .thread = started};
        if (pthread_create(&shares[started].id, NULL, run_share, &shares[started]) != 0) break;
    }
    shares[0] = (share){.epoch = epoch, .thread = 0};
    run_share(&shares[0]);
    for (int64_t t = 1; t < started; t++) pthread_join(shares[t].id, NULL);
    return started == epoch->threads ? 0 : -1;
}

/* One thread of arithmetic that touches no memory, a training step as the loader sees it. */
double limit_arithmetic(int64_t steps)
{
    double a = 1.0, b = 2.0, c = 3.0, d = 4.0;
    for (int64_t step = 0; step < steps; step++) {
        a = a * 0.999 + 0.5;
        b = b * 0.998 + 0.5;
        c = c * 0.997 + 0.5;
        d = d * 0.996 + 0.5;
    }
    return a + b + c + d;
}
