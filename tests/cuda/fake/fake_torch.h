/* fake_torch.h: what the Python tests of uploads see of the fake: torch's exchange table, in which
 * memory of the fake is a CUDA device's and the test says which stream is current, and a kernel. */
#ifndef FAKE_TORCH_H
#define FAKE_TORCH_H

#include "fake_cuda.h"

/* A table that asks torch's for the rest. One at a time. */
const void *fake_exchange_table(const void *torchs);

void fake_set_current_stream(int device, cudaStream_t stream);

/* Makes a new stream of the device. Afterwards the thread's device is restored as torch does: if it
 * has a context. */
cudaStream_t fake_new_stream(int device);

/* Queues a kernel that compares device memory with the bytes as they are now. */
void fake_launch_compare(cudaStream_t stream, const void *memory, const void *bytes, size_t count);

/* Queues a kernel that fills device memory with the byte. */
void fake_launch_fill(cudaStream_t stream, const void *memory, int byte, size_t count);

/* The first counts the kernels that have compared so far, the second the kernels that found a
 * difference. */
int64_t fake_compared(void);
int64_t fake_mismatches(void);

#endif
