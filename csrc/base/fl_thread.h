/* fl_thread: threads, timed waits and the monotonic clock.
 *
 * Floor 0. Threads made here have every signal blocked, so signals stay with the
 * program's own threads. Conditions wait on CLOCK_MONOTONIC. */
#ifndef FL_THREAD_H
#define FL_THREAD_H

#include "fl_base.h"
#include "fl_fork.h" /* the generation, for every owner of threads */

#include <pthread.h>
#include <stdatomic.h>

/* Returns nanoseconds of CLOCK_MONOTONIC. */
int64_t fl_now_ns(void);

/* Open pthread's own mutex and condition: FL_OK or FL_ENOMEM. The mutex spins a little before it
 * sleeps, because our critical sections take less time than going to sleep. */
int fl_mutex_open(pthread_mutex_t *mutex, fl_err *err);
int fl_cond_open(pthread_cond_t *cond, fl_err *err);

/* Blocks until a signal, or until `deadline_ns` (fl_now_ns clock) has passed; the caller holds
 * `mutex`. Returns true if the deadline passed. Wakes spuriously, as conditions do. */
bool fl_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns);

/* Starts a joinable thread with all signals blocked. FL_OK or FL_ETHREAD. */
int fl_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, fl_err *err);

/* Sleeps while *word is `expected`, until fl_futex_wake, the deadline (fl_now_ns clock) or a signal
 * handler. The word may lie in memory shared between processes. Returns false if a signal handler
 * ran. */
bool fl_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t deadline_ns);
void fl_futex_wake(_Atomic uint32_t *word); /* wakes every thread that sleeps on the word */

/* Returns a descriptor that becomes readable when the process ends; the caller closes the
 * descriptor. Returns -1 if the process is gone, or if the kernel or a sandbox does not offer
 * pidfds. */
int fl_pidfd_open(int pid);

/* Returns true if the descriptor stands for a process. The caller's descriptor may have been closed
 * and its number taken by a different file. Sends nothing; any thread. */
bool fl_is_pidfd(int fd);

/* For a loop that polls a variable: leaves the core to its second hardware thread. */
static inline void fl_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
