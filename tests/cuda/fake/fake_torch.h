/* fake_torch.h: what the Python tests of uploads see of the fake: torch's exchange table, in which
 * memory of the fake is a CUDA device's and the test says which stream is current, and a kernel. */
#ifndef FAKE_TORCH_H
#define FAKE_TORCH_H

#include "fake_cuda.h"

/* A table that asks torch's for the rest. One at a time. */
const void *fake_exchange_table(const void *torchs);

void fake_set_current_stream(int device, cudaStream_t stream);

/* A new stream of the device. The thread is put back as torch puts it: where there is a context. */
cudaStream_t fake_new_stream(int device);

/* Queues a kernel that compares device memory with the bytes as they are now. */
void fake_launch_compare(cudaStream_t stream, const void *memory, const void *bytes, size_t count);

/* Queues a kernel that fills device memory with the byte. */
void fake_launch_fill(cudaStream_t stream, const void *memory, int byte, size_t count);

/* Kernels that have compared so far, and of these, those that found something else. */
int64_t fake_compared(void);
int64_t fake_mismatches(void);

#endif
