/* Tests of fl_jpeg_codes: files of random tables and coefficients, with restarts; units that are
 * left out; and damaged files. */
#include "jpeg_fixture.h"

#include "fl_jpeg.h"

enum { MOST_UNITS = 40, CODES = 176, ZEROS = 0xF0, TABLES = 8 /* where tables begin */ };

/* The codes of a table, by symbol. */
typedef struct coder {
    uint8_t counts[16], symbols[CODES];
    int count;
    uint16_t code[256];
    uint8_t length[256];
} coder;

/* A file and the coefficients of its blocks. */
static struct {
    writer file;
    coder coders[2][2];
    fl_jpeg_block blocks[MOST_UNITS * FL_JPEG_BLOCKS];
    fl_jpeg image;
    int units, luma, per_unit;
} made;

static fl_jpeg_codes codes;

/* How many codes have 1, 2, ..., 16 bits, in four tables of each kind: a table of the standard; one
 * whose codes have the same length; one whose codes are mostly longer than FL_JPEG_LOOK; one with a
 * code of one bit. */
static const uint8_t lengths[2][4][16] = {{{0, 1, 5, 1, 1, 1, 1, 1, 1},
                                           {0, 0, 0, 12},
                                           {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 6},
                                           {1, 0, 0, 0, 11}},
                                          {{0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 125},
                                           {0, 0, 0, 0, 0, 0, 0, 162},
                                           {0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 40, 40, 40, 20, 20},
                                           {1, 0, 0, 0, 0, 0, 0, 0, 0, 161}}};

static void add_symbol(coder *c, int symbol) { c->symbols[c->count++] = (uint8_t)symbol; }

/* Assigns codes to the symbols of a table. counts: how many codes each length has. */
static void set_codes(coder *c, const uint8_t *counts)
{
    memcpy(c->counts, counts, sizeof c->counts);
    int code = 0, n = 0;
    for (int length = 1; length <= 16; length++, code <<= 1)
        for (int i = 0; i < c->counts[length - 1]; i++, n++, code++) {
            c->code[c->symbols[n]] = (uint16_t)code;
            c->length[c->symbols[n]] = (uint8_t)length;
        }
    CHECK_INT(n, c->count);
}

/* Makes a table of all symbols, in a random order. */
static void make_coder(coder *c, bool is_first, uint64_t *random)
{
    *c = (coder){.count = 0};
    for (int size = 0; size <= (is_first ? 11 : 10); size++)
        for (int run = 0; run < (is_first ? 1 : 16); run++)
            if (is_first || size > 0 || run % 15 == 0) add_symbol(c, run << 4 | size);
    for (int i = c->count - 1; i > 0; i--) {
        const int other = (int)random_below(random, i + 1);
        const uint8_t kept = c->symbols[i];
        c->symbols[i] = c->symbols[other];
        c->symbols[other] = kept;
    }
    set_codes(c, lengths[!is_first][random_below(random, 4)]);
}

static void put_symbol(const coder *c, int symbol)
{
    CHECK(c->length[symbol] > 0);
    put_bits(&made.file, c->code[symbol], c->length[symbol]);
}

static void put_number(const coder *c, int run, int number)
{
    int size = 0;
    while (abs(number) >> size != 0) size++;
    put_symbol(c, run << 4 | size);
    put_bits(&made.file, (uint32_t)(number < 0 ? number - 1 : number), size);
}

/* Where the coefficients of a block are, in the order of the file. */
static int place_of(int k)
{
    int x = 0, y = 0;
    while (k-- > 0) {
        bool is_up = (x + y) % 2 == 0;
        if (is_up ? x == 7 : y == 7)
            *(is_up ? &y : &x) += 1;
        else if (is_up ? y == 0 : x == 0)
            *(is_up ? &x : &y) += 1;
        else
            x += is_up ? 1 : -1, y += is_up ? -1 : 1;
    }
    return 8 * y + x;
}

static int random_number(uint64_t *random, int bits)
{
    const int most = (1 << random_below(random, bits + 1)) - 1;
    return (int)random_below(random, 2 * most + 1) - most;
}

