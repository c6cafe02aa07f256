/* fl_cuda_kernels: what the host code calls in fl_cuda_kernels.cu. Launchers queue one kernel on a
 * stream of the current device and return what cudaGetLastError says; they allocate nothing and
 * wait for nothing. Not for other floors. */
#ifndef FL_CUDA_KERNELS_H
#define FL_CUDA_KERNELS_H

#include "fl_backend.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* FL_OK if there is code for the device in this module. Changes no device. */
int fl_cuda_check_kernels(int32_t device, fl_err *err);

#ifdef __cplusplus
}
#endif

#endif
