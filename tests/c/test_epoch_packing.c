/* Tests of fl_epoch_packing, and of fl_column_pack with its rows: rows are compared with best fit
 * as slow as can be, and every element of every output with the documents. */
#include "ragged_fixture.h"

#include "fl_epoch_packing.h"

#include <pthread.h>

enum { DOCUMENTS = 300, MOST_ROWS = 4000, MOST_PIECES = 4000, COLUMNS = 6 };

static int64_t offsets[DOCUMENTS + 1];

static fl_epoch_packing_config random_config(uint64_t *seed, int64_t longest)
{
    for (int i = 0; i < DOCUMENTS; i++)
        offsets[i + 1] = offsets[i] + (i % 7 == 3 ? 0 : random_below(seed, longest));
    fl_epoch_packing_config config = {
        .documents = {.count = INT64_MAX, .offsets = offsets, .is_wide = true},
        .length = 1 + random_below(seed, 150),
        .window = 1 + random_below(seed, 120),
        .extra = random_below(seed, 3),
        .overlong = (fl_overlong)random_below(seed, 3),
        .is_wrapped = random_below(seed, 3) == 0,
        .is_shuffled = random_below(seed, 4) > 0,
        .is_repacked = random_below(seed, 3) > 0,
        .seed = next_random(seed)};
    config.count = config.documents.length = 1 + random_below(seed, DOCUMENTS);
    return config;
}

static fl_epoch_packing *open_packing(const fl_epoch_packing_config *config)
{
    fl_epoch_packing *packing;
    CHECK_INT(fl_epoch_packing_open(config, &packing, NULL), FL_OK);
    return packing;
}

static fl_packing_reader *take(fl_epoch_packing *packing)
{
    fl_packing_reader *reader;
    CHECK_INT(fl_packing_reader_take(packing, &reader, NULL), FL_OK);
    return reader;
}

static int64_t count_of(fl_epoch_packing *packing, uint32_t epoch)
{
    int64_t rows;
    fl_packing_reader *reader = take(packing);
    CHECK_INT(fl_packing_reader_count(reader, epoch, &rows, NULL), FL_OK);
    fl_packing_reader_give(packing, reader);
    return rows;
}

/* The tokens of a document that come into rows. */
static int64_t kept_of(const fl_epoch_packing_config *config, int64_t document)
{
    int64_t length = offsets[document + 1] - offsets[document];
    if (length > 0) length += config->extra;
    if (length <= config->length || config->overlong == FL_OVERLONG_SPLIT) return length;
    return config->overlong == FL_OVERLONG_TRUNCATE ? config->length : 0;
}

/* Checks that the pieces of all rows are the documents, each token once. */
static void check_epoch(const fl_epoch_packing_config *config, fl_packing_reader *reader,
                        uint32_t epoch, int64_t rows)
{
    static int64_t had[DOCUMENTS], sums[DOCUMENTS];
    memset(had, 0, sizeof had);
    memset(sums, 0, sizeof sums);
    for (int64_t i = 0; i < rows; i++) {
        fl_packed_row row;
        int64_t used = 0;
        CHECK_INT(fl_packing_reader_find(reader, epoch, i, &row, NULL), FL_OK);
        CHECK(row.count >= 1);
        for (int64_t k = 0; k < row.count; k++) {
            const fl_packed_piece *piece = &row.pieces[k];
            CHECK(piece->count > 0 && piece->document >= 0 && piece->document < config->count);
            had[piece->document] += piece->count;
            sums[piece->document] += piece->count * (2 * piece->first + piece->count);
            used += piece->count;
        }
        CHECK(used <= config->length);
    }
    for (int64_t d = 0; d < config->count; d++) {
        CHECK_INT(had[d], kept_of(config, d));
        CHECK_INT(sums[d], had[d] * had[d]); /* pieces that touch, without a gap */
    }
}

