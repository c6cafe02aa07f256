/* fl_tensor_list: the tensors that a pass runs over, cut into chunks.
 *
 * Floor 1. begin, add for each tensor, end collect the tensors of a pass. If pointer, size and type
 * of every tensor are the same as in the last collection, nothing is rebuilt. Sizes alone decide
 * where chunks are cut, so sums that are kept by chunk and added in order do not depend on which
 * thread worked on a chunk. One thread at a time. */
#ifndef FL_TENSOR_LIST_H
#define FL_TENSOR_LIST_H

#include "fl_base.h"

enum { FL_F64, FL_F32, FL_F16, FL_BF16, FL_FLOATS }; /* element types */

enum { FL_CHUNK = 16384 }; /* elements; a tensor's last chunk may have fewer */

typedef struct fl_span {
    char *data; /* borrowed from the collector; contiguous */
    int64_t count;
    int64_t chunk; /* number of the span's first chunk in the list */
    int32_t type;  /* FL_F64, ... */
} fl_span;

typedef struct fl_range fl_range;

typedef struct fl_tensor_list {
    fl_span *spans; /* owned; no span is empty */
    int64_t count, capacity;
    int64_t chunks, bytes; /* of all spans */
    double *sums;          /* owned: one for each chunk, for the passes of a device */
    fl_range *ranges;      /* owned: room to sort spans by address, twice */
    int64_t sums_capacity, ranges_capacity;
    int64_t collected; /* spans of the last collection; 0 once a span was replaced, or the
                          collection failed */
    bool is_changed;   /* this collection differs from the last */
} fl_tensor_list;

void fl_tensor_list_close(fl_tensor_list *list); /* begins and ends as {0} */

void fl_tensor_list_begin(fl_tensor_list *list);

/* Adds the next tensor; a tensor without elements adds nothing. FL_OK; FL_ENOMEM: the list is
 * empty. */
int fl_tensor_list_add(fl_tensor_list *list, char *data, int64_t count, int32_t type, fl_err *err);

/* Ends the collection. FL_OK; FL_EINVAL if two tensors share memory, because two threads would
 * write the memory at once; FL_ENOMEM. After a failure the list is empty. */
int fl_tensor_list_end(fl_tensor_list *list, fl_err *err);

static inline int64_t fl_float_bytes(int32_t type)
{
    return type == FL_F64 ? 8 : type == FL_F32 ? 4 : 2;
}

/* Returns the number of the span that has this chunk; 0 <= chunk < list->chunks. */
int64_t fl_tensor_list_find(const fl_tensor_list *list, int64_t chunk);

#endif
