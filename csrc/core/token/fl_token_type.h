/* fl_token_type: the integers that token files hold.
 *
 * Floor 1. The integers are little-endian, and may lie at any address. */
#ifndef FL_TOKEN_TYPE_H
#define FL_TOKEN_TYPE_H

#include "fl_base.h"

typedef enum fl_token_type {
    FL_TOKEN_U8,
    FL_TOKEN_I8,
    FL_TOKEN_U16,
    FL_TOKEN_I16,
    FL_TOKEN_U32,
    FL_TOKEN_I32,
    FL_TOKEN_I64,
    FL_TOKEN_TYPES
} fl_token_type;

static inline int64_t fl_token_bytes(fl_token_type type)
{
    static const int64_t bytes[FL_TOKEN_TYPES] = {1, 1, 2, 2, 4, 4, 8};
    return bytes[type];
}

static inline bool fl_token_is_signed(fl_token_type type)
{
    return type == FL_TOKEN_I8 || type == FL_TOKEN_I16 || type == FL_TOKEN_I32 ||
           type == FL_TOKEN_I64;
}

#endif
