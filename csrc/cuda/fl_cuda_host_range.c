/* fl_cuda_host_range: see fl_cuda.h. Iterators of several threads may read one range. */
#include "fl_cuda.h"
#include "fl_cuda_runtime.h"
#include "fl_thread.h"

/* The reads that have been queued on one stream. */
typedef struct read {
    struct read *next; /* owned; read-only until close, like all fields */
    int32_t device;
    void *stream;      /* borrowed; only compared, because the stream may be gone */
    cudaEvent_t event; /* owned; recorded after the last kernel that reads */
} read;

struct fl_cuda_host_range {
    char *data;     /* borrowed */
    int32_t device; /* the first four fields after data are set at open, then read-only */
    uint32_t generation;
    bool is_registered;
    int64_t shift; /* from an address of the host to the kernels' address */
    pthread_mutex_t mutex;
    read *reads; /* owned; mutex; entries are added in front, and stay until close */
};

/* Tells if kernels read any memory of the host, through the host's page tables. */
static int reads_all(int32_t device, bool *out, fl_err *err)
{
    int value;
    FL_CUDA_TRY(
        cudaDeviceGetAttribute(&value, cudaDevAttrPageableMemoryAccessUsesHostPageTables, device),
        err);
    *out = value != 0;
    return FL_OK;
}

static int find_shift(fl_cuda_host_range *self, fl_err *err)
{
    void *there;
    FL_CUDA_TRY(cudaHostGetDevicePointer(&there, self->data, 0), err);
    self->shift = (int64_t)((uintptr_t)there - (uintptr_t)self->data);
    return FL_OK;
}

static int register_inside(fl_cuda_host_range *self, int64_t bytes, fl_err *err)
{
    bool reads;
    FL_TRY(fl_cuda_require_primary(self->device, err));
    FL_TRY(reads_all(self->device, &reads, err));
    if (reads || bytes == 0) return FL_OK;
    FL_CUDA_TRY(cudaHostRegister(self->data, (size_t)bytes,
                                 cudaHostRegisterPortable | cudaHostRegisterMapped),
                err);
    self->is_registered = true;
    int status = find_shift(self, err);
    if (status != FL_OK) (void)FL_CUDA_STATUS(cudaHostUnregister(self->data), NULL);
    return status;
}

static int open_inside(fl_cuda_host_range *self, int64_t bytes, fl_err *err)
{
    fl_cuda_scope scope;
    FL_TRY(fl_mutex_open(&self->mutex, err));
    int status = fl_cuda_scope_enter(self->device, &scope, err);
    if (status == FL_OK) {
        status = register_inside(self, bytes, err);
        fl_cuda_scope_leave(&scope);
    }
    if (status != FL_OK) pthread_mutex_destroy(&self->mutex);
    return status;
}

int fl_cuda_host_range_open(int32_t device, char *data, int64_t bytes, fl_cuda_host_range **out,
                            fl_err *err)
{
    fl_cuda_host_range *self = fl_alloc(sizeof *self);
    *out = NULL;
    if (self == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a range");
    self->data = data;
    self->device = device;
    self->generation = fl_fork_generation();
    int status = open_inside(self, bytes, err);
    if (status == FL_OK)
        *out = self;
    else
        fl_free(self);
    return status;
}

int64_t fl_cuda_host_range_shift(const fl_cuda_host_range *self) { return self->shift; }

bool fl_cuda_host_range_is_registered(const fl_cuda_host_range *self)
{
    return self->is_registered;
}

/* Adds an entry for a stream. The caller has entered the device. */
static int add_read_locked(fl_cuda_host_range *self, int32_t device, void *stream, fl_err *err)
{
    read *made = fl_alloc(sizeof *made);
    if (made == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a stream");
    *made = (read){self->reads, device, stream, NULL};
    int status =
        FL_CUDA_STATUS(cudaEventCreateWithFlags(&made->event, cudaEventDisableTiming), err);
    if (status == FL_OK)
        self->reads = made;
    else
        fl_free(made);
    return status;
}

static int note_locked(fl_cuda_host_range *self, int32_t device, void *stream, fl_err *err)
{
    read *found = self->reads;
    while (found != NULL && (found->stream != stream || found->device != device))
        found = found->next;
    if (found == NULL) FL_TRY(add_read_locked(self, device, stream, err));
    if (found == NULL) found = self->reads;
    return FL_CUDA_STATUS(cudaEventRecord(found->event, stream), err);
}

int fl_cuda_host_range_note(fl_cuda_host_range *self, int32_t device, void *stream, fl_err *err)
{
    fl_cuda_scope scope;
    fl_cuda_scope_enter_surely(device, &scope);
    pthread_mutex_lock(&self->mutex);
    int status = note_locked(self, device, stream, err);
    pthread_mutex_unlock(&self->mutex);
    if (status != FL_OK) (void)FL_CUDA_STATUS(cudaStreamSynchronize(stream), NULL);
    fl_cuda_scope_leave(&scope);
    return status;
}

static int wait_for_read(const read *self, fl_err *err)
{
    fl_cuda_scope scope;
    FL_TRY(fl_cuda_scope_enter(self->device, &scope, err));
    int status = FL_CUDA_STATUS(cudaEventSynchronize(self->event), err);
    fl_cuda_scope_leave(&scope);
    return status;
}

/* Waits without the mutex, so that other threads can queue batches meanwhile. */
int fl_cuda_host_range_fence(fl_cuda_host_range *self, fl_err *err)
{
    if (self->generation != fl_fork_generation()) return FL_OK;
    pthread_mutex_lock(&self->mutex);
    const read *next = self->reads;
    pthread_mutex_unlock(&self->mutex);
    for (; next != NULL; next = next->next) FL_TRY(wait_for_read(next, err));
    return FL_OK;
}

/* Waits for the reads of one stream. A call fails here only with the device, which then reads no
 * more. */
static void end_read(read *self)
{
    fl_cuda_scope scope;
    fl_cuda_scope_enter_surely(self->device, &scope);
    (void)FL_CUDA_STATUS(cudaEventSynchronize(self->event), NULL);
    (void)FL_CUDA_STATUS(cudaEventDestroy(self->event), NULL);
    fl_cuda_scope_leave(&scope);
    fl_free(self);
}

void fl_cuda_host_range_close(fl_cuda_host_range *self)
{
    fl_cuda_scope scope;
    if (self == NULL || self->generation != fl_fork_generation()) return;
    while (self->reads != NULL) {
        read *first = self->reads;
        self->reads = first->next;
        end_read(first);
    }
    if (self->is_registered) {
        fl_cuda_scope_enter_surely(self->device, &scope);
        (void)FL_CUDA_STATUS(cudaHostUnregister(self->data), NULL);
        fl_cuda_scope_leave(&scope);
    }
    pthread_mutex_destroy(&self->mutex);
    fl_free(self);
}
