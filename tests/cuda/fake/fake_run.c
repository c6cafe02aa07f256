/* fake_run: streams as queues, device memory that the host cannot touch; see fake_run.h. */
#define _GNU_SOURCE
#include "fake_run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A block of device memory: a file that is mapped twice, at the test's address, which nothing may
 * touch, and at the address for work. */
typedef struct block {
    char *memory, *view;
    size_t bytes;
    int device;
    struct block *next;
} block;

typedef struct mark_list {
    fake_mark mark;
    struct mark_list *next;
} mark_list;

pthread_mutex_t fake_mutex = PTHREAD_MUTEX_INITIALIZER;

static void lock(void) { pthread_mutex_lock(&fake_mutex); }

static void unlock(void) { pthread_mutex_unlock(&fake_mutex); }

/* Holds the mutex over forks, because a child must not find it held by a thread that does not exist
 * there. */
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(lock, unlock, unlock); }

/* Under the mutex. */
static struct CUstream_st *streams;
static struct CUstream_st own_streams[FAKE_DEVICES];
static mark_list *marks; /* kept until the process ends: events and waits refer to them */
static block *blocks;
static fake_order order = FAKE_EAGER;
static uint64_t state;
static int64_t most_queued = FAKE_MOST_QUEUED, blocked;
static bool may_block;
static fake_mark *spin_end; /* what kernels that spin wait for; NULL: none does */
static pthread_cond_t has_room = PTHREAD_COND_INITIALIZER;

_Noreturn void fake_violation(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fprintf(stderr, "\nfake CUDA: ");
    vfprintf(stderr, format, values);
    fprintf(stderr, "\n");
    _exit(1);
}

void fake_set_order(fake_order new_order, uint64_t seed)
{
    pthread_mutex_lock(&fake_mutex);
    order = new_order;
    state = seed;
    pthread_mutex_unlock(&fake_mutex);
}

