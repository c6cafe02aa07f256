/* fl_jpeg_codes: see fl_jpeg_codes.h. */
#include "fl_jpeg_codes.h"

#include <string.h>

enum { LOOK = FL_JPEG_LOOK, DHT = 0xC4, RST = 0xD0, SOS = 0xDA, DRI = 0xDD };

/* An entry of a table: a code with its number; or two codes, if LOOK bits hold the first one with
 * its number and the second one. From bit 0 on: how many bits both codes and numbers have; from
 * SIZE on, how many the last number has; from VALUE on, the first number of two; from RUN on, how
 * many coefficients before the first number are 0; from PLACES on, how many places of a block both
 * codes fill. */
enum { SIZE = 6, VALUE = 10, RUN = 19, PLACES = 23 };
enum { LENGTH = 63, SIZES = 15, VALUES = 511, RUNS = 15 };
/* Places beyond a block. LAST: all coefficients that are left are 0. DAMAGED: no code has these
 * bits. */
enum { LAST = 128, DAMAGED = 256 };
enum { MOST_OF_FIRST = 11, MOST = 10 }; /* bits of a number */
static const uint32_t damaged_entry = (uint32_t)DAMAGED << PLACES | 1;

/* Where coefficients are in a block; places beyond a block are the last one, which gets a 0 again.
 * By the bits of a number, the highest number and the lowest positive one. */
static const struct {
    uint8_t places[LAST + 64];
    uint32_t highest[16], lowest[16];
} known = {
    {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18,
     11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
     13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43,
     36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45,
     38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, [64 ... LAST + 63] = 63},
    {0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 2047},
    {0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024},
};

/* ---- tables */

/* Returns the entry of a code. */
static uint32_t entry_of(uint8_t symbol, int32_t length, bool is_first)
{
    const uint32_t size = is_first ? symbol : symbol & 15, run = is_first ? 0 : symbol >> 4;
    if (size > (is_first ? MOST_OF_FIRST : MOST)) return damaged_entry;
    bool is_last = !is_first && size == 0 && run != 15;
    const uint32_t bits = size << SIZE | ((uint32_t)length + size);
    return bits | (is_last ? LAST << PLACES : (run + 1) << PLACES | run << RUN);
}

/* Returns what the entry of a code adds to the entry of the code before. */
static uint32_t second_of(uint32_t entry)
{
    return entry >> PLACES == DAMAGED ? 0 : entry & ~((uint32_t)RUNS << RUN);
}

/* Decodes a number from its `size` bits. If the first bit is 0, the number is negative. */
static inline uint32_t number_of(uint32_t bits, uint32_t size)
{
    const uint32_t highest = known.highest[size];
    return bits - (highest & (uint32_t)((int32_t)(bits - known.lowest[size]) >> 31));
}

/* Writes the entries that begin with a code: for each number of the code, and for each second
 * code. `rest` is how many bits of LOOK a second code may have. */
static uint32_t *write_pairs(uint32_t *to, uint32_t entry, int32_t rest, const uint32_t *seconds)
{
    const uint32_t size = entry >> SIZE & SIZES, without = entry - (size << SIZE);
    for (uint32_t bits = 0; bits < UINT32_C(1) << size; bits++) {
        const uint32_t first = without | (number_of(bits, size) & VALUES) << VALUE;
        for (int32_t k = 0; k < 1 << rest; k++) {
            const uint32_t second = seconds[(1 << rest) + k];
            *to++ = second != 0 ? first + second : entry;
        }
    }
    return to;
}

static uint32_t *repeat(uint32_t *to, uint32_t entry, int64_t times)
{
    for (int64_t i = 0; i < times; i++) to[i] = entry;
    return to + times;
}

/* Writes for all numbers of `bits` bits what the code at their begin adds to an entry; 0: the code
 * is longer. */
static void write_seconds(const fl_jpeg_table *table, int32_t bits, uint32_t *to)
{
    const uint32_t *end = to + (1 << bits);
    const uint8_t *symbol = table->symbol;
    for (int32_t length = 1; length <= bits; length++)
        for (int32_t i = 0; i < table->count[length]; i++) {
            const uint32_t entry = entry_of(*symbol++, length, false);
            to = repeat(to, second_of(entry), 1 << (bits - length));
        }
    (void)repeat(to, 0, end - to);
}

