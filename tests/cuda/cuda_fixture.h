/* cuda_fixture.h: a queue of the CUDA backend over the fake runtime, and what the CPU makes of the
 * same. */
#ifndef CUDA_FIXTURE_H
#define CUDA_FIXTURE_H

#include "grad_model.h"

#include "fl_cpu_grad.h"
#include "fl_cuda.h"
#include "fake_cuda.h"
#include "stream_fixture.h"

#include <float.h>

/* Sanitizers are several times slower. Races between blocks do not depend on sizes, nor on what the
 * numbers are: of cases that differ in these alone, ThreadSanitizer has one in ONE_IN. */
#if defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = true, SAMPLE = 31, ONE_IN = 3 };
#elif defined(__SANITIZE_ADDRESS__)
enum { IS_SANITIZED = true, SAMPLE = 7, ONE_IN = 1 };
#else
enum { IS_SANITIZED = false, SAMPLE = 1, ONE_IN = 1 };
#endif

enum { DEVICE = 1 };

static const fl_grad_ops *const cuda = &fl_cuda_grad_ops, *const cpu = &fl_cpu_grad_ops;

/* Opens a queue with exactly the scratch that the lists ask for. */
static inline fl_cuda_queue open_queue(const fl_tensor_list *list, const fl_tensor_list *from)
{
    int64_t bytes = fl_cuda_scratch_bytes(list);
    if (from != NULL) bytes = fl_max(bytes, fl_cuda_scratch_bytes(from));
    fl_cuda_queue queue = {.device = DEVICE, .scratch = malloc((size_t)bytes)};
    CHECK(queue.scratch != NULL);
    memset(queue.scratch, 0xA5, (size_t)bytes);
    memset(queue.scratch, 0, FL_CUDA_TICKET_BYTES);
    return queue;
}

static inline void close_queue(fl_cuda_queue *queue)
{
    const char ticket[FL_CUDA_TICKET_BYTES] = {0};
    CHECK(memcmp(queue->scratch, ticket, sizeof ticket) == 0);
    free(queue->scratch);
}

/* Makes device 0 the thread's choice. */
static inline void choose_device_0(void) { CHECK_INT(cudaSetDevice(0), cudaSuccess); }

/* Checks that no error or device of a call is left with the thread. */
static inline void check_thread(void)
{
    int device;
    CHECK_INT(cudaGetLastError(), cudaSuccess);
    CHECK_INT(cudaGetDevice(&device), cudaSuccess);
    CHECK_INT(device, 0);
}

/* A model's list, of its copy. */
static inline fl_tensor_list list_of_copy(const model *m)
{
    fl_tensor_list list = {0};
    fl_tensor_list_begin(&list);
    for (int64_t i = 0; i < m->list.count; i++) {
        const fl_span *span = &m->list.spans[i];
        CHECK_INT(fl_tensor_list_add(&list, copy_of(m, span), span->count, span->type, NULL),
                  FL_OK);
    }
    CHECK_INT(fl_tensor_list_end(&list, NULL), FL_OK);
    return list;
}

/* Checks that two numbers are equal except for the order of additions. */
static inline void check_near(double actual, double expected)
{
    if (isnan(expected) || isinf(expected))
        check_double(actual, expected);
    else
        CHECK(fabs(actual - expected) <= 4 * DBL_EPSILON * fabs(expected));
}

/* Makes this many small tensors of all types. */
static inline model make_many(int64_t count)
{
    shape *shapes = fl_alloc(count * (int64_t)sizeof *shapes);
    CHECK(shapes != NULL);
    for (int64_t i = 0; i < count; i++)
        shapes[i] = (shape){1 + i * 7 % 13, (int32_t)(i % FL_FLOATS), i % 2};
    model m = make_model(shapes, count, TAME, (uint64_t)count);
    fl_free(shapes);
    return m;
}

/* Checks that the norm is near the CPU's, and that *found_inf, which `was` given before, equals the
 * CPU's. */
static inline void
check_norm(model *m, fl_cuda_queue *queue, int32_t norm_type, fl_divisor divisor, float was)
{
    fl_tensor_list mirror = list_of_copy(m);
    float found = was, expected_found = was;
    double norm = -1, expected = -2;
    CHECK_INT(cuda->norm_check(&(fl_grad_pass){&m->list, queue}, norm_type, divisor, &found, &norm),
              FL_OK);
    cpu->norm_check(&(fl_grad_pass){&mirror, NULL}, norm_type, divisor, &expected_found, &expected);
    check_near(norm, expected);
    CHECK(found == expected_found);
    fl_tensor_list_close(&mirror);
}

#endif
