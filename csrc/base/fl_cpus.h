/* fl_cpus: how many CPUs this process can keep busy.
 *
 * Floor 0. A container often sees every CPU of its machine, while its control groups pay for a few:
 * once the quota is used up, all threads stand still for the rest of the period. */
#ifndef FL_CPUS_H
#define FL_CPUS_H

#include "fl_base.h"

/* Returns how many CPUs the affinity allows now, but no more than the quota pays for; at least 1.
 * The first call reads the quota from files, once for the process. Any thread. */
int32_t fl_cpu_count(void);

/* Returns the smallest quota, in CPUs, among the process's control groups (version 1 or 2) and the
 * groups above them; INFINITY: no group has a quota that can be read. `root` is the folder that
 * holds proc and sys. Any thread. */
double fl_cpu_quota(const char *root);

/* Returns how many threads this many CPUs keep busy; INT32_MAX for INFINITY. Rounds down, because a
 * thread for the fraction would use up the time of the full threads. At least 1. */
int32_t fl_cpu_whole(double cpus);

#endif
