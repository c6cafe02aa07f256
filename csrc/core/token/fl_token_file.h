/* fl_token_file: what the bytes of a token file mean: which type, where tokens begin, how many, and
 * where documents end.
 *
 * Floor 1. Pure: it reads what the caller has read of a file, never the file. Nothing in a header
 * is believed before it fits the size of the file, so a caller may allocate by what it is told
 * here. All numbers in files are little-endian, and so must be the machine. Any thread, never
 * blocks. */
#ifndef FL_TOKEN_FILE_H
#define FL_TOKEN_FILE_H

#include "fl_token_type.h"

typedef struct fl_token_layout {
    fl_token_type type;
    int64_t first_byte; /* of the first token in the file */
    int64_t count;      /* tokens, >= 1 */
} fl_token_layout;

/* How much of a file's beginning fl_token_file_read_llmc needs; less where the file is shorter. */
enum { FL_LLMC_BYTES = 1024 };

/* All functions below: FL_EINVAL, and a sentence that has the file as its subject, for bytes that
 * are not what they should be; *out is then undefined. `head` holds the first head_bytes of a file
 * that has file_bytes. `type` is what the user says the tokens are, or FL_TOKEN_TYPES if the file
 * must say it. */

/* What another program's file this is, if it holds no tokens or not one after the other: FL_OK, or
 * FL_EINVAL for an index of Megatron, evaluation examples of llm.c, an archive. */
int fl_token_file_check(const char *head, int64_t head_bytes, fl_err *err);

/* Whether it begins as a file of llm.c or modded-nanogpt does. */
bool fl_token_file_is_llmc(const char *head, int64_t head_bytes);

/* Tokens from the first byte on. */
int fl_token_file_read_raw(int64_t file_bytes, fl_token_type type, fl_token_layout *out,
                           fl_err *err);

/* The 256 int32 of llm.c: magic, version, number of tokens. The magic says the width. Forks keep
 * that of 16 bit for other tokens: `type` must say so, and the size of the file must fit. */
int fl_token_file_read_llmc(const char *head, int64_t head_bytes, int64_t file_bytes,
                            fl_token_type type, fl_token_layout *out, fl_err *err);

/* Megatron's .idx, which describes the .bin file beside it. */
typedef struct fl_token_index {
    fl_token_type type;
    int64_t sequences;
    int64_t documents;
} fl_token_index;

/* Before the arrays of an .idx file. */
enum { FL_MEGATRON_BYTES = 34 };

/* Reads the head of an index that has index_bytes: after it, the arrays fit. */
int fl_token_index_read(const char *head, int64_t head_bytes, int64_t index_bytes,
                        fl_token_index *out, fl_err *err);

/* Reads the whole index, of which `found` is the head, for a .bin file of bin_bytes. The caller's
 * `ends` (`found->documents` of them) get the end of each document, in tokens of the .bin file. */
int fl_token_index_ends(const char *index, const fl_token_index *found, int64_t bin_bytes,
                        int64_t *ends, fl_token_layout *out, fl_err *err);

/* datatrove's .ds.index: the end of each document as uint64. The caller's `ends` (index_bytes / 8
 * of them) get them. Without a type, 2 or 4 bytes a token, whichever fits file_bytes. */
int fl_token_ends_read(const char *index, int64_t index_bytes, int64_t file_bytes,
                       fl_token_type type, int64_t *ends, fl_token_layout *out, fl_err *err);

#endif
