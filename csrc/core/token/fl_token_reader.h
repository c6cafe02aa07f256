/* fl_token_reader: windows of tokens read from files or memory into the tensors of a batch.
 *
 * Floor 1. Hides how files are read (pread, or a mapping through fl_safe_read), how tokens are
 * widened, and how documents are marked. A reader opens and closes no file. A reader is read-only
 * once open but for one atomic count: any number of threads may read, also in forked children.
 * docs/internals/tokens.md says why files are read this way. */
#ifndef FL_TOKEN_READER_H
#define FL_TOKEN_READER_H

#include "fl_token_ops.h"
#include "fl_window.h"

/* The tokens of one file, or of one array in memory. */
typedef struct fl_token_source {
    int fd;           /* borrowed; -1: the tokens are in memory */
    const char *data; /* borrowed: the memory of the tokens, if fd is -1 */
    bool is_volatile; /* memory of a mapped file, which is read through fl_safe_read; the opener of
                         the reader checks that the file has not become shorter */
    int64_t first_byte; /* of the first token, in the file or from data on */
    int64_t tokens;     /* >= 0 */
    fl_token_type type;
    uint64_t most;       /* a larger token is an error; negative tokens are larger than any limit.
                            UINT64_MAX: no token is an error */
    const int64_t *ends; /* borrowed: the ends of documents, rising or equal; NULL: not known */
    int64_t documents;   /* number of ends */
} fl_token_source;

typedef enum fl_token_targets {
    FL_TARGETS_NONE,
    FL_TARGETS_SAME, /* y is x */
    FL_TARGETS_SHIFT /* y is the tokens one position later */
} fl_token_targets;

typedef enum fl_token_io {
    FL_TOKEN_AUTO,  /* maps files of local file systems if they have at most FL_TOKEN_MAPPED_BYTES
                       together */
    FL_TOKEN_PREAD, /* never maps: only batches add to the process's memory */
    FL_TOKEN_MMAP /* maps every file that can be mapped; pages that were read count as the process's
                     memory */
} fl_token_io;

#define FL_TOKEN_MAPPED_BYTES ((int64_t)128 << 20)

typedef struct fl_token_config {
    const fl_token_source *sources; /* copied */
    int64_t count;
    int64_t length; /* tokens in a row of x, >= 1 */
    fl_token_targets targets;
    fl_token_out out;
    bool has_eos; /* documents end with eos; otherwise at the ends of their source */
    int64_t eos;
    fl_token_io io;
    const fl_token_ops *ops; /* borrowed, static */
} fl_token_config;

/* The first row of each tensor of a batch; rows of `length` elements follow each other. NULL: the
 * tensor is not wanted. The last three are given together or not at all. */
typedef struct fl_token_rows {
    bool is_narrow; /* x gets rows of fl_token_reader_window tokens of the narrow type, for making x
                       and y later; y is not written */
    char *x, *y;
    int64_t *position, *document;
    bool *mask;
} fl_token_rows;

/* Returns the tensors at memory[0], memory[1], ...: x; y if has_y; the three tensors of documents
 * if has_documents. */
fl_token_rows fl_token_rows_at(char *const *memory, bool has_y, bool has_documents);

typedef struct fl_token_reader fl_token_reader;

/* Opens a reader; the caller closes *out. What `sources` borrow must live until then. FL_ENOMEM. */
int fl_token_reader_open(const fl_token_config *config, fl_token_reader **out, fl_err *err);
void fl_token_reader_close(fl_token_reader *reader);

/* Tells that the memory of source f, which has no descriptor, is at `data` now. Call this while
 * nobody reads. */
void fl_token_reader_move(fl_token_reader *reader, int64_t f, const char *data);

/* Returns how many tokens a window takes from its file: length, and the target of the last
 * token. */
int64_t fl_token_reader_window(const fl_token_reader *reader);

/* Returns the type with the fewest bytes that holds every valid token of all sources. */
fl_token_type fl_token_reader_narrow_type(const fl_token_reader *reader);

/* Returns how source f is read: "memory", "pread" or "mmap". */
const char *fl_token_reader_io(const fl_token_reader *reader, int64_t f);

/* Returns true if reading may wait for a disk, and fail. */
bool fl_token_reader_is_volatile(const fl_token_reader *reader);

/* Reads windows[i] into row first_row + i. Windows lie within their sources. Blocks for the disk.
 * FL_EFILE, FL_ETOKEN, FL_ENOMEM; rows are then undefined. */
int fl_token_reader_read(fl_token_reader *reader, const fl_window *windows, int64_t count,
                         const fl_token_rows *rows, int64_t first_row, fl_err *err);

/* Reads `count` tokens that follow each other within their source into `out`, as the narrow type.
 * Blocks and fails like fl_token_reader_read. */
int fl_token_reader_copy(fl_token_reader *reader, fl_window from, int64_t count, char *out,
                         fl_err *err);

/* Returns true if reads have had to wait for the disk lately: then the windows of a batch should be
 * read ahead. Ask once for each batch, because each call counts as a batch. */
bool fl_token_reader_is_cold(fl_token_reader *reader);

/* Asks the system to read these windows, because they will be read soon. */
void fl_token_reader_advise(const fl_token_reader *reader, const fl_window *windows, int64_t count);

#endif
