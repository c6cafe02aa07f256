/* fl_tensor: the core's view of an array: address, element type, shape, strides.
 *
 * Floor 1. A view owns nothing; its maker keeps the memory alive. */
#ifndef FL_TENSOR_H
#define FL_TENSOR_H

#include "fl_base.h"

#include <string.h>

enum { FL_MAX_NDIM = 64 };

/* DLPack's triple, so that the binding can pass it through unchanged. */
typedef struct fl_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} fl_dtype;

typedef struct fl_tensor {
    const char *data; /* borrowed from the view's maker; first element, may be NULL if empty */
    fl_dtype dtype;
    int32_t ndim;
    int64_t shape[FL_MAX_NDIM];
    int64_t stride[FL_MAX_NDIM]; /* bytes, of any sign */
} fl_tensor;

static inline int64_t fl_dtype_bytes(fl_dtype dtype)
{
    return ((int64_t)dtype.bits * dtype.lanes + 7) / 8;
}

/* Returns the bytes of a contiguous array; -1 if they do not fit int64. */
static inline int64_t fl_tensor_bytes(fl_dtype dtype, int32_t ndim, const int64_t *shape)
{
    int64_t bytes = fl_dtype_bytes(dtype);
    for (int32_t d = 0; d < ndim; d++)
        if (!fl_mul(bytes, shape[d], &bytes)) return -1;
    return bytes;
}

/* Computes DLPack's strides, in elements, for a contiguous array. */
static inline void fl_tensor_strides(int32_t ndim, const int64_t *shape, int64_t *stride)
{
    int64_t step = 1;
    for (int32_t d = ndim - 1; d >= 0; d--) {
        stride[d] = step;
        step *= shape[d] > 1 ? shape[d] : 1;
    }
}

static inline bool fl_tensor_is_contiguous(const fl_tensor *view)
{
    int64_t step = fl_dtype_bytes(view->dtype);
    for (int32_t d = view->ndim - 1; d >= 0; d--) {
        if (view->shape[d] == 0) return true;
        if (view->shape[d] != 1 && view->stride[d] != step) return false;
        step *= view->shape[d];
    }
    return true;
}

/* Returns true if both arrays have the same address, dtype, shape and strides. */
static inline bool fl_tensor_is_same(const fl_tensor *a, const fl_tensor *b)
{
    size_t dims = (size_t)a->ndim * sizeof *a->shape;
    return a->data == b->data && a->ndim == b->ndim && a->dtype.code == b->dtype.code &&
           a->dtype.bits == b->dtype.bits && memcmp(a->shape, b->shape, dims) == 0 &&
           memcmp(a->stride, b->stride, dims) == 0;
}

#endif
