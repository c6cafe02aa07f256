/* fl_py_reply: the heap type _core.Reply, a batch that a worker process has built. */
#ifndef FL_PY_REPLY_H
#define FL_PY_REPLY_H

#include "fl_py_channel.h"

/* Until it is opened it counts towards the memory budget. Where there is no destination its tensors
 * share the slot then. Where there is one it is delivered: the batch is in a buffer, and only what
 * was pickled is kept here. */
typedef struct fl_py_reply {
    PyObject_HEAD
    fl_py_parent_end *parent_end; /* owned */
    fl_request *request;          /* owned; its slot is NULL once the batch is delivered */
    /* SHARED(reply): in the section of the parent end. */
    bool is_open;
    bool is_lent;          /* one share of the slot is held here */
    bool is_moving;        /* is being delivered, while other threads may call */
    bool is_other_stream;  /* the memory it was delivered to belongs to another stream */
    fl_dest_buffer buffer; /* where it was copied, if there is an owner */
    char *head;            /* owned, once it was copied: what was pickled */
    PyObject *memory;      /* owned: the buffer's tensor, once delivered; NULL until then */
} fl_py_reply;

extern PyType_Spec fl_py_reply_spec;

/* Takes an answered request, also on failure. New reference. */
PyObject *fl_py_reply_new(fl_py_parent_end *parent_end, fl_request *request);

#endif
