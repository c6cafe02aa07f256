/* fl_tar: the headers of a tar archive, and which sample a member belongs to.
 *
 * Floor 1. Works on what the caller has read, and never reads the archive itself. Knows the formats
 * USTAR, GNU (long names) and PAX (path, size). No number of a header is believed before it is
 * checked. Any thread, never blocks. */
#ifndef FL_TAR_H
#define FL_TAR_H

#include "fl_base.h"

enum { FL_TAR_BLOCK = 512 };

/* A member; offsets count from the first byte of the member's first header. */
typedef struct fl_tar_member {
    int64_t needs;    /* bytes of headers */
    const char *name; /* borrowed from the headers, or from `joined`; not terminated */
    int64_t name_bytes;
    bool is_file;
    int64_t body, bytes; /* of the contents */
    int64_t end;         /* where the next member begins */
    char joined[256];
} fl_tar_member;

/* Reads the headers of the member at `data`. `count` bytes can be read; `at` is the place of `data`
 * in the archive, for errors. FL_OK: if out->needs is above `count`, so many
 * bytes are needed, and nothing else is set; otherwise the member, whose contents may lie beyond
 * `count`. FL_EEND: there is the block of zeros that ends an archive. FL_EINVAL: a sentence with
 * the archive as its subject. */
int fl_tar_read(const char *data, int64_t count, int64_t at, fl_tar_member *out, fl_err *err);

/* Returns the length of a member's key: its path up to the first dot of the last part of the path.
 * The extension follows after the dot. Returns -1 if the member belongs to no sample: the last part
 * has no dot or begins with a dot, or the first part is like __this__. */
int64_t fl_tar_key(const char *name, int64_t bytes);

/* Returns a byte in lower case, as extensions are compared. */
static inline char fl_tar_lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

/* A sample of an archive: neighbouring members with one key. */
typedef struct fl_tar_entry {
    uint64_t byte;  /* of the first header */
    uint32_t bytes; /* up to the last byte of the last member */
    uint32_t check; /* fl_tar_check of the key << 8 | the number of the set of extensions */
} fl_tar_entry;

/* Returns 24 bits of a key's hash. */
static inline uint32_t fl_tar_check(uint64_t hash) { return (uint32_t)(hash >> 40); }

#endif
