/* fl_cpu_level: which instructions the tables of csrc/cpu may use.
 *
 * Floor 2. Every level gives the same bits. Any thread; nothing here blocks or allocates. */
#ifndef FL_CPU_LEVEL_H
#define FL_CPU_LEVEL_H

#include "fl_base.h"

typedef enum fl_cpu_level {
    FL_CPU_PLAIN, /* what the compiler takes for granted */
#if defined(__x86_64__)
    FL_CPU_AVX2,   /* with FMA and F16C */
    FL_CPU_AVX512, /* F, VL, BW and DQ */
#elif defined(__aarch64__)
    FL_CPU_NEON, /* every such machine has it */
#endif
    FL_CPU_LEVELS
} fl_cpu_level;

/* The highest one that this machine has, and at most that which the variable FASTLOOP_CPU of the
 * environment names, if it names one. */
fl_cpu_level fl_cpu_level_find(void);

/* FL_EINVAL if FASTLOOP_CPU is neither empty nor the name of a level of this architecture. */
int fl_cpu_level_check(fl_err *err);

const char *fl_cpu_level_name(fl_cpu_level level);

#endif
