/* fl_cuda: the passes over gradients on CUDA devices, gathers of rows on devices, host memory that
 * gathers may read, and the part of the CUDA runtime that these use.
 *
 * Floor 2. Nothing happens before the first call, so a module with this code can be imported on a
 * machine without device or driver. In a build without nvcc, fl_cuda_stub.c stands in: nothing is
 * available, and fl_cuda_check fails. Every call sets the device that it is for and afterwards
 * restores the thread's own device, if that device is in use. No call makes the host wait for the
 * device unless its comment says SYNC. */
#ifndef FL_CUDA_H
#define FL_CUDA_H

#include "fl_grad_ops.h"
#include "fl_map_axis.h"
#include "fl_piece.h"
#include "fl_row_ops.h"

/* The build: architectures such as "75 80 90", and the runtime's version (13000 for 13.0). */
extern const char *const fl_cuda_archs; /* "" in a build without CUDA */
extern const int fl_cuda_version;       /* 0 in a build without CUDA */

/* FL_OK: this module can work on the device. There is a driver, the device, and code for the
 * device's architecture, which this call loads. Otherwise FL_EDEVICE. */
int fl_cuda_check(int32_t device, fl_err *err);

/* Loads every kernel for the current device; fl_cuda_check does the same. FL_EDEVICE. */
int fl_cuda_load_kernels(fl_err *err);

/* Opens a stream of the device for copies and for kernels that read host ranges, of the least
 * priority, and nobody else's. torch hands out its 32 streams in turn, so one of torch's may be the
 * program's as well. The stream is never closed. FL_EDEVICE. Any thread. */
int fl_cuda_stream_open(int32_t device, void **out, fl_err *err);

/* ---- passes over gradients: the table, contracts in fl_grad_ops.h */

extern const fl_grad_ops fl_cuda_grad_ops;

/* A queue for passes. Streams of several threads are independent. One thread at a time uses a
 * queue, and only the passes of one stream, in their order, use its scratch. */
typedef struct fl_cuda_queue {
    int32_t device;
    void *stream;   /* cudaStream_t, borrowed */
    void *scratch;  /* borrowed: device memory, 16-byte aligned, of at least
                       fl_cuda_scratch_bytes(list) for every list of its passes; the first
                       FL_CUDA_TICKET_BYTES were 0 before the first use. clip_factor, invert and
                       update_scale work without scratch (NULL) */
    bool is_listed; /* scratch holds the table of the current list; set by the passes, cleared by a
                       change of list, scratch or stream */
    int32_t processors; /* of the device; 0: not asked yet. Set by the passes, cleared by a change
                           of the device */
    bool is_fp64_slow;  /* arithmetic in double costs more than loads; set like processors */
    fl_err err;         /* the error of the pass that failed last */
} fl_cuda_queue;

enum { FL_CUDA_TICKET_BYTES = 16 };

int64_t fl_cuda_scratch_bytes(const fl_tensor_list *list);

/* Tells if a graph is being captured from the stream; scratch must then be part of the graph. */
int fl_cuda_is_capturing(const fl_cuda_queue *queue, bool *out, fl_err *err);

/* ---- rows of arrays in a device's memory, or in host ranges */

/* The most blocks of a kernel that reads host ranges. Its blocks wait for the link, which a few
 * blocks fill, and all the while they keep processors from other streams. */
enum { FL_CUDA_FETCH_BLOCKS = 8 };

/* Queues kernels that copy the rows of each column to the column's batch, and that draw the random
 * parameters of images and write the maps that fl_image_plan_map writes. One kernel takes 16
 * columns, 2 GiB and 4 batches of maps. Every row must exist. The memory must live until the stream
 * has done the work. Allocates nothing. FL_EDEVICE; some of it may then have been queued. */
int fl_cuda_gather(int32_t device, void *stream, const fl_gather *of, fl_err *err);

/* Queues the kernel that makes a batch of images rows[0], ... and, if there are steps on colours,
 * the kernel that changes colours. `rows` NULL: images 0, 1, ... Memory and errors are as for
 * fl_cuda_gather. */
int fl_cuda_gather_images(int32_t device, void *stream, const fl_image_batch *images,
                          const int64_t *rows, int64_t count, fl_err *err);

/* Queues the kernel that makes a batch of windows; their first tokens are starts[0], ..., counted
 * over all tokens. Memory and errors are as for fl_cuda_gather. */
int fl_cuda_gather_windows(int32_t device, void *stream, const fl_window_batch *windows,
                           const int64_t *starts, int64_t count, fl_err *err);

/* Queues the kernels that make the outputs of a batch of sequences, one kernel for 32 outputs.
 * Memory and errors are as for fl_cuda_gather. */
int fl_cuda_gather_pieces(int32_t device, void *stream, const fl_piece_batch *outputs,
                          int32_t count, fl_err *err);

/* ---- host memory that kernels read over the link */

typedef struct fl_cuda_host_range fl_cuda_host_range;

/* Registers bytes of the host with the driver, for kernels of all devices; a device that reads all
 * host memory anyway needs no registration. Takes about 0.1 s a GB, and the pages stay in memory
 * until close. The bytes must not move until then. The caller closes *out. FL_ENOMEM, FL_EDEVICE:
 * nothing is registered; the driver refuses bytes if some are registered already. Any thread, like
 * all functions below. */
int fl_cuda_host_range_open(int32_t device, char *data, int64_t bytes, fl_cuda_host_range **out,
                            fl_err *err);

/* SYNC: waits for the noted reads; unregistering waits for the device. NULL is fine; does nothing
 * in a forked child. */
void fl_cuda_host_range_close(fl_cuda_host_range *range);

/* Returns the number that kernels add to a host address. */
int64_t fl_cuda_host_range_shift(const fl_cuda_host_range *range);

/* Notes that kernels that read the host range have been queued on the stream, on this device. On a
 * failure waits until the kernels are over: SYNC. FL_ENOMEM, FL_EDEVICE. */
int fl_cuda_host_range_note(fl_cuda_host_range *range, int32_t device, void *stream, fl_err *err);

/* SYNC: waits for the reads that have been noted, so that the caller may write to the memory. Does
 * nothing in a forked child. FL_EDEVICE. */
int fl_cuda_host_range_fence(fl_cuda_host_range *range, fl_err *err);

/* Tells if the memory is registered with the driver. Linux copies such memory at a fork. */
bool fl_cuda_host_range_is_registered(const fl_cuda_host_range *range);

#endif
