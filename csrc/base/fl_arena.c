/* fl_arena: see fl_arena.h.
 *
 * Sizes are rounded up to tiers, four for each power of two. A block that comes back serves the
 * next request of its tier. Blocks are neither split nor joined, so giving a block back needs no
 * lock: the block goes onto a lock-free stack, and the next fl_arena_get moves the whole stack
 * into the lists of the tiers. Tiers do not reuse each other's address space, because memory runs
 * short before address space does. */
#define _GNU_SOURCE
#include "fl_arena.h"

#include "fl_thread.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SMALLEST_SHIFT = 18, OCTAVES = 28, STEPS = 4 };

static const int64_t MOST_BYTES = (int64_t)1 << 42;

struct fl_shared_block {
    fl_arena *arena;       /* owned: one reference while given out */
    fl_shared_block *next; /* belongs to the holder of the list */
    int64_t offset, bytes;
    int32_t tier;
};

struct fl_arena {
    pthread_mutex_t mutex;
    fl_shared_block *spare[OCTAVES * STEPS]; /* owned; mutex */
    int64_t frontier;                        /* all offsets below were given out once; mutex */
    _Atomic(fl_shared_block *) returned;     /* owned: the stack */
    _Atomic int64_t references;              /* one for the opener, one for each block given out */
    char *base;                              /* owned mapping; set at open */
    int64_t bytes;                           /* set at open */
    int fd;                                  /* owned; set at open */
    uint32_t generation;                     /* set at open */
};

static inline bool is_foreign(const fl_arena *arena)
{
    return arena->generation != fl_fork_generation();
}

static int64_t tier_bytes(int32_t tier)
{
    int64_t octave = (int64_t)1 << (SMALLEST_SHIFT + tier / STEPS);
    return octave + octave / STEPS * (tier % STEPS);
}

/* Returns the first tier of at least `bytes`. Every tier is a multiple of 64 KB, the largest
 * page size of any kernel: with smaller tiers, giving a block back would free pages of its
 * neighbour. */
static int32_t find_tier(int64_t bytes)
{
    int32_t tier = 0;
    while (tier < OCTAVES * STEPS && tier_bytes(tier) < bytes) tier++;
    return tier;
}

static int make_file(int64_t bytes)
{
    if (fl_fault_hit()) return -1;
    int fd = memfd_create("fastloop", MFD_CLOEXEC);
    if (fd < 0) return -1;
    if (!fl_fault_hit() && ftruncate(fd, bytes) == 0) return fd;
    close(fd);
    return -1;
}

static char *map_file(int fd, int64_t bytes)
{
    if (fl_fault_hit()) return MAP_FAILED;
    char *base =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    /* Without this advice a core dump would read the whole address space, and a dump to a pipe
     * would even write it. */
    if (base != MAP_FAILED) (void)madvise(base, (size_t)bytes, MADV_DONTDUMP);
    return base;
}

static int64_t most_under(int resource, rlim_t part)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return MOST_BYTES;
    return limit.rlim_cur / part < (rlim_t)MOST_BYTES ? (int64_t)(limit.rlim_cur / part)
                                                      : MOST_BYTES;
}

/* Returns the largest file that this process may map. If ftruncate exceeded the limit on file
 * sizes, the kernel would raise SIGXFSZ. If the address space is limited, the arena takes at most
 * half. */
static int64_t most_file_bytes(int64_t least_bytes)
{
    int64_t mapped = fl_max(most_under(RLIMIT_AS, 2), least_bytes);
    int64_t bytes = fl_min(most_under(RLIMIT_FSIZE, 1), mapped);
    return bytes & ~(int64_t)0xffff; /* a multiple of every page size */
}

static bool open_file(int64_t least_bytes, fl_arena *arena)
{
    int64_t bytes = most_file_bytes(least_bytes);
    while (bytes >= least_bytes) {
        arena->fd = make_file(bytes);
        if (arena->fd < 0) return false;
        arena->base = map_file(arena->fd, bytes);
        arena->bytes = bytes;
        if (arena->base != MAP_FAILED) return true;
        close(arena->fd);
        if (bytes == least_bytes) return false;
        bytes = fl_max(bytes / 4, least_bytes);
    }
    return false;
}