static void test_each_token_comes_once(void)
{
    uint64_t seed = 51;
    for (int round = 0; round < 300; round++) {
        fl_epoch_packing_config config = random_config(&seed, 1 + random_below(&seed, 300));
        fl_epoch_packing *packing = open_packing(&config);
        for (uint32_t epoch = 0; epoch < 3; epoch++) {
            int64_t rows = count_of(packing, epoch);
            fl_packing_reader *reader = take(packing);
            check_epoch(&config, reader, epoch, rows);
            fl_packing_reader_give(packing, reader);
            if (!config.is_repacked) CHECK_INT(rows, count_of(packing, 0));
        }
        fl_epoch_packing_close(packing);
    }
}

/* Returns the rows that best fit decreasing opens for the documents of one window. */
static int64_t count_slowly(const fl_epoch_packing_config *config)
{
    static int64_t rooms[MOST_ROWS];
    int64_t rows = 0;
    for (int64_t length = config->length; length > 0; length--)
        for (int64_t d = 0; d < config->count; d++) {
            int64_t kept = kept_of(config, d), best = -1, pieces = kept / config->length;
            if (length < config->length) pieces = kept % config->length == length;
            for (; pieces > 0; pieces--, best = -1) {
                for (int64_t row = 0; row < rows; row++)
                    if (rooms[row] >= length && (best < 0 || rooms[row] < rooms[best])) best = row;
                if (best < 0) rooms[best = rows++] = config->length;
                rooms[best] -= length;
                CHECK(rows < MOST_ROWS);
            }
        }
    return rows;
}

static void test_best_fit_is_the_slow_best_fit(void)
{
    uint64_t seed = 52;
    for (int round = 0; round < 60; round++) {
        fl_epoch_packing_config config = random_config(&seed, 400);
        config.length = 1 + random_below(&seed, round % 10 == 0 ? 9000 : 300);
        config.window = DOCUMENTS;
        config.is_wrapped = false;
        fl_epoch_packing *packing = open_packing(&config);
        CHECK_INT(count_of(packing, 0), count_slowly(&config));
        fl_epoch_packing_close(packing);
    }
}

static bool are_same(const fl_packed_row *a, const fl_packed_row *b)
{
    return a->count == b->count &&
           memcmp(a->pieces, b->pieces, (size_t)a->count * sizeof *a->pieces) == 0;
}

/* Any order of reading gives the same rows, and the first rows need no later window. The same holds
 * for a packing that was told the place of some row. */
static void test_rows_at_random(void)
{
    uint64_t seed = 53;
    for (int round = 0; round < 40; round++) {
        fl_epoch_packing_config config = random_config(&seed, 60);
        fl_epoch_packing *packing = open_packing(&config);
        int64_t rows[2] = {count_of(packing, 0), count_of(packing, 5)};
        fl_packing_reader *reader = take(packing);
        if (round % 3 > 0)
            CHECK_INT(fl_packing_reader_place(reader, round % 2 ? 5 : 0,
                                              random_below(&seed, rows[round % 2] + 2),
                                              &config.told, NULL),
                      FL_OK);
        fl_epoch_packing *other = open_packing(&config);
        fl_packing_reader *fresh = take(other);
        for (int i = 0; i < 100; i++) {
            uint32_t epoch = random_below(&seed, 2) == 0 ? 0 : 5;
            int64_t count = rows[epoch > 0], at = count > 0 ? random_below(&seed, count) : 0;
            fl_packed_row one, two;
            fl_err err;
            if (count > 0) {
                int64_t from_end = FL_EPOCH_PACKING_ROWS - count + at;
                CHECK_INT(fl_packing_reader_find(reader, epoch, at, &one, NULL), FL_OK);
                CHECK_INT(fl_packing_reader_find(fresh, epoch, i % 2 ? at : from_end, &two, NULL),
                          FL_OK);
                CHECK(are_same(&one, &two));
                fl_packing_place here, there;
                CHECK_INT(fl_packing_reader_place(reader, epoch, at, &here, NULL), FL_OK);
                CHECK_INT(fl_packing_reader_place(fresh, epoch, at, &there, NULL), FL_OK);
                CHECK(here.before <= at && here.rows == count && there.rows == count);
                CHECK(here.window == there.window && here.before == there.before);
            }
            CHECK_INT(fl_packing_reader_find(fresh, epoch, count, &two, &err), FL_EINDEX);
            CHECK(err.value == count && err.length == count);
            int64_t before = FL_EPOCH_PACKING_ROWS - count - 1;
            CHECK_INT(fl_packing_reader_find(fresh, epoch, before, &two, &err), FL_EINDEX);
            CHECK(err.value == -count - 1 && err.length == count);
        }
        fl_packing_reader_give(packing, reader);
        fl_packing_reader_give(other, fresh);
        fl_epoch_packing_close(packing);
        fl_epoch_packing_close(other);
    }
}

