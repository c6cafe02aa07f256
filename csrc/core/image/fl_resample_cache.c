/* fl_resample_cache: see fl_resample_cache.h. */
#include "fl_resample_cache.h"

#include <stdatomic.h>

enum { SLOTS = 2048, MOST_BYTES = 16 * 1024 * 1024 };

typedef struct kept_table {
    fl_interpolation how;
    fl_resample axis; /* owned */
} kept_table;

struct fl_resample_cache {
    _Atomic int64_t bytes;             /* of the tables in all slots */
    _Atomic(kept_table *) slot[SLOTS]; /* owned; set once, never changed */
};

fl_resample_cache *fl_resample_cache_open(void)
{
    return fl_alloc((int64_t)sizeof(fl_resample_cache));
}

static void close_table(kept_table *table)
{
    if (table == NULL) return;
    fl_resample_close(&table->axis);
    fl_free(table);
}

void fl_resample_cache_close(fl_resample_cache *cache)
{
    if (cache == NULL) return;
    for (int i = 0; i < SLOTS; i++)
        close_table(atomic_load_explicit(&cache->slot[i], memory_order_acquire));
    fl_free(cache);
}

static inline bool is_for(const kept_table *table, fl_interpolation how, int32_t in, int32_t out)
{
    return table->how == how && table->axis.in == in && table->axis.out == out;
}

/* A RandomResizedCrop has one length of results and all lengths of crops. Each of its tables takes
 * one slot, if there are fewer lengths than slots. */
static inline uint32_t slot_of(fl_interpolation how, int32_t in, int32_t out)
{
    return ((uint32_t)in + 769 * (uint32_t)out + 1543 * (uint32_t)how) % SLOTS;
}

static int make_table(fl_interpolation how, int32_t in, int32_t out, kept_table **made, fl_err *err)
{
    kept_table *table = fl_alloc((int64_t)sizeof *table);
    if (table == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for the weights of a resize");
    table->how = how;
    int status = fl_resample_make(&table->axis, how, in, out, err);
    if (status == FL_OK)
        *made = table;
    else
        close_table(table);
    return status;
}

int fl_resample_cache_find(fl_resample_cache *cache, fl_interpolation how, int32_t in,
                           int32_t length_out, fl_resample *own, const fl_resample **out,
                           fl_err *err)
{
    _Atomic(kept_table *) *slot = &cache->slot[slot_of(how, in, length_out)];
    /* acquire: pairs with the exchange that published the table. */
    kept_table *kept = atomic_load_explicit(slot, memory_order_acquire);
    if (kept == NULL && atomic_load_explicit(&cache->bytes, memory_order_relaxed) < MOST_BYTES) {
        kept_table *made = NULL;
        FL_TRY(make_table(how, in, length_out, &made, err));
        if (atomic_compare_exchange_strong_explicit(slot, &kept, made, memory_order_acq_rel,
                                                    memory_order_acquire)) {
            atomic_fetch_add_explicit(&cache->bytes, made->axis.capacity, memory_order_relaxed);
            kept = made;
        } else {
            close_table(made);
        }
    }
    if (kept != NULL && is_for(kept, how, in, length_out)) {
        *out = &kept->axis;
        return FL_OK;
    }
    FL_TRY(fl_resample_make(own, how, in, length_out, err));
    *out = own;
    return FL_OK;
}