/* Writes a block of random numbers after the first number `before`. */
static void put_numbers(int16_t *block, int which, int *before, uint64_t *random)
{
    const int one_of = (int[]){1, 2, 8, 60}[random_below(random, 4)];
    int run = 0, difference = random_number(random, 11);
    if (abs(*before + difference) > 16000) difference = -difference;
    *before += difference;
    block[0] = (int16_t)*before;
    put_number(&made.coders[0][which], 0, difference);
    for (int k = 1; k < 64; k++, run++) {
        const int number = random_below(random, one_of) == 0 ? random_number(random, 10) : 0;
        if (number == 0) continue;
        for (; run > 15; run -= 16) put_symbol(&made.coders[1][which], ZEROS);
        put_number(&made.coders[1][which], run, number);
        block[place_of(k)] = (int16_t)number;
        run = -1;
    }
    if (run > 0) put_symbol(&made.coders[1][which], 0);
}

static void end_byte(void) { put_bits(&made.file, 0x7F, (8 - made.file.count) % 8); }

static void put_tables(void)
{
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < 2; i++) {
            const coder *c = &made.coders[kind][i];
            put(&made.file,
                (uint8_t[]){0xFF, 0xC4, 0, (uint8_t)(19 + c->count), (uint8_t)(kind << 4 | i)}, 5);
            put(&made.file, c->counts, 16);
            put(&made.file, c->symbols, c->count);
        }
}

/* Makes a file of one row of units. */
static void make_codes(uint64_t *random, int restarts)
{
    static const int forms[][2] = {{1, 1}, {3, 1}, {3, 2}, {3, 4}};
    const int form = (int)random_below(random, 4), components = forms[form][0];
    memset(&made, 0, sizeof made);
    made.luma = forms[form][1];
    made.per_unit = made.luma + components - 1;
    made.units = 1 + (int)random_below(random, MOST_UNITS);
    for (int i = 0; i < 4; i++) make_coder(&made.coders[i / 2][i % 2], i < 2, random);
    const int width = made.units * (made.luma > 1 ? 16 : 8),
              factors = (int[]){0, 17, 33, 0, 34}[made.luma];
    put(&made.file, (uint8_t[]){0xFF, 0xD8, 0xFF, 0xDD, 0, 4, 0, (uint8_t)restarts}, 8);
    put_tables();
    put(&made.file,
        (uint8_t[]){0xFF, 0xC0, 0, (uint8_t)(8 + 3 * components), 8, 0, 8, (uint8_t)(width >> 8),
                    (uint8_t)width, (uint8_t)components},
        10);
    for (int c = 0; c < components; c++)
        put(&made.file, (uint8_t[]){(uint8_t)(c + 1), (uint8_t)(c == 0 ? factors : 17), 0}, 3);
    put(&made.file, (uint8_t[]){0xFF, 0xDA, 0, (uint8_t)(6 + 2 * components), (uint8_t)components},
        5);
    for (int c = 0; c < components; c++)
        put(&made.file, (uint8_t[]){(uint8_t)(c + 1), c > 0 ? 0x11 : 0}, 2);
    put(&made.file, (uint8_t[]){0, 63, 0}, 3);
    int before[3] = {0};
    for (int unit = 0; unit < made.units; unit++) {
        if (restarts > 0 && unit > 0 && unit % restarts == 0) {
            end_byte();
            put(&made.file, (uint8_t[]){0xFF, (uint8_t)(0xD0 + (unit / restarts - 1) % 8)}, 2);
            memset(before, 0, sizeof before);
        }
        for (int i = 0; i < made.per_unit; i++) {
            const int c = i < made.luma ? 0 : i - made.luma + 1;
            put_numbers(made.blocks[unit * made.per_unit + i], c > 0, &before[c], random);
        }
    }
    end_byte();
    put(&made.file, (uint8_t[]){0xFF, 0xD9}, 2);
}

