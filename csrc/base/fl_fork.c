/* fl_fork: see fl_fork.h. The state is one for the process, because forks are.
 *
 * The handler counts the fork before the child is made. If the count came later, another thread
 * could recycle memory that the child is about to share. */
#define _GNU_SOURCE
#include "fl_fork.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

typedef struct worker {
    struct worker *next;
    int64_t id;
    int64_t first, last; /* numbers of its first and last fork, normally the same; 0: not forked */
    _Atomic uint32_t *tells_forks; /* owned: shared with the worker; 1: the worker has forked */
} worker;

static _Atomic uint32_t generation; /* written in the single-threaded moment after a fork */
static _Atomic int64_t forks, forks_of_program, ends;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static worker *workers; /* owned; mutex, like every worker in the list */
static int64_t next_id; /* mutex */

static _Thread_local worker *expected; /* borrowed: the worker that forks of this thread make */
static _Atomic uint32_t *own_word;     /* if this process is a worker: its tells_forks */

enum { WORD_BYTES = sizeof(uint32_t) };

/* forks_of_program is written before forks, so that a reader of the new number knows who forked. */
static void enter_fork(void)
{
    pthread_mutex_lock(&mutex);
    int64_t number = atomic_load(&forks) + 1;
    if (expected == NULL) {
        atomic_store(&forks_of_program, number);
    } else {
        if (expected->first == 0) expected->first = number;
        expected->last = number;
    }
    atomic_store(&forks, number);
    pthread_mutex_unlock(&mutex);
    if (own_word != NULL) atomic_store(own_word, 1);
}

/* Another thread may have held the mutex and left the list half-changed. The child needs no list,
 * because the list describes memory of the parent. */
static void enter_child(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    workers = NULL;
    if (expected != NULL) own_word = expected->tells_forks;
    expected = NULL;
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
}

static void install_handlers(void)
{
    /* pthread_atfork fails only without memory. Forked children then run without the handlers. */
    (void)pthread_atfork(enter_fork, NULL, enter_child);
}

void fl_fork_install(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_handlers);
}

uint32_t fl_fork_generation(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

int64_t fl_fork_count(void) { return atomic_load(&forks); }

static void free_worker(worker *self)
{
    munmap(self->tells_forks, WORD_BYTES);
    fl_free(self);
}

int fl_fork_expect(int64_t *out, fl_err *err)
{
    worker *self = fl_alloc(sizeof *self);
    void *word = MAP_FAILED;
    if (self != NULL && !fl_fault_hit())
        word = mmap(NULL, WORD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (word == MAP_FAILED) {
        fl_free(self);
        return fl_fail(err, FL_ENOMEM, "out of memory for a worker: %s", strerror(errno));
    }
    self->tells_forks = word;
    pthread_mutex_lock(&mutex);
    *out = self->id = ++next_id;
    self->next = workers;
    workers = self;
    pthread_mutex_unlock(&mutex);
    expected = self;
    return FL_OK;
}

void fl_fork_expected(void) { expected = NULL; }

void fl_fork_end(int64_t id)
{
    worker *ended = NULL;
    pthread_mutex_lock(&mutex);
    worker **at = &workers;
    while (*at != NULL && (*at)->id != id) at = &(*at)->next;
    if (*at != NULL && atomic_load((*at)->tells_forks) == 0) {
        ended = *at;
        *at = ended->next;
    }
    pthread_mutex_unlock(&mutex);
    if (ended == NULL) return;
    free_worker(ended);
    atomic_fetch_add(&ends, 1);
}

int64_t fl_fork_ends(void) { return atomic_load(&ends); }

bool fl_fork_is_seen_for_good(int64_t since) { return atomic_load(&forks_of_program) > since; }

bool fl_fork_is_seen(int64_t since, int64_t until)
{
    bool is_seen = false;
    pthread_mutex_lock(&mutex);
    for (const worker *w = workers; w != NULL && !is_seen; w = w->next)
        is_seen = w->first <= until && w->last > since;
    pthread_mutex_unlock(&mutex);
    return is_seen;
}