/* Documents of a mixture come at its positions. */
static void test_documents_of_a_mixture(void)
{
    uint64_t seed = 54;
    const int64_t lengths[] = {100, 200}, sources[] = {0, 1}, weights[] = {1, 3};
    const uint32_t names[] = {1, 2};
    fl_mixed_config mixed = {.lengths = lengths, .names = names, .count = 2, .is_shuffled = true};
    fl_epoch_packing_config config = random_config(&seed, 60);
    config.documents.length = DOCUMENTS;
    config.is_repacked = true;
    config.overlong = FL_OVERLONG_SPLIT;
    config.window = 40;
    config.count = 120;
    CHECK_INT(fl_mixed_rows_open(&mixed, &config.mixed, NULL), FL_OK);
    CHECK_INT(fl_mixed_rows_add(config.mixed, 0, sources, weights, 2, NULL), FL_OK);
    fl_mixed_rows_set_epochs(config.mixed, config.count, false);
    fl_epoch_packing *packing = open_packing(&config);
    for (uint32_t epoch = 0; epoch < 3; epoch++) {
        int64_t want[DOCUMENTS] = {0}, rows = count_of(packing, epoch);
        fl_packing_reader *reader = take(packing);
        for (int64_t at = 0, row; at < config.count; at++) {
            CHECK_INT(fl_mixed_rows_find(config.mixed, epoch, &at, 1, &row, NULL), FL_OK);
            want[row] += kept_of(&config, row);
        }
        for (int64_t i = 0; i < rows; i++) {
            fl_packed_row row;
            CHECK_INT(fl_packing_reader_find(reader, epoch, i, &row, NULL), FL_OK);
            for (int64_t k = 0; k < row.count; k++)
                want[row.pieces[k].document] -= row.pieces[k].count;
        }
        for (int d = 0; d < DOCUMENTS; d++) CHECK_INT(want[d], 0);
        fl_packing_reader_give(packing, reader);
    }
    fl_epoch_packing_close(packing);
    fl_mixed_rows_close(config.mixed);
}

static void test_offsets_that_are_changed(void)
{
    uint64_t seed = 55;
    fl_packed_row row;
    fl_err err;
    fl_epoch_packing_config config = random_config(&seed, 60);
    config.count = config.documents.length = DOCUMENTS;
    config.is_repacked = true;
    fl_epoch_packing *packing = open_packing(&config);
    count_of(packing, 0);
    offsets[100] = -1;
    fl_packing_reader *reader = take(packing);
    int64_t rows;
    CHECK_INT(fl_packing_reader_count(reader, 1, &rows, &err), FL_EINVAL);
    CHECK(strstr(err.text, "the offsets have been changed") != NULL);
    CHECK_INT(fl_packing_reader_find(reader, 2, FL_EPOCH_PACKING_ROWS - 1, &row, NULL), FL_EINVAL);
    offsets[100] = offsets[99];
    CHECK_INT(fl_packing_reader_count(reader, 1, &rows, &err), FL_OK);
    check_epoch(&config, reader, 1, rows);
    fl_packing_reader_give(packing, reader);
    fl_epoch_packing_close(packing);
}

