/* fl_cpus: how many CPUs this process can keep busy.
 *
 * Floor 0. A container often sees every CPU of its machine, and its control groups pay for a few:
 * once their quota is used up, all threads stand still for the rest of the period. */
#ifndef FL_CPUS_H
#define FL_CPUS_H

#include "fl_base.h"

/* At least 1: the CPUs that the affinity allows, as of now, but no more than the quota pays for,
 * which is read once for the process. Reads files the first time; any thread. */
int32_t fl_cpu_count(void);

/* The smallest quota of the process's control groups, of version 1 or 2, and of all groups above
 * them, in whole CPUs: rounded down, because a thread for the fraction would use up what the others
 * need. At least 1; INT32_MAX: there is none. `root` is the folder that holds proc and sys. */
int32_t fl_cpu_quota(const char *root);

#endif
