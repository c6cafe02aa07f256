/* fl_sent: the requests that workers have, and the progress of their copies.
 *
 * Floor 1. The part of fl_inflight that the consumer shares with a copier (fl_copier), which has
 * its own thread: requests are found by worker and number, replies are seen before they are
 * received, and the receiver of a batch ends its copy. fl_sent owns no request. One mutex guards
 * everything; _locked: the caller holds the mutex. Only fl_sent_finish may block. In a forked child
 * only fl_sent_close may be called. */
#ifndef FL_SENT_H
#define FL_SENT_H

#include "fl_request.h"

#include <pthread.h>

typedef struct fl_sent fl_sent;

/* Opens over empty queues, borrowed until close. has_destination: batches may be copied. The caller
 * closes *out. FL_OK, FL_ENOMEM. */
int fl_sent_open(fl_shm_queue *shm, int32_t workers, int32_t depth, bool has_destination,
                 fl_sent **out, fl_err *err);

/* Closes. No copy may run, and no buffer may be with a request. NULL is fine. */
void fl_sent_close(fl_sent *sent);

/* ---- the consumer */

/* Sends the message of a request with the slot that the message names; returns false if the queue
 * is full. From now on the copier may look at the request. */
bool fl_sent_send(fl_sent *sent, fl_request *request, fl_slot *slot, fl_request_message *message);

/* Receives a reply, with the status of fl_shm_queue_receive_reply. FL_OK: *out is the request that
 * the reply answers, or NULL; that request is no longer sent. */
int fl_sent_receive(fl_sent *sent, fl_reply_message *reply, fl_request **out);

/* Takes the request out, so that it is no longer sent. */
void fl_sent_remove(fl_sent *sent, const fl_request *request);

/* Empties the worker's queues by fl_shm_queue_restart. No request of the worker may be sent. */
void fl_sent_restart(fl_sent *sent, int32_t worker);

/* Ends the copy of a batch: see fl_inflight_finish. */
bool fl_sent_finish(fl_sent *sent, fl_request *request, fl_dest_buffer *out);

/* ---- the copier */

pthread_mutex_t *fl_sent_mutex(fl_sent *sent);
fl_shm_queue *fl_sent_queue(const fl_sent *sent);

/* Looks at replies that have come and are not received yet. */
void fl_sent_look_locked(fl_sent *sent);

/* Returns the requests with FL_COPY_WAITING, linked by next_arrived in the order of arrival; NULL:
 * there are none. */
fl_request *fl_sent_arrived_locked(const fl_sent *sent);

/* Begin a copy to the buffer, WAITING -> COPYING, and end the copy, COPYING -> COPIED. A failed
 * copy ends as NONE, and its buffer is free again. */
void fl_sent_begin_copy_locked(fl_sent *sent, fl_request *request, const fl_dest_buffer *buffer);
void fl_sent_end_copy_locked(fl_sent *sent, fl_request *request, bool is_copied);

/* Returns how many requests are COPYING or COPIED, and so have a buffer. */
int32_t fl_sent_copies_locked(const fl_sent *sent);

#endif
