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

int32_t fl_op_count_branches(const fl_image_op *op)
{
    int32_t count = 0;
    for (int32_t i = 1; i <= op->span; i += 1 + op[i].span) count++;
    return count;
}

static int check_branches(const fl_image_op *op, fl_err *err)
{
    int32_t count = fl_op_count_branches(op);
    if (count >= 1 && count <= FL_MAX_ORDER) return FL_OK;
    return fl_fail(err, FL_EINVAL, "%s must have 1 to %d transforms, got %d",
                   op->kind == FL_OP_CHOICE ? "RandomChoice" : "RandomOrder", FL_MAX_ORDER, count);
}

/* Draws a number, and chooses the first branch whose upper end is above the number. */
static void draw_choice(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                        fl_image_params *params)
{
    (void)in;
    double at = fl_philox_unit(fl_op_random(op, key, 0).word[0]);
    int32_t branch = 0, last = fl_op_count_branches(op) - 1;
    for (int32_t i = 1; branch < last && at >= op[i].branch_end; i += 1 + op[i].span) branch++;
    params->order[0] = (int8_t)branch;
}

const fl_op_type fl_op_gate_choice = {
    .name = "RandomChoice", .is_drawn = true, .check = check_branches, .draw = draw_choice};

static void draw_order(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                       fl_image_params *params)
{
    (void)in;
    fl_op_draw_order(op, key, 0, fl_op_count_branches(op), params->order);
}

const fl_op_type fl_op_gate_order = {
    .name = "RandomOrder", .is_drawn = true, .check = check_branches, .draw = draw_order};
