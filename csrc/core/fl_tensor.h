/* fl_tensor: what an array is to the core: address, element type, shape, strides.
 *
 * Floor 1. A view owns nothing; whoever makes one keeps the memory alive. */
#ifndef FL_TENSOR_H
#define FL_TENSOR_H

#include "fl_base.h"

enum { FL_MAX_NDIM = 64 };

/* DLPack's triple, so that the binding can pass it through unchanged. */
typedef struct fl_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} fl_dtype;

typedef struct fl_tensor {
    const char *data; /* borrowed from whoever made the view; first element, may be NULL if empty */
    fl_dtype dtype;
    int32_t ndim;
    int64_t shape[FL_MAX_NDIM];
    int64_t stride[FL_MAX_NDIM]; /* bytes, of any sign */
} fl_tensor;

static inline int64_t fl_dtype_bytes(fl_dtype dtype)
{
    return ((int64_t)dtype.bits * dtype.lanes + 7) / 8;
}

#endif
