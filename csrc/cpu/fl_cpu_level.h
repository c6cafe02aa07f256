/* fl_cpu_level: which instructions the tables of csrc/cpu may use.
 *
 * Floor 2. Every level gives the same bits. Any thread; nothing here blocks or allocates. */
#ifndef FL_CPU_LEVEL_H
#define FL_CPU_LEVEL_H

#include "fl_base.h"

typedef enum fl_cpu_level {
    FL_CPU_PLAIN, /* instructions that the compiler takes for granted */
#if defined(__x86_64__)
    FL_CPU_AVX2,   /* with FMA and F16C */
    FL_CPU_AVX512, /* F, VL, BW and DQ */
#elif defined(__aarch64__)
    FL_CPU_NEON, /* every machine of this kind has NEON */
#endif
    FL_CPU_LEVELS
} fl_cpu_level;

/* Chooses &name_plain, or the address of this level's own table. */
#if defined(__x86_64__)
#define FL_CPU_TABLE(level, name)              \
    ((level) == FL_CPU_AVX512 ? &name##_avx512 \
     : (level) == FL_CPU_AVX2 ? &name##_avx2   \
                              : &name##_plain)
#elif defined(__aarch64__)
#define FL_CPU_TABLE(level, name) ((level) == FL_CPU_NEON ? &name##_neon : &name##_plain)
#else
#define FL_CPU_TABLE(level, name) ((void)(level), &name##_plain)
#endif

/* Returns the highest level of this machine, but no higher than the level that the environment
 * variable FASTLOOP_CPU names, if any. */
fl_cpu_level fl_cpu_level_find(void);

/* Fails with FL_EINVAL if FASTLOOP_CPU is neither empty nor the name of a level of this
 * architecture. */
int fl_cpu_level_check(fl_err *err);

const char *fl_cpu_level_name(fl_cpu_level level);

#endif
