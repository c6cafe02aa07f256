/* shim_grid: a kernel's grid on the CPU. WORKERS threads run a block each until no block is left.
 * The threads of a block are fibers of one worker, which change only at barriers, in a shuffled
 * order. ThreadSanitizer is told that each fiber is a thread, and told the order that barriers,
 * fences and atomic operations make; it knows no other order. This file is compiled without
 * sanitizers, because its own data are not the kernel's. */
#define _GNU_SOURCE
#include "shim_grid.h"

#include "fake_cuda.h"

#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

enum {
    WORKERS = 3,
    MOST_THREADS = 512 /* THREADS of the kernels, at most */,
    WARP = 32,
    STACK_BYTES = 1 << 17
};
enum { DONE, READY, AT_BARRIER, AT_SHUFFLE };

typedef struct worker worker;

typedef struct fiber {
    shim_place place;
    worker *on;
    int state;
    unsigned shuffles;
    double shuffled[2]; /* of an even and an odd shuffle */
    bool is_fenced;     /* since then, no atomic operation */
    void *last_atomic;  /* whose address; NULL: none yet */
    bool is_begun;
    ucontext_t begin;
    void *left_at[5]; /* once begun; as __builtin_setjmp fills it */
    void *stack, *fake_stack, *tsan;
} fiber;

struct worker {
    fiber fibers[MOST_THREADS];
    unsigned made; /* of them, as no block before had more threads */
    shim_launch launch;
    bool vote, voted;                /* of the barrier that is gathering; of the last one */
    char warps[MOST_THREADS / WARP]; /* their addresses stand for shuffles */
    uint64_t random;
    void *left_at[5];
    void *fake_stack, *tsan;
    const void *stack;
    size_t stack_bytes;
};

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_started;
    shim_launch launch;  /* mutex, as all below */
    unsigned next, left; /* blocks to begin, and to end */
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

__thread const shim_place *shim_here;

/* ---- sanitizers, if the program has one */

enum { NO_SYNC = 1 };

#define WEAK __attribute__((weak))
WEAK void *__tsan_get_current_fiber(void);
WEAK void *__tsan_create_fiber(unsigned flags);
WEAK void __tsan_switch_to_fiber(void *fiber, unsigned flags);
WEAK void __tsan_acquire(void *address);
WEAK void __tsan_release(void *address);
WEAK void __sanitizer_start_switch_fiber(void **save, const void *stack, size_t bytes);
WEAK void __sanitizer_finish_switch_fiber(void *saved, const void **stack, size_t *bytes);

static void acquire(void *address)
{
    if (__tsan_acquire != NULL) __tsan_acquire(address);
}

static void release(void *address)
{
    if (__tsan_release != NULL) __tsan_release(address);
}

/* __builtin_longjmp must be called in a different function than __builtin_setjmp. */
__attribute__((noinline, noreturn)) static void go_on(void **left_at)
{
    __builtin_longjmp(left_at, 1);
}

/* swapcontext would ask the system for the mask of signals each time, and for no other reason. */
__attribute__((noinline)) static void enter(worker *w, fiber *f)
{
    shim_here = &f->place;
    if (__tsan_switch_to_fiber != NULL) __tsan_switch_to_fiber(f->tsan, NO_SYNC);
    if (__sanitizer_start_switch_fiber != NULL)
        __sanitizer_start_switch_fiber(&w->fake_stack, f->stack, STACK_BYTES);
    if (__builtin_setjmp(w->left_at) == 0) {
        if (f->is_begun) go_on(f->left_at);
        f->is_begun = true;
        setcontext(&f->begin);
    }
    if (__sanitizer_finish_switch_fiber != NULL)
        __sanitizer_finish_switch_fiber(w->fake_stack, NULL, NULL);
}

static void arrive(fiber *f)
{
    if (__sanitizer_finish_switch_fiber != NULL)
        __sanitizer_finish_switch_fiber(f->fake_stack, &f->on->stack, &f->on->stack_bytes);
}

__attribute__((noinline)) static void leave(fiber *f, int state)
{
    f->state = state;
    if (__tsan_switch_to_fiber != NULL) __tsan_switch_to_fiber(f->on->tsan, NO_SYNC);
    if (__sanitizer_start_switch_fiber != NULL)
        __sanitizer_start_switch_fiber(&f->fake_stack, f->on->stack, f->on->stack_bytes);
    if (__builtin_setjmp(f->left_at) == 0) go_on(f->on->left_at);
    arrive(f);
}

/* ---- fibers */

