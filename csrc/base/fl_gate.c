/* fl_gate: see fl_gate.h. */
#include "fl_gate.h"

#include <assert.h>

static inline bool is_foreign(const fl_gate *gate)
{
    return gate->generation != fl_fork_generation();
}

int fl_gate_init(fl_gate *gate, fl_err *err)
{
    *gate = (fl_gate){.generation = fl_fork_generation()};
    FL_TRY(fl_mutex_open(&gate->mutex, err));
    int status = fl_cond_open(&gate->changed, err);
    if (status != FL_OK) pthread_mutex_destroy(&gate->mutex);
    gate->is_initialized = status == FL_OK;
    return status;
}

void fl_gate_destroy(fl_gate *gate)
{
    if (!gate->is_initialized || is_foreign(gate)) return;
    pthread_cond_destroy(&gate->changed);
    pthread_mutex_destroy(&gate->mutex);
}

void fl_gate_enter(fl_gate *gate)
{
    if (is_foreign(gate)) return;
    pthread_mutex_lock(&gate->mutex);
    while (fl_gate_is_closed(gate)) pthread_cond_wait(&gate->changed, &gate->mutex);
    gate->readers++;
    pthread_mutex_unlock(&gate->mutex);
}

void fl_gate_leave(fl_gate *gate)
{
    if (is_foreign(gate)) return;
    pthread_mutex_lock(&gate->mutex);
    if (--gate->readers == 0 && fl_gate_is_closed(gate)) pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->mutex);
}

/* Adds `change` to the count of closings, and wakes readers when the gate opens. */
static void count(fl_gate *gate, int32_t change)
{
    if (is_foreign(gate)) return;
    pthread_mutex_lock(&gate->mutex);
    int32_t before = atomic_fetch_add_explicit(&gate->closed, change, memory_order_relaxed);
    assert(before + change >= 0);
    if (before + change == 0) pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->mutex);
}

void fl_gate_close(fl_gate *gate) { count(gate, 1); }

void fl_gate_open(fl_gate *gate) { count(gate, -1); }

void fl_gate_wait(fl_gate *gate)
{
    if (is_foreign(gate)) return;
    pthread_mutex_lock(&gate->mutex);
    assert(fl_gate_is_closed(gate));
    while (gate->readers > 0) pthread_cond_wait(&gate->changed, &gate->mutex);
    pthread_mutex_unlock(&gate->mutex);
}
