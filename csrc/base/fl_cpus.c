/* fl_cpus: see fl_cpus.h. */
#define _GNU_SOURCE
#include "fl_cpus.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_CPUS = 1 << 20 };

/* Reads up to two numbers from the beginning of a file, and returns how many could be read. */
static int read_numbers(const char *folder, const char *name, long long *first, long long *second)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    int found = fscanf(file, "%lld %lld", first, second);
    fclose(file);
    return found;
}

/* Returns the quota of one group; INFINITY ("max", -1 or a missing file): the group has no
 * quota. */
static double read_group(const char *folder)
{
    long long quota = 0, period = 0, ignored;
    if (read_numbers(folder, "cpu.max", &quota, &period) != 2 &&
        (read_numbers(folder, "cpu.cfs_quota_us", &quota, &ignored) < 1 ||
         read_numbers(folder, "cpu.cfs_period_us", &period, &ignored) < 1))
        return INFINITY;
    return quota > 0 && period > 0 ? (double)quota / (double)period : INFINITY;
}

/* Returns the smallest quota of a group and its ancestors, up to the folder `top`. A group that is
 * not mounted has no files, for example a group outside this container. */
static double read_groups(const char *top, const char *group)
{
    char folder[PATH_MAX];
    int length = snprintf(folder, sizeof folder, "%s%s", top, group);
    if (length < 0 || length >= (int)sizeof folder) return INFINITY;
    double least = read_group(folder);
    for (char *end; (end = strrchr(folder, '/')) >= folder + strlen(top);) {
        *end = '\0';
        least = fmin(least, read_group(folder));
    }
    return least;
}

static bool has_cpu(const char *names)
{
    char copy[PATH_MAX], *rest = copy;
    snprintf(copy, sizeof copy, "%s", names);
    for (const char *name; (name = strsep(&rest, ",")) != NULL;)
        if (strcmp(name, "cpu") == 0) return true;
    return false;
}

/* Returns the smallest quota that applies to one line of /proc/self/cgroup. A line is
 * "id:controllers:group", with no controllers in version 2. The group may be mounted below two
 * folders, so both are read. */
static double read_line(const char *root, char *line)
{
    line[strcspn(line, "\n")] = '\0';
    (void)strsep(&line, ":");
    const char *names = line != NULL ? strsep(&line, ":") : NULL;
    if (line == NULL || (*names != '\0' && !has_cpu(names))) return INFINITY;
    const char *places[] = {names, *names != '\0' ? "cpu" : "unified"};
    double least = INFINITY;
    for (int i = 0; i < 2; i++) {
        char top[PATH_MAX];
        int length = snprintf(top, sizeof top, "%s/sys/fs/cgroup%s%s", root,
                              *places[i] != '\0' ? "/" : "", places[i]);
        if (length >= 0 && length < (int)sizeof top) least = fmin(least, read_groups(top, line));
    }
    return least;
}

double fl_cpu_quota(const char *root)
{
    char line[PATH_MAX];
    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *file = fopen(line, "r");
    double least = INFINITY;
    if (file == NULL) return least;
    while (fgets(line, sizeof line, file) != NULL) least = fmin(least, read_line(root, line));
    fclose(file);
    return least;
}

int32_t fl_cpu_whole(double cpus)
{
    return cpus < INT32_MAX ? (int32_t)fl_max((int32_t)cpus, 1) : INT32_MAX;
}

/* Returns how many CPUs the affinity allows; at least 1. The kernel refuses a set that is smaller
 * than its own, and a cpu_set_t has 1024 CPUs. */
static int32_t count_allowed(void)
{
    for (size_t cpus = 1024; cpus <= MOST_CPUS; cpus *= 2) {
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        cpu_set_t *set = CPU_ALLOC(cpus);
        bool is_read = set != NULL && sched_getaffinity(0, bytes, set) == 0;
        int32_t allowed = is_read ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (allowed > 0) return allowed;
    }
    return 1;
}

int32_t fl_cpu_count(void)
{
    /* 0: not read yet. Relaxed, because every thread would read the same value. */
    static _Atomic int32_t quota;
    int32_t most = atomic_load_explicit(&quota, memory_order_relaxed);
    if (most == 0) {
        most = fl_cpu_whole(fl_cpu_quota(""));
        atomic_store_explicit(&quota, most, memory_order_relaxed);
    }
    return (int32_t)fl_min(count_allowed(), most);
}
