/* fl_scratch: see fl_scratch.h. */
#include "fl_scratch.h"

#include <pthread.h>

static void close_scratch(fl_scratch *scratch)
{
    if (scratch == NULL) return;
    for (int p = 0; p < FL_SCRATCH_PARTS; p++) fl_free(scratch->part[p].memory);
    fl_resample_close(&scratch->own[0]);
    fl_resample_close(&scratch->own[1]);
    fl_free(scratch);
}

/* Threads begin at different slots, and a thread begins at the same slot every time. So a thread
 * finds the scratch that it gave back, in its own cache. */
static uint32_t first_slot(void)
{
    uint64_t thread = (uint64_t)(uintptr_t)pthread_self();
    return (uint32_t)(thread * UINT64_C(0x9E3779B97F4A7C15) >> (64 - FL_SCRATCH_BITS));
}

int fl_scratch_take(fl_scratch_slots *slots, fl_scratch **out, fl_err *err)
{
    uint32_t first = first_slot();
    for (uint32_t i = 0; i < FL_SCRATCH_SLOTS; i++) {
        _Atomic(fl_scratch *) *slot = &slots->slot[(first + i) % FL_SCRATCH_SLOTS].scratch;
        /* The load keeps threads that find a slot empty from writing to the slot's cache line. */
        if (atomic_load_explicit(slot, memory_order_relaxed) == NULL) continue;
        /* acquire: pairs with the release of the thread that gave the scratch. */
        *out = atomic_exchange_explicit(slot, NULL, memory_order_acquire);
        if (*out != NULL) return FL_OK;
    }
    *out = fl_alloc((int64_t)sizeof **out);
    return *out != NULL ? FL_OK : fl_fail(err, FL_ENOMEM, "out of memory to work with");
}

void fl_scratch_give(fl_scratch_slots *slots, fl_scratch *scratch)
{
    uint32_t first = first_slot();
    for (uint32_t i = 0; i < FL_SCRATCH_SLOTS; i++) {
        _Atomic(fl_scratch *) *slot = &slots->slot[(first + i) % FL_SCRATCH_SLOTS].scratch;
        fl_scratch *empty = NULL;
        if (atomic_load_explicit(slot, memory_order_relaxed) == NULL &&
            atomic_compare_exchange_strong_explicit(slot, &empty, scratch, memory_order_release,
                                                    memory_order_relaxed))
            return;
    }
    close_scratch(scratch);
}

void fl_scratch_close(fl_scratch_slots *slots)
{
    for (int i = 0; slots != NULL && i < FL_SCRATCH_SLOTS; i++)
        close_scratch(atomic_load_explicit(&slots->slot[i].scratch, memory_order_acquire));
    fl_free(slots);
}

void *fl_scratch_memory(fl_scratch *scratch, fl_scratch_part part, int64_t bytes)
{
    if (bytes > scratch->part[part].bytes || scratch->part[part].memory == NULL) {
        fl_free(scratch->part[part].memory);
        scratch->part[part].bytes = 0;
        scratch->part[part].memory = fl_alloc(bytes);
        if (scratch->part[part].memory != NULL) scratch->part[part].bytes = bytes;
    }
    return scratch->part[part].memory;
}