/* splitmix64 */
static uint64_t draw(void)
{
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* ---- device memory */

static char *map_file(int file, size_t bytes, int access)
{
    char *memory = mmap(NULL, bytes, access, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) fake_violation("no memory for a block");
    return memory;
}

void *fake_alloc(int device, size_t bytes)
{
    block *made = calloc(1, sizeof *made);
    int file = memfd_create("fake-device", MFD_CLOEXEC);
    if (made == NULL || file < 0 || ftruncate(file, (off_t)(bytes + 1)) != 0)
        fake_violation("no memory for a block");
    made->memory = map_file(file, bytes + 1, PROT_NONE);
    made->view = map_file(file, bytes + 1, PROT_READ | PROT_WRITE);
    made->bytes = bytes;
    made->device = device;
    close(file);
    pthread_mutex_lock(&fake_mutex);
    made->next = blocks;
    blocks = made;
    pthread_mutex_unlock(&fake_mutex);
    return made->memory;
}

void fake_free(void *memory)
{
    pthread_mutex_lock(&fake_mutex);
    block **place = &blocks;
    while (*place != NULL && (*place)->memory != memory) place = &(*place)->next;
    block *found = *place;
    if (found == NULL) fake_violation("what is freed is no device memory");
    *place = found->next;
    pthread_mutex_unlock(&fake_mutex);
    munmap(found->memory, found->bytes + 1);
    munmap(found->view, found->bytes + 1);
    free(found);
}

/* The block that holds the bytes, or NULL. */
static const block *look_up(const char *memory, size_t bytes)
{
    const block *at = blocks;
    while (at != NULL && (memory < at->memory || memory + bytes > at->memory + at->bytes))
        at = at->next;
    return at;
}

static const block *find_block(const char *memory, size_t bytes)
{
    const block *found = look_up(memory, bytes);
    if (found == NULL) fake_violation("not in device memory");
    return found;
}

int fake_device_of(const void *memory)
{
    pthread_mutex_lock(&fake_mutex);
    const block *found = look_up(memory, 0);
    pthread_mutex_unlock(&fake_mutex);
    return found != NULL ? found->device : -1;
}

char *fake_find_view(const void *memory, size_t bytes, int device)
{
    const block *found = find_block(memory, bytes);
    if (found->device != device) fake_violation("memory of another device");
    return found->view + ((const char *)memory - found->memory);
}

char *fake_host_view(const void *memory)
{
    pthread_mutex_lock(&fake_mutex);
    const block *found = find_block(memory, 0);
    pthread_mutex_unlock(&fake_mutex);
    return found->view + ((const char *)memory - found->memory);
}

bool fake_has_memory(void) { return blocks != NULL; }

/* ---- queues */

struct CUstream_st *fake_own_stream(int device)
{
    own_streams[device].device = device;
    return &own_streams[device];
}

struct CUstream_st *fake_open_stream(int device)
{
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    if (stream == NULL) fake_violation("no memory for a stream");
    stream->device = device;
    stream->next = streams;
    streams = stream;
    return stream;
}

void fake_close_stream(struct CUstream_st *stream)
{
    struct CUstream_st **place = &streams;
    while (*place != NULL && *place != stream) place = &(*place)->next;
    if (*place == NULL) fake_violation("what is destroyed is no stream");
    if (stream->first != NULL) fake_violation("a stream is destroyed that has work left");
    *place = stream->next;
    free(stream);
}

fake_mark *fake_new_mark(struct CUstream_st *stream)
{
    mark_list *made = calloc(1, sizeof *made);
    if (made == NULL) fake_violation("no memory for a mark");
    made->mark.stream = stream;
    made->next = marks;
    marks = made;
    return &made->mark;
}

static void run_first(struct CUstream_st *stream)
{
    fake_op *op = stream->first;
    stream->first = op->next;
    stream->queued--;
    pthread_cond_broadcast(&has_room);
    if (op->kind == FAKE_COPY) memcpy(op->to, op->from, op->bytes);
    if (op->kind == FAKE_REACH) op->mark->is_reached = true;
    if (op->kind == FAKE_CALL) op->kernel(op->arg);
    free(op);
}

/* Runs what comes first in the stream, after what that waits for. Waits refer to records that were
 * made before them, so this ends. */
static void run_next(struct CUstream_st *stream)
{
    const fake_op *op = stream->first;
    if (op->kind == FAKE_SPIN && !op->mark->is_reached)
        fake_violation("the host waits for a kernel that waits for the host");
    if (op->kind == FAKE_WAIT)
        while (!op->mark->is_reached) run_next(op->mark->stream);
    run_first(stream);
}

void fake_bound_queues(int64_t most, bool may)
{
    pthread_mutex_lock(&fake_mutex);
    most_queued = most;
    may_block = may;
    pthread_cond_broadcast(&has_room);
    pthread_mutex_unlock(&fake_mutex);
}

int64_t fake_count_blocked(void)
{
    pthread_mutex_lock(&fake_mutex);
    int64_t count = blocked;
    pthread_mutex_unlock(&fake_mutex);
    return count;
}

/* The host blocks until there is. */
static void await_room(const struct CUstream_st *stream)
{
    blocked++;
    while (stream->queued >= most_queued) {
        if (!may_block)
            fake_violation("the host blocks here: %lld launches wait in a stream, and none runs",
                           (long long)stream->queued);
        pthread_cond_wait(&has_room, &fake_mutex);
    }
    blocked--;
}

void fake_queue(struct CUstream_st *stream, fake_op work)
{
    if (work.kind == FAKE_WAIT && work.mark == NULL) return;
    if (order == FAKE_LAZY)
        await_room(stream);
    else
        while (stream->queued >= most_queued) run_next(stream);
    stream->queued++;
    fake_op *op = malloc(sizeof *op);
    if (op == NULL) fake_violation("no memory for work");
    *op = work;
    op->next = NULL;
    if (stream->first == NULL)
        stream->first = op;
    else
        stream->last->next = op;
    stream->last = op;
}

/* Returns the i-th stream: first the streams of the devices, then the rest; NULL after the last. */
struct CUstream_st *fake_stream_at(uint64_t i)
{
    if (i < FAKE_DEVICES) return &own_streams[i];
    struct CUstream_st *stream = streams;
    for (i -= FAKE_DEVICES; i > 0 && stream != NULL; i--) stream = stream->next;
    return stream;
}

static bool can_run(const struct CUstream_st *stream)
{
    const fake_op *op = stream->first;
    bool waits = op != NULL && (op->kind == FAKE_WAIT || op->kind == FAKE_SPIN);
    return op != NULL && (!waits || op->mark->is_reached);
}

void fake_spin(cudaStream_t stream)
{
    pthread_mutex_lock(&fake_mutex);
    if (spin_end == NULL) spin_end = fake_new_mark(stream);
    fake_queue(stream, (fake_op){.kind = FAKE_SPIN, .mark = spin_end});
    pthread_mutex_unlock(&fake_mutex);
}

void fake_end_spins(void)
{
    pthread_mutex_lock(&fake_mutex);
    if (spin_end != NULL) spin_end->is_reached = true;
    spin_end = NULL;
    pthread_mutex_unlock(&fake_mutex);
}

/* Returns the next stream that can go on, from the stream that `from` selects. */
static struct CUstream_st *find_runnable(uint64_t from)
{
    uint64_t count = 0;
    while (fake_stream_at(count) != NULL) count++;
    for (uint64_t i = 0; i < count; i++) {
        struct CUstream_st *stream = fake_stream_at((from + i) % count);
        if (can_run(stream)) return stream;
    }
    return NULL;
}

void fake_run_some(void)
{
    struct CUstream_st *stream;
    uint64_t most = order == FAKE_EAGER ? UINT64_MAX : order == FAKE_LAZY ? 0 : draw() % 4;
    for (; most > 0 && (stream = find_runnable(draw() >> 8)) != NULL; most--) run_first(stream);
}

void fake_run_stream(struct CUstream_st *stream)
{
    while (stream->first != NULL) run_next(stream);
}

void fake_run_to(const fake_mark *mark)
{
    while (!mark->is_reached && mark->stream->first != NULL) run_next(mark->stream);
}

void fake_run_device(int device)
{
    for (uint64_t i = 0; fake_stream_at(i) != NULL; i++)
        if (fake_stream_at(i)->device == device) fake_run_stream(fake_stream_at(i));
}

void fake_drop_work(void)
{
    for (uint64_t i = 0; fake_stream_at(i) != NULL; i++) {
        struct CUstream_st *stream = fake_stream_at(i);
        while (stream->first != NULL) {
            fake_op *op = stream->first;
            stream->first = op->next;
            stream->queued--;
            if (op->owns_arg) free(op->arg);
            free(op);
        }
    }
}

bool fake_has_work_beside(const struct CUstream_st *stream)
{
    for (uint64_t i = 0; fake_stream_at(i) != NULL; i++) {
        const struct CUstream_st *other = fake_stream_at(i);
        if (other != stream && other->device == stream->device && other->first != NULL) return true;
    }
    return false;
}

bool fake_is_read(const char *from, size_t bytes)
{
    for (uint64_t i = 0; fake_stream_at(i) != NULL; i++)
        for (const fake_op *op = fake_stream_at(i)->first; op != NULL; op = op->next)
            if (op->kind == FAKE_COPY && op->from < from + bytes && from < op->from + op->bytes)
                return true;
    return false;
}
