/* fl_py_requests: the half of the hub that keeps the books: which slot and which key went with each
 * request, and how much memory is under way. */
#include "fl_py_parent_end.h"

#include "fl_hash.h"

#include <string.h>

enum { LEAST_LIMIT = 64 << 10, MOST_FIRST = 64 << 20 };

void fl_py_request_settle(fl_py_parent_end *self, fl_py_request *booked, int64_t freed)
{
    if (!booked->is_counted) return;
    booked->is_counted = false;
    self->under_way -= freed;
    self->unanswered--;
}

void fl_py_request_forget(fl_py_parent_end *self, fl_py_request *booked)
{
    fl_py_request_settle(self, booked, booked->limit);
    if (!fl_py_reply_destination_end(self, booked->errand, booked->slot))
        fl_slot_return(booked->slot);
    fl_slot_return(booked->before);
    PyObject *key = booked->key;
    *booked = (fl_py_request){0};
    Py_XDECREF(key);
}

/* What batches so far needed, and a quarter more; a share of the budget while none has come. */
static int64_t next_limit(const fl_py_parent_end *self)
{
    int64_t largest = self->slots->largest;
    if (largest == 0)
        return fl_max(LEAST_LIMIT,
                      fl_min(MOST_FIRST, self->budget / self->workers / self->depth * 4));
    return fl_max(LEAST_LIMIT, largest + largest / 4);
}

/* Of (number, indices), the number; -1 for what is no batch. */
static int64_t turn_of(PyObject *key)
{
    if (!PyTuple_CheckExact(key) || PyTuple_GET_SIZE(key) == 0) return -1;
    long long turn = PyLong_AsLongLong(PyTuple_GET_ITEM(key, 0));
    if (turn == -1 && PyErr_Occurred()) PyErr_Clear();
    return turn;
}

/* FL_ETIMEOUT: the queue is full. */
static int send_request(fl_py_parent_end *self, int worker, fl_request_message *request,
                        fl_slot *slot, PyObject *key, fl_transfer **errand, fl_err *err)
{
    *errand = NULL;
    if (self->courier != NULL)
        return fl_copier_submit(self->courier, worker, request, slot, turn_of(key), errand, err);
    return fl_shm_queue_send_request(self->shm, worker, request) ? FL_OK : FL_ETIMEOUT;
}

int fl_py_parent_end_send(fl_py_parent_end *self, int worker, PyObject *key, int64_t limit,
                          bool is_forced, const Py_buffer *payload, int64_t again, fl_slot *before)
{
    if (again < 0) limit = fl_max(next_limit(self), payload->len);
    if (!is_forced && !fl_py_reply_destination_fits(self, limit)) return 0;
    fl_err err;
    fl_slot *slot;
    fl_transfer *errand;
    if (fl_pool_get(self->slots->pool, limit, &slot, &err) != FL_OK) {
        fl_py_raise(&err, NULL);
        return -1;
    }
    if (payload->len > 0) memcpy(fl_slot_data(slot), payload->buf, (size_t)payload->len);
    fl_request_message request = {.offset = fl_slot_data(slot) - fl_arena_base(self->slots->arena),
                                  .limit = limit,
                                  .bytes = payload->len,
                                  .repeat_of = again,
                                  .task_check = fl_hash(payload->buf, payload->len)};
    int status = send_request(self, worker, &request, slot, key, &errand, &err);
    if (status != FL_OK) {
        fl_slot_return(slot);
        if (status == FL_ETIMEOUT) return 0;
        fl_py_raise(&err, NULL);
        return -1;
    }
    fl_py_request *booked = fl_py_request_of(self, worker, request.number);
    fl_py_request_forget(self,
                         booked); /* skipped by the worker, whose later requests were answered */
    *booked = (fl_py_request){.slot = slot,
                              .before = before,
                              .errand = errand,
                              .key = Py_NewRef(key),
                              .number = request.number,
                              .limit = limit,
                              .is_counted = true};
    self->under_way += limit;
    self->unanswered++;
    return 1;
}

