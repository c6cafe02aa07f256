/* fl_cpu_level: see fl_cpu_level.h. */
#include "fl_cpu_level.h"

#include <stdlib.h>
#include <string.h>

static const char variable[] = "FASTLOOP_CPU";
#if defined(__x86_64__)
static const char *const names[FL_CPU_LEVELS] = {"plain", "avx2", "avx512"};
#define FL_CHOICES "plain, avx2 or avx512"
#elif defined(__aarch64__)
static const char *const names[FL_CPU_LEVELS] = {"plain", "neon"};
#define FL_CHOICES "plain or neon"
#else
static const char *const names[FL_CPU_LEVELS] = {"plain"};
#define FL_CHOICES "plain"
#endif

static fl_cpu_level level_of_machine(void)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c"))
        return FL_CPU_PLAIN;
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return FL_CPU_AVX512;
    return FL_CPU_AVX2;
#else
    return (fl_cpu_level)(FL_CPU_LEVELS - 1);
#endif
}

/* Returns FL_CPU_LEVELS if no level has the name. */
static fl_cpu_level level_named(const char *name)
{
    fl_cpu_level level = FL_CPU_PLAIN;
    while (level < FL_CPU_LEVELS && strcmp(name, names[level]) != 0) level++;
    return level;
}

fl_cpu_level fl_cpu_level_find(void)
{
    const char *wanted = getenv(variable);
    fl_cpu_level best = level_of_machine();
    fl_cpu_level most = wanted == NULL ? FL_CPU_LEVELS : level_named(wanted);
    return most < best ? most : best;
}

int fl_cpu_level_check(fl_err *err)
{
    const char *wanted = getenv(variable);
    if (wanted == NULL || *wanted == '\0' || level_named(wanted) < FL_CPU_LEVELS) return FL_OK;
    return fl_fail(err, FL_EINVAL, "%s must be " FL_CHOICES ", or unset, got %.40s", variable,
                   wanted);
}

const char *fl_cpu_level_name(fl_cpu_level level) { return names[level]; }
