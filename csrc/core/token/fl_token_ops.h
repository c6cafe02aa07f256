/* fl_token_ops: the table of functions that a device fills for tokens: conversion between widths of
 * integers, and positions within documents.
 *
 * Floor 1. csrc/cpu fills the tables; csrc/python chooses a table and passes it in. Tokens and
 * tensors may lie at any address. No function blocks or fails; any thread. */
#ifndef FL_TOKEN_OPS_H
#define FL_TOKEN_OPS_H

#include "fl_token_type.h"

/* The width of results. int32 and uint32 have the same bits. */
typedef enum fl_token_out {
    FL_TOKEN_OUT_8,
    FL_TOKEN_OUT_16,
    FL_TOKEN_OUT_32,
    FL_TOKEN_OUT_64,
    FL_TOKEN_OUTS
} fl_token_out;

static inline int64_t fl_token_out_bytes(fl_token_out out) { return INT64_C(1) << out; }

/* Returns the width of the type itself, without sign. */
static inline fl_token_out fl_token_out_of(fl_token_type type)
{
    static const fl_token_out outs[FL_TOKEN_TYPES] = {
        FL_TOKEN_OUT_8,  FL_TOKEN_OUT_8,  FL_TOKEN_OUT_16, FL_TOKEN_OUT_16,
        FL_TOKEN_OUT_32, FL_TOKEN_OUT_32, FL_TOKEN_OUT_64};
    return outs[type];
}

/* Writes x[i] = src[i] and, unless y is NULL, y[i] = src[i + shift], for 0 <= i < count; shift is 0
 * or 1. Signed tokens keep their sign; tokens that are too wide keep their lowest bits. Returns
 * true if no token of src[0..count + shift) is above `most`; a negative token is above every limit,
 * but with UINT64_MAX every token passes. Everything is written in either case. The memories do not
 * overlap. */
typedef bool
fl_token_convert(void *x, void *y, const void *src, int64_t count, int64_t shift, uint64_t most);

typedef struct fl_token_ops {
    const char *name;
    fl_token_convert *convert[FL_TOKEN_TYPES][FL_TOKEN_OUTS];

    /* Returns the index of the first of `count` tokens with the value, which the type can hold;
     * `count`: no token has the value. */
    int64_t (*find[FL_TOKEN_TYPES])(const void *src, int64_t count, int64_t value);

    /* Writes first, first + 1, ... to out. */
    void (*count_up)(int64_t *out, int64_t first, int64_t count);
    void (*fill)(int64_t *out, int64_t value, int64_t count);
} fl_token_ops;

#endif
