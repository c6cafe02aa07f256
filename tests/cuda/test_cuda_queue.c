/* Tests of the work that the CUDA backend queues: tables of all sizes, passes in a row, calls that
 * fail. */
#include "cuda_fixture.h"

#include "fake_run.h"
#include "fl_cuda_kernels.h"

/* ---- tables of all sizes */

static void check_passes_over(int64_t count)
{
    model m = make_many(count), from = make_many(count);
    fl_tensor_list mirror = list_of_copy(&m);
    fl_cuda_queue queue = open_queue(&m.list, &from.list);
    fl_grad_pass pass = {&m.list, &queue}, same = {&mirror, NULL};
    const int64_t all = (count - 1) / FL_CUDA_ROWS + 1;
    const int64_t own = count > FL_CUDA_ROWS ? all : 0, pair = 2 * count > FL_CUDA_ROWS ? all : 0;
    double third = 1.0 / 3;
    for (int round = 0; round < 4; round++) {
        if (round == 1) check_norm(&m, &queue, FL_NORM_2, (fl_divisor){NULL, 1}, 0);
        if (round == 2) queue.is_listed = false; /* as if the list had changed */
        int64_t before = fake_launches();
        CHECK_INT(cuda->scale(&pass, &third), FL_OK);
        cpu->scale(&same, &third);
        CHECK_INT(fake_launches() - before, 1 + (round == 0 || round == 2 ? own : 0));
        bool is_listed = queue.is_listed;
        before = fake_launches();
        CHECK_INT(cuda->combine(&pass, &from.list, 1, NULL, 0.5, NULL), FL_OK);
        cpu->combine(&same, &from.list, 1, NULL, 0.5, NULL);
        CHECK_INT(fake_launches() - before, 1 + pair + (is_listed ? 0 : pair));
        check_model(&m);
    }
    close_queue(&queue);
    fl_tensor_list_close(&mirror);
    free_model(&m);
    free_model(&from);
}

static void test_one_launch_for_any_number_of_tensors(void)
{
    const int64_t sample[] = {1, 166, 681, 1361}, rest[] = {82, 83, 165, 200, 680, 1360, 5000};
    for (size_t i = 0; i < sizeof sample / sizeof *sample; i += ONE_IN)
        check_passes_over(sample[i]);
    for (size_t i = 0; !IS_SANITIZED && i < sizeof rest / sizeof *rest; i++)
        check_passes_over(rest[i]);
}

/* Two lists take turns on one stream: each pass leaves scratch as the next pass needs it. */
static void test_passes_in_a_row(void)
{
    model small = make_many(40), large = make_many(1400);
    fl_cuda_queue queue = open_queue(&large.list, NULL);
    for (int i = 0; i < 4; i++) {
        queue.is_listed = false;
        queue.processors = 1 + i % 3;
        check_norm(i % 2 ? &small : &large, &queue, FL_NORM_1, (fl_divisor){NULL, 1}, 0);
    }
    close_queue(&queue);
    free_model(&small);
    free_model(&large);
}

/* ---- what fails */

typedef int one_pass(fl_grad_pass *pass, const fl_tensor_list *from);

static int norm_pass(fl_grad_pass *pass, const fl_tensor_list *from)
{
    float found = 0;
    double norm;
    (void)from;
    return cuda->norm_check(pass, FL_NORM_2, (fl_divisor){NULL, 1}, &found, &norm);
}

static int scale_pass(fl_grad_pass *pass, const fl_tensor_list *from)
{
    (void)from;
    return cuda->scale(pass, &(double){0.5});
}

static int unscale_pass(fl_grad_pass *pass, const fl_tensor_list *from)
{
    float found = 0;
    (void)from;
    return cuda->unscale(pass, &(float){0.5F}, &found);
}

static int combine_pass(fl_grad_pass *pass, const fl_tensor_list *from)
{
    return cuda->combine(pass, from, 0.5, NULL, 0.5, NULL);
}

static int clip_pass(fl_grad_pass *pass, const fl_tensor_list *from)
{
    double norm = 1, factor;
    (void)from;
    return cuda->clip_factor(pass->queue, &norm, 1, NULL, (fl_divisor){NULL, 1}, &factor);
}

static int invert_pass(fl_grad_pass *pass, const fl_tensor_list *from)
{
    float scale = 2, inverse;
    (void)from;
    return cuda->invert(pass->queue, &scale, &inverse);
}

static int update_pass(fl_grad_pass *pass, const fl_tensor_list *from)
{
    float found = 0, scale = 2;
    int32_t tracker = 0;
    (void)from;
    return cuda->update_scale(pass->queue, &(fl_scale_rule){2, 0.5, 1, 1, 0, 100}, &found, &scale,
                              &tracker, NULL);
}

