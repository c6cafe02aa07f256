/* fl_file_reader: see fl_file_reader.h.
 *
 * Descriptors wait in sets of a few slots; a file's number gives its set. With more files than
 * slots, a file that is given back takes the slot of a different file, whose descriptor is closed.
 *
 * A fork copies descriptors before memory. If a thread of the parent opens a file in between, the
 * child sees a descriptor that it does not have, or has for a different file. So a child neither
 * reads nor closes the descriptors that it has inherited; it opens each file anew. */
#define _GNU_SOURCE
#include "fl_file_reader.h"

#include "fl_fork.h"
#include "fl_read_ahead.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WAYS = 4, SETS = FL_FILE_DESCRIPTORS / WAYS }; /* slots of a set, and sets */

enum { FD_BITS = 24 };

/* 0: empty; else (file + 1) << 32 | process << FD_BITS | descriptor. The process is the lowest 8
 * bits of fl_fork_generation. */
typedef _Atomic uint64_t slot;

struct fl_file_reader {
    fl_read_ahead ahead;
    _Atomic uint32_t turn;   /* which slot of a full set gives way; relaxed, any order will do */
    slot slots[SETS * WAYS]; /* owned descriptors */
    int64_t count;
    char **paths;          /* owned: the paths, and after them the text of all paths */
    fl_file_state *states; /* owned */
};

static inline uint64_t word_of(int64_t file, int fd)
{
    uint64_t process = fl_fork_generation() & 255;
    return (uint64_t)(file + 1) << 32 | process << FD_BITS | (uint32_t)fd;
}
static inline int fd_of(uint64_t word) { return (int)(word & ((1 << FD_BITS) - 1)); }
static inline bool is_of(uint64_t word, int64_t file)
{
    return word >> FD_BITS == word_of(file, 0) >> FD_BITS;
}
/* Tells whether the descriptor of a slot is this process's own. */
static inline bool is_own(uint64_t word)
{
    return word != 0 && is_of(word, (int64_t)(word >> 32) - 1);
}
static inline slot *set_of(fl_file_reader *reader, int64_t file)
{
    return &reader->slots[file % SETS * WAYS];
}

static void set_error(fl_err *err, int64_t file, int64_t byte, int number)
{
    if (err == NULL) return;
    err->position = file;
    err->value = byte;
    err->length = number;
}

static int fail_changed(fl_err *err, int64_t file, int64_t byte)
{
    fl_fail(err, FL_EFILE,
            "byte %lld cannot be read: the file has changed since the dataset was made; restore "
            "the file, or make the dataset again",
            (long long)byte);
    set_error(err, file, byte, ESTALE);
    return FL_EFILE;
}

static int fail_read(fl_err *err, int64_t file, int64_t byte, int number)
{
    fl_fail(err, FL_EFILE, "byte %lld cannot be read: %s", (long long)byte, strerror(number));
    set_error(err, file, byte, number);
    return FL_EFILE;
}

static fl_file_state state_of(const struct stat *found)
{
    return (fl_file_state){found->st_size,
                           found->st_mtim.tv_sec * INT64_C(1000000000) + found->st_mtim.tv_nsec,
                           (int64_t)found->st_ino};
}

static bool is_same(const fl_file_state *a, const fl_file_state *b)
{
    return a->bytes == b->bytes && a->mtime_ns == b->mtime_ns && a->inode == b->inode;
}

/* ---- opening */

/* Finds the state of a regular file. */
static int find_state(const char *path, int64_t file, fl_file_state *out, fl_err *err)
{
    struct stat found;
    int number = stat(path, &found) != 0 ? errno : 0;
    bool is_other = number == 0 && !S_ISREG(found.st_mode);
    if (is_other) number = S_ISDIR(found.st_mode) ? EISDIR : EINVAL;
    if (number == 0) *out = state_of(&found);
    if (number == 0) return FL_OK;
    fl_fail(err, FL_EFILE, "%s",
            number == EINVAL ? "must be a regular file, got a FIFO, a socket or a device"
                             : strerror(number));
    set_error(err, file, 0, number);
    return FL_EFILE;
}

/* Returns one block, which the caller frees: an array of addresses, then the text of the paths.
 * NULL without memory. */
static char **copy_paths(const char *const *paths, int64_t count)
{
    int64_t bytes = count * (int64_t)sizeof *paths;
    for (int64_t f = 0; f < count; f++) bytes += (int64_t)strlen(paths[f]) + 1;
    char **copies = fl_alloc(bytes), *at = (char *)(copies + count);
    for (int64_t f = 0; copies != NULL && f < count; f++) {
        size_t length = strlen(paths[f]) + 1;
        copies[f] = memcpy(at, paths[f], length);
        at += length;
    }
    return copies;
}

static int fill_reader(fl_file_reader *reader, const char *const *paths,
                       const fl_file_state *states, fl_err *err)
{
    int64_t bytes = reader->count * (int64_t)sizeof *states;
    reader->paths = copy_paths(paths, reader->count);
    reader->states = fl_alloc(bytes);
    if (reader->paths == NULL || reader->states == NULL)
        return fl_fail(err, FL_ENOMEM, "out of memory for a reader of files");
    if (states != NULL) memcpy(reader->states, states, (size_t)bytes);
    for (int64_t f = 0; states == NULL && f < reader->count; f++)
        FL_TRY(find_state(paths[f], f, &reader->states[f], err));
    return FL_OK;
}

