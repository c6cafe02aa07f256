/* fl_cpu: the table of the CPU's functions. */
#include "fl_cpu.h"

const fl_backend fl_cpu_backend = {.copy_rows = fl_cpu_copy_rows,
                                   .gather_rows = fl_cpu_gather_rows,
                                   .norm_check = fl_cpu_norm_check,
                                   .clip_factor = fl_cpu_clip_factor,
                                   .invert = fl_cpu_invert,
                                   .scale = fl_cpu_scale,
                                   .unscale = fl_cpu_unscale,
                                   .combine = fl_cpu_combine,
                                   .can_combine = fl_cpu_can_combine,
                                   .update_scale = fl_cpu_update_scale};
