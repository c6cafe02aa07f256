/* fl_resample_cache: the tables of earlier resizes, for all threads of a plan.
 *
 * Floor 1. A table is made once for each interpolation and pair of lengths, published by an atomic
 * pointer, and kept until the cache is closed, so readers need no lock. Memory is bounded: a table
 * that does not fit is made each time, in the caller's memory. */
#ifndef FL_RESAMPLE_CACHE_H
#define FL_RESAMPLE_CACHE_H

#include "fl_resample.h"

typedef struct fl_resample_cache fl_resample_cache;

fl_resample_cache *fl_resample_cache_open(void); /* NULL: no memory. The caller closes the cache. */
void fl_resample_cache_close(fl_resample_cache *cache); /* NULL is fine; nobody may be reading */

/* Finds a table: *out either lives as long as the cache, or is `own`, made for these lengths. Any
 * thread. FL_ENOMEM. */
int fl_resample_cache_find(fl_resample_cache *cache, fl_interpolation how, int32_t in,
                           int32_t length_out, fl_resample *own, const fl_resample **out,
                           fl_err *err);

#endif
