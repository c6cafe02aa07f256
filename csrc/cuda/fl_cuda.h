/* fl_cuda: the passes over gradients on CUDA devices, the gather of rows there, the host memory
 * that it may read, and the part of the CUDA runtime that they stand on.
 *
 * Floor 2. Nothing happens before the first call: a module that contains this is imported on a
 * machine without device or driver. fl_cuda_stub.c stands in where there was no nvcc: nothing is
 * available then, and fl_cuda_check says so. Every call sets the device it is for and puts the
 * thread's own back, if that is in use at all. No call makes the host wait for the device unless
 * its comment says SYNC. */
#ifndef FL_CUDA_H
#define FL_CUDA_H

#include "fl_grad_ops.h"
#include "fl_image_ops.h"
#include "fl_piece.h"
#include "fl_row_ops.h"

/* How it was built: architectures such as "75 80 90", the runtime's version (13000 for 13.0). */
extern const char *const fl_cuda_archs; /* "" in a build without CUDA */
extern const int fl_cuda_version;       /* 0 */

/* FL_OK if this module can work on the device: a driver is there, so is the device, and there is
 * code for its architecture, which is loaded now; FL_EDEVICE otherwise. */
int fl_cuda_check(int32_t device, fl_err *err);

/* Loads every kernel for the current device, which fl_cuda_check does, too. FL_EDEVICE. */
int fl_cuda_load_kernels(fl_err *err);

/* ---- passes over gradients: the table, contracts in fl_grad_ops.h */

extern const fl_grad_ops fl_cuda_grad_ops;

/* Where a pass is queued. Streams of several threads are independent; a queue is used by one thread
 * at a time, and its scratch by the passes of one stream alone, in their order. */
typedef struct fl_cuda_queue {
    int32_t device;
    void *stream;   /* cudaStream_t, borrowed */
    void *scratch;  /* borrowed: device memory of fl_cuda_scratch_bytes(list) for every list whose
                       passes it serves, 16-byte aligned; its first FL_CUDA_TICKET_BYTES were 0 when
                       it was first used. NULL will do for clip_factor, invert and update_scale. */
    bool is_listed; /* scratch holds the table of the current list; set by the passes, cleared
                       by a change of list, scratch or stream */
    int32_t processors; /* of the device; 0: it has not been asked yet. Set by the passes, cleared
                           by a change of the device */
    bool is_fp64_slow;  /* arithmetic in double costs more than loads; as processors */
    fl_err err;         /* of the pass that failed last */
} fl_cuda_queue;

enum { FL_CUDA_TICKET_BYTES = 16 };

int64_t fl_cuda_scratch_bytes(const fl_tensor_list *list);

/* Whether a graph is being captured from the stream, which scratch must then be part of. */
int fl_cuda_is_capturing(const fl_cuda_queue *queue, bool *out, fl_err *err);

/* ---- rows of arrays that lie in a device's memory */

/* Queues copies of rows[0], ... of each column to its batch, one kernel for 32 columns and 2 GiB.
 * `rows`, in the device's memory, must be rows that are there. The memory must live until the
 * stream has done it. Allocates nothing. FL_EDEVICE; then some columns may have been queued. */
int fl_cuda_gather(int32_t device, void *stream, const fl_row_column *columns, int32_t column_count,
                   const int64_t *rows, int64_t row_count, fl_err *err);

/* Queues the kernel that makes a batch of images rows[0], ..., and the one that changes their
 * colours if there are steps. Otherwise as fl_cuda_gather. */
int fl_cuda_gather_images(int32_t device, void *stream, const fl_image_batch *images,
                          const int64_t *rows, int64_t count, fl_err *err);

/* Queues the kernel that makes a batch of windows, whose first tokens are starts[0], ... of all.
 * Otherwise as fl_cuda_gather. */
int fl_cuda_gather_windows(int32_t device, void *stream, const fl_window_batch *windows,
                           const int64_t *starts, int64_t count, fl_err *err);

/* Queues the kernel that makes the outputs of a batch of sequences, one for 32 of them. Otherwise
 * as fl_cuda_gather. */
int fl_cuda_gather_pieces(int32_t device, void *stream, const fl_piece_batch *outputs,
                          int32_t count, fl_err *err);

/* ---- host memory that kernels read over the link */

typedef struct fl_cuda_region fl_cuda_region;

/* Registers bytes of the host with the driver for kernels of all devices, where the device does not
 * read them anyway: takes about 0.1 s a GB, and no page of them leaves memory until close. The
 * bytes must stay where they are until then. FL_ENOMEM, FL_EDEVICE: nothing is registered; the
 * driver refuses bytes of which some are registered already. Any thread, as of all that follow. */
int fl_cuda_region_open(int32_t device, char *data, int64_t bytes, fl_cuda_region **out,
                        fl_err *err);

/* SYNC: waits for the reads that were noted; unregistering waits for the device. NULL is fine; does
 * nothing in a forked child. */
void fl_cuda_region_close(fl_cuda_region *region);

/* What kernels add to an address of the host. */
int64_t fl_cuda_region_shift(const fl_cuda_region *region);

/* Kernels that read the region have been queued on the stream, of this device. After a failure they
 * are over: SYNC. FL_ENOMEM, FL_EDEVICE. */
int fl_cuda_region_note(fl_cuda_region *region, int32_t device, void *stream, fl_err *err);

#endif
