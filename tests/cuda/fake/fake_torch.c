/* fake_torch: see fake_torch.h. */
#include "fake_torch.h"

#include "dlpack/dlpack.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct task {
    char *view;
    size_t count;
    char bytes[];
} task;

static const DLPackExchangeAPI *torchs_table;
static DLPackExchangeAPI table;
static _Atomic(cudaStream_t) current[FAKE_DEVICES];
static _Atomic int64_t compared, mismatches;

static int describe(void *tensor, DLTensor *out)
{
    if (torchs_table->dltensor_from_py_object_no_sync(tensor, out) != 0) return -1;
    int device = fake_device_of(out->data);
    if (device >= 0) out->device = (DLDevice){.device_type = kDLCUDA, .device_id = device};
    return 0;
}

static int find_stream(DLDeviceType type, int32_t device, void **out)
{
    if (type != kDLCUDA || device >= FAKE_DEVICES) return -1;
    *out = atomic_load(&current[device]);
    return 0;
}

const void *fake_exchange_table(const void *torchs)
{
    torchs_table = torchs;
    table = *torchs_table;
    table.dltensor_from_py_object_no_sync = describe;
    table.current_work_stream = find_stream;
    return &table;
}

void fake_set_current_stream(int device, cudaStream_t stream)
{
    atomic_store(&current[device], stream);
}

cudaStream_t fake_new_stream(int device)
{
    int before;
    cudaStream_t stream = NULL;
    (void)cudaGetDevice(&before);
    (void)cudaSetDevice(device);
    (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (fake_has_context(before)) (void)cudaSetDevice(before);
    return stream;
}

static void compare(void *arg)
{
    task *self = arg;
    if (memcmp(self->view, self->bytes, self->count) != 0) atomic_fetch_add(&mismatches, 1);
    atomic_fetch_add(&compared, 1);
    free(self);
}

void fake_launch_compare(cudaStream_t stream, const void *memory, const void *bytes, size_t count)
{
    task *made = malloc(sizeof *made + count);
    if (made == NULL) abort();
    made->view = fake_host_view(memory);
    made->count = count;
    memcpy(made->bytes, bytes, count);
    fake_launch(stream, compare, made);
}

static void fill(void *arg)
{
    task *self = arg;
    memset(self->view, self->bytes[0], self->count);
    free(self);
}

void fake_launch_fill(cudaStream_t stream, const void *memory, int byte, size_t count)
{
    task *made = malloc(sizeof *made + 1);
    if (made == NULL) abort();
    made->view = fake_host_view(memory);
    made->count = count;
    made->bytes[0] = (char)byte;
    fake_launch(stream, fill, made);
}

int64_t fake_compared(void) { return atomic_load(&compared); }

int64_t fake_mismatches(void) { return atomic_load(&mismatches); }
