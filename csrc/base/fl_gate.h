/* fl_gate: keeps readers of some memory out while the memory moves.
 *
 * Floor 0. Readers enter and leave; several may be inside. A thread that is about to have the
 * memory moved closes the gate, waits until nobody is inside, and opens the gate when readers may
 * go on. Several threads may keep the gate closed at once. A thread that closes must not be inside.
 *
 * Any thread. In a forked child nothing waits: the readers are threads of the parent. */
#ifndef FL_GATE_H
#define FL_GATE_H

#include "fl_thread.h"

typedef struct fl_gate {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* closed and readers 0, or opened */
    int32_t readers;        /* mutex: readers inside */
    _Atomic int32_t closed; /* closings that were not undone yet; written under the mutex, read
                               without: relaxed, because only the number counts */
    uint32_t generation;    /* set at init, then read-only */
    bool is_initialized;    /* set at init, then read-only; false: destroy does nothing */
} fl_gate;

/* Prepares a gate: FL_OK, FL_ENOMEM. Destroy the gate once nobody uses it; a zeroed gate may also
 * be destroyed. */
int fl_gate_init(fl_gate *gate, fl_err *err);
void fl_gate_destroy(fl_gate *gate);

void fl_gate_enter(fl_gate *gate); /* blocks while the gate is closed */
void fl_gate_leave(fl_gate *gate);

/* Closes the gate: from now on fl_gate_enter blocks. Closing itself does not block. Each
 * fl_gate_open undoes one call. */
void fl_gate_close(fl_gate *gate);
void fl_gate_open(fl_gate *gate);

/* Blocks until nobody is inside. The caller must keep the gate closed. */
void fl_gate_wait(fl_gate *gate);

static inline bool fl_gate_is_closed(fl_gate *gate)
{
    return atomic_load_explicit(&gate->closed, memory_order_relaxed) > 0;
}

#endif
