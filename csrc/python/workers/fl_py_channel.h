/* fl_py_channel: the memory that a parent process shares with its workers, as the parent has it:
 * the object behind _core.ParentEnd. Its fields are open to what works on them: the type's methods,
 * replies, and their destination. */
#ifndef FL_PY_CHANNEL_H
#define FL_PY_CHANNEL_H

#include "fl_fork.h"
#include "fl_py_batch_pool.h"
#include "fl_py_reply_destination.h"

#include <stdatomic.h>

typedef struct fl_py_parent_end {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    fl_py_batch_pool *pool; /* owned */
    fl_region *control;     /* owned: where the queues lie */
    fl_shm_queue *shm;      /* owned, over control */
    fl_inflight *inflight;  /* owned: all requests that are not answered */
    uint32_t generation;    /* of the process that made it */
    int32_t workers, depth;
    /* SHARED(channel): close() and the end of a reply come from any thread, also while one is in
     * next(). These, and the fields of the consumer's thread in fl_inflight, fl_shm_queue and
     * the transfers of the destination, are only used in the section of this object. */
    bool is_closed;             /* workers were told to stop */
    atomic_bool is_overwritten; /* fl_py_report_corruption was called; read without the section */
    bool is_released;           /* all workers have ended */
    bool has_waited;            /* since the last reply */
    fl_py_reply_destination destination;
} fl_py_parent_end;

static inline bool fl_py_parent_end_is_foreign(const fl_py_parent_end *self)
{
    return self->generation != fl_fork_generation();
}

/* RuntimeError for a worker with which memory is shared that holds what it cannot. NULL. */
PyObject *fl_py_report_corruption(fl_py_parent_end *self, int32_t worker);

#endif
