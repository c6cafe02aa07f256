/* fl_tar_index: see fl_tar_index.h.
 *
 * If the archive is cached, only headers are copied. If reads wait for the disk and members are
 * small, the archive is read whole and in order, as disks and the system's reading ahead like it.
 */
#define _GNU_SOURCE
#include "fl_tar_index.h"

#include "fl_hash.h"
#include "fl_thread.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum {
    CACHED_READ = 4096, /* a header, and often the member and the next header */
    COLD_READ = 1 << 20,
    FIRST_READS = 2, /* in order: later ones show how slow reads are */
    READS_AFTER_SLOW = 16,
    FAR = 256 * 1024 /* a gap that is cheaper to leave out than to read */
};

typedef struct scan {
    int fd;
    int64_t bytes; /* of the archive */
    int64_t at;    /* the member that is read */
    char *window;  /* owned: bytes begin, ..., end - 1 of the archive */
    int64_t begin, end, room;
    int32_t cold; /* reads that are still to be in order, because a read was slow */
    int64_t capacity, hash_capacity;
    char *set; /* owned: the extensions of the last sample, as in fl_tar_index */
    int64_t set_bytes, set_room;
    fl_tar_index *index;
    fl_err *err;
} scan;

/* ---- reading */

static int fail_read(scan *self, int64_t byte, int number)
{
    fl_fail(self->err, FL_EFILE, "byte %lld cannot be read: %s", (long long)byte, strerror(number));
    if (self->err != NULL) {
        self->err->position = 0;
        self->err->value = byte;
        self->err->length = number;
    }
    return FL_EFILE;
}

/* Reads `bytes` bytes of the archive into the window, from `begin` on. */
static int fill(scan *self, int64_t begin, int64_t bytes)
{
    int64_t before = fl_now_ns();
    FL_TRY(fl_grow((void **)&self->window, &self->room, bytes, 1, self->err));
    self->begin = self->end = begin;
    while (self->end < begin + bytes) {
        ssize_t got = pread(self->fd, self->window + (self->end - begin),
                            (size_t)(begin + bytes - self->end), self->end);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return fail_read(self, self->end, got < 0 ? errno : ESTALE);
        self->end += got;
    }
    bool is_slow = fl_now_ns() - before > 30000 + bytes / 2; /* 2 GB/s */
    self->cold = is_slow ? READS_AFTER_SLOW : self->cold - (self->cold > 0);
    return FL_OK;
}

/* Makes the window begin at or before the member, and hold `needs` bytes from there on. */
static int look(scan *self, int64_t needs)
{
    bool is_near = self->at >= self->begin && self->at - self->end < FAR;
    if (self->at >= self->begin && self->at + needs <= self->end) return FL_OK;
    if (self->bytes - self->at < needs)
        return fl_fail(self->err, FL_EINVAL, "is cut: it %s at byte %lld",
                       self->at == self->bytes ? "ends without two blocks of zeros"
                                               : "ends within a header",
                       (long long)self->at);
    bool is_whole = self->cold > 0 && is_near;
    int64_t begin = is_whole ? fl_min(self->at, self->end) : self->at;
    int64_t wanted = fl_max(self->at + needs - begin, is_whole ? COLD_READ : CACHED_READ);
    return fill(self, begin, fl_min(wanted, self->bytes - begin));
}

/* Reads the headers of the member at self->at. */
static int read_member(scan *self, fl_tar_member *member)
{
    for (int64_t needs = FL_TAR_BLOCK;; needs = member->needs) {
        FL_TRY(look(self, needs));
        const char *data = self->window + (self->at - self->begin);
        FL_TRY(fl_tar_read(data, self->end - self->at, self->at, member, self->err));
        if (member->needs <= self->end - self->at) break;
    }
    if (member->body + member->bytes <= self->bytes - self->at) return FL_OK;
    return fl_fail(self->err, FL_EINVAL, "is cut within the member at byte %lld",
                   (long long)self->at);
}

/* Checks that nothing but zeros follows: members after the end would be lost without a word. */
static int check_end(scan *self)
{
    for (; self->at < self->bytes; self->at = self->end) {
        FL_TRY(fill(self, self->at, fl_min(COLD_READ, self->bytes - self->at)));
        for (int64_t i = 0; i < self->end - self->begin; i++)
            if (self->window[i] != 0)
                return fl_fail(self->err, FL_EINVAL,
                               "goes on after its end at byte %lld (is it several archives in one "
                               "file? write one archive with all members)",
                               (long long)(self->begin + i));
    }
    return FL_OK;
}

/* ---- samples */

