/* Tests of how many CPUs a process may keep busy: its affinity, and the quotas of its control
 * groups. The groups' files lie below a folder that stands for the root. */
#include "check.h"
#include "fl_cpus.h"

#include <ftw.h>
#include <math.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char root[] = "/tmp/test_cpus_XXXXXX";

static int remove_each(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)about, (void)kind, (void)place;
    return remove(path);
}

static void clear_root(void)
{
    CHECK_INT(nftw(root, remove_each, 8, FTW_DEPTH | FTW_PHYS), 0);
    CHECK_INT(mkdir(root, 0700), 0);
}

static void write_file(const char *name, const char *text)
{
    char path[1024];
    int length = snprintf(path, sizeof path, "%s/%s", root, name);
    CHECK(length > 0 && length < (int)sizeof path);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

#define GROUPS "sys/fs/cgroup"

static void check_quota(const char *groups, double expected)
{
    write_file("proc/self/cgroup", groups);
    CHECK(fl_cpu_quota(root) == expected);
}

static void test_no_files_are_no_quota(void)
{
    clear_root();
    CHECK(fl_cpu_quota(root) == INFINITY);
    check_quota("", INFINITY);
    check_quota("no groups\n::\n0:\n0::\n7:cpu\n", INFINITY);
    check_quota("0::/box\n3:cpu,cpuacct:/box\n", INFINITY);
}

static void test_the_smallest_quota_of_nested_groups_counts(void)
{
    clear_root();
    write_file(GROUPS "/a/b/cpu.max", "max 100000\n");
    check_quota("0::/a/b\n", INFINITY);
    write_file(GROUPS "/a/cpu.max", "600000 100000\n");
    check_quota("0::/a/b\n", 6);
    write_file(GROUPS "/a/b/cpu.max", "800000 200000\n");
    check_quota("0::/a/b\n", 4);
    check_quota("0::/a\n", 6);
    check_quota("0::/a/elsewhere\n", 6);
    write_file(GROUPS "/cpu.max", "300000 100000\n");
    check_quota("0::/a/b\n", 3);
    check_quota("0::/\n", 3);
    check_quota("0::/of/the/host\n", 3); /* a container's top is what is mounted */
    check_quota("0::/../of/the/host\n", 3);
}

static void test_the_quota_of_version_1_counts(void)
{
    clear_root();
    write_file(GROUPS "/cpu,cpuacct/box/cpu.cfs_quota_us", "500000\n");
    write_file(GROUPS "/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
    check_quota("4:memory:/box\n3:cpu,cpuacct:/box\n0::/\n", 5);
    check_quota("3:cpuset:/box\n", INFINITY);
    write_file(GROUPS "/cpu/cpu.cfs_quota_us", "200000\n");
    write_file(GROUPS "/cpu/cpu.cfs_period_us", "100000\n");
    check_quota("3:cpu,cpuacct:/box\n", 2);
    check_quota("3:cpu:/box\n", 2);
    write_file(GROUPS "/cpu/cpu.cfs_quota_us", "-1\n");
    check_quota("3:cpuacct,cpu:/box\n", INFINITY);
}

static void test_both_versions_count(void)
{
    clear_root();
    write_file(GROUPS "/unified/box/cpu.max", "400000 100000\n");
    check_quota("3:cpu:/\n0::/box\n", 4);
    write_file(GROUPS "/cpu/cpu.cfs_quota_us", "200000\n");
    write_file(GROUPS "/cpu/cpu.cfs_period_us", "100000\n");
    check_quota("3:cpu:/\n0::/box\n", 2);
}

/* A thread for half a CPU would use up the time of the full threads. */
static void test_a_part_of_a_cpu_is_left_but_one_thread_runs(void)
{
    clear_root();
    write_file(GROUPS "/cpu.max", "250000 100000\n");
    check_quota("0::/\n", 2.5);
    write_file(GROUPS "/cpu.max", "50000 100000\n");
    check_quota("0::/\n", 0.5);
    CHECK_INT(fl_cpu_whole(2.5), 2);
    CHECK_INT(fl_cpu_whole(1.0), 1);
    CHECK_INT(fl_cpu_whole(0.5), 1);
    CHECK_INT(fl_cpu_whole(1e-9), 1);
    CHECK_INT(fl_cpu_whole(9223372036854775807.0), INT32_MAX);
    CHECK_INT(fl_cpu_whole(INFINITY), INT32_MAX);
}

static void test_damaged_files_are_no_quota(void)
{
    static const char *const texts[] = {"",         "x",         "100000",    "0 100000",
                                        "100000 0", "-5 100000", "100000 -1", "100000 x"};
    clear_root();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file(GROUPS "/cpu.max", texts[i]);
        check_quota("0::/\n", INFINITY);
    }
    write_file(GROUPS "/cpu.max", "9223372036854775807 1");
    check_quota("0::/\n", 9223372036854775807.0);
}

static void test_the_affinity_counts_as_of_now(void)
{
    cpu_set_t before, one;
    int32_t count = fl_cpu_count();
    CHECK(count >= 1 && count <= sysconf(_SC_NPROCESSORS_CONF) &&
          count <= fl_cpu_whole(fl_cpu_quota("")));
    CHECK_INT(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (size_t cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
    CHECK_INT(sched_setaffinity(0, sizeof one, &one), 0);
    CHECK_INT(fl_cpu_count(), 1);
    CHECK_INT(sched_setaffinity(0, sizeof before, &before), 0);
    CHECK_INT(fl_cpu_count(), count);
}

/* A machine with this many CPUs, all of them allowed; 0: the machine of the test. */
static size_t machine_cpus;

/* Takes the place of the C library's function, and refuses as the kernel does. */
int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
    memset(set, 0, bytes);
    if (machine_cpus == 0) return syscall(SYS_sched_getaffinity, pid, bytes, set) < 0 ? -1 : 0;
    if (bytes * 8 < machine_cpus) {
        errno = EINVAL;
        return -1;
    }
    for (size_t cpu = 0; cpu < machine_cpus; cpu++) CPU_SET_S(cpu, bytes, set);
    return 0;
}

static void test_every_cpu_of_a_large_machine_counts(void)
{
    int32_t quota = fl_cpu_whole(fl_cpu_quota(""));
    static const size_t sizes[] = {1, 1023, 1024, 1025, 4096, 8192, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        machine_cpus = sizes[i];
        CHECK_INT(fl_cpu_count(), fl_min((int32_t)machine_cpus, quota));
    }
    machine_cpus = (1 << 20) + 1; /* the kernel tells nothing */
    CHECK_INT(fl_cpu_count(), 1);
    machine_cpus = 0;
}

int main(void)
{
    CHECK(mkdtemp(root) != NULL);
    RUN(test_no_files_are_no_quota);
    RUN(test_the_smallest_quota_of_nested_groups_counts);
    RUN(test_the_quota_of_version_1_counts);
    RUN(test_both_versions_count);
    RUN(test_a_part_of_a_cpu_is_left_but_one_thread_runs);
    RUN(test_damaged_files_are_no_quota);
    RUN(test_the_affinity_counts_as_of_now);
    RUN(test_every_cpu_of_a_large_machine_counts);
    CHECK_INT(nftw(root, remove_each, 8, FTW_DEPTH | FTW_PHYS), 0);
    return 0;
}
