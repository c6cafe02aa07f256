/* fl_arena: memory that worker processes share, as regions of one sparse file.
 *
 * Floor 0. The file is a memfd, mapped once and whole: large in address space, small in memory,
 * one descriptor however many regions are held. One process, the owner, opens the arena and
 * hands out regions; others attach to the descriptor and find a region by its offset. Pages come
 * with the first write and go back to the system when the region is given back. In a forked child
 * the owner's calls are inert. */
#ifndef FL_ARENA_H
#define FL_ARENA_H

#include "fl_base.h"

typedef struct fl_arena fl_arena;
typedef struct fl_region fl_region;

/* An arena with address space for at least `least_bytes` of regions, more where the process may
 * have it. FL_ENOMEM when not even that much address space or no memfd can be had. */
int fl_arena_open(int64_t least_bytes, fl_arena **out, fl_err *err);

/* The opener lets go. Memory and descriptor are freed with the last region. NULL is fine. */
void fl_arena_close(fl_arena *arena);

/* What another process needs to attach. Borrowed. */
int fl_arena_fd(const fl_arena *arena);
int64_t fl_arena_bytes(const fl_arena *arena);
char *fl_arena_base(const fl_arena *arena);

/* A region of at least `bytes`, zeroed. Any thread. FL_ENOMEM when address space is used up,
 * FL_EFORK. */
int fl_arena_get(fl_arena *arena, int64_t bytes, fl_region **out, fl_err *err);

/* Gives the region and its memory back. Any thread, with or without the opener: takes no lock
 * and waits for nothing. NULL is fine. */
void fl_region_give(fl_region *region);

/* Lets go of the region and leaves its memory as it is until the arena ends: another process may
 * still look at it. As fl_region_give otherwise. */
void fl_region_abandon(fl_region *region);

char *fl_region_data(const fl_region *region);
int64_t fl_region_bytes(const fl_region *region);
int64_t fl_region_offset(const fl_region *region);

/* Maps another process's arena. The mapping is the caller's, to be ended with munmap. */
int fl_arena_attach(int fd, int64_t bytes, char **out, fl_err *err);

#endif