static void count_reply(fl_py_parent_end *self, const fl_reply_message *reply)
{
    fl_py_worker *count = &self->counts[reply->worker];
    count->busy_ns += reply->busy_ns;
    count->wait_ns += reply->wait_ns;
    if (reply->kind > 0) {
        count->batches++;
        self->slots->bytes += reply->used;
        self->room = fl_max(self->room - self->room / 8, reply->upload);
    }
    for (int i = 0; i < FL_FALLBACK_REASONS; i++) self->fallbacks[i] += reply->fallbacks[i];
    /* One outlier must not make all that follow wait for as much memory. */
    int64_t *largest = &self->slots->largest;
    *largest = fl_max(*largest - *largest / 64, reply->used);
}

PyObject *fl_py_parent_end_blame(fl_py_parent_end *self, int32_t worker)
{
    static const char advice[] = "look for writes out of bounds in native code of the dataset";
    self->is_overwritten = true;
    if (self->workers == 1)
        return PyErr_Format(PyExc_RuntimeError,
                            "worker %d has overwritten the memory it shares with this process; %s",
                            (int)worker, advice);
    /* All workers can write to all of it. */
    return PyErr_Format(PyExc_RuntimeError,
                        "worker %d has overwritten the memory it shares with this process, unless "
                        "another of the %d workers has; %s",
                        (int)worker, (int)self->workers, advice);
}

static bool is_sane(const fl_reply_message *reply, const fl_py_request *booked)
{
    if (booked->slot == NULL || reply->busy_ns < 0 || reply->wait_ns < 0) return false;
    for (int i = 0; i < FL_FALLBACK_REASONS; i++)
        if (reply->fallbacks[i] < 0) return false;
    if (reply->kind < 0) return reply->used > booked->limit && reply->used < INT64_MAX / 2;
    return reply->used >= 0 && reply->used <= booked->limit && reply->head >= 0 &&
           reply->head_bytes >= 0 && reply->head <= reply->used - reply->head_bytes &&
           reply->upload >= 0 && reply->upload <= reply->head;
}

static PyObject *
make_parcel(fl_py_parent_end *self, const fl_reply_message *reply, fl_py_request *booked)
{
    fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    fl_py_reply *parcel = (fl_py_reply *)state->reply_type->tp_alloc(state->reply_type, 0);
    if (parcel == NULL) return NULL;
    parcel->hub = Py_NewRef((PyObject *)self);
    parcel->door = self->door;
    Py_INCREF(parcel->door.tensor_type);
    parcel->reply = *reply;
    parcel->slot = booked->slot;
    parcel->errand = booked->errand;
    parcel->limit = booked->is_counted ? reply->used : 0;
    booked->slot = NULL;
    booked->errand = NULL;
    fl_py_request_settle(self, booked, booked->limit - parcel->limit);
    return (PyObject *)parcel;
}

/* (key, parcel), or (key, worker, number, bytes needed). */
PyObject *fl_py_parent_end_deliver(fl_py_parent_end *self, const fl_reply_message *reply)
{
    fl_py_request *booked = fl_py_request_of(self, reply->worker, reply->number);
    if (booked->key == NULL || booked->number != reply->number) Py_RETURN_NONE;
    if (!is_sane(reply, booked)) {
        fl_py_request_settle(self, booked, booked->limit);
        return fl_py_parent_end_blame(self, reply->worker);
    }
    count_reply(self, reply);
    if (reply->kind >= 0) {
        PyObject *parcel = make_parcel(self, reply, booked);
        if (parcel == NULL) return NULL;
        PyObject *pair = PyTuple_Pack(2, booked->key, parcel);
        Py_DECREF(parcel);
        fl_py_request_forget(self, booked);
        return pair;
    }
    fl_py_request_settle(self, booked, booked->limit);
    fl_transfer *errand = booked->errand;
    booked->errand = NULL;
    if (fl_py_reply_destination_end(self, errand,
                                    booked->slot)) { /* it was carried as a whole batch is */
        booked->slot = NULL;
        return fl_py_parent_end_blame(self, reply->worker);
    }
    booked->before = booked->slot;
    booked->slot = NULL;
    return Py_BuildValue("OiLL", booked->key, (int)reply->worker, (long long)reply->number,
                         (long long)reply->used);
}
