/* fl_sent: the requests that workers have, and how far the copies of their batches are.
 *
 * Floor 1. The part of fl_inflight that its consumer shares with a copier (fl_copier), which has a
 * thread of its own: requests are found by worker and number, replies are seen before they are
 * received, and the receiver of a batch ends its copy. It owns no request. One mutex guards all;
 * _locked: with it held. Nothing blocks but fl_sent_finish. In a forked child only fl_sent_close
 * may be called. */
#ifndef FL_SENT_H
#define FL_SENT_H

#include "fl_request.h"

#include <pthread.h>

typedef struct fl_sent fl_sent;

/* Over queues, borrowed until close, in which there is nothing. has_destination: batches may be
 * copied. FL_OK, FL_ENOMEM. */
int fl_sent_open(fl_shm_queue *shm, int32_t workers, int32_t depth, bool has_destination,
                 fl_sent **out, fl_err *err);

/* No copy runs, no buffer is with a request. NULL is fine. */
void fl_sent_close(fl_sent *sent);

/* ---- the consumer */

/* Sends the message of a request with the slot that it names; false when the queue is full. From
 * now on the copier may look at the request. */
bool fl_sent_send(fl_sent *sent, fl_request *request, fl_slot *slot, fl_request_message *message);

/* What fl_shm_queue_receive_reply says. FL_OK: *out is the request that the reply answers, which is
 * sent no more, or NULL. */
int fl_sent_receive(fl_sent *sent, fl_reply_message *reply, fl_request **out);

/* The request is sent no more. */
void fl_sent_remove(fl_sent *sent, const fl_request *request);

/* As fl_shm_queue_restart. No request of the worker is sent. */
void fl_sent_restart(fl_sent *sent, int32_t worker);

/* As fl_inflight_finish. */
bool fl_sent_finish(fl_sent *sent, fl_request *request, fl_dest_buffer *out);

/* ---- the copier */

pthread_mutex_t *fl_sent_mutex(fl_sent *sent);
fl_shm_queue *fl_sent_queue(const fl_sent *sent);

/* Looks at the replies that have come and are not received yet. */
void fl_sent_look_locked(fl_sent *sent);

/* Those with FL_COPY_WAITING, linked by next_arrived in the order of arrival; NULL: none. */
fl_request *fl_sent_arrived_locked(const fl_sent *sent);

/* WAITING -> COPYING to the buffer -> COPIED, or NONE when it failed: then the buffer is free. */
void fl_sent_begin_copy_locked(fl_sent *sent, fl_request *request, const fl_dest_buffer *buffer);
void fl_sent_end_copy_locked(fl_sent *sent, fl_request *request, bool is_copied);

/* How many are COPYING or COPIED, so have a buffer. */
int32_t fl_sent_copies_locked(const fl_sent *sent);

#endif
