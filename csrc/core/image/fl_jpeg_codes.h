/* fl_jpeg_codes: the Huffman codes of a JPEG file's scan, and the coefficients that they stand for.
 *
 * Floor 1. Does the work of libjpeg's decode_mcu() in less time: one look at a table
 * gives the runs, the numbers and the lengths of one or two codes. Refuses whatever is damaged or
 * unusual. A reader belongs to one thread; its file is read-only. No function waits. */
#ifndef FL_JPEG_CODES_H
#define FL_JPEG_CODES_H

#include "fl_base.h"

#include <stdbool.h>
#include <stdint.h>

enum { FL_JPEG_LOOK = 11, FL_JPEG_TABLES = 2, FL_JPEG_BLOCKS = 6 };
/* Bytes of a window, and more than the codes of a unit take. */
enum { FL_JPEG_WINDOW = 4096, FL_JPEG_UNIT = 1280 };

typedef int16_t fl_jpeg_block[64]; /* coefficients, row by row */

/* The codes of a table. Codes of one length follow each other. */
typedef struct fl_jpeg_table {
    bool is_known;
    int32_t count[17];                 /* of codes of a length */
    uint32_t entry[1 << FL_JPEG_LOOK]; /* by the next bits; 0: the code is longer */
    uint32_t end[18];                  /* of codes of a length, as numbers of 16 bits */
    int32_t offset[17];                /* from a code of a length to its symbol */
    uint8_t symbol[256];
} fl_jpeg_table;

/* The bits that come next. */
typedef struct fl_jpeg_bits {
    uint64_t next;     /* from the highest bit on */
    uint64_t left;     /* bits of `next` */
    const uint8_t *at; /* in the window: bytes that are not in `next` yet */
} fl_jpeg_bits;

/* A reader of the codes. */
typedef struct fl_jpeg_codes {
    fl_jpeg_bits bits;
    const uint8_t *from, *to; /* borrowed: bytes of the file that are not in the window yet */
    uint8_t *limit;           /* in the window: the end of its bytes, which zeros follow */
    bool is_last;             /* the window has all bytes before the next marker */
    int32_t interval, until_restart; /* in units; interval 0: there are no restarts */
    int32_t restarts;
    int32_t blocks;                    /* of a unit of the scan */
    int32_t component[FL_JPEG_BLOCKS]; /* of each block */
    int32_t table[FL_JPEG_BLOCKS][2];  /* the tables of each block: first and other coefficients */
    uint32_t first[3];                 /* the last first coefficient of each component */
    uint32_t seconds[1 << FL_JPEG_LOOK]; /* while a table is read: entries of shorter codes */
    fl_jpeg_table tables[2][FL_JPEG_TABLES];
    uint8_t window[FL_JPEG_WINDOW + FL_JPEG_UNIT];
} fl_jpeg_codes;

/* Opens the codes of a file whose markers fl_jpeg_open has read. `scan` is the begin of the codes,
 * `luma` the number of blocks of the first of three components in a unit. Returns false if a table
 * is missing or damaged. */
bool fl_jpeg_codes_open(fl_jpeg_codes *out, const uint8_t *data, const uint8_t *scan,
                        const uint8_t *end, int32_t luma);

/* Reads the codes of the next unit into its blocks, which must be 0. NULL: leaves out the unit.
 * Returns false if the codes are damaged. */
bool fl_jpeg_codes_read(fl_jpeg_codes *codes, fl_jpeg_block *const *blocks);

#endif