int fl_arena_open(int64_t least_bytes, fl_arena **out, fl_err *err)
{
    *out = NULL;
    fl_arena *arena = fl_alloc(sizeof *arena);
    if (arena == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for an arena");
    int status = fl_mutex_open(&arena->mutex, err);
    if (status != FL_OK) {
        fl_free(arena);
        return status;
    }
    if (!open_file(least_bytes, arena)) {
        pthread_mutex_destroy(&arena->mutex);
        fl_free(arena);
        return fl_fail(err, FL_ENOMEM, "cannot map a memfd of %lld bytes to share with workers: %s",
                       (long long)least_bytes, strerror(errno));
    }
    arena->generation = fl_fork_generation();
    atomic_init(&arena->references, 1);
    *out = arena;
    return FL_OK;
}

static void free_list(fl_shared_block *block)
{
    while (block != NULL) {
        fl_shared_block *next = block->next;
        fl_free(block);
        block = next;
    }
}

static void drop_reference(fl_arena *arena)
{
    /* acq_rel: the thread that frees sees every write made before a reference was given up. */
    if (atomic_fetch_sub_explicit(&arena->references, 1, memory_order_acq_rel) != 1) return;
    munmap(arena->base, (size_t)arena->bytes);
    close(arena->fd);
    for (int32_t tier = 0; tier < OCTAVES * STEPS; tier++) free_list(arena->spare[tier]);
    free_list(atomic_load(&arena->returned));
    pthread_mutex_destroy(&arena->mutex);
    fl_free(arena);
}

void fl_arena_close(fl_arena *arena)
{
    if (arena != NULL && !is_foreign(arena)) drop_reference(arena);
}

int fl_arena_fd(const fl_arena *arena) { return arena->fd; }

int64_t fl_arena_bytes(const fl_arena *arena) { return arena->bytes; }

char *fl_arena_base(const fl_arena *arena) { return arena->base; }

static fl_shared_block *pop_spare_locked(fl_arena *arena, int32_t tier)
{
    fl_shared_block *block = atomic_exchange_explicit(&arena->returned, NULL, memory_order_acquire);
    while (block != NULL) {
        fl_shared_block *next = block->next;
        block->next = arena->spare[block->tier];
        arena->spare[block->tier] = block;
        block = next;
    }
    block = arena->spare[tier];
    if (block != NULL) arena->spare[tier] = block->next;
    return block;
}

static fl_shared_block *cut_new_locked(fl_arena *arena, int32_t tier)
{
    int64_t bytes = tier_bytes(tier);
    if (bytes > arena->bytes - arena->frontier) return NULL;
    fl_shared_block *block = fl_alloc(sizeof *block);
    if (block == NULL) return NULL;
    *block = (fl_shared_block){.offset = arena->frontier, .bytes = bytes, .tier = tier};
    arena->frontier += bytes;
    return block;
}

int fl_arena_get(fl_arena *arena, int64_t bytes, fl_shared_block **out, fl_err *err)
{
    *out = NULL;
    if (is_foreign(arena)) return fl_fail(err, FL_EFORK, "this arena belongs to a parent process");
    int32_t tier = find_tier(bytes);
    fl_shared_block *block = NULL;
    if (tier < OCTAVES * STEPS) {
        pthread_mutex_lock(&arena->mutex);
        block = pop_spare_locked(arena, tier);
        if (block == NULL) block = cut_new_locked(arena, tier);
        pthread_mutex_unlock(&arena->mutex);
    }
    if (block == NULL)
        return fl_fail(err, FL_ENOMEM,
                       "no room for a batch of %lld bytes in the %lld bytes of address space that "
                       "batches of worker processes have; hold fewer batches or raise ulimit -v",
                       (long long)bytes, (long long)arena->bytes);
    block->arena = arena;
    atomic_fetch_add_explicit(&arena->references, 1, memory_order_relaxed);
    *out = block;
    return FL_OK;
}

void fl_shared_block_give(fl_shared_block *block)
{
    if (block == NULL || is_foreign(block->arena)) return;
    fl_arena *arena = block->arena;
    int saved = errno;
    char *data = fl_shared_block_data(block);
    size_t bytes = (size_t)block->bytes;
    /* The block is named by address, because the program may have closed the descriptor and opened
     * a file of its own under the same number. The kernel refuses MADV_REMOVE for locked memory,
     * hence munlock. If the kernel cannot punch a hole, the memory stays with the arena for the
     * next block. */
    if (madvise(data, bytes, MADV_REMOVE) != 0 && munlock(data, bytes) == 0)
        (void)madvise(data, bytes, MADV_REMOVE);
    errno = saved;
    fl_shared_block *head = atomic_load_explicit(&arena->returned, memory_order_relaxed);
    do block->next = head; /* release: the next holder comes after all uses by this holder */
    while (!atomic_compare_exchange_weak_explicit(&arena->returned, &head, block,
                                                  memory_order_release, memory_order_relaxed));
    drop_reference(arena);
}

void fl_shared_block_abandon(fl_shared_block *block)
{
    if (block == NULL || is_foreign(block->arena)) return;
    fl_arena *arena = block->arena;
    fl_free(block);
    drop_reference(arena);
}

char *fl_shared_block_data(const fl_shared_block *block)
{
    return block->arena->base + block->offset;
}

int64_t fl_shared_block_bytes(const fl_shared_block *block) { return block->bytes; }

int64_t fl_shared_block_offset(const fl_shared_block *block) { return block->offset; }

int fl_arena_attach(int fd, int64_t bytes, char **out, fl_err *err)
{
    *out = map_file(fd, bytes);
    if (*out != MAP_FAILED) return FL_OK;
    *out = NULL;
    return fl_fail(err, FL_ENOMEM, "cannot map %lld bytes of the parent's memory: %s",
                   (long long)bytes, strerror(errno));
}