/* Opens the codes of a copy, whose memory ends with the file. Returns the copy. */
static uint8_t *open_codes(bool *is_open)
{
    uint8_t *copy = malloc((size_t)made.file.bytes);
    memcpy(copy, made.file.data, (size_t)made.file.bytes);
    *is_open = fl_jpeg_open(NULL, copy, made.file.bytes, &made.image) &&
               fl_jpeg_codes_open(&codes, copy, made.image.scan, copy + made.file.bytes,
                                  made.image.factors[0] * made.image.factors[1]);
    return copy;
}

/* Reads a unit and compares the blocks, or leaves the unit out. */
static bool read_unit(int unit, bool is_left_out, bool compares)
{
    fl_jpeg_block blocks[FL_JPEG_BLOCKS] = {{0}}, *each[FL_JPEG_BLOCKS];
    for (int i = 0; i < FL_JPEG_BLOCKS; i++) each[i] = &blocks[i];
    if (!fl_jpeg_codes_read(&codes, is_left_out ? NULL : each)) return false;
    for (int i = 0; compares && !is_left_out && i < made.per_unit; i++)
        CHECK(memcmp(blocks[i], made.blocks[unit * made.per_unit + i], sizeof blocks[i]) == 0);
    return true;
}

static void test_numbers_come_back(void)
{
    uint64_t random = 1;
    for (int round = 0; round < 1500; round++) {
        bool is_open;
        make_codes(&random, round % 3 ? 0 : 1 + (int)random_below(&random, 12));
        uint8_t *copy = open_codes(&is_open);
        CHECK(is_open && codes.blocks == made.per_unit);
        for (int unit = 0; unit < made.units; unit++)
            CHECK(read_unit(unit, random_below(&random, 3) == 0, true));
        free(copy);
    }
}

/* Reads all units of a file that may be damaged. */
static bool reads_all(void)
{
    bool is_fine;
    uint8_t *copy = open_codes(&is_fine);
    for (int unit = 0; is_fine && unit < made.units; unit++)
        is_fine = read_unit(unit, unit % 5 == 0, false);
    free(copy);
    return is_fine;
}

/* Takes the codes out of the file. */
static void cut_codes(void)
{
    const uint8_t *begin = memmem(made.file.data, (size_t)made.file.bytes, "\xFF\xDA", 2);
    made.file.bytes = begin - made.file.data + 2 + begin[3];
    made.file.count = 0;
}

static void test_a_scan_that_ends_early_is_damaged(void)
{
    uint64_t random = 2;
    for (int round = 0; round < 1000; round++) {
        make_codes(&random, 0);
        const int64_t end = made.file.bytes - 2;
        cut_codes();
        made.file.bytes += random_below(&random, end - made.file.bytes);
        if (made.file.data[made.file.bytes - 1] == 0xFF) made.file.bytes--;
        put(&made.file, (uint8_t[]){0xFF, 0xD9}, 2);
        CHECK(!reads_all());
    }
}

static void test_a_run_beyond_its_block_is_damaged(void)
{
    uint64_t random = 6;
    for (int round = 0; round < 20; round++) {
        make_codes(&random, 0);
        cut_codes();
        for (int i = 0; i < made.units * made.per_unit; i++) {
            const int which = i % made.per_unit >= made.luma;
            put_number(&made.coders[0][which], 0, 0);
            if (i == 0) put_number(&made.coders[1][which], round % 2 ? 14 : 15, 1);
            for (int k = 0; k < 3 && i == 0; k++) put_number(&made.coders[1][which], 15, 1);
            if (i > 0) put_symbol(&made.coders[1][which], 0);
        }
        end_byte();
        put(&made.file, (uint8_t[]){0xFF, 0xD9}, 2);
        CHECK(reads_all() == (round % 2 == 1)); /* 15 + 3 * 16 numbers are 63 */
    }
}