/* ---- columns */

typedef struct column_fixture {
    ragged_fixture fix;
    fl_epoch_packing_config config;
    fl_epoch_packing *packing;
    fl_column_pack_config columns[COLUMNS];
    fl_table *table;
} column_fixture;

static const char BOS[16] = "\x01\x02\x03\x04\x05\x06\x07\x08",
                  EOS[16] = "\x11\x12\x13\x14\x15\x16";
static const char PADDING[16] = "\x5a\x4b\x3c\x2d\x1e\x0f\xf0\xe1";

static int open_table(column_fixture *self)
{
    fl_column *columns[COLUMNS] = {NULL};
    int status = fl_epoch_packing_open(&self->config, &self->packing, NULL);
    for (int c = 0; status == FL_OK && c < COLUMNS; c++) {
        self->columns[c].plan = self->packing;
        status = fl_column_pack_open(&self->columns[c], &columns[c], NULL);
    }
    if (status == FL_OK) status = fl_table_open(columns, COLUMNS, &self->table, NULL);
    for (int c = 0; status != FL_OK && c < COLUMNS; c++) fl_column_close(columns[c]);
    return status;
}

static void close_table(column_fixture *self)
{
    fl_table_close(self->table);
    fl_epoch_packing_close(self->packing);
    self->table = NULL;
    self->packing = NULL;
}

static void open_columns(column_fixture *self, uint64_t *seed, bool has_bos, bool has_eos)
{
    const fl_pack_output outputs[] = {FL_PACK_VALUES,    FL_PACK_VALUES, FL_PACK_POSITIONS,
                                      FL_PACK_DOCUMENTS, FL_PACK_BOUNDS, FL_PACK_LONGEST};
    *self = (column_fixture){0};
    open_ragged(&self->fix, seed, (fl_dtype){0, 32, 1}, 30, true);
    self->config = random_config(seed, 1);
    self->config.documents = self->fix.ragged;
    self->config.count = SEQUENCES;
    self->config.length = 5 + random_below(seed, 40);
    self->config.window = 1 + random_below(seed, 50);
    self->config.extra = has_bos + has_eos;
    for (int32_t c = 0; c < COLUMNS; c++) {
        fl_column_pack_config *column = &self->columns[c];
        *column = (fl_column_pack_config){.ragged = self->fix.ragged,
                                          .main = self->fix.ragged,
                                          .leader = c,
                                          .output = outputs[c],
                                          .is_label = c == 1,
                                          .is_widened = c == 1,
                                          .has_bos = has_bos,
                                          .has_eos = has_eos,
                                          .ops = &fl_cpu_sequence_ops};
        memcpy(column->padding, PADDING, sizeof PADDING);
        memcpy(column->bos, BOS, sizeof BOS);
        memcpy(column->eos, EOS, sizeof EOS);
    }
}

/* Writes token `at` of a document as the column gives the token. */
static void put_token(const column_fixture *self, int c, int64_t document, int64_t at, char *out)
{
    const fl_column_pack_config *column = &self->columns[c];
    int64_t own = at - column->has_bos, length = length_of(&self->fix, document);
    if (own >= 0 && own < length)
        put_value(&self->fix, document, own, column->is_widened, out);
    else
        memcpy(out, own < 0 ? BOS : EOS, 8);
}

/* Checks a piece, or with document -1 the padding, from element `at` of the batch on. */
static void check_piece(const column_fixture *self, const fl_layout *layout, const char *block,
                        const fl_packed_piece *piece, int64_t at, int64_t number)
{
    for (int64_t k = 0; k < piece->count; k++) {
        for (int c = 0; c < 2; c++) {
            char value[16];
            memcpy(value, PADDING, sizeof value);
            if (piece->document >= 0 && !(c == 1 && k == 0))
                put_token(self, c, piece->document, piece->first + k, value);
            int64_t bytes = c == 0 ? 4 : 8;
            CHECK(memcmp(block + layout->outputs[c].offset + (at + k) * bytes, value,
                         (size_t)bytes) == 0);
        }
        CHECK_INT(((int64_t *)(void *)(block + layout->outputs[2].offset))[at + k], k);
        CHECK_INT(((int64_t *)(void *)(block + layout->outputs[3].offset))[at + k], number);
    }
}

