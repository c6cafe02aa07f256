/* Replaces madvise() under qemu-user, which agrees to most advice and does nothing: does what Linux
 * would do. Linked into the tests of the lane aarch64. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* The last lookup of the thread: the mapping of a file that is still open. */
static _Thread_local struct mapping {
    unsigned long begin, end, offset;
    ino_t inode;
    int fd;
} last = {.fd = -1};

static bool is_open(int fd, ino_t inode)
{
    struct stat file;
    return fd >= 0 && fstat(fd, &file) == 0 && file.st_ino == inode;
}

static int find_descriptor(ino_t inode)
{
    for (int fd = 0; fd < 4096; fd++)
        if (is_open(fd, inode)) return fd;
    return -1;
}

static struct mapping find_mapping(unsigned long at)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    struct mapping found = {.fd = -1};
    char line[4096];
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long inode;
        struct mapping m = {.fd = -1};
        if (sscanf(line, "%lx-%lx %*s %lx %*s %lu", &m.begin, &m.end, &m.offset, &inode) != 4 ||
            at < m.begin || at >= m.end)
            continue;
        m.inode = inode;
        m.fd = find_descriptor(inode);
        found = m;
    }
    if (maps != NULL) fclose(maps);
    return found;
}

static int punch_hole(void *memory, size_t bytes)
{
    unsigned long at = (unsigned long)memory;
    if (at < last.begin || at >= last.end || !is_open(last.fd, last.inode)) last = find_mapping(at);
    if (last.fd >= 0)
        return fallocate(last.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         (off_t)(last.offset + (at - last.begin)), (off_t)bytes);
    errno = EINVAL;
    return -1;
}

int madvise(void *at, size_t bytes, int advice)
{
    if (advice == MADV_REMOVE) return punch_hole(at, bytes);
    if (advice != MADV_POPULATE_WRITE) return (int)syscall(SYS_madvise, at, bytes, advice);
    errno = EINVAL; /* as kernels before 5.14 say */
    return -1;
}
