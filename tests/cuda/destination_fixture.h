/* destination_fixture.h: blocks of device memory from an allocator like torch's: one that is freed
 * serves again at once, for work on the same stream, whatever still runs there. */
#ifndef BLOCK_RIG_H
#define BLOCK_RIG_H

#include "check.h"

#include "fake_cuda.h"
#include "fl_cuda_transfer.h"
#include "stream_fixture.h"

static const fl_transfer_ops *const ops = &fl_cuda_transfer_ops;

enum { MOST_BLOCKS = 256, MOST_LOOKS = 256 };

/* Of the calls that could fail, every so-manieth does. */
#if defined(__SANITIZE_THREAD__) /* is slow, and leaves mappings behind: a process has 65530 */
enum { SAMPLE = 3 };
#else
enum { SAMPLE = 1 };
#endif

/* What a kernel reads, and what it must find. */
typedef struct look {
    const char *view;
    int64_t tag;
} look;

typedef struct block {
    void *memory; /* owned */
    int64_t bytes;
    cudaStream_t stream;
    bool is_used, is_kept; /* kept: read from a stream that its own does not know of */
} block;

typedef struct block_heap {
    int32_t device;
    block blocks[MOST_BLOCKS];
} block_heap;

static inline bool can_serve(const block *b, int64_t bytes, cudaStream_t stream)
{
    return !b->is_used && !b->is_kept && b->stream == stream && b->bytes >= bytes;
}

static inline block *get_block(block_heap *heap, int64_t bytes, cudaStream_t stream)
{
    block *found = heap->blocks;
    while (found->memory != NULL && !can_serve(found, bytes, stream))
        CHECK(++found < heap->blocks + MOST_BLOCKS);
    if (found->memory == NULL) {
        found->memory = fake_alloc(heap->device, (size_t)bytes);
        found->bytes = bytes;
    }
    found->stream = stream;
    found->is_used = true;
    return found;
}

static inline void drop_block(block *used)
{
    if (used != NULL) used->is_used = false;
}

/* Kernels that read blocks must have been waited for. */
static inline void free_blocks(block_heap *heap)
{
    for (int i = 0; i < MOST_BLOCKS; i++)
        if (heap->blocks[i].memory != NULL) fake_free(heap->blocks[i].memory);
}

/* ---- other work on the same stream, by which a block is used again */

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

/* All that are free there are filled, or it is checked that they still are: later, by kernels. How
 * many they are. */
static inline int
use_free_blocks(block_heap *heap, cudaStream_t stream, filling *fillings, bool is_check)
{
    int count = 0;
    for (const block *b = heap->blocks; b->memory != NULL; b++) {
        if (b->is_used || b->stream != stream) continue;
        filling *f = &fillings[count++];
        *f = (filling){fake_host_view(b->memory), b->bytes, (char)(count % 100), is_check};
        fake_launch(stream, fill_or_check, f);
    }
    return count;
}

#endif
