/* fl_token_file: see fl_token_file.h. */
#include "fl_token_file.h"

#include <string.h>

/* llm.c: the first two int32 of a file. */
enum {
    MAGIC_U16 = 20240520,
    VERSION_U16 = 1,
    MAGIC_U32 = 20240801,
    VERSION_U32 = 7,
    MAGIC_EXAMPLES = 20240522
};

static const char megatron_magic[9] = "MMIDIDX\0";
static const char archive_magic[4] = {'P', 'K', 3, 4};

/* Numbers in files may stand at any address, hence memcpy. */
static int32_t load_i32(const char *at)
{
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static int64_t load_i64(const char *at)
{
    int64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static bool begins_with(const char *head, int64_t head_bytes, const char *magic, int64_t bytes)
{
    return head_bytes >= bytes && memcmp(head, magic, (size_t)bytes) == 0;
}

static int32_t magic_of(const char *head, int64_t head_bytes)
{
    return head_bytes >= 4 ? load_i32(head) : 0;
}

int fl_token_file_check(const char *head, int64_t head_bytes, fl_err *err)
{
    if (begins_with(head, head_bytes, megatron_magic, sizeof megatron_magic))
        return fl_fail(err, FL_EINVAL,
                       "must be a file of tokens, got an index of Megatron (pass the .bin file, or "
                       "use TokenDataset.from_megatron(prefix))");
    if (begins_with(head, head_bytes, archive_magic, sizeof archive_magic))
        return fl_fail(
            err, FL_EINVAL,
            "must be a file of tokens, got an archive (save the tokens with numpy.save)");
    if (magic_of(head, head_bytes) == MAGIC_EXAMPLES)
        return fl_fail(err, FL_EINVAL,
                       "must be a stream of tokens, got evaluation examples of llm.c, magic %d "
                       "(pass llm.c's training files)",
                       MAGIC_EXAMPLES);
    return FL_OK;
}

bool fl_token_file_is_llmc(const char *head, int64_t head_bytes)
{
    int32_t magic = magic_of(head, head_bytes);
    return magic == MAGIC_U16 || magic == MAGIC_U32;
}

/* Describes `bytes` of tokens from first_byte on. */
static int read_tokens(int64_t first_byte, int64_t bytes, fl_token_type type, fl_token_layout *out,
                       fl_err *err)
{
    int64_t width = fl_token_bytes(type);
    if (bytes <= 0)
        return fl_fail(err, FL_EINVAL,
                       "must hold at least one token, got none (leave the file out)");
    if (bytes % width != 0)
        return fl_fail(err, FL_EINVAL,
                       "must have a multiple of %lld bytes of tokens, got %lld (is the file cut, "
                       "or of a different dtype?)",
                       (long long)width, (long long)bytes);
    *out = (fl_token_layout){.type = type, .first_byte = first_byte, .count = bytes / width};
    return FL_OK;
}

int fl_token_file_read_raw(int64_t file_bytes, fl_token_type type, fl_token_layout *out,
                           fl_err *err)
{
    if (type == FL_TOKEN_TYPES)
        return fl_fail(err, FL_EINVAL,
                       "must have a header that names the dtype, got none (pass dtype=, for "
                       "example 'uint16' for files of nanoGPT)");
    return read_tokens(0, file_bytes, type, out, err);
}

/* Returns true if `count` tokens take `bytes`. Divides, because a product with a count from a file
 * may overflow. */
static bool fits(int64_t count, int64_t bytes, fl_token_type type)
{
    int64_t width = fl_token_bytes(type);
    return bytes % width == 0 && bytes / width == count;
}

/* Returns the first of `types` for which `count` tokens take `bytes`, or FL_TOKEN_TYPES. */
static fl_token_type find_width(int64_t count, int64_t bytes, const fl_token_type *types, int known)
{
    for (int i = 0; i < known; i++)
        if (fits(count, bytes, types[i])) return types[i];
    return FL_TOKEN_TYPES;
}

/* Checks a header of llm.c against the file; *found is the type of the file's tokens. Forks of
 * llm.c write different widths after the same header. Such widths count only if `is_told`, that is
 * with dtype=: a file that was cut to half, or appended to, may also have such a size. */
static int
check_llmc(const char *head, int64_t bytes, bool is_told, fl_token_type *found, fl_err *err)
{
    static const fl_token_type narrow[] = {FL_TOKEN_U16, FL_TOKEN_U8, FL_TOKEN_U32};
    static const fl_token_type wide[] = {FL_TOKEN_U32};
    bool is_wide = load_i32(head) == MAGIC_U32;
    int32_t version = load_i32(head + 4), count = load_i32(head + 8);
    int32_t known = is_wide ? VERSION_U32 : VERSION_U16;
    if (version != known)
        return fl_fail(err, FL_EINVAL,
                       "must have llm.c's version %d, got %d (write the file with llm.c's writer, "
                       "or pass format='raw')",
                       (int)known, (int)version);
    *found = is_wide ? find_width(count, bytes, wide, 1) : find_width(count, bytes, narrow, 3);
    if (*found == FL_TOKEN_TYPES)
        return fl_fail(err, FL_EINVAL,
                       "must have %d tokens of %d bytes, as its header says, got %lld bytes (the "
                       "file is cut, or its writer was stopped)",
                       (int)count, is_wide ? 4 : 2, (long long)bytes);
    if (!is_told && !is_wide && *found != FL_TOKEN_U16)
        return fl_fail(err, FL_EINVAL,
                       "must have %d tokens of 2 bytes, as its header says, got %lld bytes (the "
                       "file is %s; or pass dtype='%s' if its tokens are)",
                       (int)count, (long long)bytes, *found == FL_TOKEN_U8 ? "cut" : "too long",
                       *found == FL_TOKEN_U8 ? "uint8" : "uint32");
    return FL_OK;
}

int fl_token_file_read_llmc(const char *head, int64_t head_bytes, int64_t file_bytes,
                            fl_token_type type, fl_token_layout *out, fl_err *err)
{
    fl_token_type found;
    if (!fl_token_file_is_llmc(head, head_bytes))
        return fl_fail(err, FL_EINVAL,
                       "must have llm.c's magic %d or %d, got %d (if the file has no header, pass "
                       "format='raw' and dtype=)",
                       MAGIC_U16, MAGIC_U32, (int)magic_of(head, head_bytes));
    if (file_bytes < FL_LLMC_BYTES || head_bytes < FL_LLMC_BYTES)
        return fl_fail(
            err, FL_EINVAL,
            "must have at least the %d bytes of llm.c's header, got %lld (the file is cut)",
            FL_LLMC_BYTES, (long long)file_bytes);
    bool is_told = type != FL_TOKEN_TYPES;
    FL_TRY(check_llmc(head, file_bytes - FL_LLMC_BYTES, is_told, &found, err));
    if (!is_told) type = found;
    if (fl_token_bytes(type) != fl_token_bytes(found))
        return fl_fail(err, FL_EINVAL,
                       "must have tokens of %lld bytes, as dtype= says, got %lld by its header "
                       "(leave dtype out)",
                       (long long)fl_token_bytes(type), (long long)fl_token_bytes(found));
    return read_tokens(FL_LLMC_BYTES, file_bytes - FL_LLMC_BYTES, type, out, err);
}

/* Maps Megatron's numbers of NumPy's types; types that cannot hold tokens are missing. */
static fl_token_type find_megatron_type(int code)
{
    static const fl_token_type types[] = {FL_TOKEN_TYPES, FL_TOKEN_U8,    FL_TOKEN_I8,
                                          FL_TOKEN_I16,   FL_TOKEN_I32,   FL_TOKEN_I64,
                                          FL_TOKEN_TYPES, FL_TOKEN_TYPES, FL_TOKEN_U16};
    return code < (int)(sizeof types / sizeof types[0]) ? types[code] : FL_TOKEN_TYPES;
}

int fl_token_index_read(const char *head, int64_t head_bytes, int64_t index_bytes,
                        fl_token_index *out, fl_err *err)
{
    enum { SEQUENCE_BYTES = 4 + 8, DOCUMENT_BYTES = 8 };
    if (!begins_with(head, head_bytes, megatron_magic, sizeof megatron_magic))
        return fl_fail(err, FL_EINVAL, "must begin with MMIDIDX, as an index of Megatron does");
    if (head_bytes < FL_MEGATRON_BYTES || index_bytes < FL_MEGATRON_BYTES)
        return fl_fail(
            err, FL_EINVAL,
            "must have at least the %d bytes of an index's header, got %lld (the file is cut)",
            FL_MEGATRON_BYTES, (long long)index_bytes);
    int64_t version = load_i64(head + 9);
    int code = (unsigned char)head[17];
    int64_t sequences = load_i64(head + 18), ends = load_i64(head + 26);
    if (version != 1)
        return fl_fail(err, FL_EINVAL, "must have the version 1, got %lld", (long long)version);
    fl_token_type type = find_megatron_type(code);
    if (type == FL_TOKEN_TYPES)
        return fl_fail(err, FL_EINVAL, "must have the dtype code of an integer type, got %d", code);
    /* The products cannot overflow, because the bytes bound both counts first. */
    int64_t room = index_bytes - FL_MEGATRON_BYTES;
    bool has_room = sequences >= 0 && ends >= 0 && sequences <= room / SEQUENCE_BYTES &&
                    ends <= (room - sequences * SEQUENCE_BYTES) / DOCUMENT_BYTES;
    int64_t rest = has_room ? room - sequences * SEQUENCE_BYTES - ends * DOCUMENT_BYTES : 0;
    bool has_modes = rest == sequences; /* int8 each, in indices of several modalities */
    if (!has_room || (rest != 0 && !has_modes))
        return fl_fail(err, FL_EINVAL,
                       "must have %llu sequences and %llu ends, as its header says, got %lld bytes "
                       "(the file is cut)",
                       (unsigned long long)sequences, (unsigned long long)ends,
                       (long long)index_bytes);
    if (ends == 0)
        return fl_fail(
            err, FL_EINVAL,
            "must have ends of documents, got none (Megatron's builder writes a 0 first)");
    *out = (fl_token_index){.type = type, .sequences = sequences, .documents = ends - 1};
    return FL_OK;
}

int fl_token_index_ends(const char *index, const fl_token_index *found, int64_t bin_bytes,
                        int64_t *ends, fl_token_layout *out, fl_err *err)
{
    int64_t width = fl_token_bytes(found->type), begin = 0, document = 0;
    const char *lengths = index + FL_MEGATRON_BYTES;
    const char *pointers = lengths + found->sequences * 4;
    const char *stops =
        pointers + found->sequences * 8; /* the first stop is 0: one more stop than documents */
    if (load_i64(stops) != 0)
        return fl_fail(err, FL_EINVAL, "must have documents from sequence 0 on, got %lld",
                       (long long)load_i64(stops));
    for (int64_t s = 0; s <= found->sequences; s++) {
        for (; document < found->documents && load_i64(stops + 8 * (document + 1)) == s; document++)
            ends[document] = begin / width;
        if (s == found->sequences) break;
        int64_t length = load_i32(lengths + 4 * s), pointer = load_i64(pointers + 8 * s);
        if (length < 0 || pointer != begin || length > (bin_bytes - begin) / width)
            return fl_fail(err, FL_EINVAL,
                           "has sequence %lld of %lld tokens at byte %lld; it must begin at byte "
                           "%lld and fit the %lld bytes of the .bin file",
                           (long long)s, (long long)length, (long long)pointer, (long long)begin,
                           (long long)bin_bytes);
        begin += length * width;
    }
    if (document < found->documents || load_i64(stops + 8 * document) != found->sequences)
        return fl_fail(err, FL_EINVAL,
                       "must have ends that rise to the last sequence, got document %lld up to "
                       "sequence %lld of %lld",
                       (long long)document,
                       (long long)load_i64(stops + 8 * fl_min(document + 1, found->documents)),
                       (long long)found->sequences);
    if (begin != bin_bytes)
        return fl_fail(err, FL_EINVAL,
                       "must have sequences of %lld bytes, as the .bin file has, got %lld (the "
                       "files do not belong together)",
                       (long long)bin_bytes, (long long)begin);
    return read_tokens(0, bin_bytes, found->type, out, err);
}

int fl_token_ends_read(const char *index, int64_t index_bytes, int64_t file_bytes,
                       fl_token_type type, int64_t *ends, fl_token_layout *out, fl_err *err)
{
    static const fl_token_type widths[] = {FL_TOKEN_U16, FL_TOKEN_U32};
    int64_t documents = index_bytes / 8, last = 0;
    if (index_bytes % 8 != 0)
        return fl_fail(err, FL_EINVAL,
                       "must have a multiple of 8 bytes, got %lld (the file is cut)",
                       (long long)index_bytes);
    for (int64_t d = 0; d < documents; d++) {
        int64_t end = load_i64(index + 8 * d);
        if (end < last || end > file_bytes)
            return fl_fail(err, FL_EINVAL,
                           "must have rising ends, got document %lld up to token %llu after token "
                           "%lld in %lld bytes",
                           (long long)d, (unsigned long long)end, (long long)last,
                           (long long)file_bytes);
        ends[d] = last = end;
    }
    if (type == FL_TOKEN_TYPES) type = find_width(last, file_bytes, widths, 2);
    if (type == FL_TOKEN_TYPES || !fits(last, file_bytes, type))
        return fl_fail(err, FL_EINVAL,
                       "must end with the last token, got token %lld for %lld bytes of tokens",
                       (long long)last, (long long)file_bytes);
    return read_tokens(0, file_bytes, type, out, err);
}
