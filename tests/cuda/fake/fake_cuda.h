/* fake_cuda.h: a CUDA runtime without a device, and what a test says to it.
 *
 * Work that is queued runs late, on whatever thread next calls the runtime, in any order that CUDA
 * allows: that of a stream, and waits for events; memory is read when the work runs. Device memory
 * faults when the host touches it. What CUDA leaves undefined, and what would be slow in silence,
 * ends the process with a sentence: an asynchronous copy from memory that is not pinned, memory
 * that is pinned twice, or before its pages are there, or unpinned under a copy; a copy on a stream
 * that has not the greatest priority. Any thread. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "cuda_runtime_api.h"

#include <stdbool.h>
#include <stdint.h>

enum { FAKE_DEVICES = 2 };

typedef enum fake_order {
    FAKE_EAGER, /* work runs as soon as it may */
    FAKE_LAZY,  /* when a synchronisation asks for it */
    FAKE_RANDOM /* some of it, at every call */
} fake_order;

/* From now on; the seed is for FAKE_RANDOM. */
void fake_set_order(fake_order order, uint64_t seed);

/* Memory of a device. The one who frees it says that no work uses it any more; not checked. */
void *fake_alloc(int device, size_t bytes);
void fake_free(void *memory);

/* Which device's memory the address lies in; -1: no device's. */
int fake_device_of(const void *memory);

/* Where the host sees device memory, for work of its own and for a look after synchronising. */
char *fake_host_view(const void *memory);

/* Queues a call as a kernel; NULL is the current device's own stream. The kernel calls nothing of
 * the runtime. */
void fake_launch(cudaStream_t stream, void (*kernel)(void *), void *arg);

/* The same for the code under test: a call that may fail, and then nothing is queued. Otherwise the
 * kernel frees arg, of malloc. `function` is loaded by its first launch on a device, or before that
 * by cudaFuncGetAttributes. To load may wait for all work of the device, some of which may wait for
 * the host: a first launch beside another stream's work is a violation. */
cudaError_t
fake_try_launch(cudaStream_t stream, const void *function, void (*kernel)(void *), void *arg);
cudaError_t fake_refuse_launch(cudaError_t error); /* one that is beyond a limit */
int64_t fake_launches(void);                       /* so far, of those that did not fail */

/* All kernels are to be loaded anew, as in a new process. */
void fake_unload(void);

/* Queues a kernel that runs until the host calls fake_end_spins, as a collective does whose peer
 * waits for this host. Nothing on the host may wait for it meanwhile. */
void fake_spin(cudaStream_t stream);
void fake_end_spins(void);

/* Runs all that is queued there, and what that waits for. */
void fake_synchronize(cudaStream_t stream);

/* The n-th call from now (n >= 1; 0: none) fails with this error. What releases something or waits
 * does so all the same. A sticky error is that of every later call too, and no queued work runs any
 * more. What reads or names errors is not counted, nor is what exchanges the mode for captures. */
void fake_fail_at(int64_t n, cudaError_t error, bool is_sticky);
int64_t fake_calls(void); /* counted since then; takes no lock */

/* The same for cudaThreadExchangeStreamCaptureMode alone, which is not among those calls. */
void fake_fail_exchange(int64_t n);
int64_t fake_exchanges(void);

/* Copies that have been queued so far, since the last fake_forget_copies. */
int64_t fake_copies(void);
void fake_forget_copies(void);

/* Of each device, and whether the kernels have been built for it. 2 and true to begin with. */
void fake_set_devices(int processor_count, bool has_code_for_them);

/* How much faster arithmetic in float is than in double; 2 to begin with. */
void fake_set_fp64_ratio(int ratio);

/* Each thread is on device 0 until it chooses another, and most calls make the context of their
 * thread's device. One that makes it where the thread has not chosen to be ends the process; true
 * says that device 0 is what the program wants. False to begin with. */
void fake_choose_default(bool is_right);

/* Whether some call has made the device's primary context. */
bool fake_has_context(int device);

/* From now on the thread's current context is a green one of its device, or the primary one. */
void fake_enter_green(bool is_green);

/* While true, no memory can be pinned. */
void fake_refuse_pins(bool is_refused);

/* Where kernels see memory that is registered for them, from where the host does; 0 to begin with.
 */
void fake_shift_mapped(int64_t bytes);

/* Whether kernels read all memory of the host, registered or not. False to begin with. */
void fake_read_pageable(bool is_read);

/* A stream takes so many launches, copies, records and waits. Then the call blocks until the device
 * has run some; where nothing ever would, as in FAKE_LAZY, that is a violation, unless `may_block`:
 * then it waits for another thread to synchronise. FAKE_MOST_QUEUED and false to begin with. */
enum { FAKE_MOST_QUEUED = 1024 };
void fake_bound_queues(int64_t most, bool may_block);
int64_t fake_count_blocked(void); /* threads, at this moment */

/* What a graph holds, and to launch it: once, since kernels own what they are called with. */
int64_t fake_count_nodes(cudaGraph_t graph);
void fake_launch_graph(cudaGraph_t graph, cudaStream_t stream);

/* A stream of the current device that waits for the NULL stream, as streams do by default. */
cudaStream_t fake_open_blocking_stream(void);

/* What registering memory has cost so far. The driver takes time for every byte it registers, one
 * caller after another, and for unregistering it waits until the device is idle. */
typedef struct fake_pin_costs {
    int64_t registered, unregistered; /* calls that have done it */
    int64_t bytes;                    /* registered so far: the clock of these costs */
    int64_t held;                     /* calls of both kinds made under a lock: see below */
} fake_pin_costs;

fake_pin_costs fake_count_pins(void);

/* Asked at each such call, on the thread that makes it: whether that holds a lock which others wait
 * for meanwhile. NULL: nobody is asked. */
void fake_watch_lock(int (*is_held)(void));

/* Places that call the runtime to order work, numbered from 0 as they are first met since
 * fake_forget_sites: the name of the function called there, NULL behind the last. Calls from the
 * ignored one (-1: none) say cudaSuccess and do nothing. */
void fake_forget_sites(void);
const char *fake_site(int number);
void fake_ignore_site(int number);

/* Whether streams, events, pinned ranges or device memory are left. */
bool fake_is_clean(void);

#endif
