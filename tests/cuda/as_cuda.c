/* as_cuda: torch's exchange table with every CPU tensor shown as one of CUDA device 0, for tests of
 * a core whose kernels are compiled for the CPU; see as_cuda.py. */
#include <dlpack/dlpack.h>

#include <stddef.h>

static DLPackExchangeAPI table;
static DLPackDLTensorFromPyObjectNoSync torchs_borrow;

static int borrow(void *object, DLTensor *out)
{
    int status = torchs_borrow(object, out);
    if (status == 0 && out->device.device_type == kDLCPU) out->device = (DLDevice){kDLCUDA, 0};
    return status;
}

extern void *as_cuda_stream;
void *as_cuda_stream; /* torch's current stream: one of the fake; NULL: the default one */

static int get_stream(DLDeviceType type, int32_t device, void **out)
{
    (void)device;
    *out = as_cuda_stream;
    return type == kDLCUDA ? 0 : -1;
}

DLPackExchangeAPI *as_cuda(const DLPackExchangeAPI *torchs);

DLPackExchangeAPI *as_cuda(const DLPackExchangeAPI *torchs)
{
    table = *torchs;
    torchs_borrow = torchs->dltensor_from_py_object_no_sync;
    table.dltensor_from_py_object_no_sync = borrow;
    table.current_work_stream = get_stream;
    return &table;
}