/* Gives the last sample the number of its set of extensions. */
static int end_sample(scan *self)
{
    fl_tar_index *index = self->index;
    int32_t s = 0;
    if (index->count == 0) return FL_OK;
    while (s < index->set_count &&
           (index->sets[s].bytes != self->set_bytes ||
            memcmp(index->sets[s].text, self->set, (size_t)self->set_bytes) != 0))
        s++;
    if (s == index->set_count && s < FL_TAR_SETS) {
        if ((index->sets[s].text = fl_alloc(self->set_bytes)) == NULL)
            return fl_fail(self->err, FL_ENOMEM, "out of memory for extensions");
        memcpy(index->sets[s].text, self->set, (size_t)self->set_bytes);
        index->sets[s].bytes = self->set_bytes;
        index->set_count++;
    }
    index->entries[index->count - 1].check |= (uint32_t)s;
    return FL_OK;
}

static int begin_sample(scan *self, uint64_t hash)
{
    fl_tar_index *index = self->index;
    FL_TRY(end_sample(self));
    FL_TRY(fl_grow((void **)&index->entries, &self->capacity, index->count + 1,
                   (int64_t)sizeof *index->entries, self->err));
    FL_TRY(fl_grow((void **)&index->hashes, &self->hash_capacity, index->count + 1,
                   (int64_t)sizeof *index->hashes, self->err));
    self->set_bytes = 0;
    index->hashes[index->count] = hash;
    index->entries[index->count++] = (fl_tar_entry){(uint64_t)self->at, 0, fl_tar_check(hash) << 8};
    return FL_OK;
}

/* Returns true if the last sample has a member with this extension, which ends with a slash. */
static bool has_extension(const scan *self, const char *extension, int64_t bytes)
{
    const char *stop = self->set + self->set_bytes;
    for (const char *at = self->set, *next; at < stop; at = next) {
        next = (const char *)memchr(at, '/', (size_t)(stop - at)) + 1;
        if (next - at == bytes && memcmp(at, extension, (size_t)bytes) == 0) return true;
    }
    return false;
}

/* Adds an extension, in lower case and with a slash, to the last sample. */
static int add_extension(scan *self, const char *extension, int64_t bytes)
{
    FL_TRY(
        fl_grow((void **)&self->set, &self->set_room, self->set_bytes + bytes + 1, 1, self->err));
    char *added = self->set + self->set_bytes;
    for (int64_t i = 0; i < bytes; i++) added[i] = fl_tar_lower(extension[i]);
    added[bytes] = '/';
    if (has_extension(self, added, bytes + 1))
        return fl_fail(self->err, FL_EINVAL,
                       "has a sample with two members .%.*s, the second at byte %lld",
                       (int)fl_min(bytes, 40), extension, (long long)self->at);
    self->set_bytes += bytes + 1;
    return FL_OK;
}

static int add_member(scan *self, const fl_tar_member *member)
{
    int64_t key = member->is_file ? fl_tar_key(member->name, member->name_bytes) : -1;
    if (key < 0) return FL_OK;
    fl_tar_index *index = self->index;
    uint64_t hash = fl_hash(member->name, key);
    if (index->count == 0 || index->hashes[index->count - 1] != hash)
        FL_TRY(begin_sample(self, hash));
    FL_TRY(add_extension(self, member->name + key + 1, member->name_bytes - key - 1));
    fl_tar_entry *entry = &index->entries[index->count - 1];
    int64_t bytes = self->at + member->body + member->bytes - (int64_t)entry->byte;
    if (bytes > UINT32_MAX || entry->byte >> 40 != 0)
        return fl_fail(
            self->err, FL_EINVAL,
            "must have samples of less than 4 GiB in the first TiB, got one at byte %lld",
            (long long)entry->byte);
    entry->bytes = (uint32_t)bytes;
    return FL_OK;
}

static int scan_members(scan *self)
{
    fl_tar_member member;
    if (self->bytes == 0) return fl_fail(self->err, FL_EINVAL, "must not be empty");
    for (;;) {
        int status = read_member(self, &member);
        if (status == FL_EEND) break;
        FL_TRY(status);
        FL_TRY(add_member(self, &member));
        self->at += member.end;
    }
    FL_TRY(end_sample(self));
    return check_end(self);
}

int fl_tar_index_make(int fd, int64_t bytes, fl_tar_index *out, fl_err *err)
{
    scan self = {.fd = fd, .bytes = bytes, .cold = FIRST_READS, .index = out, .err = err};
    *out = (fl_tar_index){0};
    int status = scan_members(&self);
    fl_free(self.window);
    fl_free(self.set);
    return status;
}

void fl_tar_index_clear(fl_tar_index *index)
{
    for (int32_t s = 0; s < index->set_count; s++) fl_free(index->sets[s].text);
    fl_free(index->entries);
    fl_free(index->hashes);
    *index = (fl_tar_index){0};
}
