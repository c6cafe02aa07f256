/* fl_op_gate: operations that hold operations: RandomApply, RandomChoice, RandomOrder, and a branch
 * of the latter two. The plan draws and applies the held operations. */
#include "fl_op.h"

static int check_apply(const fl_image_op *op, fl_err *err)
{
    return fl_op_check_p(fl_op_gate_apply.name, op->p, err);
}

const fl_op_type fl_op_gate_apply = {
    .name = "RandomApply", .is_drawn = true, .check = check_apply, .draw = fl_op_draw_applied};

const fl_op_type fl_op_gate_branch = {.name = "a branch"};

static int check_branches(const fl_image_op *op, fl_err *err)
{
    int32_t count = fl_op_count_branches(op);
    if (count >= 1 && count <= FL_MAX_ORDER) return FL_OK;
    return fl_fail(err, FL_EINVAL, "%s must have 1 to %d transforms, got %d",
                   op->kind == FL_OP_CHOICE ? "RandomChoice" : "RandomOrder", FL_MAX_ORDER, count);
}

const fl_op_type fl_op_gate_choice = {
    .name = "RandomChoice", .is_drawn = true, .check = check_branches, .draw = fl_op_draw_choice};

const fl_op_type fl_op_gate_order = {
    .name = "RandomOrder", .is_drawn = true, .check = check_branches, .draw = fl_op_draw_order};
