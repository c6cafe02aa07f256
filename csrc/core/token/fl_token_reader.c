/* fl_token_reader: see fl_token_reader.h.
 *
 * A window is read in pieces that fit into scratch memory, which stays in the nearer caches. Pieces
 * of mapped files are gathered, many with one system call. Pieces of files that are not mapped take
 * one pread each. Tokens in memory are widened directly. */
#define _GNU_SOURCE
#include "fl_token_reader.h"

#include "fl_document.h"
#include "fl_read_ahead.h"
#include "fl_safe_read.h"
#include "fl_scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum {
    /* 32 KiB, two calls a batch of 32 x 1024 tokens, took 10 % longer. */
    SCRATCH_BYTES = 128 * 1024,
    MAX_PIECES = 64 /* in one system call */
};

typedef struct token_file {
    fl_token_source source;
    char *map; /* owned; NULL: not mapped */
    int64_t map_bytes;
    fl_document_rule rule;
} token_file;

struct fl_token_reader {
    const fl_token_ops *ops; /* borrowed, static */
    int64_t length, shift;
    fl_token_out out;
    fl_token_type narrow;
    bool is_volatile;
    fl_scratch_slots *slots; /* owned; NULL: no source is volatile */
    fl_read_ahead ahead;
    int64_t count;
    token_file files[]; /* owned */
};

/* ---- opening */

/* Returns true for file systems of this machine: no other machine can cut their files, and the
 * kernel keeps their pages. ext4, xfs, btrfs, tmpfs, overlayfs, f2fs. */
static bool is_local(int fd)
{
    static const long magic[] = {0xEF53,     0x58465342, 0x9123683E,
                                 0x01021994, 0x794C7630, 0xF2F52010};
    struct statfs found;
    if (fstatfs(fd, &found) != 0) return false;
    for (size_t i = 0; i < sizeof magic / sizeof *magic; i++)
        if (found.f_type == magic[i]) return true;
    return false;
}

static int64_t end_byte(const fl_token_source *source)
{
    return source->first_byte + source->tokens * fl_token_bytes(source->type);
}

/* Returns true if FL_TOKEN_AUTO may map files. Mapped files count as the process's memory, so only
 * small sets are mapped. */
static bool may_map(const fl_token_config *config)
{
    int64_t left = FL_TOKEN_MAPPED_BYTES;
    for (int64_t f = 0; f < config->count && left >= 0; f++)
        if (config->sources[f].fd >= 0) left -= fl_min(end_byte(&config->sources[f]), left + 1);
    return left >= 0 && strcmp(fl_safe_read_method(), "process_vm") == 0;
}

/* Maps a file. If the mapping fails, the file is read with pread. */
static void map_file(token_file *file)
{
    int64_t bytes = end_byte(&file->source);
    if (bytes == 0 || fl_fault_hit()) return;
    void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, file->source.fd, 0);
    if (map == MAP_FAILED) return;
    file->map = map;
    file->map_bytes = bytes;
}

static const int64_t lowest_of[FL_TOKEN_TYPES] = {0, INT8_MIN,  0,        INT16_MIN,
                                                  0, INT32_MIN, INT64_MIN};
static const int64_t highest_of[FL_TOKEN_TYPES] = {UINT8_MAX,  INT8_MAX,  UINT16_MAX, INT16_MAX,
                                                   UINT32_MAX, INT32_MAX, INT64_MAX};

static bool can_hold(fl_token_type type, int64_t value)
{
    return value >= lowest_of[type] && value <= highest_of[type];
}

static fl_token_type find_narrow_type(const fl_token_config *config)
{
    fl_token_type type = FL_TOKEN_U8; /* types are in the order of their bytes */
    int64_t lowest = 0, highest = 0;
    for (int64_t f = 0; f < config->count; f++) {
        const fl_token_source *source = &config->sources[f];
        bool is_limited = source->most != UINT64_MAX;
        if (!is_limited) lowest = fl_min(lowest, lowest_of[source->type]);
        bool is_lower = is_limited && source->most < (uint64_t)highest_of[source->type];
        highest = fl_max(highest, is_lower ? (int64_t)source->most : highest_of[source->type]);
    }
    while (!can_hold(type, lowest) || !can_hold(type, highest)) type++;
    return type;
}

