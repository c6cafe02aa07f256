/* check.h: what the C tests share: CHECK, named tests, seeded numbers, refused resources,
 * children and files that shrink.
 *
 * A test program is a list of `static void test_...(void)` and a main that runs them. A failed
 * CHECK prints file, line and condition and ends the process with 1; a program that hangs is
 * ended by its alarm, after the name of the test that hung. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* so this header comes first */
#endif

#include "fl_base.h"
#include "fl_thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Returns how many times longer than on an idle machine a test may take; run_programs.py measures
 * the factor. */
static inline int slowness(void)
{
    const char *told = getenv("TEST_SLOWNESS");
    int times = told != NULL ? atoi(told) : 1;
    return times > 1 ? times : 1;
}

/* Longer than any program of tests takes. */
#define HANG_SECONDS (unsigned)(120 * slowness())

/* CHECK ends the test unless the condition holds. CHECK_INT also prints the two integers. */
#define CHECK(condition) check_that((condition), __FILE__, __LINE__, #condition)
#define CHECK_INT(actual, expected) \
    check_equal((int64_t)(actual), (int64_t)(expected), __FILE__, __LINE__, #actual)
#define RUN(test) run_test(#test, test)

/* Lets malloc return NULL for an absurd size, because the sanitizers would end the program. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }
const char *__tsan_default_options(void) { return "allocator_may_return_null=1"; }

static inline void check_that(bool holds, const char *file, int line, const char *text)
{
    if (holds) return;
    fprintf(stderr, "\n%s:%d: CHECK(%s) failed\n", file, line, text);
    _exit(1); /* threads may still be at work, so no destructor may wait for them */
}

static inline void
check_equal(int64_t actual, int64_t expected, const char *file, int line, const char *text)
{
    if (actual == expected) return;
    fprintf(stderr, "\n%s:%d: %s is %lld, not %lld\n", file, line, text, (long long)actual,
            (long long)expected);
    _exit(1);
}

static inline void start_tests(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    alarm(HANG_SECONDS);
    fl_fork_install();
}

/* Returns true if the environment variable LEFT_OUT_TESTS has "program/name" among its words. */
static inline bool is_left_out(const char *name)
{
    const char *names = getenv("LEFT_OUT_TESTS");
    char wanted[256], all[4096];
    snprintf(wanted, sizeof wanted, " %s/%s ", program_invocation_short_name, name);
    snprintf(all, sizeof all, " %s ", names != NULL ? names : "");
    return strstr(all, wanted) != NULL;
}

static inline void run_test(const char *name, void (*test)(void))
{
    if (is_left_out(name)) {
        printf("%s left out\n", name);
        return;
    }
    printf("%s ...", name);
    test();
    printf(" ok\n");
}

/* Numbers that look random and are the same in every run (splitmix64). */
static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Returns a number in [0, limit). */
static inline int64_t random_below(uint64_t *state, int64_t limit)
{
    return (int64_t)(next_random(state) % (uint64_t)limit);
}

static inline void fill_random(uint64_t *state, char *memory, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 8) {
        uint64_t word = next_random(state);
        memcpy(memory + i, &word, (size_t)fl_min(8, bytes - i));
    }
}

static inline bool is_aligned(const void *memory, uintptr_t unit)
{
    return (uintptr_t)memory % unit == 0;
}

static inline void sleep_ms(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Calls `work` with resource 1, then 2, ... refused, until a call asks for fewer. Each call must
 * return FL_OK or the error of the missing resource, and leave nothing behind; the last call must
 * return FL_OK. Returns how many resources could be refused. */
static inline int64_t refuse_each(int (*work)(void *), void *arg)
{
    for (int64_t n = 1;; n++) {
        fl_fault_arm(n);
        int status = work(arg);
        bool was_refused = fl_fault_asked() >= n;
        fl_fault_arm(0);
        CHECK(status == FL_OK || (was_refused && (status == FL_ENOMEM || status == FL_ETHREAD)));
        if (!was_refused) return n - 1;
    }
}

/* Runs `work` in a forked child and returns the child's exit status, or -1 if the child died. */
static inline int run_child(int (*work)(void *), void *arg)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(HANG_SECONDS);
        _exit(work(arg));
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A mapped file without a name, to be cut short under its reader. */
typedef struct mapped_file {
    int fd;
    char *data; /* owned; readable */
    int64_t bytes;
} mapped_file;

/* Holds `content`; flags: MAP_SHARED or MAP_PRIVATE. */
static inline mapped_file map_file(const char *content, int64_t bytes, int flags)
{
    char path[] = "/tmp/fastloop-test-XXXXXX";
    mapped_file file = {.fd = mkstemp(path), .bytes = bytes};
    CHECK(file.fd >= 0 && unlink(path) == 0);
    for (int64_t done = 0; done < bytes;) {
        ssize_t more = write(file.fd, content + done, (size_t)(bytes - done));
        CHECK(more > 0);
        done += more;
    }
    file.data = mmap(NULL, (size_t)bytes, PROT_READ, flags, file.fd, 0);
    CHECK(file.data != MAP_FAILED);
    return file;
}

static inline void unmap_file(mapped_file *file)
{
    CHECK(munmap(file->data, (size_t)file->bytes) == 0);
    CHECK(close(file->fd) == 0);
}

#endif