static void run_fiber(unsigned high, unsigned low)
{
    fiber *f = (fiber *)((uintptr_t)high << 32 | low);
    arrive(f);
    for (;;) {
        acquire(&pool.launch);
        acquire(f->on);
        f->on->launch.run(f->on->launch.args);
        release(f->on); /* the next block here has the same __shared__ memory */
        release(&pool.left);
        leave(f, DONE);
    }
}

static void make_fiber(worker *w, unsigned number)
{
    fiber *f = &w->fibers[number];
    f->on = w;
    f->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED || getcontext(&f->begin) != 0) abort();
    f->begin.uc_stack.ss_sp = f->stack;
    f->begin.uc_stack.ss_size = STACK_BYTES;
    if (__tsan_create_fiber != NULL) f->tsan = __tsan_create_fiber(0);
    makecontext(&f->begin, (void (*)(void))run_fiber, 2, (unsigned)((uintptr_t)f >> 32),
                (unsigned)(uintptr_t)f);
}

/* Returns true if each of these fibers waits, or is done. */
static bool are_waiting(const fiber *fibers, unsigned count, int state)
{
    bool is_any = false;
    for (unsigned i = 0; i < count; i++) {
        if (fibers[i].state != state && fibers[i].state != DONE) return false;
        is_any |= fibers[i].state == state;
    }
    return is_any;
}

static void set_ready(fiber *fibers, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (fibers[i].state != DONE) fibers[i].state = READY;
}

static unsigned pick(worker *w, unsigned count)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(w->random >> 33) % count;
}

static bool run_ready(worker *w, unsigned count)
{
    bool is_any = false;
    unsigned first = pick(w, count), step = pick(w, 2) ? 1 : count - 1;
    for (unsigned i = 0, at = first; i < count; i++, at = (at + step) % count) {
        if (w->fibers[at].state != READY) continue;
        enter(w, &w->fibers[at]);
        is_any = true;
    }
    return is_any;
}

static void run_block(worker *w, unsigned block)
{
    unsigned count = w->launch.threads.x;
    while (w->made < count) make_fiber(w, w->made++);
    for (unsigned i = 0; i < count; i++) {
        fiber *f = &w->fibers[i];
        f->place = (shim_place){{i}, {block}, {w->launch.blocks.x}};
        f->state = READY;
        f->is_fenced = false;
        f->last_atomic = NULL;
    }
    while (run_ready(w, count)) {
        for (unsigned i = 0; i + WARP <= count; i += WARP)
            if (are_waiting(&w->fibers[i], WARP, AT_SHUFFLE)) set_ready(&w->fibers[i], WARP);
        if (!are_waiting(w->fibers, count, AT_BARRIER)) continue;
        w->voted = w->vote;
        w->vote = false;
        set_ready(w->fibers, count);
    }
    if (are_waiting(w->fibers, count, DONE)) return;
    fprintf(stderr, "\nthreads of block %u wait for each other in different places\n", block);
    abort();
}

/* ---- workers */

static void *work(void *memory)
{
    worker *w = memory;
    if (__tsan_get_current_fiber != NULL) w->tsan = __tsan_get_current_fiber();
    pthread_mutex_lock(&pool.mutex);
    for (;;) {
        while (pool.next == pool.launch.blocks.x) pthread_cond_wait(&pool.changed, &pool.mutex);
        unsigned block = pool.next++;
        w->launch = pool.launch;
        pthread_mutex_unlock(&pool.mutex);
        run_block(w, block);
        pthread_mutex_lock(&pool.mutex);
        if (--pool.left == 0) pthread_cond_broadcast(&pool.changed);
    }
    return NULL;
}

static void start_workers(void)
{
    pool.is_started = true;
    for (unsigned i = 0; i < WORKERS; i++) {
        pthread_t thread;
        worker *w = calloc(1, sizeof *w);
        if (w == NULL) abort();
        w->random = i;
        if (pthread_create(&thread, NULL, work, w) != 0 || pthread_detach(thread) != 0) abort();
    }
}

/* One at a time: the fake sees to that. */
static void run(void *arg)
{
    shim_launch launch = *(shim_launch *)arg;
    if (!pool.is_started) start_workers();
    release(&pool.launch);
    pthread_mutex_lock(&pool.mutex);
    pool.launch = launch;
    pool.next = 0;
    pool.left = launch.blocks.x;
    pthread_cond_broadcast(&pool.changed);
    while (pool.left > 0) pthread_cond_wait(&pool.changed, &pool.mutex);
    pthread_mutex_unlock(&pool.mutex);
    acquire(&pool.left);
    free(launch.args);
    free(arg);
}

