/* arena_fixture.h: arenas and blocks for the tests of fl_arena, and of slots over an arena. */
#ifndef ARENA_FIXTURE_H
#define ARENA_FIXTURE_H

#include "check.h"
#include "fl_arena.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { KIB = 1 << 10, MIB = 1 << 20 };

static inline fl_arena *open_arena(int64_t least_bytes)
{
    fl_arena *arena;
    CHECK_INT(fl_arena_open(least_bytes, &arena, NULL), FL_OK);
    CHECK(arena != NULL && fl_arena_bytes(arena) >= least_bytes);
    return arena;
}

static inline fl_shared_block *get_block(fl_arena *arena, int64_t bytes)
{
    fl_shared_block *block;
    CHECK_INT(fl_arena_get(arena, bytes, &block, NULL), FL_OK);
    CHECK(block != NULL && fl_shared_block_bytes(block) >= bytes);
    CHECK(fl_shared_block_data(block) == fl_arena_base(arena) + fl_shared_block_offset(block));
    return block;
}

/* Memory that the file holds. */
static inline int64_t held_bytes(const fl_arena *arena)
{
    struct stat file;
    CHECK(fstat(fl_arena_fd(arena), &file) == 0);
    return (int64_t)file.st_blocks * 512;
}

static inline bool holds_only(const char *memory, char byte, int64_t bytes)
{
    return bytes == 0 ||
           (memory[0] == byte && memcmp(memory, memory + 1, (size_t)(bytes - 1)) == 0);
}

static inline int64_t count_descriptors(void)
{
    DIR *all = opendir("/proc/self/fd");
    CHECK(all != NULL);
    int64_t found = 0;
    while (readdir(all) != NULL) found++;
    closedir(all);
    return found;
}

/* Returns how much address space this process may have. */
static inline int64_t address_space_limit(void)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    return limit.rlim_cur > INT64_MAX ? INT64_MAX : (int64_t)limit.rlim_cur;
}

/* Address space of this process. */
static inline int64_t count_address_space(void)
{
    FILE *statm = fopen("/proc/self/statm", "r");
    long long pages = 0;
    CHECK(statm != NULL && fscanf(statm, "%lld", &pages) == 1);
    fclose(statm);
    return pages * sysconf(_SC_PAGESIZE);
}

#endif