static void open_file(const fl_token_config *config, token_file *file, bool is_auto_mapped)
{
    const fl_token_source *source = &file->source;
    file->rule =
        (fl_document_rule){.ops = config->ops,
                           .type = source->type,
                           .has_eos = config->has_eos && can_hold(source->type, config->eos),
                           .eos = config->eos,
                           .ends = source->ends,
                           .documents = config->has_eos ? 0 : source->documents,
                           .masks_last = config->targets == FL_TARGETS_SHIFT};
    if (source->fd < 0 || config->io == FL_TOKEN_PREAD) return;
    if (config->io == FL_TOKEN_MMAP || (is_auto_mapped && is_local(source->fd))) map_file(file);
}

static int fail_memory(fl_err *err)
{
    return fl_fail(err, FL_ENOMEM, "out of memory for a reader of tokens");
}

int fl_token_reader_open(const fl_token_config *config, fl_token_reader **out, fl_err *err)
{
    *out = NULL;
    int64_t bytes;
    bool fits = fl_mul(config->count, (int64_t)sizeof(token_file), &bytes) &&
                fl_add(bytes, (int64_t)sizeof(fl_token_reader), &bytes);
    fl_token_reader *reader = fits ? fl_alloc(bytes) : NULL;
    if (reader == NULL) return fail_memory(err);
    reader->length = config->length;
    reader->shift = config->targets == FL_TARGETS_SHIFT ? 1 : 0;
    reader->ops = config->ops;
    reader->out = config->out;
    reader->narrow = find_narrow_type(config);
    reader->count = config->count;
    bool is_auto_mapped = config->io == FL_TOKEN_AUTO && may_map(config);
    for (int64_t f = 0; f < config->count; f++) {
        token_file *file = &reader->files[f];
        file->source = config->sources[f];
        reader->is_volatile |= file->source.fd >= 0 || file->source.is_volatile;
        open_file(config, file, is_auto_mapped);
    }
    if (reader->is_volatile) fl_read_ahead_begin(&reader->ahead);
    if (reader->is_volatile) reader->slots = fl_alloc(sizeof *reader->slots);
    if (reader->is_volatile && reader->slots == NULL) {
        fl_token_reader_close(reader);
        return fail_memory(err);
    }
    *out = reader;
    return FL_OK;
}

void fl_token_reader_close(fl_token_reader *reader)
{
    for (int64_t f = 0; reader != NULL && f < reader->count; f++)
        if (reader->files[f].map != NULL)
            munmap(reader->files[f].map, (size_t)reader->files[f].map_bytes);
    if (reader != NULL) fl_scratch_close(reader->slots);
    fl_free(reader);
}

void fl_token_reader_move(fl_token_reader *reader, int64_t f, const char *data)
{
    reader->files[f].source.data = data;
}

int64_t fl_token_reader_window(const fl_token_reader *reader)
{
    return reader->length + reader->shift;
}

fl_token_type fl_token_reader_narrow_type(const fl_token_reader *reader) { return reader->narrow; }

const char *fl_token_reader_io(const fl_token_reader *reader, int64_t f)
{
    if (reader->files[f].source.fd < 0) return "memory";
    return reader->files[f].map != NULL ? "mmap" : "pread";
}

bool fl_token_reader_is_volatile(const fl_token_reader *reader) { return reader->is_volatile; }

fl_token_rows fl_token_rows_at(char *const *memory, bool has_y, bool has_documents)
{
    fl_token_rows rows = {.x = *memory++};
    if (has_y) rows.y = *memory++;
    if (!has_documents) return rows;
    rows.position = (int64_t *)(void *)memory[0];
    rows.document = (int64_t *)(void *)memory[1];
    rows.mask = (bool *)(void *)memory[2];
    return rows;
}