int fl_file_reader_open(const char *const *paths, const fl_file_state *states, int64_t count,
                        fl_file_reader **out, fl_err *err)
{
    fl_file_reader *reader = *out = fl_alloc(sizeof *reader);
    if (reader == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a reader of files");
    fl_read_ahead_begin(&reader->ahead);
    reader->count = count;
    int status = fill_reader(reader, paths, states, err);
    if (status == FL_OK) return FL_OK;
    fl_file_reader_close(reader);
    *out = NULL;
    return status;
}

void fl_file_reader_close(fl_file_reader *reader)
{
    if (reader == NULL) return;
    for (int i = 0; i < SETS * WAYS; i++) {
        uint64_t word = atomic_load_explicit(&reader->slots[i], memory_order_acquire);
        if (is_own(word)) close(fd_of(word));
    }
    fl_free(reader->paths);
    fl_free(reader->states);
    fl_free(reader);
}

const fl_file_state *fl_file_reader_state(const fl_file_reader *reader, int64_t file)
{
    return &reader->states[file];
}

/* ---- descriptors */

/* Opens a file that is not open, and checks that it is the one that the reader was made for. */
static int open_file(fl_file_reader *reader, int64_t file, int64_t byte, int *fd, fl_err *err)
{
    struct stat found;
    /* O_NONBLOCK: a FIFO that has taken the place of the file must not wait for a writer. */
    *fd = open(reader->paths[file], O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (*fd < 0) return fail_read(err, file, byte, errno);
    int number = fstat(*fd, &found) != 0 ? errno : 0;
    fl_file_state now = state_of(&found);
    if (number == 0 && is_same(&now, &reader->states[file])) return FL_OK;
    close(*fd);
    return number != 0 ? fail_read(err, file, byte, number) : fail_changed(err, file, byte);
}

/* Takes a descriptor of a file for the caller alone. */
static int take(fl_file_reader *reader, int64_t file, int64_t byte, int *fd, fl_err *err)
{
    for (int way = 0; way < WAYS; way++) {
        slot *at = set_of(reader, file) + way;
        uint64_t word = atomic_load_explicit(at, memory_order_relaxed);
        /* acquire: pairs with the release of the thread that gave the descriptor. */
        if (is_of(word, file) && atomic_compare_exchange_strong_explicit(
                                     at, &word, 0, memory_order_acquire, memory_order_relaxed)) {
            *fd = fd_of(word);
            return FL_OK;
        }
    }
    return open_file(reader, file, byte, fd, err);
}

static void give(fl_file_reader *reader, int64_t file, int fd)
{
    slot *set = set_of(reader, file);
    uint64_t word = word_of(file, fd);
    for (int way = 0; way < WAYS; way++) {
        uint64_t found = atomic_load_explicit(&set[way], memory_order_relaxed);
        if (!is_own(found) &&
            atomic_compare_exchange_strong_explicit(&set[way], &found, word, memory_order_release,
                                                    memory_order_relaxed))
            return;
    }
    uint32_t way = atomic_fetch_add_explicit(&reader->turn, 1, memory_order_relaxed) % WAYS;
    word = atomic_exchange_explicit(&set[way], word, memory_order_acq_rel);
    if (is_own(word)) close(fd_of(word));
}

/* ---- reading */

static int
read_part(fl_file_reader *reader, int fd, const fl_file_part *part, char *out, fl_err *err)
{
    struct stat found;
    for (int64_t done = 0; done < part->bytes;) {
        int64_t byte = part->byte + done;
        ssize_t got = pread(fd, out + done, (size_t)(part->bytes - done), byte);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_read(err, part->file, byte, errno);
        if (got == 0) return fail_changed(err, part->file, byte);
        done += got;
    }
    /* After the read: bytes that were written before the read have changed the file's time. */
    if (fstat(fd, &found) != 0) return fail_read(err, part->file, part->byte, errno);
    fl_file_state now = state_of(&found);
    if (!is_same(&now, &reader->states[part->file]))
        return fail_changed(err, part->file, part->byte);
    return FL_OK;
}

int fl_file_reader_read(fl_file_reader *reader, const fl_file_part *part, char *out, fl_err *err)
{
    int fd;
    int64_t began = fl_now_ns();
    FL_TRY(take(reader, part->file, part->byte, &fd, err));
    int status = read_part(reader, fd, part, out, err);
    give(reader, part->file, fd);
    fl_read_ahead_note(&reader->ahead, began);
    return status;
}

void fl_file_reader_announce(fl_file_reader *reader, const fl_file_part *parts, int64_t count)
{
    if (!fl_read_ahead_take(&reader->ahead)) return;
    for (int64_t i = 0; i < count; i++) {
        int fd;
        if (take(reader, parts[i].file, parts[i].byte, &fd, NULL) != FL_OK) continue;
        posix_fadvise(fd, parts[i].byte, parts[i].bytes, POSIX_FADV_WILLNEED);
        give(reader, parts[i].file, fd);
    }
}
