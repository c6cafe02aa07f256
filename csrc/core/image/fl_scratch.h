/* fl_scratch: the memory that one thread works with while it applies a plan or reads rows.
 *
 * Floor 1. Scratch waits in slots of a plan, a column or a reader. Taking and giving exchange
 * pointers, without a lock, so that a child forked at any moment can go on: at worst, scratch that
 * another thread of the parent held is not freed in the child. */
#ifndef FL_SCRATCH_H
#define FL_SCRATCH_H

#include "fl_resample.h"

#include <stdatomic.h>

/* A resized image lies in one of two parts, so that the next resize can read one and write the
 * other. */
typedef enum fl_scratch_part {
    FL_SCRATCH_IMAGE_0,
    FL_SCRATCH_IMAGE_1,
    FL_SCRATCH_ROWS,  /* rows resized in x, not yet in y; columns first: a source as planes */
    FL_SCRATCH_BAND,  /* rows of a source, or columns resized in y, before resizing in x */
    FL_SCRATCH_SPLIT, /* interleaved rows of a source as planes */
    FL_SCRATCH_TYPED, /* rows of the output as planes, not yet joined */
    FL_SCRATCH_KEPT,  /* the image that several chains start from */
    FL_SCRATCH_SUMS,  /* sums of the results of the chains */
    FL_SCRATCH_JPEG,  /* a part of a JPEG file */
    FL_SCRATCH_PARTS
} fl_scratch_part;

typedef struct fl_scratch {
    struct {
        void *memory; /* owned */
        int64_t bytes;
    } part[FL_SCRATCH_PARTS];
    fl_resample own[2]; /* owned: the tables of a resize that the plan does not keep, x and y */
} fl_scratch;

enum { FL_SCRATCH_BITS = 6, FL_SCRATCH_SLOTS = 1 << FL_SCRATCH_BITS };

/* Each slot has its own cache line, because threads write to their slots for every sample. */
typedef struct fl_scratch_slots {
    struct {
        _Alignas(64) _Atomic(fl_scratch *) scratch; /* owned; NULL: empty */
    } slot[FL_SCRATCH_SLOTS];
} fl_scratch_slots;

/* Takes scratch for the caller alone, until the caller gives it; makes new scratch if every slot is
 * empty. FL_ENOMEM. */
int fl_scratch_take(fl_scratch_slots *slots, fl_scratch **out, fl_err *err);
void fl_scratch_give(fl_scratch_slots *slots, fl_scratch *scratch);
/* Frees the slots, which come from fl_alloc, and the scratch in them; NULL is fine. */
void fl_scratch_close(fl_scratch_slots *slots);

/* Returns at least `bytes` of undefined memory, at a multiple of 64; NULL: there is no memory. If
 * the part grows, its old contents are lost. */
void *fl_scratch_memory(fl_scratch *scratch, fl_scratch_part part, int64_t bytes);

#endif
