/* fl_team: see fl_team.h. */
#include "fl_team.h"

#include "fl_thread.h"

#include <assert.h>
#include <fenv.h>

struct fl_team {
    uint32_t generation;
    int32_t threads;    /* the caller counted */
    int32_t started;    /* helpers; mutex */
    pthread_t *helpers; /* owned */
    pthread_mutex_t mutex;
    pthread_cond_t posted; /* a job, or the end */
    pthread_cond_t left;   /* the last helper has left the job */
    bool is_busy, is_over; /* mutex: a job has a caller; there will be no other */
    int32_t inside;        /* mutex: helpers that work on the job */
    fl_work *work;         /* mutex; set while is_busy */
    void *context;
    int64_t parts, grain;
    fenv_t rules;         /* the caller's for floats: rounding, and what becomes of denormals */
    _Atomic int64_t next; /* the first part nobody has; relaxed: the mutex publishes the job */
};

static inline bool is_foreign(const fl_team *team)
{
    return team->generation != fl_fork_generation();
}

int fl_team_open(int32_t threads, fl_team **out, fl_err *err)
{
    assert(threads >= 1);
    *out = NULL;
    fl_team *team = fl_alloc(sizeof *team);
    pthread_t *helpers = fl_alloc((int64_t)sizeof *helpers * threads);
    if (team == NULL || helpers == NULL) goto no_memory;
    team->generation = fl_fork_generation();
    team->threads = threads;
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

int32_t fl_team_threads(const fl_team *team) { return team->threads; }

static void work_on(fl_team *team)
{
    for (;;) {
        int64_t first = atomic_fetch_add_explicit(&team->next, team->grain, memory_order_relaxed);
        if (first >= team->parts) return;
        team->work(team->context, first, fl_min(first + team->grain, team->parts));
    }
}

/* Never true again once the caller has found nothing more to do. */
static inline bool has_work_locked(fl_team *team)
{
    return atomic_load_explicit(&team->next, memory_order_relaxed) < team->parts;
}

static void *run_helper(void *arg)
{
    fl_team *team = arg;
    pthread_mutex_lock(&team->mutex);
    while (!team->is_over) {
        if (!has_work_locked(team)) {
            pthread_cond_wait(&team->posted, &team->mutex);
            continue;
        }
        team->inside++;
        fesetenv(&team->rules);
        pthread_mutex_unlock(&team->mutex);
        work_on(team);
        pthread_mutex_lock(&team->mutex);
        if (--team->inside == 0) pthread_cond_signal(&team->left);
    }
    pthread_mutex_unlock(&team->mutex);
    return NULL;
}

static void start_helpers_locked(fl_team *team)
{
    while (team->started < team->threads - 1) {
        pthread_t *helper = &team->helpers[team->started];
        if (fl_thread_start(helper, run_helper, team, NULL) != FL_OK) return; /* with fewer, then */
        team->started++;
    }
}

/* False when the team has another job. */
static bool post_job(fl_team *team, fl_work *work, void *context, int64_t parts, int64_t grain)
{
    pthread_mutex_lock(&team->mutex);
    bool is_ours = !team->is_busy;
    if (is_ours) {
        team->is_busy = true;
        team->work = work;
        team->context = context;
        team->parts = parts;
        team->grain = grain;
        fegetenv(&team->rules);
        atomic_store_explicit(&team->next, 0, memory_order_relaxed);
        start_helpers_locked(team);
        pthread_cond_broadcast(&team->posted);
    }
    pthread_mutex_unlock(&team->mutex);
    return is_ours;
}

static void end_job(fl_team *team)
{
    pthread_mutex_lock(&team->mutex);
    while (team->inside > 0) pthread_cond_wait(&team->left, &team->mutex);
    team->is_busy = false;
    pthread_mutex_unlock(&team->mutex);
}

void fl_team_run(fl_team *team, fl_work *work, void *context, int64_t parts, int64_t grain)
{
    assert(grain >= 1);
    bool is_shared = team != NULL && team->threads > 1 && parts > grain && !is_foreign(team);
    if (!is_shared || !post_job(team, work, context, parts, grain)) {
        work(context, 0, parts);
        return;
    }
    work_on(team);
    end_job(team);
}

void fl_team_close(fl_team *team)
{
    if (team == NULL || is_foreign(team)) return;
    pthread_mutex_lock(&team->mutex);
    assert(!team->is_busy);
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
