/* Tests of the passes' rules on single numbers, with the kernels of the CUDA backend. */
#include "cuda_fixture.h"
#include "grad_rules.h"

int main(void)
{
    fl_cuda_queue on = {.device = DEVICE};
    start_tests();
    choose_device_0();
    run_rules(&fl_cuda_grad_ops, &on);
    return 0;
}
