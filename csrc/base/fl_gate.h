/* fl_gate: keeps readers of some memory out while it moves.
 *
 * Floor 0. Readers enter and leave; several may be inside. Whoever is about to have the memory
 * moved closes the gate, waits until nobody is inside, and opens it when readers may go on. Those
 * who close do not keep each other out. A thread that closes must not be inside.
 *
 * Any thread. In a forked child nothing waits: the readers are threads of the parent. */
#ifndef FL_GATE_H
#define FL_GATE_H

#include "fl_thread.h"

typedef struct fl_gate {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* closed and readers 0, or opened */
    int32_t readers;        /* mutex: inside */
    _Atomic int32_t closed; /* how often, and not opened since; written under the mutex, looked at
                               without it: relaxed, because the number alone counts */
    uint32_t generation;    /* set at init, then read-only */
    bool is_initialized;    /* likewise; false: destroy does nothing */
} fl_gate;

/* FL_OK, FL_ENOMEM. Destroyed once nobody uses it any more; a zeroed gate may be destroyed, too. */
int fl_gate_init(fl_gate *gate, fl_err *err);
void fl_gate_destroy(fl_gate *gate);

void fl_gate_enter(fl_gate *gate); /* blocks while the gate is closed */
void fl_gate_leave(fl_gate *gate);

/* From now on enter blocks. Does not block itself; fl_gate_open undoes one call. */
void fl_gate_close(fl_gate *gate);
void fl_gate_open(fl_gate *gate);

/* Blocks until nobody is inside. Only while the caller keeps the gate closed. */
void fl_gate_wait(fl_gate *gate);

static inline bool fl_gate_is_closed(fl_gate *gate)
{
    return atomic_load_explicit(&gate->closed, memory_order_relaxed) > 0;
}

#endif
