/* fl_cpu_tokens_plain: fl_token_ops for any machine. */
#define FL_TOKENS fl_cpu_tokens_plain
#define FL_TOKENS_NAME "plain"
#include "fl_cpu_tokens_body.h"