/* ---- reading */

/* A number of tokens of a file, which become elements of a row from element `at` on. */
typedef struct token_piece {
    const token_file *file;
    int64_t first; /* token of the file */
    int64_t count; /* without the target of the last token */
    int64_t row, at;
} token_piece;

/* The state of one call of fl_token_reader_read. */
typedef struct read_state {
    fl_token_reader *reader; /* only its `ahead` is written */
    const fl_token_rows *rows;
    int64_t length, shift;     /* of this call: the reader's, or different for a part of a file */
    fl_document_cursor cursor; /* of the window that is being read */
    fl_err *err;
    int32_t pieces;       /* waiting to be gathered */
    int64_t scratch_used; /* bytes that the waiting pieces take */
    token_piece piece[MAX_PIECES];
    struct iovec from[MAX_PIECES];
    char *scratch; /* SCRATCH_BYTES for this call */
} read_state;

static int fail_read(const read_state *state, const token_file *file, int64_t byte, int number)
{
    int64_t f = file - state->reader->files;
    fl_fail(state->err, FL_EFILE, "byte %lld cannot be read: %s", (long long)byte,
            number != 0 ? strerror(number)
                        : "the file has become shorter; restore it and open the dataset again");
    if (state->err != NULL) {
        state->err->position = f;
        state->err->value = byte;
        state->err->length = number;
    }
    return FL_EFILE;
}

static int64_t token_at(fl_token_type type, const char *tokens, int64_t i)
{
    int64_t bytes = fl_token_bytes(type), bits = 0;
    memcpy(&bits, tokens + i * bytes, (size_t)bytes);
    if (bytes == 8 || !fl_token_is_signed(type)) return bits;
    int64_t sign = INT64_C(1) << (8 * bytes - 1);
    return (bits ^ sign) - sign;
}

static int fail_token(const read_state *state, const token_piece *piece, const char *tokens)
{
    const fl_token_source *source = &piece->file->source;
    int64_t i = 0, last = piece->count + state->shift - 1;
    /* The bad token may be gone by now, because the user may write to the memory. */
    while (i < last && (uint64_t)token_at(source->type, tokens, i) <= source->most) i++;
    int64_t token = token_at(source->type, tokens, i);
    int64_t f = piece->file - state->reader->files;
    fl_fail(state->err, FL_ETOKEN,
            "token %lld must be in [0, %llu], got %lld (vocab_size and out_dtype must hold every "
            "token)",
            (long long)(piece->first + i), (unsigned long long)source->most, (long long)token);
    if (state->err != NULL) {
        state->err->position = f;
        state->err->value = token;
        state->err->length = piece->first + i;
    }
    return FL_ETOKEN;
}

/* Converts a piece; returns true if every token is in range. */
static bool convert_piece(const read_state *state, const token_piece *piece, const char *tokens)
{
    const fl_token_reader *reader = state->reader;
    const fl_token_rows *rows = state->rows;
    const fl_token_source *source = &piece->file->source;
    fl_token_convert *const *convert = reader->ops->convert[source->type];
    if (rows->is_narrow) { /* the last token of a piece is also the first of the next */
        fl_token_out out = fl_token_out_of(reader->narrow);
        int64_t to = piece->row * (state->length + state->shift) + piece->at;
        return convert[out](rows->x + to * fl_token_out_bytes(out), NULL, tokens,
                            piece->count + state->shift, 0, source->most);
    }
    int64_t to = (piece->row * state->length + piece->at) * fl_token_out_bytes(reader->out);
    return convert[reader->out](rows->x + to, rows->y != NULL ? rows->y + to : NULL, tokens,
                                piece->count, state->shift, source->most);
}

