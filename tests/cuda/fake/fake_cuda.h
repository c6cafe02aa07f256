/* fake_cuda.h: a CUDA runtime without a device, and the functions by which a test controls the
 * runtime. Queued work runs late, on whatever thread next calls the runtime, in any order that CUDA
 * allows. Work of a stream keeps its order, and waits for events; memory is read when the work
 * runs. Device memory faults when the host touches it.
 *
 * If a call does what CUDA leaves undefined, or what would be silently slow, the process ends with
 * a sentence: an asynchronous copy from memory that is not pinned; memory that is pinned twice, or
 * before its pages exist, or unpinned under a copy; a copy on a stream without the greatest
 * priority. Any thread. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "cuda_runtime_api.h"

#include <stdbool.h>
#include <stdint.h>

enum { FAKE_DEVICES = 2 };

typedef enum fake_order {
    FAKE_EAGER, /* work runs as soon as possible */
    FAKE_LAZY,  /* work runs when a synchronisation asks for it */
    FAKE_RANDOM /* some work runs at every call */
} fake_order;

/* Sets the order from now on; the seed is for FAKE_RANDOM. */
void fake_set_order(fake_order order, uint64_t seed);

/* Allocates memory of a device. The caller of free promises that no work uses the memory any more;
 * that is not checked. */
void *fake_alloc(int device, size_t bytes);
void fake_free(void *memory);

/* Returns the device whose memory the address lies in; -1: none. */
int fake_device_of(const void *memory);

/* Returns the address at which the host sees device memory, for the fake's work and for a look
 * after synchronising. */
char *fake_host_view(const void *memory);

/* Queues a call as a kernel; NULL is the current device's own stream. The kernel calls nothing of
 * the runtime. */
void fake_launch(cudaStream_t stream, void (*kernel)(void *), void *arg);

/* Launches for the code under test: a call that may fail, and then nothing is queued. Otherwise the
 * kernel frees arg, which comes from malloc. The first launch on a device loads `function`, unless
 * cudaFuncGetAttributes has done so. Loading may wait for all work of the device, and some of that
 * work may wait for the host: a first launch beside a different stream's work is a violation. */
cudaError_t
fake_try_launch(cudaStream_t stream, const void *function, void (*kernel)(void *), void *arg);
cudaError_t fake_refuse_launch(cudaError_t error); /* one that is beyond a limit */
int64_t fake_launches(void);                       /* so far, of those that did not fail */

/* Unloads all kernels, as in a new process. */
void fake_unload(void);

/* Queues a kernel that runs until the host calls fake_end_spins, like a collective whose peer waits
 * for this host. Nothing on the host may wait for the kernel meanwhile. */
void fake_spin(cudaStream_t stream);
void fake_end_spins(void);

/* Runs all that is queued there, and what that waits for. */
void fake_synchronize(cudaStream_t stream);

/* Makes the n-th call from now (n >= 1; 0: none) fail with this error. A call that releases
 * something or waits still does so. A sticky error is also the error of every later call, and no
 * queued work runs any more. Calls that read or name errors are not counted, nor are calls that
 * exchange the mode for captures. */
void fake_fail_at(int64_t n, cudaError_t error, bool is_sticky);
int64_t fake_calls(void); /* counted since then; takes no lock */

/* Does the same for cudaThreadExchangeStreamCaptureMode alone, which is not counted above. */
void fake_fail_exchange(int64_t n);
int64_t fake_exchanges(void);

/* Copies that have been queued so far, since the last fake_forget_copies. */
int64_t fake_copies(void);
void fake_forget_copies(void);

/* Sets the processors of each device, and if kernels have been built for the device. 2 and true to
 * begin with. */
void fake_set_devices(int processor_count, bool has_code_for_them);

/* Sets how many times faster arithmetic in float is than in double; 2 to begin with. */
void fake_set_fp64_ratio(int ratio);

/* Each thread is on device 0 until it chooses a device, and most calls make the context of the
 * thread's device. If a call makes a context that the thread has not chosen, the process ends;
 * true: the program wants device 0. False to begin with. */
void fake_choose_default(bool is_right);

/* Returns true if some call has made the device's primary context. */
bool fake_has_context(int device);

/* Makes the thread's current context a green one of its device, or the primary one. */
void fake_enter_green(bool is_green);

/* If is_refused, no memory can be pinned. */
void fake_refuse_pins(bool is_refused);

/* Sets the distance from the host's address of registered memory to the kernels' address; 0 to
 * begin with. */
void fake_shift_mapped(int64_t bytes);

/* Lets kernels read all memory of the host, registered or not. False to begin with. */
void fake_read_pageable(bool is_read);

/* Sets how many launches, copies, records and waits a stream takes. At this limit a call blocks
 * until the device has run some work. If no work would ever run, as in FAKE_LAZY, that is a
 * violation, unless `may_block`: then the call waits for a different thread to synchronise.
 * FAKE_MOST_QUEUED and false to begin with. */
enum { FAKE_MOST_QUEUED = 1024 };
void fake_bound_queues(int64_t most, bool may_block);
int64_t fake_count_blocked(void); /* threads, at this moment */

/* The first counts a graph's nodes; the second launches the graph, only once, because kernels own
 * their arguments. */
int64_t fake_count_nodes(cudaGraph_t graph);
void fake_launch_graph(cudaGraph_t graph, cudaStream_t stream);

/* A stream of the current device that waits for the NULL stream, as streams do by default. */
cudaStream_t fake_open_blocking_stream(void);

/* The cost of registering memory so far. The driver takes time for every byte, one caller after
 * another; unregistering waits until the device is idle. */
typedef struct fake_pin_costs {
    int64_t registered, unregistered; /* calls that have succeeded */
    int64_t bytes;                    /* registered so far: the clock of these costs */
    int64_t held;                     /* calls of both kinds made under a lock: see below */
} fake_pin_costs;

fake_pin_costs fake_count_pins(void);

/* Sets a question that is asked at each such call, on the calling thread: does the thread hold a
 * lock that other threads wait for? NULL: nobody is asked. */
void fake_watch_lock(int (*is_held)(void));

/* Places that call the runtime to order work, numbered from 0 in the order of their first calls
 * since fake_forget_sites: the name of the called function, NULL after the last. Calls from the
 * ignored place (-1: none) return cudaSuccess and do nothing. */
void fake_forget_sites(void);
const char *fake_site(int number);
void fake_ignore_site(int number);

/* Returns true if no streams, events, pinned ranges or device memory are left. */
bool fake_is_clean(void);

#endif
