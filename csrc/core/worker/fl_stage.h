/* fl_stage: one batch that several workers make together: its rows in shared memory, side by side,
 * and after them a mark for each row, 0 or 1 plus the number of the worker that has claimed the
 * row.
 *
 * Floor 1. The parent opens a stage before any worker knows of it. Then workers (processes or
 * threads) claim rows and write them. There is no lock. If a worker dies, at any instruction, the
 * marks tell its successor which rows to make again. A worker may overwrite marks by mistake: then
 * nobody makes the row of a wrong mark. No function blocks or needs memory.
 * docs/internals/processes.md says who owns the memory. */
#ifndef FL_STAGE_H
#define FL_STAGE_H

#include "fl_base.h"

typedef struct fl_stage {
    char *rows; /* borrowed; aligned to 64 */
    int64_t count, row_bytes;
} fl_stage;

/* Returns the bytes of a stage; -1: count or row_bytes is below 1, or the bytes are too many. */
int64_t fl_stage_bytes(int64_t count, int64_t row_bytes);

/* Frees all rows, before any worker knows the memory. */
void fl_stage_open(const fl_stage *stage);

/* Returns the marks. */
int32_t *fl_stage_marks(const fl_stage *stage);

/* Claims rows for a worker, numbered from 0: some that the worker's dead predecessor has claimed
 * (at first *cursor is 0, then the worker's own), else one of `shares` shares of the open rows, so
 * that all workers end at about the same time. Returns the number of rows, which are the caller's
 * alone, and sets *first; 0: no row is open. */
int64_t fl_stage_claim(const fl_stage *stage, int32_t worker, int64_t shares, int64_t *cursor,
                       int64_t *first);

#endif