/* Refuses the n-th call of the runtime and tries again. */
static void refuse_call(int64_t n, one_pass *work, model *m, const fl_tensor_list *from)
{
    fl_cuda_queue queue = open_queue(&m->list, from);
    fl_grad_pass pass = {&m->list, &queue};
    fake_fail_at(n, cudaErrorLaunchFailure, false);
    CHECK_INT(work(&pass, from), FL_EDEVICE);
    fake_fail_at(0, cudaSuccess, false);
    CHECK_INT(queue.err.value, cudaErrorLaunchFailure);
    CHECK(strstr(queue.err.text, "cudaErrorLaunchFailure") != NULL);
    check_thread();
    check_model(m);
    CHECK_INT(work(&pass, from), FL_OK);
    close_queue(&queue);
}

/* Refuses each call in turn except the last two: these put the thread's device back, and their
 * failure cannot be helped. */
static void check_refused_calls(one_pass *work, int64_t count, int64_t calls)
{
    model m = make_many(count), twin = make_many(count), from = make_many(count);
    for (int64_t n = 1; n <= calls; n += ONE_IN) {
        fl_cuda_queue queue = open_queue(&twin.list, &from.list);
        fake_fail_at(0, cudaSuccess, false);
        CHECK_INT(work(&(fl_grad_pass){&twin.list, &queue}, &from.list), FL_OK);
        CHECK_INT(fake_calls(), calls + 2);
        close_queue(&queue);
        keep(&m);
        refuse_call(n, work, &m, &from.list);
        memcpy(m.copy, twin.memory, (size_t)m.bytes);
        check_model(&m);
    }
    free_model(&m);
    free_model(&twin);
    free_model(&from);
}

static void test_calls_that_fail(void)
{
    one_pass *const lists[] = {norm_pass, scale_pass, unscale_pass, combine_pass};
    one_pass *const numbers[] = {clip_pass, invert_pass, update_pass};
    for (int i = 0; i < 4; i++) check_refused_calls(lists[i], 3, 5);
    for (int i = 0; i < 3; i++) check_refused_calls(numbers[i], 3, 3);
    check_refused_calls(scale_pass, FL_CUDA_ROWS + 1, 7); /* two that write the table */
    check_refused_calls(combine_pass, FL_CUDA_ROWS / 2 + 1, 7);
}

/* ---- captures */

static bool is_capturing(const fl_cuda_queue *queue)
{
    bool out;
    CHECK_INT(fl_cuda_is_capturing(queue, &out, NULL), FL_OK);
    return out;
}

