/* shm_queue_fixture.h: queues between processes, messages that show when they are torn, and a
 * model's worth of predictable contents. */
#ifndef SHM_QUEUE_FIXTURE_H
#define SHM_QUEUE_FIXTURE_H

#include "check.h"
#include "fl_shm_queue.h"

#define SECONDS INT64_C(1000000000) /* of nanoseconds */

/* Longer than any wait that works lasts on the slowest machine; shorter than a test's alarm. */
#define LONG_NS (60 * SECONDS * slowness())

typedef struct shm_fixture {
    char *mapping; /* owned */
    int64_t mapped_bytes, bytes;
    char *memory;      /* in the mapping: what is shared */
    fl_shm_queue *shm; /* owned: the end for every process; one process or thread uses each part */
    int32_t workers, depth;
} shm_fixture;

/* A refusal is tested elsewhere. */
static inline fl_shm_queue *open_end(void *memory, int32_t workers, int32_t depth)
{
    fl_shm_queue *shm;
    while (fl_shm_queue_open(memory, workers, depth, &shm, NULL) != FL_OK) continue;
    return shm;
}

/* Makes memory that is shared with children forked later. A page that nobody may touch follows the
 * last byte. */
static inline shm_fixture open_shm_fixture(int32_t workers, int32_t depth)
{
    int64_t page = sysconf(_SC_PAGESIZE), bytes = fl_shm_queue_bytes(workers, depth);
    int64_t whole = (bytes + page - 1) / page * page;
    shm_fixture r = {
        .mapped_bytes = whole + page, .bytes = bytes, .workers = workers, .depth = depth};
    r.mapping = mmap(NULL, (size_t)r.mapped_bytes, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(r.mapping != MAP_FAILED && mprotect(r.mapping + whole, (size_t)page, PROT_NONE) == 0);
    int64_t start = (whole - bytes) / 64 * 64;
    memset(r.mapping, 0xEE, (size_t)whole); /* what init finds is not zero */
    r.memory = r.mapping + start;
    r.shm = open_end(r.memory, workers, depth);
    return r;
}

static inline void close_shm_fixture(shm_fixture *r)
{
    fl_shm_queue_free(r->shm);
    CHECK(munmap(r->mapping, (size_t)r->mapped_bytes) == 0);
}

static inline void close_all(const shm_fixture *r)
{
    for (int32_t w = 0; w < r->workers; w++) fl_shm_queue_close(r->shm, w);
}

static inline int64_t mix(int64_t number, int64_t worker, int64_t field)
{
    uint64_t state = (uint64_t)(number * 1000003 + worker * 101 + field);
    return (int64_t)(next_random(&state) >> 2);
}

/* A request whose fields all follow from worker and number; the number is
 * fl_shm_queue_send_request's. */
static inline fl_request_message make_request(int32_t worker, int64_t number)
{
    return (fl_request_message){.number = -7,
                                .offset = mix(number, worker, 1),
                                .limit = mix(number, worker, 2),
                                .bytes = mix(number, worker, 3),
                                .repeat_of = mix(number, worker, 4)};
}

static inline void check_request(const fl_request_message *request, int32_t worker)
{
    fl_request_message good = make_request(worker, request->number);
    CHECK_INT(request->offset, good.offset);
    CHECK(request->limit == good.limit && request->bytes == good.bytes &&
          request->repeat_of == good.repeat_of);
}

/* kind takes all three signs. */
static inline fl_reply_message make_reply(int32_t worker, int64_t number)
{
    fl_reply_message reply = {.number = number,
                              .worker = -7,
                              .kind = (int32_t)(mix(number, worker, 5) % 3) - 1,
                              .used = mix(number, worker, 6),
                              .head = mix(number, worker, 7),
                              .head_bytes = mix(number, worker, 8),
                              .busy_ns = mix(number, worker, 9),
                              .wait_ns = mix(number, worker, 10),
                              .upload = mix(number, worker, 11)};
    for (int i = 0; i < FL_FALLBACK_REASONS; i++)
        reply.fallbacks[i] = (int32_t)mix(number, worker, 12 + i);
    return reply;
}

static inline void check_reply(const fl_reply_message *reply)
{
    fl_reply_message good = make_reply(reply->worker, reply->number);
    CHECK_INT(reply->used, good.used);
    CHECK(reply->kind == good.kind && reply->head == good.head &&
          reply->head_bytes == good.head_bytes && reply->busy_ns == good.busy_ns &&
          reply->wait_ns == good.wait_ns);
    CHECK(memcmp(reply->fallbacks, good.fallbacks, sizeof good.fallbacks) == 0);
}

/* The parent's view of a worker's requests and replies. */
typedef struct progress {
    int64_t sent, answered;
} progress;

/* True when there was room. */
static inline bool send_next(fl_shm_queue *shm, int32_t worker, progress *b)
{
    fl_request_message request = make_request(worker, b->sent);
    if (!fl_shm_queue_send_request(shm, worker, &request)) return false;
    CHECK_INT(request.number, b->sent);
    b->sent++;
    return true;
}

/* The worker of the next reply, which must be whole and the next of its worker; -1: none. */
static inline int32_t take_next(fl_shm_queue *shm, progress *all)
{
    fl_reply_message reply;
    int status = fl_shm_queue_receive_reply(shm, &reply);
    if (status == FL_ETIMEOUT) return -1;
    CHECK_INT(status, FL_OK);
    check_reply(&reply);
    progress *b = &all[reply.worker];
    CHECK_INT(reply.number, b->answered);
    b->answered++;
    CHECK(b->answered <= b->sent);
    return reply.worker;
}

/* One request received by its deadline and answered; or what fl_shm_queue_receive_request said. */
static inline int
serve_one(fl_shm_queue *shm, int32_t worker, int64_t *expected, int64_t deadline_ns)
{
    fl_request_message request;
    FL_TRY(fl_shm_queue_receive_request(shm, worker, &request, deadline_ns));
    CHECK_INT(request.number, *expected);
    check_request(&request, worker);
    fl_reply_message reply = make_reply(worker, request.number);
    fl_shm_queue_send_reply(shm, worker, &reply);
    ++*expected;
    return FL_OK;
}

/* How much slower a sanitizer makes the test, so that it fits into a few seconds. */
#if defined(__SANITIZE_THREAD__)
enum { LANE_SLOWNESS = 20 };
#elif defined(__SANITIZE_ADDRESS__)
enum { LANE_SLOWNESS = 4 };
#else
enum { LANE_SLOWNESS = 1 };
#endif

#endif
