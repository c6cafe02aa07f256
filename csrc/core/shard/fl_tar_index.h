/* fl_tar_index: finds the samples of a tar archive.
 *
 * Floor 1. Hides in which pieces an archive is read. An index is used by one thread at a time;
 * different threads may make indices of different archives at once. */
#ifndef FL_TAR_INDEX_H
#define FL_TAR_INDEX_H

#include "fl_tar.h"

/* Sets of extensions that have a number of their own; samples with further sets all have the number
 * FL_TAR_SETS. */
enum { FL_TAR_SETS = 255 };

typedef struct fl_tar_index {
    fl_tar_entry *entries; /* owned: samples in the order of the archive */
    uint64_t *hashes;      /* owned: of the keys */
    int64_t count;
    struct {
        char *text; /* owned: extensions in lower case, in the order of the members, with a slash
                       after each */
        int64_t bytes;
    } sets[FL_TAR_SETS];
    int32_t set_count;
} fl_tar_index;

/* Reads all headers of an archive of `bytes` bytes; the caller clears *out, also after a failure.
 * Blocks for the disk. FL_EINVAL: a sentence with the archive as its subject. FL_EFILE: value is
 * the byte, length the errno. FL_ENOMEM. */
int fl_tar_index_make(int fd, int64_t bytes, fl_tar_index *out, fl_err *err);
void fl_tar_index_clear(fl_tar_index *index);

#endif
