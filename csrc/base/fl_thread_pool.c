/* fl_thread_pool: see fl_thread_pool.h. */
#include "fl_thread_pool.h"

#include "fl_thread.h"

#include <assert.h>
#include <fenv.h>

/* On its caller's stack. */
typedef struct task {
    fl_work *work;
    void *context;
    int64_t parts, grain;
    fenv_t rules;         /* the caller's for floats: rounding, and what becomes of denormals */
    _Atomic int64_t next; /* the first part nobody has; relaxed: what starts a thread on the job
                             publishes it */
} task;

struct fl_thread_pool {
    uint32_t generation;
    int32_t threads;      /* the caller counted */
    fl_parallel_fn *lend; /* NULL: the helpers below */
    int32_t started;      /* mutex: how many helpers */
    pthread_t *helpers;   /* owned */
    pthread_mutex_t mutex;
    pthread_cond_t posted; /* a job, or the end */
    pthread_cond_t left;   /* the last helper has left the job */
    task *job;             /* mutex; lent by its caller until nobody is inside */
    int32_t inside;        /* mutex: helpers that work on it */
    bool is_over;          /* mutex: there will be no other */
};

static inline bool is_foreign(const fl_thread_pool *team)
{
    return team->generation != fl_fork_generation();
}

int fl_thread_pool_open(int32_t threads, fl_parallel_fn *lend, fl_thread_pool **out, fl_err *err)
{
    assert(threads >= 1);
    *out = NULL;
    fl_thread_pool *team = fl_alloc(sizeof *team);
    pthread_t *helpers = fl_alloc((int64_t)sizeof *helpers * threads);
    if (team == NULL || helpers == NULL) goto no_memory;
    team->generation = fl_fork_generation();
    team->threads = threads;
    team->lend = lend;
    team->helpers = helpers;
    if (fl_mutex_open(&team->mutex, err) != FL_OK) goto fail;
    if (fl_cond_open(&team->posted, err) != FL_OK) goto fail_mutex;
    if (fl_cond_open(&team->left, err) != FL_OK) goto fail_posted;
    *out = team;
    return FL_OK;

fail_posted:
    pthread_cond_destroy(&team->posted);
fail_mutex:
    pthread_mutex_destroy(&team->mutex);
    goto fail;
no_memory:
    (void)fl_fail(err, FL_ENOMEM, "no memory for a team of %d threads", (int)threads);
fail:
    fl_free(helpers);
    fl_free(team);
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

/* From a thread that may be somebody else's tomorrow. */
static void help(void *arg)
{
    task *job = arg;
    fenv_t own;
    fegetenv(&own);
    fesetenv(&job->rules);
    work_on(job);
    fesetenv(&own);
}

static inline bool has_work_locked(const fl_thread_pool *team)
{
    const task *job = team->job;
    return job != NULL && atomic_load_explicit(&job->next, memory_order_relaxed) < job->parts;
}

static void *run_helper(void *arg)
{
    fl_thread_pool *team = arg;
    pthread_mutex_lock(&team->mutex);
    while (!team->is_over) {
        if (!has_work_locked(team)) {
            pthread_cond_wait(&team->posted, &team->mutex);
            continue;
        }
        task *job = team->job;
        team->inside++;
        pthread_mutex_unlock(&team->mutex);
        help(job);
        pthread_mutex_lock(&team->mutex);
        if (--team->inside == 0) pthread_cond_signal(&team->left);
    }
    pthread_mutex_unlock(&team->mutex);
    return NULL;
}

static void start_helpers_locked(fl_thread_pool *team)
{
    while (team->started < team->threads - 1) {
        pthread_t *helper = &team->helpers[team->started];
        if (fl_thread_start(helper, run_helper, team, NULL) != FL_OK) return; /* with fewer, then */
        team->started++;
    }
}

/* False when the team has another job. */
static bool post_job(fl_thread_pool *team, task *job)
{
    pthread_mutex_lock(&team->mutex);
    bool is_ours = team->job == NULL;
    if (is_ours) {
        team->job = job;
        start_helpers_locked(team);
        pthread_cond_broadcast(&team->posted);
    }
    pthread_mutex_unlock(&team->mutex);
    return is_ours;
}

static void end_job(fl_thread_pool *team)
{
    pthread_mutex_lock(&team->mutex);
    while (team->inside > 0) pthread_cond_wait(&team->left, &team->mutex);
    team->job = NULL;
    pthread_mutex_unlock(&team->mutex);
}

void fl_thread_pool_run(fl_thread_pool *team, fl_work *work, void *context, int64_t parts,
                        int64_t grain)
{
    assert(grain >= 1);
    task job = {.work = work, .context = context, .parts = parts, .grain = grain};
    bool is_shared = team != NULL && team->threads > 1 && parts > grain && !is_foreign(team);
    if (!is_shared) {
        work(context, 0, parts);
        return;
    }
    fegetenv(&job.rules);
    if (team->lend != NULL) {
        team->lend(help, &job, (unsigned)team->threads, 0);
    } else if (post_job(team, &job)) {
        work_on(&job);
        end_job(team);
    } else {
        work(context, 0, parts);
    }
}

void fl_thread_pool_close(fl_thread_pool *team)
{
    if (team == NULL || is_foreign(team)) return;
    pthread_mutex_lock(&team->mutex);
    assert(team->job == NULL);
    team->is_over = true;
    pthread_cond_broadcast(&team->posted);
    pthread_mutex_unlock(&team->mutex);
    for (int32_t i = 0; i < team->started; i++) pthread_join(team->helpers[i], NULL);
    pthread_cond_destroy(&team->left);
    pthread_cond_destroy(&team->posted);
    pthread_mutex_destroy(&team->mutex);
    fl_free(team->helpers);
    fl_free(team);
}