/* A pass of a list that travels with its launch, or whose table is written first. */
static void capture_pass(int64_t count, int64_t launches)
{
    model m = make_many(count);
    fl_tensor_list mirror = list_of_copy(&m);
    cudaGraph_t graph;
    double third = 1.0 / 3;
    fl_cuda_queue queue = open_queue(&m.list, NULL);
    queue.stream = open_stream_of_device_1();
    CHECK(!is_capturing(&queue));
    CHECK_INT(cudaStreamBeginCapture(queue.stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    CHECK(is_capturing(&queue));
    CHECK_INT(cuda->scale(&(fl_grad_pass){&m.list, &queue}, &third), FL_OK);
    CHECK_INT(cudaStreamEndCapture(queue.stream, &graph), cudaSuccess);
    CHECK_INT(fake_count_nodes(graph), launches);
    check_model(&m); /* nothing has run */
    cpu->scale(&(fl_grad_pass){&mirror, NULL}, &third);
    fake_launch_graph(graph, queue.stream);
    fake_synchronize(queue.stream);
    check_model(&m);
    CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(queue.stream), cudaSuccess);
    close_queue(&queue);
    fl_tensor_list_close(&mirror);
    free_model(&m);
}

static void test_a_captured_pass(void)
{
    capture_pass(3, 1);
    capture_pass(FL_CUDA_ROWS + 1, 3);
}

/* A capture in no state for a pass gives an error that says so. */
static void test_a_capture_that_is_broken(void)
{
    model m = make_many(3);
    cudaGraph_t graph;
    bool out;
    fl_cuda_queue queue = open_queue(&m.list, NULL), null = {.device = DEVICE};
    queue.stream = open_stream_of_device_1();
    CHECK_INT(cudaStreamBeginCapture(queue.stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
    CHECK_INT(cudaStreamSynchronize(queue.stream), cudaErrorStreamCaptureUnsupported);
    CHECK(is_capturing(&queue));
    CHECK_INT(cuda->scale(&(fl_grad_pass){&m.list, &queue}, &(double){0.5}), FL_EDEVICE);
    CHECK(strstr(queue.err.text, "cudaErrorStreamCaptureInvalidated") != NULL);
    CHECK_INT(cudaStreamEndCapture(queue.stream, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK_INT(cudaStreamDestroy(queue.stream), cudaSuccess);
    CHECK_INT(cudaSetDevice(DEVICE), cudaSuccess);
    queue.stream = fake_open_blocking_stream();
    CHECK_INT(cudaStreamBeginCapture(queue.stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
    CHECK_INT(fl_cuda_is_capturing(&null, &out, NULL), FL_EDEVICE);
    CHECK_INT(cudaStreamEndCapture(queue.stream, &graph), cudaSuccess);
    CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(queue.stream), cudaSuccess);
    CHECK_INT(cudaSetDevice(0), cudaSuccess);
    check_thread();
    check_model(&m);
    close_queue(&queue);
    free_model(&m);
}

static void test_check(void)
{
    fl_err err;
    CHECK_INT(fl_cuda_check(DEVICE, &err), FL_OK);
    CHECK_INT(fl_cuda_check(-1, &err), FL_EDEVICE);
    CHECK_INT(fl_cuda_check(FAKE_DEVICES, &err), FL_EDEVICE);
    CHECK(strcmp(err.text, "there is no CUDA device 2: this process sees 2") == 0);
    fake_set_devices(2, false);
    CHECK_INT(fl_cuda_check(DEVICE, &err), FL_EDEVICE);
    CHECK(strcmp(err.text, "CUDA device 1 has compute capability 6.1; this fastloop was built for "
                           "75 80") == 0);
    fake_set_devices(2, true);
    check_thread();
}

static int run_each_pass(void *arg)
{
    one_pass *const passes[] = {norm_pass, scale_pass,  unscale_pass, combine_pass,
                                clip_pass, invert_pass, update_pass};
    model m = make_many(3), from = make_many(3);
    fl_cuda_queue queue = open_queue(&m.list, &from.list);
    bool is_capturing;
    (void)arg;
    CHECK_INT(fl_cuda_check(DEVICE, NULL), FL_OK);
    CHECK_INT(fl_cuda_is_capturing(&queue, &is_capturing, NULL), FL_OK);
    for (int i = 0; i < 7; i++)
        CHECK_INT(passes[i](&(fl_grad_pass){&m.list, &queue}, &from.list), FL_OK);
    CHECK(fake_has_context(DEVICE) && !fake_has_context(0));
    close_queue(&queue);
    free_model(&m);
    free_model(&from);
    return 0;
}

/* The thread has chosen no device, so it is on device 0. */
static void test_no_context_on_a_device_that_nobody_chose(void)
{
    CHECK_INT(run_child(run_each_pass, NULL), 0);
}

/* A stream's own device, and the least priority; an error leaves no stream. */
static void test_streams_for_copies(void)
{
    void *first, *second;
    fl_err err;
    int failed = 0;
    CHECK_INT(fl_cuda_stream_open(DEVICE, &first, NULL), FL_OK);
    CHECK_INT(fl_cuda_stream_open(0, &second, NULL), FL_OK);
    check_thread();
    const struct CUstream_st *a = first, *b = second;
    CHECK(a->device == DEVICE && a->priority == 0 && b->device == 0 && b->priority == 0);
    for (int64_t n = 1;; n++) {
        fake_fail_at(n, cudaErrorLaunchFailure, false);
        int status = fl_cuda_stream_open(DEVICE, &first, &err);
        bool has_failed = fake_calls() >= n;
        fake_fail_at(0, cudaSuccess, false);
        choose_device_0(); /* if the device could not be restored */
        check_thread();
        if (!has_failed) break;
        if (status == FL_OK) continue; /* only putting the device back failed */
        CHECK_INT(status, FL_EDEVICE);
        CHECK(first == NULL && strstr(err.text, "cudaErrorLaunchFailure") != NULL);
        failed++;
    }
    CHECK(failed >= 3);
    fake_enter_green(true);
    CHECK_INT(fl_cuda_stream_open(0, &first, &err), FL_EDEVICE);
    fake_enter_green(false);
}

int main(void)
{
    start_tests();
    RUN(test_no_context_on_a_device_that_nobody_chose); /* first: contexts stay */
    choose_device_0();
    RUN(test_one_launch_for_any_number_of_tensors);
    RUN(test_passes_in_a_row);
    RUN(test_calls_that_fail);
    RUN(test_a_captured_pass);
    RUN(test_a_capture_that_is_broken);
    RUN(test_check);
    RUN(test_streams_for_copies);
    return 0;
}