/* Writes the elements of a piece's tokens to the tensors. Pieces of a window come in order. */
static int write_piece(read_state *state, const token_piece *piece, const char *tokens)
{
    const fl_token_rows *rows = state->rows;
    int64_t to = piece->row * state->length + piece->at;
    if (!convert_piece(state, piece, tokens)) return fail_token(state, piece, tokens);
    if (rows->position == NULL) return FL_OK;
    if (piece->at == 0) state->cursor = (fl_document_cursor){0};
    fl_document_out out = {rows->position + to, rows->document + to, rows->mask + to};
    fl_document_write(&piece->file->rule, tokens, piece->first, piece->count, &state->cursor, &out);
    return FL_OK;
}

static inline int64_t piece_bytes(const read_state *state, const token_piece *piece)
{
    return (piece->count + state->shift) * fl_token_bytes(piece->file->source.type);
}

static inline int64_t piece_byte(const token_piece *piece)
{
    const fl_token_source *source = &piece->file->source;
    return source->first_byte + piece->first * fl_token_bytes(source->type);
}

/* Fails if a mapped file is too short: the kernel reads zeros between the file's end and the end of
 * its last page. */
static int check_sizes(const read_state *state)
{
    const token_file *file = NULL;
    struct stat now = {0};
    for (int32_t i = 0; i < state->pieces; i++) {
        const token_piece *piece = &state->piece[i];
        if (piece->file->map == NULL) continue;
        if (piece->file != file && fstat(piece->file->source.fd, &now) != 0)
            return fail_read(state, piece->file, piece_byte(piece), errno);
        file = piece->file;
        if (piece_byte(piece) + piece_bytes(state, piece) > now.st_size)
            return fail_read(state, file, fl_max(now.st_size, piece_byte(piece)), 0);
    }
    return FL_OK;
}

/* Fails for the piece that has the first unreadable byte, `done` bytes after the first byte of
 * all. */
static int fail_gather(const read_state *state, int64_t done)
{
    int32_t i = 0;
    for (; done >= piece_bytes(state, &state->piece[i]); i++)
        done -= piece_bytes(state, &state->piece[i]);
    return fail_read(state, state->piece[i].file, piece_byte(&state->piece[i]) + done, 0);
}

/* Reads the waiting pieces, and writes their elements. */
static int flush_pieces(read_state *state)
{
    if (state->pieces == 0) return FL_OK;
    int64_t began = fl_now_ns();
    int64_t done = fl_safe_read_copy(state->scratch, state->from, state->pieces);
    if (done < 0) return fl_fail(state->err, FL_ENOMEM, "out of memory for reads of a mapped file");
    FL_TRY(check_sizes(state));
    if (done < state->scratch_used) return fail_gather(state, done);
    fl_read_ahead_note(&state->reader->ahead, began);
    const char *tokens = state->scratch;
    for (int32_t i = 0; i < state->pieces; i++) {
        FL_TRY(write_piece(state, &state->piece[i], tokens));
        tokens += piece_bytes(state, &state->piece[i]);
    }
    state->pieces = 0;
    state->scratch_used = 0;
    return FL_OK;
}

static int gather_piece(read_state *state, const token_piece *piece)
{
    int64_t bytes = piece_bytes(state, piece);
    if (state->pieces == MAX_PIECES || state->scratch_used + bytes > SCRATCH_BYTES)
        FL_TRY(flush_pieces(state));
    const token_file *file = piece->file;
    const char *data =
        file->map != NULL ? file->map + piece_byte(piece) : file->source.data + piece_byte(piece);
    state->from[state->pieces] =
        (struct iovec){.iov_base = (void *)(uintptr_t)data, .iov_len = (size_t)bytes};
    state->piece[state->pieces++] = *piece;
    state->scratch_used += bytes;
    return FL_OK;
}

