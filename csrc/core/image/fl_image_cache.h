/* fl_image_cache: decoded images in one file that processes share.
 *
 * Floor 1. docs/internals/image-cache.md describes the file. Any number of processes and threads
 * find and put images at the same time, without a lock; a process that dies leaves no half image.
 * No function waits for another process; reads and writes wait for the disk. */
#ifndef FL_IMAGE_CACHE_H
#define FL_IMAGE_CACHE_H

#include "fl_image_ops.h"

#include <stdatomic.h>

/* Names an image and all that its pixels depend on; a digest. */
typedef struct fl_image_key {
    uint64_t word[2];
} fl_image_key;

/* Names the time since the machine was started. */
typedef struct fl_boot {
    char id[16];
} fl_boot;

typedef struct fl_image_head {
    char magic[8];
    int64_t slots; /* a power of 2 */
    int64_t bytes; /* of the file */
    fl_boot boot;
    uint64_t sum;                       /* fl_hash of the fields above */
    _Alignas(64) _Atomic(int64_t) next; /* the first byte that no image has reserved */
} fl_image_head;

enum {
    FL_IMAGE_CACHE_LEAST = 1 << 16, /* bytes of a file */
    FL_IMAGE_PUT = 0,
    FL_IMAGE_IS_THERE, /* or a process has begun to put the image */
    FL_IMAGE_CACHE_FULL
};

typedef struct fl_image_cache fl_image_cache;

/* Makes the first bytes of a new file. The rest of the file is zeros; the file has `bytes` bytes,
 * FL_IMAGE_CACHE_LEAST or more. Returns how many bytes at the beginning of the file must have room
 * on the disk. */
int64_t fl_image_cache_format(int64_t bytes, const fl_boot *boot, fl_image_head *out);

/* Opens the file of the descriptor `fd`, which can be read and written and stays the caller's.
 * Images are put only into the first `budget` bytes. FL_ENOMEM. FL_EINVAL: the file is damaged, is
 * of an earlier `boot`, or lies on a file system that several machines may share. */
int fl_image_cache_open(int fd, int64_t budget, const fl_boot *boot, fl_image_cache **out,
                        fl_err *err);
void fl_image_cache_close(fl_image_cache *cache); /* NULL is fine; its images vanish */

int64_t fl_image_cache_bytes(const fl_image_cache *cache); /* of the file */
int64_t fl_image_cache_used(const fl_image_cache *cache);

/* Finds an image: *out borrows from the cache. */
bool fl_image_cache_find(const fl_image_cache *cache, const fl_image_key *key, fl_ycc *out);

/* Puts an image and returns FL_IMAGE_PUT, or one of the reasons above. If the disk is full, the
 * cache is. */
int fl_image_cache_put(fl_image_cache *cache, const fl_image_key *key, const fl_ycc *image);

#endif
