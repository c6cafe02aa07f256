/* fl_ragged: see fl_ragged.h. */
#include "fl_ragged.h"

#include "fl_safe_read.h"

#include <string.h>

enum { LINE_BYTES = 64, AHEAD_BYTES = 1024 }; /* of each run, prefetched */
enum { SCRATCH_BYTES = 16 * 1024 }; /* on the stack: room for one read from a mapped file */

static inline int64_t offset_at(const fl_ragged *ragged, int64_t i)
{
    return ragged->is_wide ? ((const int64_t *)ragged->offsets)[i]
                           : ((const int32_t *)ragged->offsets)[i];
}

int fl_ragged_find(const fl_ragged *ragged, int64_t row, int64_t *begin, int64_t *length,
                   fl_err *err)
{
    int64_t at = ragged->is_paired ? 2 * row : row;
    int64_t from = offset_at(ragged, at), to = offset_at(ragged, at + 1);
    if (from < 0 || from > to || to > ragged->count)
        return fl_fail(err, FL_EINVAL,
                       "sequence %lld lies from %lld to %lld of %lld values; the offsets have been "
                       "changed: make a new RaggedArray",
                       (long long)row, (long long)from, (long long)to, (long long)ragged->count);
    *begin = from;
    *length = to - from;
    return FL_OK;
}

bool fl_ragged_is_beyond(const fl_ragged *ragged, int64_t row, const char *limit)
{
    int64_t begin = 0, length = 0, bytes = fl_dtype_bytes(ragged->dtype);
    if (fl_ragged_find(ragged, row, &begin, &length, NULL) != FL_OK || length == 0) return false;
    return ragged->values + (begin + length) * bytes > limit;
}

/* Copies values from memory to memory. */
static void put(const fl_ragged *ragged, const fl_sequence_ops *ops, bool is_widened, char *dst,
                const char *src, int64_t count)
{
    if (is_widened)
        ops->widen((int64_t *)(void *)dst, src, count, ragged->dtype);
    else if (count > 0)
        memcpy(dst, src, (size_t)(count * fl_dtype_bytes(ragged->dtype)));
}

/* One read from a mapped file: runs of values of consecutive pieces. */
typedef struct read_call {
    struct iovec runs[FL_SAFE_READ_MAX];
    int64_t piece[FL_SAFE_READ_MAX];
    char *dst[FL_SAFE_READ_MAX];
    int count;
    int64_t bytes; /* of all runs */
} read_call;

/* Collects runs from value *from of piece *next on, and moves both on. */
static void collect_runs(const fl_ragged *ragged, int64_t out_bytes, const fl_ragged_piece *pieces,
                         int64_t count, int64_t *next, int64_t *from, read_call *call)
{
    int64_t bytes = fl_dtype_bytes(ragged->dtype);
    call->count = 0;
    call->bytes = 0;
    while (*next < count && call->count < FL_SAFE_READ_MAX) {
        const fl_ragged_piece *piece = &pieces[*next];
        int64_t left = piece->count - *from, room = (SCRATCH_BYTES - call->bytes) / bytes;
        int64_t taken = fl_min(left, room);
        if (left > 0 && taken == 0) return;
        if (taken > 0) {
            const char *src = ragged->values + (piece->begin + *from) * bytes;
            /* The kernel copies run by run, and would wait for the memory of each. A prefetch never
             * faults. */
            for (int64_t at = 0; at < fl_min(taken * bytes, AHEAD_BYTES); at += LINE_BYTES)
                __builtin_prefetch(src + at);
            call->runs[call->count] = (struct iovec){.iov_base = (void *)(uintptr_t)src,
                                                     .iov_len = (size_t)(taken * bytes)};
            call->piece[call->count] = *next;
            call->dst[call->count++] = piece->dst + *from * out_bytes;
            call->bytes += taken * bytes;
        }
        *from += taken;
        if (*from < piece->count) continue;
        (*next)++;
        *from = 0;
    }
}

/* Reads the runs and puts their values into the pieces. Returns the first piece that cannot be
 * read; `count`: all can be read; or FL_ENOMEM. */
static int64_t read_runs(const fl_ragged *ragged, const fl_sequence_ops *ops, bool is_widened,
                         const read_call *call, int64_t count)
{
    _Alignas(16) char scratch[SCRATCH_BYTES];
    const char *src = scratch;
    int64_t got = fl_safe_read_copy(scratch, call->runs, call->count);
    if (got < 0) return got;
    for (int k = 0; k < call->count; k++) {
        int64_t bytes = (int64_t)call->runs[k].iov_len;
        if (src + bytes > scratch + got) return call->piece[k];
        put(ragged, ops, is_widened, call->dst[k], src, bytes / fl_dtype_bytes(ragged->dtype));
        src += bytes;
    }
    return count;
}

int64_t fl_ragged_copy(const fl_ragged *ragged, const fl_sequence_ops *ops, bool is_widened,
                       const fl_ragged_piece *pieces, int64_t count)
{
    int64_t bytes = fl_dtype_bytes(ragged->dtype), next = 0, from = 0;
    if (!ragged->is_volatile) {
        for (int64_t i = 0; i < count; i++)
            put(ragged, ops, is_widened, pieces[i].dst, ragged->values + pieces[i].begin * bytes,
                pieces[i].count);
        return count;
    }
    while (next < count) {
        read_call call;
        collect_runs(ragged, is_widened ? (int64_t)sizeof(int64_t) : bytes, pieces, count, &next,
                     &from, &call);
        int64_t done = read_runs(ragged, ops, is_widened, &call, count);
        if (done < count) return done;
    }
    return count;
}
