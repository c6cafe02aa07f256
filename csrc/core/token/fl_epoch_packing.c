/* fl_epoch_packing: see fl_epoch_packing.h. */
#include "fl_epoch_packing.h"

#include "fl_permutation.h"
#include "fl_philox.h"

#include <stdatomic.h>
#include <string.h>

enum { ROWS_SLOT = 0x5D, WINDOWS_SLOT = 0x5E }; /* of fl_philox_key */
enum { READERS = 8 };                           /* that wait at a time */
enum { KEPT = 2, WORD_BITS = 64, AT_A_TIME = 256 };

/* Windows of an epoch, or documents of a window: more have no memory, and their bytes would
 * overflow. */
static const int64_t MOST = INT64_MAX / 64;

/* A piece of the window that is packed. Item k has two more numbers, for row k and for place k. */
typedef struct packed_item {
    fl_packed_piece piece;
    int64_t row;    /* of the piece, in the order in which rows are opened */
    int64_t next;   /* row k: 1 + the next row with as much room, and at last the row's place */
    int64_t sorted; /* place k: the piece that is k-th in its row's order */
} packed_item;

/* How many rows come before each window of an epoch, from window `first` on. */
typedef struct packed_table {
    uint32_t epoch;
    int64_t first;
    int64_t made;  /* windows that are counted so far */
    int64_t *sums; /* in the memory of the reader: windows + 1 */
} packed_table;

typedef struct packed_window {
    uint32_t epoch;
    int64_t place;           /* in the epoch; -1: none is kept */
    int64_t *bounds;         /* owned: of each row's pieces, rows + 1 */
    fl_packed_piece *pieces; /* owned */
    int64_t bound_capacity, piece_capacity;
} packed_window;

struct fl_packing_reader {
    const fl_epoch_packing *of; /* borrowed */
    packed_item *items;         /* owned */
    int64_t count, capacity;    /* of items */
    int64_t tokens, rows;       /* of the window that is packed */
    int64_t *documents;         /* of the window that is packed */
    int64_t *begins;            /* by length: the place of the first piece */
    int64_t *rooms;             /* by room: 1 + the last row with this room; 0: there is none */
    uint64_t *bits, *words;     /* which rooms some row has; which words of bits are not 0 */
    int64_t *counts;            /* if all epochs have the same rows: of each window; 0: not known */
    packed_table tables[KEPT];  /* by the lowest bit of the epoch */
    packed_table told;          /* from the window that the packing was told */
    packed_window windows[KEPT]; /* by the lowest bit of the place */
    int64_t memory[];            /* of all that is not owned */
};

struct fl_epoch_packing {
    fl_epoch_packing_config config;
    int64_t windows;
    _Atomic(fl_packing_reader *) readers[READERS]; /* owned */
};

