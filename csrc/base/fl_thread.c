/* fl_thread: see fl_thread.h. */
#define _GNU_SOURCE
#include "fl_thread.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Release wheels are built with kernel headers that are older than the kernels they run on. */
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

int64_t fl_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int fl_mutex_open(pthread_mutex_t *mutex, fl_err *err)
{
    pthread_mutexattr_t attr;
    int status = fl_fault_hit() ? ENOMEM : pthread_mutexattr_init(&attr);
    if (status == 0) {
        pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
        status = pthread_mutex_init(mutex, &attr);
        pthread_mutexattr_destroy(&attr);
    }
    if (status != 0) return fl_fail(err, FL_ENOMEM, "cannot make a mutex: %s", strerror(status));
    return FL_OK;
}

int fl_cond_open(pthread_cond_t *cond, fl_err *err)
{
    pthread_condattr_t attr;
    int status = fl_fault_hit() ? ENOMEM : pthread_condattr_init(&attr);
    if (status != 0)
        return fl_fail(err, FL_ENOMEM, "cannot make a condition: %s", strerror(status));
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    status = pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
    if (status != 0)
        return fl_fail(err, FL_ENOMEM, "cannot make a condition: %s", strerror(status));
    return FL_OK;
}

bool fl_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                             .tv_nsec = (long)(deadline_ns % 1000000000)};
    return pthread_cond_timedwait(cond, mutex, &until) == ETIMEDOUT;
}

int fl_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, fl_err *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = fl_fault_hit() ? EAGAIN : pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != 0) return fl_fail(err, FL_ETHREAD, "cannot start a thread: %s", strerror(status));
    return FL_OK;
}

bool fl_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t deadline_ns)
{
    /* FUTEX_WAIT_BITSET takes an absolute time. */
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                             .tv_nsec = (long)(deadline_ns % 1000000000)};
    long status =
        syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, &until, NULL, FUTEX_BITSET_MATCH_ANY);
    return status == 0 || errno != EINTR;
}

void fl_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int fl_pidfd_open(int pid) { return fl_fault_hit() ? -1 : (int)syscall(SYS_pidfd_open, pid, 0); }

bool fl_is_pidfd(int fd)
{
    return syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0 || errno == ESRCH || errno == EPERM;
}