static void
check_batch(const column_fixture *self, const fl_rows *rows, fl_layout *layout, int32_t parts)
{
    int64_t width = self->config.length, segments = 0, longest = 0;
    CHECK_INT(fl_table_layout(self->table, rows, 0, layout, NULL), FL_OK);
    char *block = gather_all(self->table, rows, layout, parts);
    const int32_t *bounds = (int32_t *)(void *)(block + layout->outputs[4].offset);
    fl_packing_reader *reader = take(self->packing);
    for (int64_t i = 0; i < rows->count; i++) {
        fl_packed_row row;
        int64_t used = 0, number = 0;
        CHECK_INT(fl_packing_reader_find(reader, 0, fl_row_at(rows, i), &row, NULL), FL_OK);
        for (; number <= row.count; number++) {
            fl_packed_piece rest = {.document = -1, .count = width - used};
            const fl_packed_piece *piece = number < row.count ? &row.pieces[number] : &rest;
            if (piece->count == 0) break;
            check_piece(self, layout, block, piece, i * width + used, number);
            CHECK_INT(bounds[segments++], i * width + used);
            longest = fl_max(longest, piece->count);
            used += piece->count;
        }
        CHECK_INT(used, width);
    }
    fl_packing_reader_give(self->packing, reader);
    CHECK_INT(bounds[segments], rows->count * width);
    CHECK_INT(layout->outputs[4].shape[0], segments + 1);
    CHECK_INT(layout->outputs[5].number, longest);
    for (int c = 0; c < 5; c++) check_fence(layout, block, c);
    for (int c = 0; c < 4; c++) CHECK(!layout->outputs[c].is_whole);
    free(block);
}

static void test_outputs_of_rows(void)
{
    uint64_t seed = 56;
    for (int round = 0; round < 60; round++) {
        column_fixture self;
        fl_layout layout = {0};
        open_columns(&self, &seed, round % 2, round / 2 % 2);
        CHECK_INT(open_table(&self), FL_OK);
        int64_t all = count_of(self.packing, 0);
        for (int64_t count = 1; all > 0 && count < 40; count += 7) {
            fl_rows rows = {0};
            for (int64_t i = 0, row; i < count; i++) {
                row = random_below(&seed, all) + (i % 3 == 0 ? FL_EPOCH_PACKING_ROWS - all : 0);
                CHECK_INT(fl_rows_add(&rows, &row, 1, NULL), FL_OK);
            }
            for (int32_t parts = 1; parts <= 3; parts++) check_batch(&self, &rows, &layout, parts);
            fl_rows_close(&rows);
        }
        fl_err err;
        fl_rows beyond = {.is_range = true, .first = fl_max(0, all - 2), .count = all + 3};
        CHECK_INT(fl_table_layout(self.table, &beyond, 0, &layout, &err), FL_EINDEX);
        CHECK(err.value == all && err.length == all && err.position == all - beyond.first);
        beyond.count = 0;
        CHECK_INT(fl_table_layout(self.table, &beyond, 0, &layout, &err), FL_EINVAL);
        fl_layout_close(&layout);
        close_table(&self);
        close_ragged(&self.fix);
    }
}

