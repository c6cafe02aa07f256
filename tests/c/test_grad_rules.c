/* Tests of the passes' rules on the CPU. */
#include "grad_rules.h"

int main(void)
{
    start_tests();
    run_rules(&fl_cpu_grad_ops, NULL);
    return 0;
}
