/* limit_tokens: what no reader of token windows can beat: 16-bit tokens widened to inputs and
 * targets of 64 bits in buffers that are already in memory, from warm memory or by one pread() a
 * window, with nothing around it.
 *
 * Not part of the library: _work_sequences.py builds it with `cc -O3 -march=native` and calls it
 * through ctypes, that is, without the interpreter lock. Each of the `threads` makes every
 * threads-th batch, into its own buffers. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

enum { MAX_THREADS = 8, MAX_LENGTH = 8192 };

typedef struct limit_tokens {
    const uint16_t *src; /* borrowed from the caller, as all pointers here; NULL: pread from fd */
    int64_t *x[MAX_THREADS], *y[MAX_THREADS]; /* one batch each, aligned to 64 bytes */
    const int64_t *begins;                    /* the first token of each window */
    int64_t windows, batch, length, fd;       /* length: tokens of x, at most MAX_LENGTH */
    int64_t threads, streaming; /* streaming: non-temporal stores where the length allows them */
} limit_tokens;

typedef struct share {
    const limit_tokens *tokens;
    int64_t thread;
    int failed;
    pthread_t id;
} share;

static void
widen(int64_t *restrict x, int64_t *restrict y, const uint16_t *restrict src, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        x[i] = src[i];
        y[i] = src[i + 1];
    }
}

static void widen_streaming(int64_t *x, int64_t *y, const uint16_t *src, int64_t count)
{
#if defined(__AVX512F__)
    for (int64_t i = 0; i < count; i += 8) {
        __m128i inputs = _mm_loadu_si128((const __m128i *)(src + i));
        __m128i targets = _mm_loadu_si128((const __m128i *)(src + i + 1));
        _mm512_stream_si512((void *)(x + i), _mm512_cvtepu16_epi64(inputs));
        _mm512_stream_si512((void *)(y + i), _mm512_cvtepu16_epi64(targets));
    }
#elif defined(__AVX2__)
    for (int64_t i = 0; i < count; i += 4) {
        __m128i inputs = _mm_loadl_epi64((const __m128i *)(src + i));
        __m128i targets = _mm_loadl_epi64((const __m128i *)(src + i + 1));
        _mm256_stream_si256((__m256i *)(x + i), _mm256_cvtepu16_epi64(inputs));
        _mm256_stream_si256((__m256i *)(y + i), _mm256_cvtepu16_epi64(targets));
    }
#else
    widen(x, y, src, count);
#endif
}

/* The window's tokens and the one behind them; NULL if they cannot be read. */
static const uint16_t *read_window(const limit_tokens *tokens, int64_t begin, uint16_t *into)
{
    if (tokens->src) return tokens->src + begin;
    ssize_t bytes = (ssize_t)((tokens->length + 1) * (int64_t)sizeof *into);
    off_t at = (off_t)(begin * (int64_t)sizeof *into);
    return pread((int)tokens->fd, into, (size_t)bytes, at) == bytes ? into : NULL;
}

static void *run_share(void *arg)
{
    share *mine = arg;
    const limit_tokens *tokens = mine->tokens;
    int64_t streaming = tokens->streaming && tokens->length % 8 == 0;
    uint16_t room[MAX_LENGTH + 1];
    for (int64_t at = mine->thread * tokens->batch; at < tokens->windows;
         at += tokens->threads * tokens->batch) {
        int64_t end = at + tokens->batch < tokens->windows ? at + tokens->batch : tokens->windows;
        int64_t *x = tokens->x[mine->thread], *y = tokens->y[mine->thread];
        for (int64_t window = at; window < end; window++) {
            const uint16_t *src = read_window(tokens, tokens->begins[window], room);
            if (!src) {
                mine->failed = 1;
                return NULL;
            }
            (streaming ? widen_streaming : widen)(x, y, src, tokens->length);
            x += tokens->length;
            y += tokens->length;
        }
    }
#ifdef __SSE2__
    _mm_sfence();
#endif
    return NULL;
}

/* The whole epoch; 0, or -1 if a thread could not be started or a window not be read. */
int limit_run(const limit_tokens *tokens)
{
    share shares[MAX_THREADS];
    int64_t started = 1;
    for (; started < tokens->threads; started++) {
        shares[started] = (share){.tokens = tokens, .thread = started};
        if (pthread_create(&shares[started].id, NULL, run_share, &shares[started]) != 0) break;
    }
    shares[0] = (share){.tokens = tokens, .thread = 0};
    run_share(&shares[0]);
    int failed = started < tokens->threads || shares[0].failed;
    for (int64_t t = 1; t < started; t++) {
        pthread_join(shares[t].id, NULL);
        failed |= shares[t].failed;
    }
    return failed ? -1 : 0;
}
