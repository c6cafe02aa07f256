/* destination_fixture.h: buffers of device memory from an allocator like torch's: one that is freed
 * serves again at once, for work on the same stream, whatever still runs there. */
#ifndef DESTINATION_FIXTURE_H
#define DESTINATION_FIXTURE_H

#include "check.h"

#include "fake_cuda.h"
#include "fl_cuda_transfer.h"
#include "stream_fixture.h"

static const fl_transfer_ops *const ops = &fl_cuda_transfer_ops;

enum { MOST_BUFFERS = 256, MOST_LOOKS = 256 };

/* One in SAMPLE of the calls that can fail does fail. */
#if defined(__SANITIZE_THREAD__) /* ThreadSanitizer is slow, and leaves mappings: a process has \
                                    65530 */
enum { SAMPLE = 5 };
#else
enum { SAMPLE = 1 };
#endif

/* The memory that a kernel reads, and the expected contents. */
typedef struct look {
    const char *view;
    int64_t tag;
} look;

typedef struct device_buffer {
    void *memory; /* owned */
    int64_t bytes;
    cudaStream_t stream;
    bool is_used, is_kept; /* kept: read from a stream that its own does not know of */
} device_buffer;

typedef struct buffer_heap {
    int32_t device;
    device_buffer buffers[MOST_BUFFERS];
} buffer_heap;

static inline bool can_serve(const device_buffer *b, int64_t bytes, cudaStream_t stream)
{
    return !b->is_used && !b->is_kept && b->stream == stream && b->bytes >= bytes;
}

static inline device_buffer *get_buffer(buffer_heap *heap, int64_t bytes, cudaStream_t stream)
{
    device_buffer *found = heap->buffers;
    while (found->memory != NULL && !can_serve(found, bytes, stream))
        CHECK(++found < heap->buffers + MOST_BUFFERS);
    if (found->memory == NULL) {
        found->memory = fake_alloc(heap->device, (size_t)bytes);
        found->bytes = bytes;
    }
    found->stream = stream;
    found->is_used = true;
    return found;
}

static inline void drop_buffer(device_buffer *used)
{
    if (used != NULL) used->is_used = false;
}

/* Kernels that read buffers must have been waited for. */
static inline void free_buffers(buffer_heap *heap)
{
    for (int i = 0; i < MOST_BUFFERS; i++)
        if (heap->buffers[i].memory != NULL) fake_free(heap->buffers[i].memory);
}

/* ---- other work on the same stream, by which a buffer is used again */

typedef struct filling {
    char *view;
    int64_t bytes;
    char byte;
    bool is_check;
} filling;

static inline void fill_or_check(void *arg)
{
    const filling *f = arg;
    for (int64_t i = 0; i < f->bytes && f->is_check; i++) CHECK_INT(f->view[i], f->byte);
    if (!f->is_check) memset(f->view, f->byte, (size_t)f->bytes);
}

/* Fills all free buffers, or checks their contents, by kernels that run later. Returns how many
 * buffers there are. */
static inline int
use_free_buffers(buffer_heap *heap, cudaStream_t stream, filling *fillings, bool is_check)
{
    int count = 0;
    for (const device_buffer *b = heap->buffers; b->memory != NULL; b++) {
        if (b->is_used || b->stream != stream) continue;
        filling *f = &fillings[count++];
        *f = (filling){fake_host_view(b->memory), b->bytes, (char)(count % 100), is_check};
        fake_launch(stream, fill_or_check, f);
    }
    return count;
}

#endif
