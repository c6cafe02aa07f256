/* fl_team: threads that share one job with its caller, and sleep in between.
 *
 * Floor 0. A job is a number of parts that may be done in any order; the caller does parts, too, so
 * a team never holds a job up: helpers that wake late find nothing left to do and are not waited
 * for. In a forked child, and while another thread's job is being done, the caller does it alone.
 */
#ifndef FL_TEAM_H
#define FL_TEAM_H

#include "fl_base.h"

typedef struct fl_team fl_team;

/* Does parts first, ..., end - 1. Called from the caller's thread and helpers, at once, all under
 * the caller's rules for floats (rounding, denormals). */
typedef void fl_work(void *context, int64_t first, int64_t end);

/* A team of `threads` >= 1, the caller counted; helpers are started by the first job that has
 * something for them. FL_OK or FL_ENOMEM; the caller owns *out. */
int fl_team_open(int32_t threads, fl_team **out, fl_err *err);

/* Joins the helpers; no job may be going on. In a forked child frees nothing. NULL is fine. */
void fl_team_close(fl_team *team);

int32_t fl_team_threads(const fl_team *team);

/* Returns when all parts are done, handed out `grain` at a time. Where there are no more than that,
 * or `team` is NULL, the caller does them in one go. Any thread; blocks only while helpers finish
 * what they have begun. */
void fl_team_run(fl_team *team, fl_work *work, void *context, int64_t parts, int64_t grain);

#endif