int fl_epoch_packing_open(const fl_epoch_packing_config *config, fl_epoch_packing **out,
                          fl_err *err)
{
    fl_epoch_packing *self = *out = fl_alloc(sizeof *self);
    if (self == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for packed rows");
    self->config = *config;
    self->config.window = fl_min(config->window, config->count);
    self->windows = (config->count - 1) / self->config.window + 1;
    return FL_OK;
}

static void close_reader(fl_packing_reader *reader)
{
    for (int i = 0; reader != NULL && i < KEPT; i++) {
        fl_free(reader->windows[i].bounds);
        fl_free(reader->windows[i].pieces);
    }
    if (reader != NULL) fl_free(reader->items);
    fl_free(reader);
}

void fl_epoch_packing_close(fl_epoch_packing *self)
{
    for (int i = 0; self != NULL && i < READERS; i++)
        close_reader(atomic_load_explicit(&self->readers[i], memory_order_acquire));
    fl_free(self);
}

int64_t fl_epoch_packing_length(const fl_epoch_packing *self) { return self->config.length; }

static int open_reader(const fl_epoch_packing *self, fl_packing_reader **out, fl_err *err)
{
    if (self->windows > MOST || self->config.window > MOST)
        return fl_fail(err, FL_ENOMEM, "out of memory to pack documents");
    int64_t rooms = self->config.length + 1, table = self->windows + 1;
    int64_t bits = rooms / WORD_BITS + 1, words = bits / WORD_BITS + 1;
    int64_t counts = self->config.is_repacked ? 0 : self->windows;
    int64_t all = self->config.window + 2 * rooms + bits + words + counts + (KEPT + 1) * table;
    fl_packing_reader *reader = *out =
        fl_alloc((int64_t)sizeof *reader + all * (int64_t)sizeof *reader->memory);
    if (reader == NULL) return fl_fail(err, FL_ENOMEM, "out of memory to pack documents");
    reader->of = self;
    reader->documents = reader->memory;
    reader->begins = reader->documents + self->config.window;
    reader->rooms = reader->begins + rooms;
    reader->bits = (uint64_t *)(reader->rooms + rooms);
    reader->words = reader->bits + bits;
    reader->counts = (int64_t *)(reader->words + words);
    for (int i = 0; i < KEPT; i++) {
        reader->tables[i].sums = reader->counts + counts + i * table;
        reader->windows[i].place = -1;
    }
    reader->told = (packed_table){.first = self->config.told.window,
                                  .sums = reader->counts + counts + KEPT * table};
    reader->told.sums[0] = self->config.told.before;
    return FL_OK;
}

int fl_packing_reader_take(fl_epoch_packing *self, fl_packing_reader **out, fl_err *err)
{
    for (int i = 0; i < READERS; i++) {
        /* acquire: pairs with the release of the thread that gave the reader. */
        *out = atomic_exchange_explicit(&self->readers[i], NULL, memory_order_acquire);
        if (*out != NULL) return FL_OK;
    }
    return open_reader(self, out, err);
}

void fl_packing_reader_give(fl_epoch_packing *self, fl_packing_reader *reader)
{
    for (int i = 0; i < READERS; i++) {
        fl_packing_reader *empty = NULL;
        if (atomic_compare_exchange_strong_explicit(&self->readers[i], &empty, reader,
                                                    memory_order_release, memory_order_relaxed))
            return;
    }
    close_reader(reader);
}

/* ---- one window */

/* Lists the documents of a window, and returns their number in *count. */
static int list_documents(fl_packing_reader *reader, uint32_t epoch, int64_t window, int64_t *count,
                          fl_err *err)
{
    const fl_epoch_packing_config *config = &reader->of->config;
    int64_t first = window * config->window, *out = reader->documents;
    *count = fl_min(config->window, config->count - first);
    for (int64_t i = 0; i < *count; i++) out[i] = first + i;
    if (config->mixed != NULL)
        return fl_mixed_rows_find(config->mixed, epoch, out, *count, out, err);
    if (!config->is_shuffled) return FL_OK;
    fl_permutation order = fl_permutation_make(config->count, config->seed, epoch);
    fl_permutation_block(&order, first, *count, 1, out);
    return FL_OK;
}

/* Adds the pieces of a document. If documents are wrapped, a piece ends with its row. */
static int add_document(fl_packing_reader *reader, int64_t document, fl_err *err)
{
    const fl_epoch_packing_config *config = &reader->of->config;
    int64_t begin, length, most = config->length;
    FL_TRY(fl_ragged_find(&config->documents, document, &begin, &length, err));
    if (length > 0) length += config->extra;
    if (length > most && config->overlong == FL_OVERLONG_DROP) return FL_OK;
    if (config->overlong == FL_OVERLONG_TRUNCATE) length = fl_min(length, most);
    for (int64_t first = 0, count; first < length; first += count, reader->tokens += count) {
        FL_TRY(fl_grow((void **)&reader->items, &reader->capacity, reader->count + 1,
                       sizeof *reader->items, err));
        count = fl_min(length - first, most - (config->is_wrapped ? reader->tokens % most : 0));
        packed_item *item = &reader->items[reader->count];
        item->piece = (fl_packed_piece){document, first, count};
        item->row = reader->tokens / most;
        item->sorted = reader->count++;
    }
    return FL_OK;
}

/* Sorts the pieces, the longest first; of equal ones the first stays first. */
static void sort_pieces(fl_packing_reader *reader)
{
    int64_t length = reader->of->config.length, *begins = reader->begins, at = 0;
    packed_item *items = reader->items;
    memset(begins, 0, (size_t)(length + 1) * sizeof *begins);
    for (int64_t i = 0; i < reader->count; i++) begins[items[i].piece.count]++;
    for (int64_t n = length; n > 0; n--) {
        int64_t here = begins[n];
        begins[n] = at;
        at += here;
    }
    for (int64_t i = 0; i < reader->count; i++) items[begins[items[i].piece.count]++].sorted = i;
}

/* Returns the least room of any row that takes a piece of this length; -1: no row does. */
static int64_t find_room(const fl_packing_reader *reader, int64_t length)
{
    int64_t word = length / WORD_BITS, rest = word + 1,
            words = reader->counts - (int64_t *)reader->words;
    uint64_t bits = reader->bits[word] >> (length % WORD_BITS);
    if (bits != 0) return length + __builtin_ctzll(bits);
    int64_t group = rest / WORD_BITS;
    uint64_t some = reader->words[group] & ~UINT64_C(0) << (rest % WORD_BITS);
    while (some == 0 && ++group < words) some = reader->words[group];
    if (some == 0) return -1;
    word = group * WORD_BITS + __builtin_ctzll(some);
    return word * WORD_BITS + __builtin_ctzll(reader->bits[word]);
}

/* Puts a piece into a row, and returns the row. */
static int64_t put_piece(fl_packing_reader *reader, int64_t length)
{
    int64_t room = find_room(reader, length), row = reader->rows;
    if (room < 0) {
        room = reader->of->config.length;
        reader->rows++;
    } else {
        row = reader->rooms[room] - 1;
        reader->rooms[room] = reader->items[row].next;
        if (reader->rooms[room] == 0) {
            uint64_t *bits = &reader->bits[room / WORD_BITS];
            *bits &= ~(UINT64_C(1) << (room % WORD_BITS));
            if (*bits == 0)
                reader->words[room / WORD_BITS / WORD_BITS] &=
                    ~(UINT64_C(1) << (room / WORD_BITS % WORD_BITS));
        }
    }
    room -= length;
    if (room == 0) return row; /* no piece is empty */
    reader->items[row].next = reader->rooms[room];
    reader->rooms[room] = row + 1;
    reader->bits[room / WORD_BITS] |= UINT64_C(1) << (room % WORD_BITS);
    reader->words[room / WORD_BITS / WORD_BITS] |= UINT64_C(1) << (room / WORD_BITS % WORD_BITS);
    return row;
}

/* Finds the pieces of a window, and the row of each. */
static int pack_window(fl_packing_reader *reader, uint32_t epoch, int64_t window, fl_err *err)
{
    const fl_epoch_packing_config *config = &reader->of->config;
    int64_t documents;
    reader->count = reader->tokens = reader->rows = 0;
    FL_TRY(list_documents(reader, epoch, window, &documents, err));
    for (int64_t i = 0; i < documents; i++) FL_TRY(add_document(reader, reader->documents[i], err));
    if (config->is_wrapped) {
        reader->rows = (reader->tokens + config->length - 1) / config->length;
        return FL_OK;
    }
    sort_pieces(reader);
    memset(reader->rooms, 0, (size_t)((char *)reader->counts - (char *)reader->rooms));
    for (int64_t k = 0; k < reader->count; k++) {
        packed_item *item = &reader->items[reader->items[k].sorted];
        item->row = put_piece(reader, item->piece.count);
    }
    return FL_OK;
}

/* Finds the place of each row in the window. */
static void place_rows(fl_packing_reader *reader, uint32_t epoch, int64_t window)
{
    const fl_epoch_packing_config *config = &reader->of->config;
    for (int64_t row = 0; row < reader->rows; row++) reader->items[row].next = row;
    if (!config->is_shuffled) return;
    uint64_t key = fl_philox_key(config->seed, window, ROWS_SLOT);
    fl_permutation order = fl_permutation_make(reader->rows, key, epoch);
    int64_t rows[AT_A_TIME];
    for (int64_t first = 0; first < reader->rows; first += AT_A_TIME) {
        int64_t count = fl_min(AT_A_TIME, reader->rows - first);
        fl_permutation_block(&order, first, count, 1, rows);
        for (int64_t i = 0; i < count; i++) reader->items[rows[i]].next = first + i;
    }
}

static int64_t window_at(const fl_epoch_packing *self, const fl_permutation *order, int64_t place)
{
    bool is_moved = self->config.is_shuffled && !self->config.is_repacked;
    return is_moved ? fl_permutation_at(order, place) : place;
}

static fl_permutation make_order(const fl_epoch_packing *self, uint32_t epoch)
{
    uint64_t key = fl_philox_key(self->config.seed, 0, WINDOWS_SLOT);
    return fl_permutation_make(self->windows, key, epoch);
}

/* Packs the window at a place of the epoch, and keeps its rows. */
static int load_window(fl_packing_reader *reader, uint32_t epoch, int64_t place, packed_window *out,
                       fl_err *err)
{
    fl_permutation order = make_order(reader->of, epoch);
    int64_t window = window_at(reader->of, &order, place);
    FL_TRY(pack_window(reader, reader->of->config.is_repacked ? epoch : 0, window, err));
    int64_t rows = reader->rows, count = reader->count;
    FL_TRY(
        fl_grow((void **)&out->bounds, &out->bound_capacity, rows + 1, sizeof *out->bounds, err));
    FL_TRY(fl_grow((void **)&out->pieces, &out->piece_capacity, count, sizeof *out->pieces, err));
    const packed_item *items = reader->items;
    int64_t *bounds = out->bounds;
    place_rows(reader, epoch, window);
    memset(bounds, 0, (size_t)(rows + 1) * sizeof *bounds);
    for (int64_t i = 0; i < count; i++) bounds[items[items[i].row].next + 1]++;
    for (int64_t row = 0; row < rows; row++) bounds[row + 1] += bounds[row];
    for (int64_t k = 0; k < count; k++) {
        const packed_item *item = &items[items[k].sorted];
        out->pieces[bounds[items[item->row].next]++] = item->piece;
    }
    memmove(bounds + 1, bounds, (size_t)rows * sizeof *bounds); /* ends were begins */
    bounds[0] = 0;
    out->epoch = epoch;
    out->place = place;
    return FL_OK;
}

/* ---- an epoch */

static int
count_window(fl_packing_reader *reader, uint32_t epoch, int64_t window, int64_t *rows, fl_err *err)
{
    bool is_repacked = reader->of->config.is_repacked;
    *rows = is_repacked ? 0 : reader->counts[window];
    if (*rows > 0) return FL_OK;
    FL_TRY(pack_window(reader, is_repacked ? epoch : 0, window, err));
    *rows = reader->rows;
    if (!is_repacked) reader->counts[window] = *rows;
    return FL_OK;
}

/* Counts windows until the rows before the next window are more than `row`. */
static int count_rows(fl_packing_reader *reader, uint32_t epoch, int64_t row,
                      const packed_table **out, fl_err *err)
{
    const fl_packing_place *told = &reader->of->config.told;
    bool is_told = epoch == told->epoch && row >= told->before && row < told->rows;
    packed_table *table = is_told ? &reader->told : &reader->tables[epoch % KEPT];
    if (!is_told && table->epoch != epoch)
        *table = (packed_table){.epoch = epoch, .sums = table->sums};
    *out = table;
    int64_t rows, windows = reader->of->windows - table->first;
    if (table->made == windows || table->sums[table->made] > row) return FL_OK;
    fl_permutation order = make_order(reader->of, epoch);
    while (table->made < windows && table->sums[table->made] <= row) {
        int64_t window = window_at(reader->of, &order, table->first + table->made);
        FL_TRY(count_window(reader, epoch, window, &rows, err));
        table->sums[table->made + 1] = table->sums[table->made] + rows;
        table->made++;
    }
    return FL_OK;
}

int fl_packing_reader_count(fl_packing_reader *reader, uint32_t epoch, int64_t *rows, fl_err *err)
{
    const fl_packing_place *told = &reader->of->config.told;
    const packed_table *table;
    *rows = epoch == told->epoch ? told->rows : 0;
    if (*rows > 0) return FL_OK;
    FL_TRY(count_rows(reader, epoch, INT64_MAX, &table, err));
    *rows = table->sums[table->made];
    return FL_OK;
}

/* Returns the last window of the table that begins at or before the row. */
static int64_t find_window(const packed_table *table, int64_t row)
{
    int64_t first = 0, end = table->made;
    while (end - first > 1) {
        int64_t middle = first + (end - first) / 2;
        if (table->sums[middle] <= row)
            first = middle;
        else
            end = middle;
    }
    return first;
}

int fl_packing_reader_place(fl_packing_reader *reader, uint32_t epoch, int64_t row,
                            fl_packing_place *out, fl_err *err)
{
    const packed_table *table;
    int64_t rows;
    FL_TRY(fl_packing_reader_count(reader, epoch, &rows, err));
    row = fl_min(row, rows - 1);
    *out = (fl_packing_place){.rows = rows, .epoch = epoch};
    if (row < 0) return FL_OK;
    FL_TRY(count_rows(reader, epoch, row, &table, err));
    int64_t at = find_window(table, row);
    *out = (fl_packing_place){table->first + at, table->sums[at], rows, epoch};
    return FL_OK;
}

int fl_packing_reader_find(fl_packing_reader *reader, uint32_t epoch, int64_t row,
                           fl_packed_row *out, fl_err *err)
{
    const packed_table *table;
    int64_t rows = 0, asked = row;
    if (row >= FL_EPOCH_PACKING_ROWS / 2) {
        FL_TRY(fl_packing_reader_count(reader, epoch, &rows, err));
        asked -= FL_EPOCH_PACKING_ROWS;
        row = asked + rows;
    }
    FL_TRY(count_rows(reader, epoch, row, &table, err));
    if (row < 0 || row >= table->sums[table->made]) {
        if (row >= 0) rows = table->sums[table->made];
        if (err != NULL) *err = (fl_err){.code = FL_EINDEX, .value = asked, .length = rows};
        return FL_EINDEX;
    }
    int64_t at = find_window(table, row), place = table->first + at;
    packed_window *window = &reader->windows[place % KEPT];
    if (window->place != place || window->epoch != epoch)
        FL_TRY(load_window(reader, epoch, place, window, err));
    row -= table->sums[at];
    out->pieces = window->pieces + window->bounds[row];
    out->count = window->bounds[row + 1] - window->bounds[row];
    return FL_OK;
}
