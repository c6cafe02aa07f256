/* fl_image_cut: a plan cut before its last step, which looks bytes up in tables.
 *
 * Floor 1. What comes before makes bytes, in the memory order of the output; where these travel to
 * a device, that does the step (fl_transfer_cast). Pure. */
#ifndef FL_IMAGE_CUT_H
#define FL_IMAGE_CUT_H

#include "fl_image_plan.h"

/* Opens the plan of the bytes that the tables of `config` make its results of: element i of channel
 * c of a result is tables[c][element i of a result of *out]. The caller owns *out. FL_EINVAL where
 * there is none: a text that says why, in the words of a user. FL_ENOMEM. */
int fl_image_cut_open(const fl_image_config *config, fl_image_plan **out, fl_err *err);

#endif
