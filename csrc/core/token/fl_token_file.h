/* fl_token_file: the meaning of a token file's bytes: the type, the first byte and the number of
 * tokens, and the ends of documents.
 *
 * Floor 1. Works on what the caller has read from a file, and never reads the file itself. No
 * number of a header is believed before it fits the size of the file, so a caller may allocate by
 * the results. All numbers in files are little-endian, and the machine must be little-endian. Any
 * thread, never blocks. */
#ifndef FL_TOKEN_FILE_H
#define FL_TOKEN_FILE_H

#include "fl_token_type.h"

typedef struct fl_token_layout {
    fl_token_type type;
    int64_t first_byte; /* of the first token in the file */
    int64_t count;      /* tokens, >= 1 */
} fl_token_layout;

/* The bytes of a file's beginning that fl_token_file_read_llmc needs; fewer if the file is
 * shorter. */
enum { FL_LLMC_BYTES = 1024 };

/* All functions below fail with FL_EINVAL, and a sentence that has the file as its subject, if
 * bytes are not what they should be; *out is then undefined. `head` holds the first head_bytes of a
 * file that has file_bytes. `type` is the user's type of the tokens, or FL_TOKEN_TYPES if the file
 * must tell. */

/* Recognizes files of other programs that hold no tokens, or no single stream of tokens. FL_OK: the
 * file is none of these. FL_EINVAL: the file is an index of Megatron, evaluation examples of llm.c,
 * or an archive. */
int fl_token_file_check(const char *head, int64_t head_bytes, fl_err *err);

/* Returns true if the file begins like a file of llm.c or modded-nanogpt. */
bool fl_token_file_is_llmc(const char *head, int64_t head_bytes);

/* Reads tokens from the first byte on. */
int fl_token_file_read_raw(int64_t file_bytes, fl_token_type type, fl_token_layout *out,
                           fl_err *err);

/* Reads the 256 int32 of llm.c: magic, version, number of tokens. The magic gives the width. Forks
 * keep the magic of 16 bits for other widths: `type` must then give the width, and the size of the
 * file must fit. */
int fl_token_file_read_llmc(const char *head, int64_t head_bytes, int64_t file_bytes,
                            fl_token_type type, fl_token_layout *out, fl_err *err);

/* Megatron's .idx, which describes the .bin file beside it. */
typedef struct fl_token_index {
    fl_token_type type;
    int64_t sequences;
    int64_t documents;
} fl_token_index;

/* The bytes before the arrays of an .idx file. */
enum { FL_MEGATRON_BYTES = 34 };

/* Reads the head of an index that has index_bytes. On success the arrays fit into these bytes. */
int fl_token_index_read(const char *head, int64_t head_bytes, int64_t index_bytes,
                        fl_token_index *out, fl_err *err);

/* Reads the whole index, whose head is `found`, for a .bin file of bin_bytes. Writes the end of
 * each document, in tokens of the .bin file, to the caller's ends[found->documents]. */
int fl_token_index_ends(const char *index, const fl_token_index *found, int64_t bin_bytes,
                        int64_t *ends, fl_token_layout *out, fl_err *err);

/* Reads datatrove's .ds.index: the end of each document as uint64. Writes the ends to the caller's
 * ends[index_bytes / 8]. Without a type a token has 2 or 4 bytes, whichever fits file_bytes. */
int fl_token_ends_read(const char *index, int64_t index_bytes, int64_t file_bytes,
                       fl_token_type type, int64_t *ends, fl_token_layout *out, fl_err *err);

#endif
