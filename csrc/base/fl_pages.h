/* fl_pages: memory for batches, from the heap when small, from whole pages when large.
 *
 * Floor 0. Large buffers are mapped at multiples of 2 MiB with huge pages advised, so that a buffer
 * in use costs no page faults and few TLB misses. Small buffers come from malloc, because a process
 * may have only 65 530 mappings and users may keep every batch. */
#ifndef FL_PAGES_H
#define FL_PAGES_H

#include "fl_base.h"

enum { FL_PAGES_MAPPED_FROM = 1 << 20 }; /* buffers of this many bytes and more are mapped */

typedef struct fl_pages {
    char *data;       /* owned; 64-byte aligned or better */
    int64_t capacity; /* bytes usable at data */
    bool is_mapped;
} fl_pages;

/* Opens memory of `bytes` >= 0 with undefined contents; the caller closes *out. FL_OK, or with *out
 * zeroed: FL_ENOMEM, also if the size exceeds the machine's memory and swap; FL_EINVAL for sizes
 * near 2^63. */
int fl_pages_open(int64_t bytes, fl_pages *out, fl_err *err);

/* Opens memory like fl_pages_open, but always maps: the pages of a small buffer hold nothing
 * else. */
int fl_pages_map(int64_t bytes, fl_pages *out, fl_err *err);

/* Gives the memory back to the system; a zeroed struct is fine. */
void fl_pages_close(fl_pages *pages);

/* Rounds a size up to whole pages; bytes >= 0, and far from 2^63. */
int64_t fl_pages_whole(int64_t bytes);

/* Keeps these mapped pages from children that are forked from now on. Advice only. */
void fl_pages_withhold(const fl_pages *pages);

/* Forgets what these mapped pages hold: the next writes fault new pages in, huge ones if there are
 * any. Children keep what they have got by a fork. Advice only. */
void fl_pages_forget(const fl_pages *pages);

/* Faults in [data, data + bytes) for writing, in one call (MADV_POPULATE_WRITE, Linux 5.14). Advice
 * only: if the kernel cannot, returns false, and the first writes fault pages in. */
bool fl_pages_populate(char *data, int64_t bytes);

/* Faults in [data, data + bytes) of a shared, writable mapping, in one call (MADV_POPULATE_READ,
 * Linux 5.14). If a different process has written to these pages, this call takes a third of the
 * time of fl_pages_populate (2026-12). Advice only, likewise. */
bool fl_pages_populate_shared(char *data, int64_t bytes);

/* Says on which nodes of the machine the system puts these mapped pages, one bit for each node,
 * when they are first written: on one node as long as it has room, on several nodes in turn; 0:
 * says nothing, without a system call. Advice only. If the thread has a policy of its own, for
 * example from numactl, that policy stands. */
void fl_pages_place(char *data, int64_t bytes, uint64_t nodes);

/* Lets malloc keep freed memory: temporary arrays of less than 32 MB come from the heap, as they do
 * after a program has freed one large buffer, and up to 256 MB stay at its end, so that samples of
 * a batch that are kept until it is whole find their pages again. Without this call glibc gives
 * megabytes back to the system and faults them in again, sample after sample. A program that has
 * set M_MMAP_THRESHOLD, or glibc's variables, keeps its choice; other allocators take no notice.
 * with_huge_pages: asks the system for huge pages in the next 200 MB of the heap. For a process
 * that is forked anew for each epoch, because a page of 4 KiB costs more than its first use. With a
 * limit on address space or data (ulimit -v, -d), nothing is asked. */
void fl_pages_keep_heap(bool with_huge_pages);

#endif