/* ---- limits */

/* The limits of compute capability 7.0 and later, with a driver that knows CUDA 12.1. A kernel must
 * ask for more than 48 KB of shared memory. tests/packaging/test_cuda_build.py has ptxas confirm
 * the 64 registers. */
const shim_limits shim_usual_limits = {
    .parameter_bytes = 32764,
    .shared_bytes = 48 << 10,
    .registers = 65536,
    .thread_registers = 64,
    .blocks = {INT32_MAX, 65535, 65535},
    .threads = {1024, 1024, 64},
    .block_threads = 1024,
    .launch_bound = MOST_THREADS,
};

static const shim_limits *most = &shim_usual_limits; /* of the thread that tests */

void shim_set_limits(const shim_limits *limits) { most = limits; }

/* Adds up the __shared__ variables of all kernels, which are thread-local variables here, with
 * every other thread-local variable of the program or module: more than any kernel has. */
static int add_static_bytes(struct dl_phdr_info *info, size_t size, void *out)
{
    size_t tls_bytes = 0;
    bool is_ours = false;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + part->p_vaddr, here = (uintptr_t)&shim_usual_limits;
        if (part->p_type == PT_TLS) tls_bytes = part->p_memsz;
        is_ours |= part->p_type == PT_LOAD && from <= here && here < from + part->p_memsz;
    }
    if (is_ours) *(size_t *)out = tls_bytes;
    return is_ours;
}

static bool is_within(shim_extent extent, shim_extent limit)
{
    return extent.x >= 1 && extent.y >= 1 && extent.z >= 1 && extent.x <= limit.x &&
           extent.y <= limit.y && extent.z <= limit.z;
}

static cudaError_t check_limits(const shim_launch *launch)
{
    uint64_t threads = (uint64_t)launch->threads.x * launch->threads.y * launch->threads.z;
    uint64_t warps = (threads + WARP - 1) / WARP;
    size_t static_bytes = 0;
    (void)dl_iterate_phdr(add_static_bytes, &static_bytes);
    if (!is_within(launch->blocks, most->blocks) || !is_within(launch->threads, most->threads) ||
        threads > most->block_threads)
        return cudaErrorInvalidConfiguration;
    if (static_bytes + launch->shared_bytes > most->shared_bytes) return cudaErrorInvalidValue;
    if (threads > most->launch_bound || launch->parameter_bytes > most->parameter_bytes ||
        warps * WARP * most->thread_registers > most->registers)
        return cudaErrorLaunchOutOfResources;
    if (launch->blocks.y != 1 || launch->blocks.z != 1 || threads != launch->threads.x) abort();
    return cudaSuccess;
}

cudaError_t shim_queue(cudaStream_t stream, shim_launch launch)
{
    shim_launch *copy = malloc(sizeof *copy);
    if (copy == NULL) abort();
    *copy = launch;
    cudaError_t error = check_limits(&launch);
    if (error == cudaSuccess)
        error = fake_try_launch(stream, launch.kernel, run, copy);
    else
        error = fake_refuse_launch(error);
    if (error == cudaSuccess) return error;
    free(launch.args);
    free(copy);
    return error;
}

/* ---- what a kernel calls */

static fiber *self(void) { return (fiber *)(uintptr_t)shim_here; } /* place is its first member */

bool shim_barrier(bool vote)
{
    fiber *f = self();
    if (vote) f->on->vote = true;
    release(&f->on->voted);
    leave(f, AT_BARRIER);
    acquire(&f->on->voted);
    return f->on->voted;
}

double shim_shuffle_down(double value, unsigned delta)
{
    fiber *f = self();
    unsigned lane = f->place.thread.x % WARP, turn = f->shuffles++ % 2;
    char *warp = &f->on->warps[f->place.thread.x / WARP];
    f->shuffled[turn] = value;
    release(warp);
    leave(f, AT_SHUFFLE);
    acquire(warp);
    return lane + delta < WARP ? f[delta].shuffled[turn] : value;
}

void shim_fence(void)
{
    fiber *f = self();
    f->is_fenced = true;
    if (f->last_atomic != NULL) acquire(f->last_atomic);
}

void shim_before_atomic(void *address)
{
    fiber *f = self();
    if (f->is_fenced) release(address);
    f->is_fenced = false;
}

void shim_after_atomic(void *address) { self()->last_atomic = address; }
