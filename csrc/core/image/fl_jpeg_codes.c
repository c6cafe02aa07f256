/* fl_jpeg_codes: see fl_jpeg_codes.h. */
#include "fl_jpeg_codes.h"

#include <string.h>

enum { LOOK = FL_JPEG_LOOK, DHT = 0xC4, RST = 0xD0, SOS = 0xDA, DRI = 0xDD };

/* An entry of a table: the bits of a code and its number, the bits of the number from SIZE on, and
 * from RUN on the run of coefficients that are 0. */
enum { SIZE = 8, RUN = 16, LENGTH = 63, SIZES = 15 };
/* Two runs beyond a block: all coefficients that are left are 0; no code has these bits. */
enum { LAST = 64, DAMAGED = 96 };
enum { MOST_OF_FIRST = 11, MOST = 10 }; /* bits of a number */

/* Where coefficients are in a block. The run LAST ends at the last one, which then is 0 already. */
static const uint8_t places[64 + DAMAGED] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18,
    11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43,
    36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45,
    38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, [64 ... 64 + DAMAGED - 1] = 63};

/* ---- tables */

/* Returns the entry of a code. */
static uint32_t entry_of(uint8_t symbol, int32_t length, bool is_first)
{
    const uint32_t size = is_first ? symbol : symbol & 15, run = is_first ? 0 : symbol >> 4;
    if (size > (is_first ? MOST_OF_FIRST : MOST)) return DAMAGED << RUN | 1;
    bool is_last = !is_first && size == 0 && run != 15;
    return (is_last ? LAST : run) << RUN | size << SIZE | ((uint32_t)length + size);
}

/* Reads a table: the number of codes of each length, and the symbols. Returns false if there are
 * more codes of a length than can be. */
static bool read_table(fl_jpeg_table *table, const uint8_t *counts, int32_t symbols, bool is_first)
{
    uint32_t code = 0;
    int32_t n = 0;
    memset(table, 0, sizeof *table);
    memcpy(table->symbol, counts + 16, (size_t)symbols);
    for (int32_t length = 1; length <= 16; length++, code <<= 1) {
        table->offset[length] = n - (int32_t)code;
        for (int32_t i = 0; i < counts[length - 1]; i++, n++, code++) {
            if (code >= 1U << length) return false;
            const int32_t rest = LOOK - length;
            const uint32_t entry = entry_of(table->symbol[n], length, is_first);
            for (int32_t k = 0; rest >= 0 && k < 1 << rest; k++)
                table->entry[(code << rest) + (uint32_t)k] = entry;
        }
        table->end[length] = code << (16 - length);
    }
    table->end[17] = UINT32_MAX;
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
        if (!read_table(&codes->tables[kind][which], at + 1, symbols, kind == 0)) return false;
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

/* Returns the entry of a code that is longer than LOOK. */
static __attribute__((noinline)) uint32_t
find_entry(const fl_jpeg_table *table, uint64_t next, bool is_first)
{
    const uint32_t word = (uint32_t)(next >> 48);
    int32_t length = LOOK + 1;
    while (word >= table->end[length]) length++;
    if (length > 16) return DAMAGED << RUN | 1;
    const int32_t at = (int32_t)(word >> (16 - length)) + table->offset[length];
    return entry_of(table->symbol[at & 255], length, is_first);
}

/* A code. */
typedef struct code {
    int32_t number;
    uint32_t run; /* of coefficients that are 0 before the number */
} code;

/* Takes the next code. `bits` must have enough for it. */
static inline code take_code(fl_jpeg_bits *bits, const fl_jpeg_table *table, bool is_first)
{
    uint32_t entry = table->entry[bits->next >> (64 - LOOK)];
    if (__builtin_expect(entry == 0, 0)) entry = find_entry(table, bits->next, is_first);
    const uint32_t length = entry & LENGTH, size = entry >> SIZE & SIZES;
    const int64_t number = (int64_t)(bits->next << (length - size));
    bits->next <<= length;
    bits->left -= length;
    /* A number that begins with 0 is negative. */
    const int64_t least = ~(number >> 63) & (1 - (int64_t)(1U << size));
    return (code){(int32_t)((int64_t)((uint64_t)number >> 1 >> (63 - size)) + least), entry >> RUN};
}

/* Takes the next number of a block and returns its run. `place`, the number's earliest place,
 * becomes the next number's. `block` may be NULL. */
static inline uint32_t
take_number(fl_jpeg_bits *bits, const fl_jpeg_table *table, int16_t *block, uint32_t *place)
{
    const code next = take_code(bits, table, false);
    if (block != NULL) block[places[*place + next.run]] = (int16_t)next.number;
    *place += next.run + 1;
    return next.run;
}

/* Reads a block; `block` may be NULL. Returns false if its codes are damaged. */
static inline bool read_block(fl_jpeg_codes *codes, fl_jpeg_bits *bits, int32_t i, int16_t *block)
{
    const fl_jpeg_table *table = &codes->tables[1][codes->table[i][1]];
    uint32_t *first = &codes->first[codes->component[i]], place = 1, run;
    fill(bits); /* is enough for two codes with their numbers */
    const code difference = take_code(bits, &codes->tables[0][codes->table[i][0]], true);
    if (difference.run != 0) return false;
    *first += (uint32_t)difference.number;
    if (block != NULL) block[0] = (int16_t)*first;
    for (;;) {
        if (run = take_number(bits, table, block, &place), place >= 64) break;
        fill(bits);
        if (run = take_number(bits, table, block, &place), place >= 64) break;
    }
    return place == 64 || run == LAST;
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

bool fl_jpeg_codes_read(fl_jpeg_codes *codes, fl_jpeg_block *const *blocks)
{
    if (codes->interval > 0 && codes->until_restart == 0 && !restart(codes)) return false;
    codes->until_restart--;
    if (codes->limit - codes->bits.at < FL_JPEG_UNIT && !codes->is_last) fill_window(codes);
    fl_jpeg_bits bits = codes->bits;
    bool is_fine = true;
    if (blocks != NULL)
        for (int32_t i = 0; i < codes->blocks; i++)
            is_fine = is_fine && read_block(codes, &bits, i, *blocks[i]);
    else
        for (int32_t i = 0; i < codes->blocks; i++)
            is_fine = is_fine && read_block(codes, &bits, i, NULL);
    codes->bits = bits;
    return is_fine && bits_left(codes) >= 0;
}
