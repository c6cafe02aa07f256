/* fl_image_host_part: a plan without its last step, which looks bytes up in tables.
 *
 * Floor 1. The host's part makes bytes, in the memory order of the output. If the bytes travel to a
 * device, the device does the last step (fl_transfer_cast). The result depends on the arguments
 * only. */
#ifndef FL_IMAGE_HOST_PART_H
#define FL_IMAGE_HOST_PART_H

#include "fl_image_plan.h"

/* Opens the plan that makes the bytes for the tables of `config`: element i of channel c of a
 * result is tables[c][element i of a result of *out]. The caller owns *out. FL_EINVAL: there is no
 * such plan; the text says why, in a user's words. FL_ENOMEM. */
int fl_image_host_part_open(const fl_image_config *config, fl_image_plan **out, fl_err *err);

#endif
