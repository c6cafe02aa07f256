/* fl_arena: memory that worker processes share, as regions of one sparse file.
 *
 * Floor 0. The file is a memfd, mapped once as a whole: the arena takes much address space, little
 * memory, and one descriptor for all regions. One process, the owner, opens the arena and hands out
 * regions; other processes attach to the descriptor and find a region by its offset. A page takes
 * memory from its first write until its region is given back. In a forked child the owner's calls
 * do nothing or fail with FL_EFORK. */
#ifndef FL_ARENA_H
#define FL_ARENA_H

#include "fl_base.h"

typedef struct fl_arena fl_arena;
typedef struct fl_region fl_region;

/* Opens an arena with address space for at least `least_bytes` of regions, and for more if the
 * process's limits allow. The caller closes *out. FL_ENOMEM: there is too little address space, or
 * no memfd. */
int fl_arena_open(int64_t least_bytes, fl_arena **out, fl_err *err);

/* Gives up the opener's reference. Memory and descriptor are freed with the last region. NULL is
 * fine. */
void fl_arena_close(fl_arena *arena);

/* These three are what another process needs to attach. The descriptor and the mapping are
 * borrowed. */
int fl_arena_fd(const fl_arena *arena);
int64_t fl_arena_bytes(const fl_arena *arena);
char *fl_arena_base(const fl_arena *arena);

/* Gets a zeroed region of at least `bytes`; the caller gives the region back. Any thread.
 * FL_ENOMEM: the address space is used up. FL_EFORK. */
int fl_arena_get(fl_arena *arena, int64_t bytes, fl_region **out, fl_err *err);

/* Gives the region and its memory back. Any thread, also after fl_arena_close; takes no lock and
 * never waits. NULL is fine. */
void fl_region_give(fl_region *region);

/* Gives the region back like fl_region_give, but leaves the memory untouched until the arena is
 * freed, because another process may still read the region. */
void fl_region_abandon(fl_region *region);

char *fl_region_data(const fl_region *region);
int64_t fl_region_bytes(const fl_region *region);
int64_t fl_region_offset(const fl_region *region);

/* Maps another process's arena. The caller owns the mapping and ends it with munmap. */
int fl_arena_attach(int fd, int64_t bytes, char **out, fl_err *err);

#endif
