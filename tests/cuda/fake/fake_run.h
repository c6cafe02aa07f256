/* fake_run.h: streams and their work, between fake_run.c, which runs the work, and fake_api.c.
 * Every function needs fake_mutex, which fake_api.c holds around every call. */
#ifndef FAKE_RUN_H
#define FAKE_RUN_H

#include "fake_cuda.h"

#include <pthread.h>

extern pthread_mutex_t fake_mutex;

/* A moment in a stream: what a record makes of an event, and a wait refers to. */
typedef struct fake_mark {
    struct CUstream_st *stream;
    bool is_reached;
} fake_mark;

typedef struct fake_capture fake_capture; /* of fake_capture.c */

/* A record in a capture is a position there, and no mark. */
struct CUevent_st {
    int device;
    fake_mark *mark;           /* the latest record; NULL: none yet */
    fake_capture *capture;     /* that the latest record is part of, or NULL */
    struct CUstream_st *place; /* in a capture: the stream, and how much of its work precedes */
    int64_t captured;
};

typedef enum fake_kind { FAKE_COPY, FAKE_REACH, FAKE_WAIT, FAKE_SPIN, FAKE_CALL } fake_kind;

typedef struct fake_op {
    fake_kind kind;
    fake_mark *mark; /* FAKE_REACH, FAKE_WAIT, FAKE_SPIN */
    char *to;        /* FAKE_COPY: device memory as the host sees it, and the source */
    const char *from;
    size_t bytes;
    void (*kernel)(void *);
    void *arg;
    bool owns_arg; /* the kernel frees arg, which comes from malloc; a caller that drops the kernel
                      must do so */
    struct fake_op *next;
} fake_op;

struct CUstream_st {
    int device;
    int priority;     /* less is greater */
    bool is_blocking; /* waits for the NULL stream: only captures take notice here */
    fake_op *first, *last;
    int64_t queued;
    fake_capture *capture; /* that what is queued becomes part of, or NULL */
    int64_t captured;      /* so much has */
    bool is_unjoined;      /* no work of the capture's first stream waits for this stream */
    struct CUstream_st *next;
};

/* Ends the process with the sentence. */
_Noreturn void fake_violation(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct CUstream_st *fake_open_stream(int device);
struct CUstream_st *fake_stream_at(uint64_t i);     /* the i-th; NULL after the last */
void fake_close_stream(struct CUstream_st *stream); /* violation if work is left */
struct CUstream_st *fake_own_stream(int device);    /* the NULL stream of the device */

/* Appends the work; a wait for no mark is dropped. */
void fake_queue(struct CUstream_st *stream, fake_op work);
fake_mark *fake_new_mark(struct CUstream_st *stream);

void fake_run_some(void);                         /* as the order says */
void fake_run_stream(struct CUstream_st *stream); /* with the work that it waits for */
void fake_run_to(const fake_mark *mark);          /* the work before the mark, and no more */
void fake_run_device(int device);                 /* all its streams */
void fake_drop_work(void);

/* Returns true if a different stream of the same device has work. */
bool fake_has_work_beside(const struct CUstream_st *stream);

bool fake_is_read(const char *from, size_t bytes); /* a queued copy reads there */

/* The host's view of bytes that must lie in memory of the device. */
char *fake_find_view(const void *memory, size_t bytes, int device);
bool fake_has_memory(void);

/* ---- fake_pins.c: registered memory, and what registering costs */

/* Registers the range, which overlaps no other and whose pages exist; fails if !is_done. */
void fake_pin(char *memory, size_t bytes, bool is_done);

/* Registers the user's memory for kernels to read: any bytes, none of them registered already. */
cudaError_t fake_map(char *memory, size_t bytes);

/* Unregisters the range at `memory`, once all work of the device is over; no queued copy may read
 * it. */
void fake_unpin(const char *memory, int device);

bool fake_is_pinned(const char *memory, size_t bytes); /* the whole range, by one registration */
bool fake_has_pins(void);

#endif
