/* fake_pins: registered memory, and what registering costs; see fake_cuda.h and fake_run.h. */
#define _GNU_SOURCE
#include "fake_run.h"

#include <sys/mman.h>
#include <unistd.h>

enum { MOST_RANGES = 256 };

typedef struct range {
    char *memory; /* NULL: free */
    size_t bytes;
} range;

/* Under the mutex. */
static range ranges[MOST_RANGES];
static fake_pin_costs costs;
static int (*is_lock_held)(void);

/* The range that overlaps these bytes, or NULL. */
static range *find_range(const char *memory, size_t bytes)
{
    for (int i = 0; i < MOST_RANGES; i++)
        if (ranges[i].memory != NULL && ranges[i].memory < memory + bytes &&
            memory < ranges[i].memory + ranges[i].bytes)
            return &ranges[i];
    return NULL;
}

static void check_populated(char *memory, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if ((size_t)memory % page != 0 || bytes % page != 0)
        fake_violation("pages are pinned that hold something else");
    for (size_t at = 0; at < bytes; at += page) {
        unsigned char is_there;
        if (mincore(memory + at, page, &is_there) != 0 || !(is_there & 1))
            fake_violation("memory is pinned that is not populated");
    }
}

static void look_at_lock(void) { costs.held += is_lock_held != NULL && is_lock_held() != 0; }

static void add_range(char *memory, size_t bytes)
{
    int i = 0;
    while (i < MOST_RANGES && ranges[i].memory != NULL) i++;
    if (i == MOST_RANGES) fake_violation("too many ranges");
    ranges[i] = (range){memory, bytes};
    costs.registered++;
    costs.bytes += (int64_t)bytes;
}

void fake_pin(char *memory, size_t bytes, bool is_done)
{
    look_at_lock();
    if (find_range(memory, bytes) != NULL) fake_violation("memory is pinned twice");
    check_populated(memory, bytes);
    if (is_done) add_range(memory, bytes);
}

cudaError_t fake_map(char *memory, size_t bytes)
{
    look_at_lock();
    if (bytes == 0) return cudaErrorInvalidValue;
    if (find_range(memory, bytes) != NULL) return cudaErrorHostMemoryAlreadyRegistered;
    add_range(memory, bytes);
    return cudaSuccess;
}

void fake_unpin(const char *memory, int device)
{
    look_at_lock();
    range *found = find_range(memory, 1);
    if (found == NULL || found->memory != memory) fake_violation("what is unpinned is not pinned");
    if (fake_is_read(found->memory, found->bytes))
        fake_violation("memory is unpinned under a copy");
    fake_run_device(device);
    found->memory = NULL;
    costs.unregistered++;
}

bool fake_is_pinned(const char *memory, size_t bytes)
{
    const range *found = find_range(memory, bytes);
    return found != NULL && memory >= found->memory &&
           memory + bytes <= found->memory + found->bytes;
}

bool fake_has_pins(void)
{
    bool has_pins = false;
    for (int i = 0; i < MOST_RANGES; i++) has_pins = has_pins || ranges[i].memory != NULL;
    return has_pins;
}

fake_pin_costs fake_count_pins(void)
{
    pthread_mutex_lock(&fake_mutex);
    fake_pin_costs now = costs;
    pthread_mutex_unlock(&fake_mutex);
    return now;
}

void fake_watch_lock(int (*is_held)(void))
{
    pthread_mutex_lock(&fake_mutex);
    is_lock_held = is_held;
    pthread_mutex_unlock(&fake_mutex);
}