static int pread_piece(read_state *state, const token_piece *piece)
{
    int64_t bytes = piece_bytes(state, piece), byte = piece_byte(piece), began = fl_now_ns();
    for (int64_t done = 0; done < bytes;) {
        ssize_t got = pread(piece->file->source.fd, state->scratch + done, (size_t)(bytes - done),
                            byte + done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return fail_read(state, piece->file, byte + done, got < 0 ? errno : 0);
        done += got;
    }
    fl_read_ahead_note(&state->reader->ahead, began);
    return write_piece(state, piece, state->scratch);
}

/* Returns how many tokens of a file are read at a time; plain memory is read all at once. */
static int64_t most_tokens(const read_state *state, const token_file *file)
{
    if (file->source.fd < 0 && !file->source.is_volatile) return state->length;
    return SCRATCH_BYTES / fl_token_bytes(file->source.type) - state->shift;
}

static int read_window(read_state *state, const fl_window *window, int64_t row)
{
    const token_file *file = &state->reader->files[window->file];
    int64_t most = most_tokens(state, file);
    for (int64_t at = 0, count; at < state->length; at += count) {
        count = fl_min(state->length - at, most);
        token_piece piece = {
            .file = file, .first = window->first + at, .count = count, .row = row, .at = at};
        if (file->map != NULL || file->source.is_volatile) {
            FL_TRY(gather_piece(state, &piece));
            continue;
        }
        FL_TRY(flush_pieces(state)); /* they may belong to the window before */
        if (file->source.fd >= 0)
            FL_TRY(pread_piece(state, &piece));
        else
            FL_TRY(write_piece(state, &piece, file->source.data + piece_byte(&piece)));
    }
    return FL_OK;
}

static int
read_windows(read_state *state, const fl_window *windows, int64_t count, int64_t first_row)
{
    for (int64_t i = 0; i < count; i++) FL_TRY(read_window(state, &windows[i], first_row + i));
    return flush_pieces(state);
}

/* Reads windows of state->length tokens, with the scratch memory of a slot. */
static int
read_all(read_state *state, const fl_window *windows, int64_t count, int64_t first_row, fl_err *err)
{
    fl_scratch_slots *slots = state->reader->slots;
    state->err = err;
    state->pieces = 0;
    state->scratch_used = 0;
    if (slots == NULL) return read_windows(state, windows, count, first_row);
    fl_scratch *scratch;
    FL_TRY(fl_scratch_take(slots, &scratch, err));
    state->scratch = fl_scratch_memory(scratch, FL_SCRATCH_ROWS, SCRATCH_BYTES);
    int status = state->scratch != NULL ? read_windows(state, windows, count, first_row)
                                        : fl_fail(err, FL_ENOMEM, "out of memory for tokens");
    fl_scratch_give(slots, scratch);
    return status;
}

int fl_token_reader_read(fl_token_reader *reader, const fl_window *windows, int64_t count,
                         const fl_token_rows *rows, int64_t first_row, fl_err *err)
{
    read_state state; /* not zeroed: a few KiB, mostly never touched */
    state.reader = reader;
    state.rows = rows;
    state.length = reader->length;
    state.shift = reader->shift;
    return read_all(&state, windows, count, first_row, err);
}

int fl_token_reader_copy(fl_token_reader *reader, fl_window from, int64_t count, char *out,
                         fl_err *err)
{
    fl_token_rows rows = {.is_narrow = true, .x = out};
    read_state state; /* not zeroed, like in fl_token_reader_read */
    state.reader = reader;
    state.rows = &rows;
    state.length = count;
    state.shift = 0;
    return read_all(&state, &from, 1, 0, err);
}

/* ---- reading ahead */

bool fl_token_reader_is_cold(fl_token_reader *reader) { return fl_read_ahead_take(&reader->ahead); }

void fl_token_reader_advise(const fl_token_reader *reader, const fl_window *windows, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const fl_token_source *source = &reader->files[windows[i].file].source;
        if (source->fd < 0) continue;
        int64_t token = fl_token_bytes(source->type);
        posix_fadvise(source->fd, source->first_byte + windows[i].first * token,
                      fl_token_reader_window(reader) * token, POSIX_FADV_WILLNEED);
    }
}
