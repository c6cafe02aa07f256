/* fl_pages: see fl_pages.h. Stateless. */
#define _GNU_SOURCE
#include "fl_pages.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { HUGE_BYTES = 2 << 20, KEPT_BYTES = 256 << 20 };

static int64_t page_bytes(void) { return sysconf(_SC_PAGESIZE); }

/* Returns true if the machine has this much memory at all, swap included. A kernel that overcommits
 * would let a larger mapping succeed, and end the process while the mapping is filled. */
static bool is_there(int64_t bytes)
{
    struct sysinfo info;
    if (sysinfo(&info) != 0) return true;
    double total = ((double)info.totalram + (double)info.totalswap) * info.mem_unit;
    return (double)bytes <= total;
}

static bool round_up(int64_t bytes, int64_t unit, int64_t *out)
{
    int64_t padded;
    if (!fl_add(bytes, unit - 1, &padded)) return false;
    *out = padded / unit * unit;
    return true;
}

/* Maps `bytes` (a multiple of the page) at a 2 MiB boundary: maps more, and unmaps both ends. */
static char *map_aligned(int64_t bytes)
{
    int64_t reserve;
    if (fl_fault_hit() || !fl_add(bytes, HUGE_BYTES, &reserve)) return NULL;
    char *base = mmap(NULL, (size_t)reserve, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return NULL;
    int64_t head = (int64_t)(-(uintptr_t)base & (HUGE_BYTES - 1));
    int64_t tail = reserve - head - bytes;
    if (head > 0) munmap(base, (size_t)head);
    if (tail > 0) munmap(base + head + bytes, (size_t)tail);
    (void)madvise(base + head, (size_t)bytes, MADV_HUGEPAGE); /* or small pages, slower */
    return base + head;
}

static int open_memory(int64_t bytes, bool is_mapped, fl_pages *out, fl_err *err)
{
    *out = (fl_pages){0};
    int64_t unit = is_mapped ? page_bytes() : 64;
    int64_t capacity;
    if (!round_up(fl_max(bytes, 1), unit, &capacity))
        return fl_fail(err, FL_EINVAL,
                       "a batch of %lld bytes is larger than memory can be; pass a smaller "
                       "batch_size, or make samples smaller",
                       (long long)bytes);
    out->is_mapped = is_mapped;
    if (is_mapped) {
        out->data = is_there(capacity) ? map_aligned(capacity) : NULL;
    } else if (!fl_fault_hit()) {
        out->data = aligned_alloc(64, (size_t)capacity);
    }
    if (out->data == NULL) {
        *out = (fl_pages){0};
        return fl_fail(
            err, FL_ENOMEM,
            "out of memory for a batch of %lld bytes; pass a smaller batch_size, or make samples "
            "smaller",
            (long long)bytes);
    }
    out->capacity = capacity;
    return FL_OK;
}

int fl_pages_open(int64_t bytes, fl_pages *out, fl_err *err)
{
    return open_memory(bytes, bytes >= FL_PAGES_MAPPED_FROM, out, err);
}

int fl_pages_map(int64_t bytes, fl_pages *out, fl_err *err)
{
    return open_memory(bytes, true, out, err);
}

void fl_pages_close(fl_pages *pages)
{
    if (pages->is_mapped)
        munmap(pages->data, (size_t)pages->capacity);
    else
        free(pages->data);
    *pages = (fl_pages){0};
}

static bool populate(char *data, int64_t bytes, int advice)
{
    uintptr_t from = (uintptr_t)data & ~((uintptr_t)page_bytes() - 1);
    size_t length = (size_t)((uintptr_t)data + (uintptr_t)bytes - from);
    int saved = errno;
    bool done = bytes <= 0 || madvise((void *)from, length, advice) == 0;
    errno = saved;
    return done;
}

bool fl_pages_populate(char *data, int64_t bytes)
{
    return populate(data, bytes, MADV_POPULATE_WRITE);
}

/* For a read the kernel maps 16 pages at once that are there, for a write one page. */
bool fl_pages_populate_shared(char *data, int64_t bytes)
{
    return populate(data, bytes, MADV_POPULATE_READ);
}

void fl_pages_place(char *data, int64_t bytes, uint64_t nodes)
{
    int mode = MPOL_DEFAULT;
    if (nodes == 0 || syscall(SYS_get_mempolicy, &mode, NULL, 0L, NULL, 0L) != 0 ||
        mode != MPOL_DEFAULT)
        return;
    bool is_one = (nodes & (nodes - 1)) == 0;
    /* The kernel reads one bit less than it is told. Containers may refuse the call. */
    (void)syscall(SYS_mbind, data, bytes, (long)(is_one ? MPOL_PREFERRED : MPOL_INTERLEAVE), &nodes,
                  65L, 0L);
}

int64_t fl_pages_whole(int64_t bytes)
{
    int64_t page = page_bytes();
    return (bytes + page - 1) / page * page;
}

static bool is_limited(int resource)
{
    struct rlimit limit;
    return getrlimit(resource, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

/* Asks for huge pages where the heap will grow: a worker writes samples of many megabytes to pages
 * that it has never had, and small pages take as long as the decoding of a small image. Blocks that
 * malloc takes from below sbrk(0), all close together, show where the heap is; nobody writes to
 * them. The heap keeps their addresses, which mappings and stacks would lack under a limit. */
static void enlarge_heap_pages(void)
{
    enum { BLOCKS = 7, BLOCK = 31 << 20 };
    if (is_limited(RLIMIT_AS) || is_limited(RLIMIT_DATA)) return;
    char *volatile blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(BLOCK);
    char *begin = blocks[0], *end = sbrk(0);
    bool is_heap = true;
    for (int i = 0; i < BLOCKS; i++)
        is_heap = is_heap && begin != NULL && blocks[i] >= begin && blocks[i] + BLOCK <= end &&
                  end - begin <= KEPT_BYTES;
    begin += -(uintptr_t)begin & (HUGE_BYTES - 1);
    if (is_heap) (void)madvise(begin, (size_t)(end - begin), MADV_HUGEPAGE);
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
}

void fl_pages_keep_heap(bool with_huge_pages)
{
    /* glibc's threshold follows the largest mapping that was freed, up to 32 MB with its header. */
    void *volatile largest = malloc((32 << 20) - 2 * (size_t)page_bytes());
    free(largest);
#ifdef M_TRIM_THRESHOLD
    if (getenv("MALLOC_TRIM_THRESHOLD_") != NULL || getenv("GLIBC_TUNABLES") != NULL) return;
    if (mallopt(M_TRIM_THRESHOLD, KEPT_BYTES) == 1 && with_huge_pages) enlarge_heap_pages();
#endif
}

void fl_pages_withhold(const fl_pages *pages)
{
    (void)madvise(pages->data, (size_t)pages->capacity, MADV_DONTFORK);
}

void fl_pages_forget(const fl_pages *pages)
{
    (void)madvise(pages->data, (size_t)pages->capacity, MADV_DONTNEED);
}