/* Writes the entries of a table. */
static void write_entries(fl_jpeg_table *table, bool is_first, const uint32_t *seconds)
{
    const uint8_t *symbol = table->symbol;
    uint32_t *to = table->entry;
    for (int32_t length = 1; length <= LOOK; length++)
        for (int32_t i = 0; i < table->count[length]; i++) {
            const uint32_t entry = entry_of(*symbol++, length, is_first);
            const int32_t rest = LOOK - (int32_t)(entry & LENGTH);
            /* With a rest of one bit the first number may have 9 bits and a sign. */
            bool is_single = is_first || rest <= 1 || entry >> PLACES >= LAST;
            const uint32_t *end = to + (1 << (LOOK - length));
            to = is_single ? repeat(to, entry, end - to) : write_pairs(to, entry, rest, seconds);
        }
    (void)repeat(to, 0, table->entry + (1 << LOOK) - to);
}

/* Reads a table: the number of codes of each length, and the symbols. Returns false if there are
 * more codes of a length than can be. */
static bool read_table(fl_jpeg_codes *codes, fl_jpeg_table *table, const uint8_t *counts,
                       int32_t symbols, bool is_first)
{
    uint32_t code = 0;
    int32_t n = 0;
    memset(table->symbol, 0, sizeof table->symbol);
    memcpy(table->symbol, counts + 16, (size_t)symbols);
    for (int32_t length = 1; length <= 16; length++, code <<= 1) {
        table->count[length] = counts[length - 1];
        table->offset[length] = n - (int32_t)code;
        n += table->count[length];
        code += (uint32_t)table->count[length];
        if (code > 1U << length) return false;
        table->end[length] = code << (16 - length);
    }
    table->end[17] = UINT32_MAX;
    for (int32_t bits = 0; bits < LOOK && !is_first; bits++)
        write_seconds(table, bits, codes->seconds + (1 << bits));
    write_entries(table, is_first, codes->seconds);
    table->is_known = true;
    return true;
}

static bool read_tables(fl_jpeg_codes *codes, const uint8_t *at, const uint8_t *end)
{
    while (end - at >= 17) {
        const int32_t kind = at[0] >> 4, which = at[0] & 15;
        int32_t symbols = 0;
        for (int32_t i = 1; i <= 16; i++) symbols += at[i];
        if (kind > 1 || which >= FL_JPEG_TABLES || symbols > 256 || symbols > end - at - 17)
            return false;
        fl_jpeg_table *table = &codes->tables[kind][which];
        if (!read_table(codes, table, at + 1, symbols, kind == 0)) return false;
        at += 17 + symbols;
    }
    return at == end;
}

/* ---- open */

/* Reads which tables the blocks of a scan take. */
static bool read_scan(fl_jpeg_codes *codes, const uint8_t *at, int32_t luma)
{
    const int32_t components = at[2];
    for (int32_t c = 0; c < components; c++) {
        const int32_t tables = at[4 + 2 * c], first = tables >> 4, other = tables & 15;
        bool is_next = components == 1 || at[3 + 2 * c] == c + 1;
        if (!is_next || first >= FL_JPEG_TABLES || other >= FL_JPEG_TABLES) return false;
        if (!codes->tables[0][first].is_known || !codes->tables[1][other].is_known) return false;
        for (int32_t i = 0; i < (c == 0 && components > 1 ? luma : 1); i++, codes->blocks++) {
            codes->component[codes->blocks] = c;
            codes->table[codes->blocks][0] = first;
            codes->table[codes->blocks][1] = other;
        }
    }
    return true;
}

bool fl_jpeg_codes_open(fl_jpeg_codes *out, const uint8_t *data, const uint8_t *scan,
                        const uint8_t *end, int32_t luma)
{
    out->bits = (fl_jpeg_bits){.at = out->window};
    out->limit = out->window;
    out->from = scan;
    out->to = end;
    out->is_last = false;
    out->interval = out->restarts = out->blocks = 0;
    memset(out->first, 0, sizeof out->first);
    for (int32_t kind = 0; kind < 2; kind++)
        for (int32_t i = 0; i < FL_JPEG_TABLES; i++) out->tables[kind][i].is_known = false;
    for (const uint8_t *at = data + 2; at < scan;) {
        const uint8_t marker = at[1], *next = at + 2 + (at[2] << 8 | at[3]);
        if (marker == DHT && !read_tables(out, at + 4, next)) return false;
        if (marker == DRI && next - at == 6) out->interval = at[4] << 8 | at[5];
        if (marker == SOS && !read_scan(out, at + 2, luma)) return false;
        at = next;
    }
    out->until_restart = out->interval;
    return true;
}