static void test_a_damaged_code_counts_in_its_own_block_alone(void)
{
    uint64_t random = 7;
    for (int round = 0; round < 20; round++) {
        make_codes(&random, 0);
        cut_codes();
        const int64_t codes_begin = made.file.bytes;
        for (int i = 0; i < 2; i++) {
            coder *first = &made.coders[0][i], *other = &made.coders[1][i];
            for (int k = 0; k < first->count; k++) first->symbols[k] = (uint8_t)((k + 8) % 12);
            for (int k = 0; k < other->count; k++)
                if (other->symbols[k] == 1) other->symbols[k] = other->symbols[0];
            other->symbols[0] = 1;    /* has the code 00, so two of its numbers fit in an entry */
            other->symbols[1] = 0x0F; /* 01, as the code 0100 of a first number that is 0 */
            set_codes(first, lengths[0][1]);
            set_codes(other, lengths[1][0]);
        }
        made.file.bytes = TABLES;
        put_tables();
        made.file.bytes = codes_begin;
        const int blocks = made.units * made.per_unit;
        for (int i = 0; i < blocks; i++) {
            const int which = i % made.per_unit >= made.luma;
            put_number(&made.coders[0][which], 0, 0);
            for (int k = 1; k < 63; k++) put_number(&made.coders[1][which], 0, k % 2 ? 1 : -1);
            if (round % 2 && i == blocks - 1)
                put_symbol(&made.coders[1][which], 0x0F);
            else
                put_number(&made.coders[1][which], 0, 1);
        }
        end_byte();
        put(&made.file, (uint8_t[]){0xFF, 0xD9}, 2);
        CHECK(reads_all() == (round % 2 == 0));
    }
}

static void test_a_wrong_restart_is_damaged(void)
{
    uint64_t random = 3;
    int found = 0;
    for (int round = 0; round < 300; round++) {
        make_codes(&random, 2);
        uint8_t *marker = memmem(made.file.data, (size_t)made.file.bytes, "\xFF\xD0", 2);
        if (made.units < 3) continue;
        CHECK(reads_all());
        const writer before = made.file;
        marker[1] = 0xD1;
        CHECK(!reads_all());
        made.file = before; /* a byte too many before the marker */
        memmove(marker + 1, marker, (size_t)(made.file.data + made.file.bytes - marker));
        *marker = 0x55;
        made.file.bytes++;
        CHECK(!reads_all());
        found++;
    }
    CHECK(found > 100);
}

static void test_unusual_tables_are_left(void)
{
    uint64_t random = 4;
    make_codes(&random, 0);
    const writer before = made.file;
    uint8_t *table = memmem(made.file.data, (size_t)made.file.bytes, "\xFF\xC4", 2);
    uint8_t *scan = memmem(made.file.data, (size_t)made.file.bytes, "\xFF\xDA", 2);
    const struct {
        uint8_t *at, value;
    } changes[] = {{table + 4, 0x20}, {table + 4, 0x02}, {table + 4, 0x01}, {table + 5, 3},
                   {table + 3, 16},   {table + 20, 250}, {scan + 6, 0x20},  {scan + 6, 0x02}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        bool is_open;
        *changes[i].at = changes[i].value;
        free(open_codes(&is_open));
        CHECK(!is_open);
        made.file = before;
    }
}

static void test_any_codes_are_read_within_their_memory(void)
{
    uint64_t random = 5;
    int damaged = 0, fine = 0;
    for (int round = 0; round < 4000; round++) {
        make_codes(&random, (int)random_below(&random, 4));
        for (int64_t k = random_below(&random, 4); k >= 0; k--)
            made.file.data[random_below(&random, made.file.bytes)] = (uint8_t)next_random(&random);
        *(reads_all() ? &fine : &damaged) += 1;
    }
    CHECK(damaged > 1000 && fine > 100);
}

int main(void)
{
    start_tests();
    RUN(test_numbers_come_back);
    RUN(test_a_scan_that_ends_early_is_damaged);
    RUN(test_a_run_beyond_its_block_is_damaged);
    RUN(test_a_damaged_code_counts_in_its_own_block_alone);
    RUN(test_a_wrong_restart_is_damaged);
    RUN(test_unusual_tables_are_left);
    RUN(test_any_codes_are_read_within_their_memory);
    return 0;
}
