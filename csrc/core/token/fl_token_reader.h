/* fl_token_reader: windows of tokens read from files or memory into the tensors of a batch.
 *
 * Floor 1. Hides how files are read (pread, or a mapping through fl_safe_read), how tokens are
 * widened, and what documents make of them. It opens and closes no file. A reader is read-only once
 * open but for one atomic count: any number of threads may read, in forked children too.
 * docs/internals/tokens.md says why files are read this way. */
#ifndef FL_TOKEN_READER_H
#define FL_TOKEN_READER_H

#include "fl_token_ops.h"
#include "fl_window.h"

/* The tokens of one file, or of one array in memory. */
typedef struct fl_token_source {
    int fd;           /* borrowed; -1: the tokens are in memory */
    const char *data; /* borrowed: the memory of the tokens, where fd is -1 */
    bool is_volatile; /* memory of a mapped file, which is read through fl_safe_read; who opens the
reader looks whether the file has become shorter */
    int64_t first_byte; /* of the first token in the file, or behind data */
    int64_t tokens;     /* >= 0 */
    fl_token_type type;
    uint64_t most;       /* a token above it is an error; UINT64_MAX: none is. Negative ones are
                            above all */
    const int64_t *ends; /* borrowed: where documents end, rising or equal; NULL: not known */
    int64_t documents;   /* how many ends */
} fl_token_source;

typedef enum fl_token_targets {
    FL_TARGETS_NONE,
    FL_TARGETS_SAME, /* y is x */
    FL_TARGETS_SHIFT /* y is the tokens that come one later */
} fl_token_targets;

typedef enum fl_token_io {
    FL_TOKEN_AUTO,  /* maps files of local file systems that together have at most
                       FL_TOKEN_MAPPED_BYTES */
    FL_TOKEN_PREAD, /* never maps: the process grows by nothing but the batches */
    FL_TOKEN_MMAP /* maps what can be mapped; pages that were read count as the process's memory */
} fl_token_io;

#define FL_TOKEN_MAPPED_BYTES ((int64_t)128 << 20)

typedef struct fl_token_config {
    const fl_token_source *sources; /* copied */
    int64_t count;
    int64_t length; /* tokens of a row of x, >= 1 */
    fl_token_targets targets;
    fl_token_out out;
    bool has_eos; /* documents end with it; else at the ends of their source */
    int64_t eos;
    fl_token_io io;
    const fl_token_ops *ops; /* borrowed, static */
} fl_token_config;

/* The first row of each tensor of a batch: rows of `length` elements follow each other. NULL: not
 * wanted. The last three come together. */
typedef struct fl_token_rows {
    bool is_narrow; /* x has rows of fl_token_reader_window tokens of the narrow type instead, of
                       which x and y can be made; y is not written */
    char *x, *y;
    int64_t *position, *document;
    bool *mask;
} fl_token_rows;

/* The tensors at memory[0], memory[1], ...: x, then y and the three of documents where there are
 * any. */
fl_token_rows fl_token_rows_at(char *const *memory, bool has_y, bool has_documents);

typedef struct fl_token_reader fl_token_reader;

/* The caller owns *out; what `sources` borrow must live until it is closed. FL_ENOMEM. */
int fl_token_reader_open(const fl_token_config *config, fl_token_reader **out, fl_err *err);
void fl_token_reader_close(fl_token_reader *reader);

/* The memory of source f, which has no descriptor, is at `data` now. While nobody reads. */
void fl_token_reader_move(fl_token_reader *reader, int64_t f, const char *data);

/* Tokens that a window takes of its file: length, and the target of the last. */
int64_t fl_token_reader_window(const fl_token_reader *reader);

/* The type with the fewest bytes that holds every token that may be read, of all sources. */
fl_token_type fl_token_reader_narrow_type(const fl_token_reader *reader);

/* How source f is read: "memory", "pread" or "mmap". */
const char *fl_token_reader_io(const fl_token_reader *reader, int64_t f);

/* Reading may wait for a disk, and fail. */
bool fl_token_reader_is_volatile(const fl_token_reader *reader);

/* Reads windows[i] into row first_row + i. Windows lie within their sources. Blocks for the disk.
 * FL_EFILE, FL_ETOKEN, FL_ENOMEM; rows are then undefined. */
int fl_token_reader_read(fl_token_reader *reader, const fl_window *windows, int64_t count,
                         const fl_token_rows *rows, int64_t first_row, fl_err *err);

/* Reads `count` tokens that follow each other, which lie within their source, into `out`, as the
 * narrow type. Otherwise as fl_token_reader_read. */
int fl_token_reader_copy(fl_token_reader *reader, fl_window from, int64_t count, char *out,
                         fl_err *err);

/* Whether reads have had to wait for the disk of late: then the windows of a batch should be read
 * ahead. Asked once for each batch, of which it counts how many have been since. */
bool fl_token_reader_is_cold(fl_token_reader *reader);

/* Asks the system to read these windows, which are read soon. */
void fl_token_reader_advise(const fl_token_reader *reader, const fl_window *windows, int64_t count);

#endif
