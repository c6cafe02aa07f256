/* fl_pages: memory for batches, from the heap when small, from whole pages when large.
 *
 * Floor 0. Large buffers are mapped at multiples of 2 MiB with huge pages advised, so that a buffer
 * in use costs no page faults and few TLB misses. Small ones come from malloc, because a process
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

/* FL_OK, or with *out zeroed FL_ENOMEM, also for more than the machine's memory and swap, or
 * FL_EINVAL for sizes near 2^63. bytes >= 0. Contents are undefined. */
int fl_pages_open(int64_t bytes, fl_pages *out, fl_err *err);

/* The same, mapped whatever the size: no page of it holds anything else. */
int fl_pages_map(int64_t bytes, fl_pages *out, fl_err *err);

/* Gives the memory back to the system; a zeroed struct is fine. */
void fl_pages_close(fl_pages *pages);

/* The same size in whole pages; bytes >= 0, and far from 2^63. */
int64_t fl_pages_whole(int64_t bytes);

/* Children forked from now on do not get these mapped pages. Advice only. */
void fl_pages_withhold(const fl_pages *pages);

/* Faults in [data, data + bytes) for writing in one call (MADV_POPULATE_WRITE, Linux 5.14).
 * Advice only: false when the kernel cannot, and then the first writes fault pages in. */
bool fl_pages_populate(char *data, int64_t bytes);

/* Lets malloc keep what is freed, as it does after a program has freed one large buffer: temporary
 * arrays of less than 32 MB then come from the heap, and up to 64 MB stay at its end. Before that,
 * glibc gives megabytes back to the system and faults them in again, sample after sample. A program
 * that has set M_MMAP_THRESHOLD keeps its choice; other allocators take no notice. */
void fl_pages_keep_heap(void);

#endif
