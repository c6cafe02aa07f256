/* fl_file_reader: parts of many files, read at any place with few descriptors.
 *
 * Floor 1. Hides which files are open: a file is opened for a read, and stays open until its place
 * is needed for a different file. A file that is not as it was when the reader was made is an
 * error at the next read from that file. Any number of threads may read, also in forked children:
 * descriptors are taken and given by atomic exchange. A child opens its own descriptors; the
 * parent's stay open in the child. */
#ifndef FL_FILE_READER_H
#define FL_FILE_READER_H

#include "fl_base.h"

/* By which a changed file is recognized. The device is not part of the state: on a network file
 * system its number differs from machine to machine. */
typedef struct fl_file_state {
    int64_t bytes, mtime_ns, inode;
} fl_file_state;

/* A part of a file that lies within the file. */
typedef struct fl_file_part {
    int64_t file, byte, bytes;
} fl_file_part;

/* The most descriptors that a reader keeps between reads. */
enum { FL_FILE_DESCRIPTORS = 128 };

typedef struct fl_file_reader fl_file_reader;

/* Opens a reader, but none of the `count` files; the caller closes *out. Copies paths and states.
 * If `states` is NULL, finds the states that the files have now, and blocks for the disk.
 * FL_ENOMEM. FL_EFILE: the path names no regular file; position is the file's number, length the
 * errno. */
int fl_file_reader_open(const char *const *paths, const fl_file_state *states, int64_t count,
                        fl_file_reader **out, fl_err *err);
/* Closes all descriptors; nobody may be reading. NULL is fine. */
void fl_file_reader_close(fl_file_reader *reader);

/* Returns the state of a file, as fl_file_reader_open was given it. */
const fl_file_state *fl_file_reader_state(const fl_file_reader *reader, int64_t file);

/* Reads a part into `out`, which has room for it. Blocks for the disk. FL_EFILE: position is the
 * file, value the byte, length the errno, which is ESTALE if the file has changed; `out` is then
 * undefined. */
int fl_file_reader_read(fl_file_reader *reader, const fl_file_part *part, char *out, fl_err *err);

/* Tells the system that these parts will be read soon, if reads have had to wait for the disk
 * lately. Call once for each batch. Errors are left to the reads. */
void fl_file_reader_announce(fl_file_reader *reader, const fl_file_part *parts, int64_t count);

#endif
