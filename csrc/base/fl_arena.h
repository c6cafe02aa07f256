/* fl_arena: memory that worker processes share, as blocks of one sparse file.
 *
 * Floor 0. The file is a memfd, mapped once as a whole: the arena takes much address space, little
 * memory, and one descriptor for all blocks. One process, the owner, opens the arena and hands out
 * blocks; other processes attach to the descriptor and find a block by its offset. A page takes
 * memory from its first write until its block is given back. In a forked child the owner's calls
 * do nothing or fail with FL_EFORK. */
#ifndef FL_ARENA_H
#define FL_ARENA_H

#include "fl_base.h"

typedef struct fl_arena fl_arena;
typedef struct fl_shared_block fl_shared_block;

/* Opens an arena with address space for at least `least_bytes` of blocks, and for more if the
 * process's limits allow. The caller closes *out. FL_ENOMEM: there is too little address space, or
 * no memfd. */
int fl_arena_open(int64_t least_bytes, fl_arena **out, fl_err *err);

/* Gives up the opener's reference. Memory and descriptor are freed with the last block. NULL is
 * fine. */
void fl_arena_close(fl_arena *arena);

/* These three are what another process needs to attach. The descriptor and the mapping are
 * borrowed. */
int fl_arena_fd(const fl_arena *arena);
int64_t fl_arena_bytes(const fl_arena *arena);
char *fl_arena_base(const fl_arena *arena);

/* Gets a zeroed block of at least `bytes`; the caller gives the block back. Any thread.
 * FL_ENOMEM: the address space is used up. FL_EFORK. */
int fl_arena_get(fl_arena *arena, int64_t bytes, fl_shared_block **out, fl_err *err);

/* Gives the block and its memory back. Any thread, also after fl_arena_close; takes no lock and
 * never waits. NULL is fine. */
void fl_shared_block_give(fl_shared_block *block);

/* Gives the block back like fl_shared_block_give, but leaves the memory untouched until the arena
 * is freed, because another process may still read the block. */
void fl_shared_block_abandon(fl_shared_block *block);

char *fl_shared_block_data(const fl_shared_block *block);
int64_t fl_shared_block_bytes(const fl_shared_block *block);
int64_t fl_shared_block_offset(const fl_shared_block *block);

/* Maps another process's arena. The caller owns the mapping and ends it with munmap. */
int fl_arena_attach(int fd, int64_t bytes, char **out, fl_err *err);

#endif
