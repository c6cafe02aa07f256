/* fl_tar: see fl_tar.h. */
#define _GNU_SOURCE
#include "fl_tar.h"

#include <string.h>

enum { MOST_HEADERS = 1 << 20 }; /* bytes of the headers of one member */

/* Fields of a header: first byte and bytes. */
enum { SIZE = 124, SIZE_BYTES = 12, SUM = 148, SUM_BYTES = 8, KIND = 156, MAGIC = 257 };
enum { NAME_BYTES = 100, PREFIX = 345, PREFIX_BYTES = 155 };

static int fail(fl_err *err, int64_t at, const char *what)
{
    return fl_fail(err, FL_EINVAL, "%s at byte %lld", what, (long long)at);
}

/* Names the program that compressed an archive; NULL: the archive is not compressed. */
static const char *compression_of(const char *data)
{
    static const struct {
        const char *magic, *name;
    } known[] = {{"\x1f\x8b", "gzip"},
                 {"\x28\xb5\x2f\xfd", "zstd"},
                 {"BZh", "bzip2"},
                 {"\xfd"
                  "7zXZ",
                  "xz"},
                 {"\x04\x22\x4d\x18", "lz4"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (memcmp(data, known[i].magic, strlen(known[i].magic)) == 0) return known[i].name;
    return NULL;
}

/* Reads an octal number, which spaces may surround, or one to base 256. Returns -1 if it is
 * neither, or too large. */
static int64_t read_number(const char *field, int bytes)
{
    int64_t value = 0;
    int i = 0;
    if ((field[0] & 0x80) != 0) {
        for (i = 0; i < bytes; i++) {
            if (value >> 48 != 0) return -1;
            value = value << 8 | (unsigned char)(i == 0 ? field[0] & 0x7f : field[i]);
        }
        return value;
    }
    while (i < bytes && field[i] == ' ') i++;
    for (; i < bytes && field[i] >= '0' && field[i] <= '7'; i++) value = value * 8 + field[i] - '0';
    return i == bytes || field[i] == ' ' || field[i] == '\0' ? value : -1;
}

/* The sum counts its own bytes as spaces. Old programs summed signed bytes. */
static bool is_sum_right(const char *header)
{
    int64_t wanted = read_number(header + SUM, SUM_BYTES);
    int sum = SUM_BYTES * ' ', high = 0; /* bytes of 128 and more */
    for (int i = 0; i < FL_TAR_BLOCK; i++) sum += (unsigned char)header[i];
    for (int i = 0; i < FL_TAR_BLOCK; i++) high += (unsigned char)header[i] >> 7;
    for (int i = SUM; i < SUM + SUM_BYTES; i++) sum -= (unsigned char)header[i];
    for (int i = SUM; i < SUM + SUM_BYTES; i++) high -= (unsigned char)header[i] >> 7;
    return wanted == sum || wanted == sum - 256 * high;
}

static bool is_zero(const char *block)
{
    static const char zeros[FL_TAR_BLOCK];
    return memcmp(block, zeros, sizeof zeros) == 0;
}

static int check_header(const char *header, int64_t at, fl_err *err)
{
    const char *compression = at == 0 ? compression_of(header) : NULL;
    if (compression != NULL)
        return fl_fail(err, FL_EINVAL,
                       "must not be compressed, got %s (decompress it: a compressed archive cannot "
                       "be read at any place)",
                       compression);
    if (!is_sum_right(header)) return fail(err, at, "has a header with a wrong checksum");
    return FL_OK;
}

/* Name and size of the next member, from the headers before it (GNU's L, PAX). */
typedef struct extras {
    const char *name; /* NULL: no header has the name */
    int64_t name_bytes;
    int64_t size; /* -1: no header has the size */
} extras;

static bool is_word(const char *word, const char *text, int64_t bytes)
{
    return (int64_t)strlen(word) == bytes && memcmp(word, text, (size_t)bytes) == 0;
}

/* Reads decimal digits up to `end`, the byte that must follow them. Returns -1 if there are none.
 */
static int64_t read_decimal(const char **at, const char *stop, char end)
{
    int64_t value = 0;
    const char *first = *at;
    for (; *at < stop && **at >= '0' && **at <= '9' && value < INT64_MAX / 16; ++*at)
        value = value * 10 + (**at - '0');
    return *at > first && *at < stop && **at == end ? value : -1;
}

/* Reads a PAX header: records "LENGTH KEY=VALUE\n". */
static int
read_pax(const char *data, int64_t bytes, int64_t at, bool is_global, extras *found, fl_err *err)
{
    static const char sparse[] = "GNU.sparse";
    for (const char *stop = data + bytes, *next; data < stop; data = next) {
        const char *key = data;
        int64_t length = read_decimal(&key, stop, ' ');
        if (length <= key - data + 1 || length > stop - data || data[length - 1] != '\n')
            return fail(err, at, "has a damaged PAX header");
        next = data + length;
        key++;
        const char *value = memchr(key, '=', (size_t)(next - key));
        if (value == NULL) return fail(err, at, "has a damaged PAX header");
        bool is_path = is_word("path", key, value - key),
             is_size = is_word("size", key, value - key);
        value++;
        if (memcmp(key, sparse, (size_t)fl_min(sizeof sparse - 1, next - key)) == 0)
            return fail(err, at, "has a sparse member (write the archive without --sparse)");
        if (is_path && memchr(value, '\0', (size_t)(next - value)) != NULL)
            return fail(err, at, "has a damaged PAX header");
        if (is_global && (is_path || is_size))
            return fail(err, at, "has a global PAX header with a path or a size");
        if (is_path) found->name = value, found->name_bytes = next - 1 - value;
        if (is_size && (found->size = read_decimal(&value, next, '\n')) < 0)
            return fail(err, at, "has a damaged PAX header");
    }
    return FL_OK;
}

static bool is_extra(char kind) { return kind == 'L' || kind == 'K' || kind == 'x' || kind == 'g'; }

/* Reads a header that belongs to the member after it. */
static int
read_extra(char kind, const char *body, int64_t bytes, int64_t at, extras *found, fl_err *err)
{
    if (kind == 'x' || kind == 'g') return read_pax(body, bytes, at, kind == 'g', found, err);
    if (kind == 'K') return FL_OK; /* the name that a link points to */
    found->name = body;
    found->name_bytes = (int64_t)strnlen(body, (size_t)bytes);
    return FL_OK;
}

static void set_name(const char *header, const extras *found, fl_tar_member *out)
{
    size_t name = strnlen(header, (size_t)NAME_BYTES);
    size_t prefix = strnlen(header + PREFIX, (size_t)PREFIX_BYTES);
    bool has_prefix = memcmp(header + MAGIC, "ustar\0", 6) == 0 && prefix > 0;
    out->name = found->name != NULL ? found->name : header;
    out->name_bytes = found->name != NULL ? found->name_bytes : (int64_t)name;
    if (found->name != NULL || !has_prefix) return;
    memcpy(out->joined, header + PREFIX, prefix);
    out->joined[prefix] = '/';
    memcpy(out->joined + prefix + 1, header, name);
    out->name = out->joined;
    out->name_bytes = (int64_t)(prefix + 1 + name);
}

/* Sets the member whose own header lies `first` bytes after its first header. */
static int set_member(const char *header, int64_t first, int64_t size, int64_t at,
                      const extras *found, fl_tar_member *out, fl_err *err)
{
    char kind = header[KIND];
    set_name(header, found, out);
    /* Before USTAR, a folder was a file whose name ends with a slash. */
    bool is_folder = kind == '\0' && out->name_bytes > 0 && out->name[out->name_bytes - 1] == '/';
    out->is_file = (kind == '0' || kind == '\0' || kind == '7') && !is_folder;
    out->body = first + FL_TAR_BLOCK;
    out->bytes = found->size >= 0 ? found->size : size;
    if (is_folder || (kind >= '1' && kind <= '6')) out->bytes = 0; /* links, folders, devices */
    /* With this bound body + bytes cannot overflow: body is a few headers. */
    if (out->bytes > INT64_MAX / 4) return fail(err, at + first, "has a member of a wrong size");
    out->end = out->body + (out->bytes + FL_TAR_BLOCK - 1) / FL_TAR_BLOCK * FL_TAR_BLOCK;
    return FL_OK;
}

int fl_tar_read(const char *data, int64_t count, int64_t at, fl_tar_member *out, fl_err *err)
{
    extras found = {.size = -1};
    for (int64_t first = 0;;) {
        const char *header = data + first;
        out->needs = first + FL_TAR_BLOCK;
        if (out->needs > count) return FL_OK;
        if (is_zero(header) && first == 0) return FL_EEND;
        FL_TRY(check_header(header, at + first, err));
        int64_t size = read_number(header + SIZE, SIZE_BYTES);
        char kind = header[KIND];
        if (kind == 'S')
            return fail(err, at, "has a sparse member (write the archive without --sparse)");
        if (size < 0) return fail(err, at + first, "has a member of a wrong size");
        if (!is_extra(kind)) return set_member(header, first, size, at, &found, out, err);
        if (size > MOST_HEADERS - out->needs)
            return fail(err, at + first, "has a header of more than a MiB");
        out->needs += (size + FL_TAR_BLOCK - 1) / FL_TAR_BLOCK * FL_TAR_BLOCK;
        if (out->needs > count) return FL_OK;
        FL_TRY(read_extra(kind, header + FL_TAR_BLOCK, size, at + first, &found, err));
        first = out->needs;
    }
}

int64_t fl_tar_key(const char *name, int64_t bytes)
{
    int64_t base = bytes, first = 0;
    while (base > 0 && name[base - 1] != '/') base--;
    while (first < bytes && name[first] != '/') first++;
    bool is_meta =
        first >= 4 && memcmp(name, "__", 2) == 0 && memcmp(name + first - 2, "__", 2) == 0;
    const char *dot = memchr(name + base, '.', (size_t)(bytes - base));
    return dot == NULL || dot == name + base || is_meta ? -1 : dot - name;
}