/* ---- bits */

/* Moves bytes from the file to the window until the window is full or a marker comes. In a scan a
 * 0xFF that belongs to a code is followed by a zero, which is left out. */
static void fill_window(fl_jpeg_codes *codes)
{
    uint8_t *to = codes->window;
    const int64_t kept = codes->limit - codes->bits.at;
    memmove(to, codes->bits.at, (size_t)kept);
    codes->bits.at = to;
    to += kept;
    for (int64_t room; (room = codes->window + FL_JPEG_WINDOW - to) > 0 && !codes->is_last;) {
        const int64_t bytes = fl_min(codes->to - codes->from, room);
        const uint8_t *found = memchr(codes->from, 0xFF, (size_t)bytes);
        const int64_t plain = found != NULL ? found - codes->from : bytes;
        memcpy(to, codes->from, (size_t)plain);
        to += plain;
        codes->from += plain;
        if (found == NULL) {
            codes->is_last = codes->from == codes->to;
        } else if (codes->to - found >= 2 && found[1] == 0) {
            *to++ = 0xFF;
            codes->from += 2;
        } else
            codes->is_last = true;
    }
    codes->limit = to;
    memset(to, 0, FL_JPEG_UNIT);
}

/* Makes sure that there are 56 bits. */
static inline void fill(fl_jpeg_bits *bits)
{
    uint64_t word;
    memcpy(&word, bits->at, sizeof word);
    bits->next |= __builtin_bswap64(word) >> bits->left; /* bits beyond `left` come again */
    bits->at += (63 - bits->left) >> 3;
    bits->left |= 56;
}

/* ---- blocks */

/* Returns the entry of a code alone. */
static __attribute__((noinline)) uint32_t
find_entry(const fl_jpeg_table *table, uint64_t next, bool is_first)
{
    const uint32_t word = (uint32_t)(next >> 48);
    int32_t length = 1;
    while (word >= table->end[length]) length++;
    if (length > 16) return damaged_entry;
    const int32_t at = (int32_t)(word >> (16 - length)) + table->offset[length];
    return entry_of(table->symbol[at & 255], length, is_first);
}

/* Returns the entry of the next code. */
static inline uint32_t
next_entry(const fl_jpeg_bits *bits, const fl_jpeg_table *table, bool is_first)
{
    const uint32_t entry = table->entry[bits->next >> (64 - LOOK)];
    return __builtin_expect(entry == 0, 0) ? find_entry(table, bits->next, is_first) : entry;
}

/* Takes `length` bits; higher bits of `length` do not count. `bits` must have enough. */
static inline void take_bits(fl_jpeg_bits *bits, uint32_t length)
{
    bits->next <<= length & LENGTH;
    bits->left -= length & LENGTH;
}

/* Returns the number of `size` bits at the end of the next `length` bits. */
static inline uint32_t number_at(const fl_jpeg_bits *bits, uint32_t length, uint32_t size)
{
    return number_of((uint32_t)(bits->next >> (-length & 63)) & known.highest[size], size);
}

/* Takes an entry, and writes its numbers if the block is wanted. */
static inline void
take_numbers(fl_jpeg_bits *bits, uint32_t entry, bool is_wanted, int16_t *block, uint64_t place)
{
    const uint32_t length = entry & LENGTH, size = entry >> SIZE & SIZES;
    if (is_wanted) {
        const int32_t first = (int32_t)(entry << (32 - RUN)) >> (32 - RUN + VALUE);
        block[known.places[place + (entry >> RUN & RUNS)]] = (int16_t)first;
        /* The number of a code alone replaces a 0; without a number this is a 0. */
        block[known.places[place + (entry >> PLACES) - 1]] = (int16_t)number_at(bits, length, size);
    }
    take_bits(bits, entry);
}

/* Looks at the next entry. If the block continues after the entry, takes the entry and returns 0;
 * if not, returns the entry, which is not taken. */
static inline uint32_t go_on(fl_jpeg_bits *bits, const fl_jpeg_table *table, bool is_wanted,
                             int16_t *block, uint64_t *place)
{
    const uint32_t entry = next_entry(bits, table, false);
    const uint64_t next = *place + (entry >> PLACES);
    if (next >= 64) return entry;
    take_numbers(bits, entry, is_wanted, block, *place);
    *place = next;
    return 0;
}

