/* fl_thread_pool: see fl_thread_pool.h. */
#include "fl_thread_pool.h"

#include "fl_thread.h"

#include <assert.h>
#include <fenv.h>

/* A job. Lies on the stack of its caller. */
typedef struct task {
    fl_work *work;
    void *context;
    int64_t parts, grain;
    fenv_t floats;        /* the caller's floating-point environment */
    _Atomic int64_t next; /* the first unclaimed part; relaxed, because starting a thread on the job
                             publishes the other fields */
} task;

struct fl_thread_pool {
    uint32_t generation;
    int32_t threads;      /* including the caller */
    fl_parallel_fn *lend; /* NULL: the pool starts `helpers` */
    int32_t started;      /* mutex: helpers started */
    pthread_t *helpers;   /* owned */
    pthread_mutex_t mutex;
    pthread_cond_t has_job; /* helpers wait here for a job, or for the end */
    pthread_cond_t is_idle; /* the caller waits here for the last helper to leave the job */
    task *job;              /* mutex; borrowed from its caller until no helper is inside */
    int32_t inside;         /* mutex: helpers working on the job */
    int32_t wanted;         /* mutex: helpers that are still to be woken for the job */
    bool is_over;           /* mutex: no further job will come */
};

static inline bool is_foreign(const fl_thread_pool *pool)
{
    return pool->generation != fl_fork_generation();
}

int fl_thread_pool_open(int32_t threads, fl_parallel_fn *lend, fl_thread_pool **out, fl_err *err)
{
    assert(threads >= 1);
    *out = NULL;
    fl_thread_pool *pool = fl_alloc(sizeof *pool);
    pthread_t *helpers = fl_alloc((int64_t)sizeof *helpers * threads);
    if (pool == NULL || helpers == NULL) goto no_memory;
    pool->generation = fl_fork_generation();
    pool->threads = threads;
    pool->lend = lend;
    pool->helpers = helpers;
    if (fl_mutex_open(&pool->mutex, err) != FL_OK) goto fail;
    if (fl_cond_open(&pool->has_job, err) != FL_OK) goto fail_mutex;
    if (fl_cond_open(&pool->is_idle, err) != FL_OK) goto fail_has_job;
    *out = pool;
    return FL_OK;

fail_has_job:
    pthread_cond_destroy(&pool->has_job);
fail_mutex:
    pthread_mutex_destroy(&pool->mutex);
    goto fail;
no_memory:
    (void)fl_fail(err, FL_ENOMEM, "out of memory for a team of %d threads", (int)threads);
fail:
    fl_free(helpers);
    fl_free(pool);
    return FL_ENOMEM;
}

static void work_on(task *job)
{
    for (;;) {
        int64_t first = atomic_fetch_add_explicit(&job->next, job->grain, memory_order_relaxed);
        if (first >= job->parts) return;
        job->work(job->context, first, fl_min(first + job->grain, job->parts));
    }
}

/* Works on the job in the caller's floating-point environment, and then puts the thread's own back:
 * a lent thread goes on to serve its lender. */
static void help(void *arg)
{
    task *job = arg;
    fenv_t own;
    fegetenv(&own);
    fesetenv(&job->floats);
    work_on(job);
    fesetenv(&own);
}

static inline bool has_work_locked(const fl_thread_pool *pool)
{
    const task *job = pool->job;
    return job != NULL && atomic_load_explicit(&job->next, memory_order_relaxed) < job->parts;
}

/* Takes over two of the wake-ups that are due. The caller does them without the mutex. */
static int32_t take_wakes_locked(fl_thread_pool *pool)
{
    int32_t wakes = (int32_t)fl_min(pool->wanted, 2);
    pool->wanted -= wakes;
    return wakes;
}

static void wake(fl_thread_pool *pool, int32_t wakes)
{
    while (wakes-- > 0) pthread_cond_signal(&pool->has_job);
}

static void *run_helper(void *arg)
{
    fl_thread_pool *pool = arg;
    pthread_mutex_lock(&pool->mutex);
    while (!pool->is_over) {
        if (!has_work_locked(pool)) {
            pthread_cond_wait(&pool->has_job, &pool->mutex);
            continue;
        }
        task *job = pool->job;
        pool->inside++;
        int32_t wakes = take_wakes_locked(pool);
        pthread_mutex_unlock(&pool->mutex);
        wake(pool, wakes);
        help(job);
        pthread_mutex_lock(&pool->mutex);
        if (--pool->inside == 0) pthread_cond_signal(&pool->is_idle);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static void start_helpers_locked(fl_thread_pool *pool)
{
    while (pool->started < pool->threads - 1) {
        pthread_t *helper = &pool->helpers[pool->started];
        if (fl_thread_start(helper, run_helper, pool, NULL) != FL_OK)
            return; /* the pool goes on with fewer */
        pool->started++;
    }
}

/* Makes `job` the pool's job; returns false while the pool has a job already. */
static bool start_job(fl_thread_pool *pool, task *job)
{
    pthread_mutex_lock(&pool->mutex);
    bool is_ours = pool->job == NULL;
    if (is_ours) {
        pool->job = job;
        start_helpers_locked(pool);
        int64_t claims = (job->parts - 1) / job->grain + 1;
        pool->wanted = (int32_t)fl_min(pool->started, claims - 1);
    }
    int32_t wakes = take_wakes_locked(pool);
    pthread_mutex_unlock(&pool->mutex);
    wake(pool, wakes);
    return is_ours;
}

static void end_job(fl_thread_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    while (pool->inside > 0) pthread_cond_wait(&pool->is_idle, &pool->mutex);
    pool->job = NULL;
    pthread_mutex_unlock(&pool->mutex);
}

void fl_thread_pool_run(fl_thread_pool *pool, fl_work *work, void *context, int64_t parts,
                        int64_t grain)
{
    assert(grain >= 1);
    task job = {.work = work, .context = context, .parts = parts, .grain = grain};
    bool is_shared = pool != NULL && pool->threads > 1 && parts > grain && !is_foreign(pool);
    if (!is_shared) {
        work(context, 0, parts);
        return;
    }
    fegetenv(&job.floats);
    if (pool->lend != NULL) {
        pool->lend(help, &job, (unsigned)pool->threads, 0);
    } else if (start_job(pool, &job)) {
        work_on(&job);
        end_job(pool);
    } else {
        work(context, 0, parts);
    }
}

void fl_thread_pool_close(fl_thread_pool *pool)
{
    if (pool == NULL || is_foreign(pool)) return;
    pthread_mutex_lock(&pool->mutex);
    assert(pool->job == NULL);
    pool->is_over = true;
    pthread_cond_broadcast(&pool->has_job);
    pthread_mutex_unlock(&pool->mutex);
    for (int32_t i = 0; i < pool->started; i++) pthread_join(pool->helpers[i], NULL);
    pthread_cond_destroy(&pool->is_idle);
    pthread_cond_destroy(&pool->has_job);
    pthread_mutex_destroy(&pool->mutex);
    fl_free(pool->helpers);
    fl_free(pool);
}