static void test_a_file_that_becomes_shorter(void)
{
    uint64_t seed = 57;
    column_fixture self;
    fl_layout layout = {0};
    open_columns(&self, &seed, true, false);
    mapped_file file = map_file(self.fix.values, self.fix.ragged.count * 4, MAP_SHARED);
    for (int c = 0; c < 2; c++) {
        self.columns[c].ragged.values = file.data;
        self.columns[c].ragged.is_volatile = true;
    }
    self.config.overlong = FL_OVERLONG_SPLIT;
    CHECK_INT(open_table(&self), FL_OK);
    CHECK(fl_table_is_volatile(self.table));
    fl_rows rows = {.is_range = true, .count = count_of(self.packing, 0)};
    check_batch(&self, &rows, &layout, 2);
    const char *end = file.data + file.bytes;
    CHECK_INT(fl_table_row_beyond(self.table, 1, 0, &rows, end), -1);
    CHECK_INT(fl_table_row_beyond(self.table, 1, 0, &rows, end - 1), 0);
    CHECK_INT(fl_table_row_beyond(self.table, 2, 0, &rows, end - 1), -1);
    CHECK(ftruncate(file.fd, 0) == 0);
    fl_err err;
    char *block = malloc((size_t)layout.bytes);
    CHECK_INT(fl_table_gather(self.table, &rows, 0, &layout, 0, 1, block, &err), FL_ESOURCE);
    CHECK(err.field == 0);
    free(block);
    fl_layout_close(&layout);
    close_table(&self);
    unmap_file(&file);
    close_ragged(&self.fix);
}

/* ---- threads, and memory that is refused */

typedef struct pass {
    fl_epoch_packing *packing;
    const fl_epoch_packing_config *config;
} pass;

static void *read_all(void *arg)
{
    const pass *self = arg;
    for (uint32_t epoch = 0; epoch < 4; epoch++) {
        fl_packing_reader *reader = take(self->packing);
        int64_t rows;
        CHECK_INT(fl_packing_reader_count(reader, epoch, &rows, NULL), FL_OK);
        for (int64_t i = 0; i < rows; i++) {
            fl_packed_row row;
            CHECK_INT(fl_packing_reader_find(reader, epoch, i, &row, NULL), FL_OK);
            fl_packing_reader_give(self->packing, reader);
            reader = take(self->packing);
        }
        fl_packing_reader_give(self->packing, reader);
    }
    return NULL;
}

static void test_threads_read_at_once(void)
{
    enum { THREADS = 10 }; /* more than there are slots for readers */
    uint64_t seed = 58;
    fl_epoch_packing_config config = random_config(&seed, 40);
    fl_epoch_packing *packing = open_packing(&config);
    pass self = {packing, &config};
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++)
        CHECK(pthread_create(&threads[t], NULL, read_all, &self) == 0);
    for (int t = 0; t < THREADS; t++) CHECK(pthread_join(threads[t], NULL) == 0);
    fl_epoch_packing_close(packing);
}

static int lay_out(void *arg)
{
    column_fixture *self = arg;
    fl_layout layout = {0};
    fl_rows rows = {.is_range = true, .count = 9};
    int status = open_table(self);
    if (status == FL_OK) status = fl_table_layout(self->table, &rows, 0, &layout, NULL);
    fl_layout_close(&layout);
    close_table(self);
    return status;
}

static void test_memory_that_is_refused(void)
{
    uint64_t seed = 59;
    column_fixture self;
    open_columns(&self, &seed, false, true);
    self.config.window = 10;
    self.config.overlong = FL_OVERLONG_SPLIT;
    self.config.length = 20;
    CHECK(refuse_each(lay_out, &self) > 10);
    close_ragged(&self.fix);
    fl_epoch_packing_close(NULL);
}

int main(void)
{
    start_tests();
    RUN(test_each_token_comes_once);
    RUN(test_best_fit_is_the_slow_best_fit);
    RUN(test_rows_at_random);
    RUN(test_documents_of_a_mixture);
    RUN(test_offsets_that_are_changed);
    RUN(test_outputs_of_rows);
    RUN(test_a_file_that_becomes_shorter);
    RUN(test_threads_read_at_once);
    RUN(test_memory_that_is_refused);
    return 0;
}
