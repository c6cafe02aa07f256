/* fl_cpu_tokens: chooses the table for this machine; see fl_cpu_tokens.h. */
#include "fl_cpu_tokens.h"

#include "fl_cpu_level.h"

const fl_token_ops *fl_cpu_token_ops_find(void)
{
    fl_cpu_level level = fl_cpu_level_find();
    return FL_CPU_TABLE(level, fl_cpu_tokens);
}
