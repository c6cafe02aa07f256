/* fl_image_cache: see fl_image_cache.h. */
#define _GNU_SOURCE /* F_DUPFD_CLOEXEC, pread, pwrite */
#include "fl_image_cache.h"

#include "fl_hash.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum {
    SLOT_SHARE = 1 << 14, /* bytes of the file for each slot */
    PROBES = 64,          /* slots in which an image may be */
    UNIT = 64,            /* images begin at multiples of this */
    MOST_PIXELS = 65535   /* along an edge of a JPEG file */
};

static const char magic[8] = "FLimage1";

/* Where an image is. Only the process that has set `low` from 0 writes the rest. */
typedef struct slot {
    _Alignas(UNIT) _Atomic(uint64_t) low; /* word 0 of the key, 1 in place of 0; 0: empty */
    uint64_t high;                        /* word 1 */
    int64_t byte;                         /* where the image begins */
    int32_t width, height;
    _Atomic(int32_t) form; /* 1 + FL_CHROMA_*, stored last; 0: the image is not finished */
} slot;

struct fl_image_cache {
    int fd;              /* owned */
    const uint8_t *data; /* owned: the whole file, for reading */
    fl_image_head *head; /* owned: a mapping of the head and the slots, for writing */
    slot *slots;         /* in the same mapping */
    int64_t mask, front; /* of numbers of slots; bytes of head and slots */
    int64_t bytes, limit;
};

static int64_t front_bytes(int64_t slots) { return 128 + slots * (int64_t)sizeof(slot); }

static uint64_t sum_of(const fl_image_head *head)
{
    return fl_hash(head, offsetof(fl_image_head, sum));
}

int64_t fl_image_cache_format(int64_t bytes, const fl_boot *boot, fl_image_head *out)
{
    int64_t slots = 1;
    while (slots < bytes / SLOT_SHARE) slots *= 2;
    *out = (fl_image_head){.slots = slots, .bytes = bytes, .boot = *boot};
    memcpy(out->magic, magic, sizeof magic);
    out->sum = sum_of(out);
    int64_t front = front_bytes(slots);
    atomic_store_explicit(&out->next, front, memory_order_relaxed);
    return front;
}

/* ---- open */

/* Machines do not see each other's writes to a mapping, so only file systems of one machine are
 * taken: btrfs, ext2 to ext4, f2fs, overlayfs, tmpfs, xfs, zfs, bcachefs. */
static bool is_local(int fd)
{
    static const uint32_t types[] = {0x9123683E, 0xEF53,     0xF2F52010, 0x794C7630,
                                     0x01021994, 0x58465342, 0x2FC12FC1, 0xCA451A4E};
    struct statfs system;
    if (fstatfs(fd, &system) != 0) return false;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if ((uint32_t)system.f_type == types[i]) return true;
    return false;
}

static int check_head(int fd, const fl_boot *boot, fl_image_head *head, fl_err *err)
{
    struct stat file;
    bool is_whole = pread(fd, head, sizeof *head, 0) == (ssize_t)sizeof *head &&
                    memcmp(head->magic, magic, sizeof magic) == 0 && head->sum == sum_of(head) &&
                    head->slots > 0 && head->slots <= head->bytes / (int64_t)sizeof(slot) &&
                    (head->slots & (head->slots - 1)) == 0 &&
                    front_bytes(head->slots) <= head->bytes;
    if (!is_whole || fstat(fd, &file) != 0 || file.st_size != head->bytes)
        return fl_fail(err, FL_EINVAL, "the file is not a whole cache of images");
    if (memcmp(&head->boot, boot, sizeof *boot) != 0)
        return fl_fail(err, FL_EINVAL, "the cache of images is older than the machine's start");
    if (!is_local(fd))
        return fl_fail(
            err, FL_EINVAL,
            "the cache of images must be on a disk of this machine (name a folder there)");
    return FL_OK;
}

static int map_file(fl_image_cache *cache, int fd, fl_err *err)
{
    cache->fd = fl_fault_hit() ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    void *data = MAP_FAILED, *front = MAP_FAILED;
    if (cache->fd >= 0)
        data = mmap(NULL, (size_t)cache->bytes, PROT_READ, MAP_SHARED, cache->fd, 0);
    if (data != MAP_FAILED) {
        cache->data = data;
        front = mmap(NULL, (size_t)cache->front, PROT_READ | PROT_WRITE, MAP_SHARED, cache->fd, 0);
    }
    if (front == MAP_FAILED)
        return fl_fail(err, FL_ENOMEM, "no address range for a cache of %lld bytes",
                       (long long)cache->bytes);
    cache->head = front;
    cache->slots = (slot *)(void *)((char *)front + front_bytes(0));
    return FL_OK;
}

