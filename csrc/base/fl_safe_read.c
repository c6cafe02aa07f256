/* fl_safe_read: see fl_safe_read.h.
 *
 * process_vm_writev gathers many small pieces in one call: the kernel reads the local side, our
 * pieces, with its own fault handling; the remote side, dst, is one range. For long pieces
 * process_vm_readv is faster, because the kernel then pins the pieces in runs of pages. */
#define _GNU_SOURCE
#include "fl_safe_read.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    LONG_PIECE = 64 * 1024,    /* from this mean length on readv wins (measured) */
    SCRATCH_BYTES = 256 * 1024 /* the memfd method copies through a window of this size */
};

enum { UNKNOWN = 0, PROCESS_VM = 1, MEMFD = 2 };
static _Atomic int method; /* UNKNOWN until the first call; every thread finds the same answer */

static int64_t sum_bytes(const struct iovec *pieces, int count)
{
    int64_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += (int64_t)pieces[i].iov_len;
    return bytes;
}

/* Copies, and returns how many bytes from the start the kernel could read. Both calls stop at the
 * first fault: readv at a whole piece, writev inside a piece. */
static int64_t copy_process_vm(char *dst, const struct iovec *pieces, int count, int64_t bytes)
{
    struct iovec whole = {.iov_base = dst, .iov_len = (size_t)bytes};
    pid_t self = getpid();
    ssize_t done = bytes / count >= LONG_PIECE
                       ? process_vm_readv(self, &whole, 1, pieces, (unsigned long)count, 0)
                       : process_vm_writev(self, pieces, (unsigned long)count, &whole, 1, 0);
    return done;
}

static int find_method(void)
{
    char from = 1, to = 0;
    struct iovec piece = {.iov_base = &from, .iov_len = 1};
    int found = copy_process_vm(&to, &piece, 1, 1) == 1 ? PROCESS_VM : MEMFD;
    atomic_store_explicit(&method, found, memory_order_relaxed);
    return found;
}

static inline int known_method(void)
{
    int known = atomic_load_explicit(&method, memory_order_relaxed);
    return known != UNKNOWN ? known : find_method();
}

const char *fl_safe_read_method(void)
{
    return known_method() == PROCESS_VM ? "process_vm" : "memfd";
}

/* Copies one piece through the window; the count falls short if the piece cannot be read. */
static int64_t copy_through(int fd, const char *window, char *dst, const struct iovec *piece)
{
    int64_t done = 0, length = (int64_t)piece->iov_len;
    while (done < length) {
        size_t step = (size_t)fl_min(length - done, SCRATCH_BYTES);
        ssize_t got = pwrite(fd, (const char *)piece->iov_base + done, step, 0);
        if (got <= 0) break;
        memcpy(dst + done, window, (size_t)got);
        done += got;
    }
    return done;
}

int64_t fl_safe_read_copy_memfd(char *dst, const struct iovec *pieces, int count)
{
    int64_t done = FL_ENOMEM;
    int fd = fl_fault_hit() ? -1 : memfd_create("fastloop-guard", MFD_CLOEXEC);
    if (fd < 0) return done;
    if (ftruncate(fd, SCRATCH_BYTES) != 0) goto close_fd;
    char *window = mmap(NULL, SCRATCH_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (window == MAP_FAILED) goto close_fd;
    done = 0;
    for (int i = 0; i < count; i++) {
        int64_t got = copy_through(fd, window, dst + done, &pieces[i]);
        done += got;
        if (got < (int64_t)pieces[i].iov_len) break;
    }
    munmap(window, SCRATCH_BYTES);
close_fd:
    close(fd);
    return done;
}

/* Writes the pieces that follow the first `done` bytes into `rest`, and returns how many pieces
 * remain. */
static int skip_bytes(const struct iovec *pieces, int count, int64_t done, struct iovec *rest)
{
    int left = 0;
    for (int i = 0; i < count; i++) {
        int64_t length = (int64_t)pieces[i].iov_len, skipped = fl_min(done, length);
        done -= skipped;
        if (skipped == length) continue;
        rest[left++] = (struct iovec){.iov_base = (char *)pieces[i].iov_base + skipped,
                                      .iov_len = (size_t)(length - skipped)};
    }
    return left;
}

/* A call may stop early without a fault, for example in a very long row: only EFAULT without
 * progress means that the source is gone. After any other failure (no memory, or a sandbox that
 * was entered since the first call) the memfd takes over. */
int64_t fl_safe_read_copy(char *dst, const struct iovec *pieces, int count)
{
    struct iovec rest[FL_SAFE_READ_MAX];
    int64_t bytes = sum_bytes(pieces, count), done = 0;
    int saved = errno;
    bool uses_memfd = known_method() == MEMFD;
    while (done < bytes) {
        int left = skip_bytes(pieces, count, done, rest);
        int64_t got = uses_memfd ? fl_safe_read_copy_memfd(dst + done, rest, left)
                                 : copy_process_vm(dst + done, rest, left, bytes - done);
        if (got > 0)
            done += got;
        else if (uses_memfd && got < 0)
            done = got;
        if (got <= 0 && (uses_memfd || errno == EFAULT)) break;
        if (got <= 0) uses_memfd = true;
    }
    errno = saved;
    return done;
}
