/* fl_image_host_part: see fl_image_host_part.h. */
#include "fl_image_host_part.h"

#include "fl_transfer_ops.h"

#include <string.h>

static bool has_padding(const fl_image_op *op)
{
    for (int side = 0; side < 4; side++)
        if (op->padding[side] != 0) return true;
    return false;
}

/* Returns true if a crop of an image of this size may reach beyond the image. Size {0, 0}: not
 * known. */
static bool is_larger(const fl_image_op *crop, fl_image_size in)
{
    return crop->size.height > in.height || crop->size.width > in.width;
}

/* Returns the operation's name if it fills elements of an image of this size; NULL: it fills
 * none. */
static const char *name_filler(const fl_image_op *op, fl_image_size in)
{
    bool is_constant = op->padding_mode == FL_PAD_CONSTANT;
    switch (op->kind) {
    case FL_OP_PAD:
        return is_constant && has_padding(op) ? "Pad" : NULL;
    case FL_OP_RANDOM_CROP:
        if (!is_constant) return NULL;
        return has_padding(op) || (op->pad_if_needed && is_larger(op, in)) ? "RandomCrop" : NULL;
    case FL_OP_CENTER_CROP:
        return is_larger(op, in) ? "CenterCrop" : NULL;
    case FL_OP_ERASE:
        return op->p > 0 ? "RandomErasing" : NULL;
    default:
        return NULL;
    }
}

/* Returns the byte that becomes this element, preferring `likely`; -1: no byte does. */
static int find_byte(const char *table, const void *element, size_t bytes, uint8_t likely)
{
    if (memcmp(table + likely * bytes, element, bytes) == 0) return likely;
    for (int value = 0; value < 256; value++)
        if (memcmp(table + (size_t)value * bytes, element, bytes) == 0) return value;
    return -1;
}

/* Replaces the elements that the operation fills with by the bytes that become these elements. */
static int cut_fill(const fl_image_config *config, fl_image_size in, int32_t channels,
                    fl_image_op *op, fl_err *err)
{
    const char *name = name_filler(op, in), *tables = config->tables;
    const size_t bytes = (size_t)fl_image_type_bytes(config->type);
    fl_image_op part = *op;
    for (int32_t c = 0; name != NULL && c < channels; c++) {
        int value = find_byte(tables + (size_t)c * 256 * bytes, op->out_fill + (size_t)c * bytes,
                              bytes, op->fill[c]);
        if (value < 0)
            return fl_fail(err, FL_EINVAL,
                           "%s fills channel %d with a value that no byte becomes; put %s before "
                           "ToDtype and Normalize",
                           name, c, name);
        part.out_fill[c] = (uint8_t)value;
    }
    *op = part;
    return FL_OK;
}

int fl_image_host_part_open(const fl_image_config *config, fl_image_plan **out, fl_err *err)
{
    fl_image_op ops[FL_MAX_IMAGE_OPS];
    fl_image_trace trace[FL_MAX_IMAGE_OPS + 1];
    *out = NULL;
    if (config->type == FL_IMAGE_U8)
        return fl_fail(err, FL_EINVAL, "the results of the plan are bytes");
    if (config->count > FL_MAX_IMAGE_OPS)
        return fl_fail(err, FL_EINVAL, "the plan has more than %d operations", FL_MAX_IMAGE_OPS);
    FL_TRY(fl_image_ops_trace(config, trace, err));
    for (int32_t i = 0; i < config->count; i++) {
        ops[i] = config->ops[i];
        /* A Grayscale reads the image before it, so that image is never looked up as the result. */
        bool lasts = trace[i].channels == trace[config->count].channels;
        FL_TRY(cut_fill(config, trace[i].size, lasts ? trace[i].channels : 0, &ops[i], err));
    }
    fl_image_config part = *config;
    part.ops = ops;
    part.type = FL_IMAGE_U8;
    part.tables = NULL;
    part.linear = NULL;
    FL_TRY(fl_image_plan_open(&part, out, err));
    int64_t bytes = fl_image_plan_out_bytes(*out);
    if (bytes <= FL_CAST_CYCLE) return FL_OK;
    fl_image_plan_close(*out);
    *out = NULL;
    return fl_fail(err, FL_EINVAL, "an image of %lld elements is larger than a device casts",
                   (long long)bytes);
}
