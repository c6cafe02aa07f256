/* Launches beyond what a device and its driver take: refused as in CUDA, and passes stay within. */
#include "cuda_fixture.h"

#include "fl_cuda_kernels.h"
#include "shim_grid.h"

static void run_nothing(void *args) { (void)args; }

static void check_launch(shim_launch launch, cudaError_t expected)
{
    int64_t before = fake_launches();
    launch.run = run_nothing;
    CHECK_INT(shim_queue(NULL, launch), expected);
    CHECK_INT(cudaGetLastError(), expected);
    CHECK_INT(fake_launches() - before, expected == cudaSuccess);
}

static void test_launches_beyond_a_limit(void)
{
    const shim_launch fits = {.blocks = {2, 1, 1}, .threads = {32, 1, 1}, .parameter_bytes = 32764};
    shim_launch launch;
    check_launch(fits, cudaSuccess);
    launch = fits, launch.parameter_bytes++;
    check_launch(launch, cudaErrorLaunchOutOfResources);
    launch = fits, launch.shared_bytes = 48 << 10; /* beside what kernels have already */
    check_launch(launch, cudaErrorInvalidValue);
    launch = fits, launch.shared_bytes = 16 << 10;
    check_launch(launch, cudaSuccess);
    launch = fits, launch.blocks.x = 0;
    check_launch(launch, cudaErrorInvalidConfiguration);
    launch = fits, launch.blocks.x = 1U << 31;
    check_launch(launch, cudaErrorInvalidConfiguration);
    launch = fits, launch.blocks.y = 65536;
    check_launch(launch, cudaErrorInvalidConfiguration);
    launch = fits, launch.threads.x = 0;
    check_launch(launch, cudaErrorInvalidConfiguration);
    launch = fits, launch.threads.x = 1025;
    check_launch(launch, cudaErrorInvalidConfiguration);
    launch = fits, launch.threads.z = 65;
    check_launch(launch, cudaErrorInvalidConfiguration);
    launch = fits, launch.threads.x = launch.threads.y = 64;
    check_launch(launch, cudaErrorInvalidConfiguration);
    launch = fits, launch.threads.x = 544; /* than __launch_bounds__ promises */
    check_launch(launch, cudaErrorLaunchOutOfResources);
}

/* A pass over `count` tensors: FL_OK, or refused, and then nothing has changed. */
static void check_scale(int64_t count, bool is_refused)
{
    model m = make_many(count);
    fl_cuda_queue queue = open_queue(&m.list, NULL);
    fl_tensor_list mirror = list_of_copy(&m);
    int status = cuda->scale(&(fl_grad_pass){&m.list, &queue}, &(double){0.5});
    CHECK_INT(status, is_refused ? FL_EDEVICE : FL_OK);
    if (is_refused) CHECK(strstr(queue.err.text, "cudaErrorLaunchOutOfResources") != NULL);
    if (!is_refused) cpu->scale(&(fl_grad_pass){&mirror, NULL}, &(double){0.5});
    check_model(&m);
    check_thread();
    fl_tensor_list_close(&mirror);
    close_queue(&queue);
    free_model(&m);
}

/* With a driver from before CUDA 12.1, models of a few tensors run, and larger models get an
 * error. */
static void test_4_kilobytes_of_parameters(void)
{
    shim_limits limits = shim_usual_limits;
    limits.parameter_bytes = 4096;
    shim_set_limits(&limits);
    check_scale(1, false);
    check_scale(160, false);
    check_scale(FL_CUDA_ROWS, true);
    shim_set_limits(&shim_usual_limits);
    check_scale(FL_CUDA_ROWS, false);
    check_scale(FL_CUDA_ROWS + 1, false);
}

/* A block of 256 threads takes a quarter of the registers. */
static void test_registers(void)
{
    shim_limits limits = shim_usual_limits;
    limits.registers /= FL_CUDA_BLOCKS_PER_SM;
    shim_set_limits(&limits);
    check_scale(3, false);
    limits.thread_registers++;
    shim_set_limits(&limits);
    check_scale(3, true);
    shim_set_limits(&shim_usual_limits);
}

int main(void)
{
    start_tests();
    choose_device_0();
    RUN(test_launches_beyond_a_limit);
    RUN(test_4_kilobytes_of_parameters);
    RUN(test_registers);
    return 0;
}