int fl_image_cache_open(int fd, int64_t budget, const fl_boot *boot, fl_image_cache **out,
                        fl_err *err)
{
    fl_image_head head;
    FL_TRY(check_head(fd, boot, &head, err));
    fl_image_cache *cache = fl_alloc((int64_t)sizeof *cache);
    if (cache == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a cache of images");
    cache->bytes = head.bytes;
    cache->limit = fl_min(budget, head.bytes);
    cache->mask = head.slots - 1;
    cache->front = front_bytes(head.slots);
    int status = map_file(cache, fd, err);
    if (status == FL_OK)
        *out = cache;
    else
        fl_image_cache_close(cache);
    return status;
}

void fl_image_cache_close(fl_image_cache *cache)
{
    if (cache == NULL) return;
    if (cache->head != NULL) munmap(cache->head, (size_t)cache->front);
    if (cache->data != NULL) munmap((void *)(uintptr_t)cache->data, (size_t)cache->bytes);
    if (cache->fd >= 0) close(cache->fd);
    fl_free(cache);
}

int64_t fl_image_cache_bytes(const fl_image_cache *cache) { return cache->bytes; }

int64_t fl_image_cache_used(const fl_image_cache *cache)
{
    return atomic_load_explicit(&cache->head->next, memory_order_relaxed);
}

/* ---- find */

static uint64_t low_of(const fl_image_key *key) { return key->word[0] != 0 ? key->word[0] : 1; }

/* Returns the slot of a key, or the first empty slot for it; NULL: there is none. */
static slot *probe(const fl_image_cache *cache, uint64_t low, uint64_t *found)
{
    for (int64_t i = 0; i < PROBES; i++) {
        slot *s = &cache->slots[((int64_t)(low >> 1) + i) & cache->mask];
        *found = atomic_load_explicit(&s->low, memory_order_relaxed);
        if (*found == 0 || *found == low) return s;
    }
    return NULL;
}

/* Reads a finished slot. Another program may have written anything to the file, so the image must
 * lie in it. */
static bool read_slot(const fl_image_cache *cache, const slot *s, int32_t form, fl_ycc *out)
{
    *out = (fl_ycc){.width = s->width, .height = s->height, .chroma = form - 1};
    if (form < 1 || form > FL_CHROMAS || out->width < 1 || out->width > MOST_PIXELS ||
        out->height < 1 || out->height > MOST_PIXELS || s->byte < cache->front ||
        s->byte > cache->bytes - fl_ycc_bytes(out))
        return false;
    out->data = cache->data + s->byte;
    return true;
}

bool fl_image_cache_find(const fl_image_cache *cache, const fl_image_key *key, fl_ycc *out)
{
    uint64_t found;
    const slot *s = probe(cache, low_of(key), &found);
    if (s == NULL || found == 0) return false;
    /* Pairs with the release in put: then the rest of the slot and the image are written. */
    int32_t form = atomic_load_explicit(&s->form, memory_order_acquire);
    return form != 0 && s->high == key->word[1] && read_slot(cache, s, form, out);
}

/* ---- put */

/* Reserves bytes for one image: its first byte, or -1. */
static int64_t reserve(fl_image_cache *cache, int64_t bytes)
{
    int64_t begin = fl_image_cache_used(cache), end;
    do {
        if (begin < cache->front || begin % UNIT != 0 || begin > cache->limit - bytes) return -1;
        end = begin + (bytes + UNIT - 1) / UNIT * UNIT;
    } while (!atomic_compare_exchange_weak_explicit(&cache->head->next, &begin, end,
                                                    memory_order_relaxed, memory_order_relaxed));
    return begin;
}

/* Takes an empty slot for a key: FL_IMAGE_PUT, or why not. */
static int claim(fl_image_cache *cache, uint64_t low, slot **out)
{
    uint64_t found;
    while ((*out = probe(cache, low, &found)) != NULL) {
        if (found == low) return FL_IMAGE_IS_THERE;
        if (atomic_compare_exchange_strong_explicit(&(*out)->low, &found, low, memory_order_relaxed,
                                                    memory_order_relaxed))
            return FL_IMAGE_PUT;
    }
    return FL_IMAGE_CACHE_FULL;
}

/* Writes by a call: if the disk is full, a call fails, and a write to the mapping ends the
 * process. */
static bool write_all(int fd, const uint8_t *from, int64_t bytes, int64_t byte)
{
    while (bytes > 0) {
        ssize_t done = pwrite(fd, from, (size_t)bytes, byte);
        if (done <= 0) return false;
        from += done;
        bytes -= done;
        byte += done;
    }
    return true;
}

int fl_image_cache_put(fl_image_cache *cache, const fl_image_key *key, const fl_ycc *image)
{
    const int64_t bytes = fl_ycc_bytes(image);
    slot *s;
    if (fl_image_cache_used(cache) > cache->limit - bytes) return FL_IMAGE_CACHE_FULL;
    int status = claim(cache, low_of(key), &s);
    if (status != FL_IMAGE_PUT) return status;
    int64_t byte = reserve(cache, bytes);
    if (byte < 0 || !write_all(cache->fd, image->data, bytes, byte)) return FL_IMAGE_CACHE_FULL;
    s->high = key->word[1];
    s->byte = byte;
    s->width = image->width;
    s->height = image->height;
    atomic_store_explicit(&s->form, image->chroma + 1, memory_order_release);
    return FL_IMAGE_PUT;
}
