/* traced: a forked child that its parent stops at any instruction (ptrace). */
#ifndef TRACED_H
#define TRACED_H

#include "check.h"

#include <signal.h>
#include <sys/ptrace.h>

/* Starts a child that has stopped before it runs `work`, whose result is its exit status. */
static inline pid_t start_traced(int (*work)(void *), void *arg)
{
    pid_t child = fork();
    int status;
    CHECK(child >= 0);
    if (child == 0) {
        alarm(HANG_SECONDS);
        CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
        raise(SIGSTOP);
        _exit(work(arg));
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    return child;
}

#endif