/* Takes the last entry of a block. Returns false if the codes are damaged. */
static inline bool end_block(fl_jpeg_bits *bits, const fl_jpeg_table *table, uint32_t entry,
                             bool is_wanted, int16_t *block, uint64_t place)
{
    const uint64_t next = place + (entry >> PLACES);
    bool is_end = next == 64 || (next >= LAST && next < LAST + 64);
    if (__builtin_expect(is_end, 1)) {
        take_numbers(bits, entry, is_wanted, block, place);
        return true;
    }
    /* The first code may end the block; then the second one belongs to another block. */
    if (place + (entry >> RUN & RUNS) != 63 || next >= DAMAGED) return false;
    take_numbers(bits, find_entry(table, bits->next, false), is_wanted, block, place);
    return true;
}

/* Reads a block into `block` if it is wanted. Returns false if its codes are damaged. */
static inline __attribute__((always_inline)) bool
read_block(fl_jpeg_codes *codes, fl_jpeg_bits *bits, int32_t i, bool is_wanted, int16_t *block)
{
    const fl_jpeg_table *table = &codes->tables[1][codes->table[i][1]];
    uint32_t *first = &codes->first[codes->component[i]];
    uint64_t place = 1;
    fill(bits); /* is enough for two entries */
    uint32_t entry = next_entry(bits, &codes->tables[0][codes->table[i][0]], true);
    if (entry >> PLACES == DAMAGED) return false;
    *first += number_at(bits, entry & LENGTH, entry >> SIZE & SIZES);
    if (is_wanted) block[0] = (int16_t)*first;
    take_bits(bits, entry);
    do {
        entry = go_on(bits, table, is_wanted, block, &place);
        if (entry != 0) break;
        fill(bits);
        entry = go_on(bits, table, is_wanted, block, &place);
    } while (entry == 0);
    return end_block(bits, table, entry, is_wanted, block, place);
}

/* ---- units */

/* Returns the bits of the window that have not been read; less than 0: more have been read. */
static inline int64_t bits_left(const fl_jpeg_codes *codes)
{
    return 8 * (codes->limit - codes->bits.at) + (int64_t)codes->bits.left;
}

/* Passes the marker of a restart. */
static bool restart(fl_jpeg_codes *codes)
{
    const uint8_t *marker = codes->from;
    bool is_next = codes->is_last && bits_left(codes) < 8 && codes->to - marker >= 2 &&
                   marker[1] == RST + codes->restarts++ % 8;
    if (!is_next) return false;
    codes->bits = (fl_jpeg_bits){.at = codes->window};
    codes->limit = codes->window;
    codes->from = marker + 2;
    codes->is_last = false;
    memset(codes->first, 0, sizeof codes->first);
    codes->until_restart = codes->interval;
    return true;
}

static inline __attribute__((always_inline)) bool
read_unit(fl_jpeg_codes *codes, fl_jpeg_block *const *blocks)
{
    fl_jpeg_bits bits = codes->bits;
    bool is_fine = true;
    if (blocks != NULL)
        for (int32_t i = 0; i < codes->blocks; i++)
            is_fine = is_fine && read_block(codes, &bits, i, true, *blocks[i]);
    else
        for (int32_t i = 0; i < codes->blocks; i++)
            is_fine = is_fine && read_block(codes, &bits, i, false, NULL);
    codes->bits = bits;
    return is_fine;
}

#if defined(__x86_64__)
/* Does the same with shifts that leave flags alone. */
static __attribute__((target("bmi2"), noinline)) bool
read_unit_bmi2(fl_jpeg_codes *codes, fl_jpeg_block *const *blocks)
{
    return read_unit(codes, blocks);
}
#endif

bool fl_jpeg_codes_read(fl_jpeg_codes *codes, fl_jpeg_block *const *blocks)
{
    if (codes->interval > 0 && codes->until_restart == 0 && !restart(codes)) return false;
    codes->until_restart--;
    if (codes->limit - codes->bits.at < FL_JPEG_UNIT && !codes->is_last) fill_window(codes);
    bool is_fine;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("bmi2"))
        is_fine = read_unit_bmi2(codes, blocks);
    else
#endif
        is_fine = read_unit(codes, blocks);
    return is_fine && bits_left(codes) >= 0;
}
