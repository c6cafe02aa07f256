/* fl_py_reply: the heap type _core.Reply, a batch that a worker process has built. */
#ifndef FL_PY_REPLY_H
#define FL_PY_REPLY_H

#include "fl_py_channel.h"

/* An unopened reply counts towards the memory budget. Without a destination, opening the reply
 * makes tensors that share the slot. With a destination the batch is delivered: the batch moves to
 * a buffer, and the reply keeps only the pickled part. */
typedef struct fl_py_reply {
    PyObject_HEAD
    fl_py_parent_end *parent_end; /* owned */
    fl_request *request;          /* owned; its slot is NULL once the batch is delivered */
    /* SHARED(reply): these fields are used in the section of the parent end. */
    bool is_open;
    bool is_lent;          /* the reply holds one share of the slot */
    bool is_moving;        /* a delivery is under way, and other threads may call */
    bool is_other_stream;  /* the memory of the delivered batch belongs to a stream that is not the
                              current one */
    fl_dest_buffer buffer; /* holds the copied batch if buffer.owner is set */
    char *head;            /* owned: a copy of the pickled part; NULL until copied */
    PyObject *memory;      /* owned: the buffer's tensor after the delivery; NULL before */
} fl_py_reply;

extern PyType_Spec fl_py_reply_spec;

/* Makes the reply of an answered request. The reply owns the request; after a failure the request
 * has been dropped. New reference. */
PyObject *fl_py_reply_new(fl_py_parent_end *parent_end, fl_request *request);

#endif
