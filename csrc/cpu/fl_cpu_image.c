/* fl_cpu_image: which table this machine takes; see fl_cpu_image.h. */
#include "fl_cpu_image.h"

const fl_image_ops *fl_cpu_image_ops_find(void) { return &fl_cpu_image_plain; }
