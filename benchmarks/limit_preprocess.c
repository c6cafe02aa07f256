/* limit_preprocess: what no preprocessing of images to float32 can beat: rows of bytes gathered by
 * a permutation, cast and normalised into buffers that are already in memory. No crop, flip or
 * resize.
 *
 * Not part of the library: _work_images.py builds it with `cc -O3 -march=native` and calls it
 * through ctypes, that is, without the interpreter lock. Each of the `threads` makes every
 * threads-th batch, into its own buffer. */
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

enum { MAX_THREADS = 8, MAX_CHANNELS = 4, LINES = 1024 };

typedef struct limit_images {
    const uint8_t *src;      /* borrowed from the caller, as all pointers here */
    float *dst[MAX_THREADS]; /* one batch each, aligned to 64 bytes */
    const int64_t *order;
    int64_t rows, batch, row_bytes; /* of the source; row_bytes from one image to the next */
    int64_t channels, pixels;       /* that are read of each image, and written */
    float scale, mean[MAX_CHANNELS], std[MAX_CHANNELS];
    int64_t threads,
        streaming; /* streaming: non-temporal stores where a plane's size allows them */
} limit_images;

typedef struct share {
    const limit_images *images;
    int64_t thread;
    pthread_t id;
} share;

static void
normalise(float *restrict dst, const uint8_t *restrict src, int64_t count, const float *how)
{
    float scale = how[0], mean = how[1], std = how[2];
    for (int64_t i = 0; i < count; i++) dst[i] = ((float)src[i] * scale - mean) / std;
}

/* Through a buffer in the first cache, so that the compiler may vectorise the arithmetic. */
static void normalise_streaming(float *dst, const uint8_t *src, int64_t count, const float *how)
{
    _Alignas(64) float lines[LINES];
    for (int64_t at = 0; at < count; at += LINES) {
        int64_t now = count - at < LINES ? count - at : LINES;
        normalise(lines, src + at, now, how);
#if defined(__AVX512F__)
        for (int64_t i = 0; i < now; i += 16)
            _mm512_stream_ps(dst + at + i, _mm512_load_ps(lines + i));
#elif defined(__SSE2__)
        for (int64_t i = 0; i < now; i += 4) _mm_stream_ps(dst + at + i, _mm_load_ps(lines + i));
#else
        memcpy(dst + at, lines, (size_t)now * sizeof *lines);
#endif
    }
}

static void *run_share(void *arg)
{
    const share *mine = arg;
    const limit_images *images = mine->images;
    int64_t streaming = images->streaming && images->pixels % 16 == 0;
    for (int64_t at = mine->thread * images->batch; at < images->rows;
         at += images->threads * images->batch) {
        float *dst = images->dst[mine->thread];
        int64_t end = at + images->batch < images->rows ? at + images->batch : images->rows;
        for (int64_t row = at; row < end; row++) {
            const uint8_t *src = images->src + images->order[row] * images->row_bytes;
            for (int64_t c = 0; c < images->channels; c++) {
                float how[] = {images->scale, images->mean[c], images->std[c]};
                (streaming ? normalise_streaming : normalise)(dst, src, images->pixels, how);
                dst += images->pixels;
                src += images->pixels;
            }
        }
    }
#ifdef __SSE2__
    _mm_sfence();
#endif
    return NULL;
}

/* The whole epoch; 0, or -1 if a thread could not be started. */
int limit_run(const limit_images *images)
{
    share shares[MAX_THREADS];
    int64_t started = 1;
    for (; started < images->threads; started++) {
        shares[started] = (share){.images = images, .thread = started};
        if (pthread_create(&shares[started].id, NULL, run_share, &shares[started]) != 0) break;
    }
    shares[0] = (share){.images = images, .thread = 0};
    run_share(&shares[0]);
    for (int64_t t = 1; t < started; t++) pthread_join(shares[t].id, NULL);
    return started == images->threads ? 0 : -1;
}
