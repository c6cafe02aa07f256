/* fl_jpeg: see fl_jpeg.h. */
#include "fl_jpeg.h"

#include <assert.h>
#include <setjmp.h>
#include <stddef.h>
#include <string.h>

_Static_assert(sizeof(void *) != 8 || sizeof(fl_jpeg_state) == 632, "libjpeg's size is 632");
_Static_assert(sizeof(void *) != 8 || offsetof(fl_jpeg_state, entropy) == 592, "as in libjpeg");

enum {
    BLOCK = 8,        /* edge of a block of samples */
    BAND = 2 * BLOCK, /* most rows of a plane that are decoded at once */
    MARGIN = 4,       /* extra columns on each side of a part; libjpeg's upsampling reads 2 */
    LEAST = 64,       /* columns: libjpeg upsamples planes of 2 columns in another way */
    HEAD = 8,         /* bytes of a frame's header, */
    ENTRY = 3         /* and of each component */
};

enum { MARKER_BLOCK = 256 }; /* bytes that are searched for markers at once */

/* Markers, with the names of the standard. Of APP there are 16, of RST 8. */
enum { SOF0 = 0xC0, SOF1, DHT = 0xC4, RST = 0xD0, SOI = 0xD8, EOI, SOS, DQT, DRI = 0xDD };
enum { APP = 0xE0, ADOBE = APP + 14, COM = 0xFE };

/* ---- headers */

static int32_t read_16(const uint8_t *at) { return at[0] << 8 | at[1]; }

/* Reads a frame's header, `length` bytes from the length on. */
static bool read_frame(const uint8_t *at, int32_t length, fl_jpeg *out)
{
    if (length < HEAD + ENTRY || at[2] != 8 || out->components != 0) return false;
    const int32_t components = at[7], factors = at[HEAD + 1];
    if ((components != 1 && components != 3) || length != HEAD + ENTRY * components) return false;
    for (int32_t c = 0; c < components && components == 3; c++) {
        const uint8_t *entry = at + HEAD + ENTRY * c;
        if (entry[0] != c + 1 || (c > 0 && entry[1] != 0x11)) return false; /* perhaps RGB */
    }
    if (factors != 0x11 && (components == 1 || (factors != 0x21 && factors != 0x22))) return false;
    out->height = read_16(at + 3);
    out->width = read_16(at + 5);
    out->components = components;
    out->factors[0] = factors >> 4;
    out->factors[1] = factors & 15;
    return out->height > 0 && out->width > 0;
}

/* Returns the begin of the scan's data, or NULL. */
static const uint8_t *read_headers(fl_jpeg *out)
{
    const uint8_t *at = out->data + 2, *end = out->data + out->bytes;
    while (end - at >= 4 && at[0] == 0xFF) {
        const uint8_t marker = at[1];
        const int32_t length = read_16(at + 2);
        at += 2;
        if (length < 2 || length > end - at) return NULL;
        bool is_frame = marker == SOF0 || marker == SOF1;
        if (is_frame && !read_frame(at, length, out)) return NULL;
        if (marker == SOS) {
            bool is_whole = out->components > 0 && at[2] == out->components;
            return is_whole && length == 6 + 2 * out->components ? at + length : NULL;
        }
        bool is_known = marker == DHT || marker == DQT || marker == DRI || marker == COM;
        if (!is_frame && !is_known && (marker & 0xF0) != APP) return NULL;
        if (marker == ADOBE && length > 13 && memcmp(at + 2, "Adobe", 5) == 0 && at[13] != 1)
            return NULL; /* RGB, CMYK or YCCK */
        at += length;
    }
    return NULL;
}

/* Returns true if a 0xFF among MARKER_BLOCK bytes is not followed by 0. */
static bool may_have_marker(const uint8_t *at)
{
    uint8_t found = 0;
    for (int i = 0; i < MARKER_BLOCK; i++) found |= (uint8_t)((at[i] == 0xFF) & (at[i + 1] != 0));
    return found != 0;
}

/* Returns true if no markers but restarts stand between the begin of the scan's data and the end of
 * the image. */
static bool reaches_end(const uint8_t *at, const uint8_t *end)
{
    while (end - at > MARKER_BLOCK && !may_have_marker(at)) at += MARKER_BLOCK;
    while ((at = memchr(at, 0xFF, (size_t)(end - at))) != NULL && ++at < end) {
        if (*at == EOI) return true;
        if (*at != 0 && *at != 0xFF && (*at & 0xF8) != RST) return false;
    }
    return false;
}

bool fl_jpeg_open(const fl_jpeg_library *library, const uint8_t *data, int64_t bytes, fl_jpeg *out)
{
    *out = (fl_jpeg){.library = library, .data = data, .bytes = bytes};
    if (bytes < 4 || data[0] != 0xFF || data[1] != SOI) return false;
    out->scan = read_headers(out);
    return out->scan != NULL && reaches_end(out->scan, data + bytes);
}

/* ---- libjpeg */

typedef struct decoder {
    fl_jpeg_state state;
    fl_jpeg_errors errors;
    fl_jpeg_input input;
    jmp_buf refused;
    unsigned unit;        /* of the row, that is decoded next */
    unsigned from, to;    /* units of a row that are wanted */
    fl_jpeg_codes *codes; /* owned: too many bytes for a small stack */
} decoder;

_Static_assert(sizeof(decoder) < 2048, "a thread may have a stack of 32 KiB");

static _Noreturn void refuse(fl_jpeg_state *state)
{
    longjmp(((decoder *)state->owner)->refused, 1);
}

static void note(fl_jpeg_state *state, int level)
{
    if (level < 0) refuse(state);
}

static void ignore(fl_jpeg_state *state) { (void)state; }

static int refill(fl_jpeg_state *state) { refuse(state); }

static int restart(fl_jpeg_state *state, int wanted)
{
    (void)wanted;
    refuse(state);
}

static void skip(fl_jpeg_state *state, long bytes)
{
    fl_jpeg_input *input = state->input;
    if (bytes <= 0) return;
    if ((size_t)bytes > input->left) refuse(state);
    input->next += bytes;
    input->left -= (size_t)bytes;
}

/* A part or the planes of an image, and the memory that receives the samples. */
typedef struct request {
    const fl_jpeg *image;
    const fl_jpeg_part *part; /* NULL: planes */
    uint8_t *out;
    uint8_t *band; /* memory for a band of each plane, `pitch` bytes a row */
    int64_t pitch;
} request;

static void read_part(fl_jpeg_state *state, const request *what)
{
    const fl_jpeg_library *library = what->image->library;
    const fl_jpeg_part *part = what->part;
    const unsigned left = (unsigned)part->left, width = (unsigned)part->right - left;
    const unsigned top = (unsigned)part->top;
    unsigned from = 0, columns = state->width;
    if (width < state->width) {
        from = left;
        columns = width;
        library->crop(state, &from, &columns);
    }
    if (from != left || columns != width) refuse(state);
    if (top > 0 && library->skip(state, top) != top) refuse(state);
    uint8_t *at = what->out;
    for (int32_t row = part->top; row < part->bottom; row++, at += 3 * (int64_t)width)
        if (library->read(state, &at, 1) != 1) refuse(state);
}

static void read_planes(fl_jpeg_state *state, const request *what)
{
    const fl_jpeg *image = what->image;
    fl_ycc ycc;
    uint8_t *rows[3][BAND], **planes[3], *out[3] = {what->out};
    (void)fl_jpeg_planes(image, &ycc);
    const int32_t width[3] = {ycc.width, fl_ycc_chroma_width(&ycc), fl_ycc_chroma_width(&ycc)};
    const int32_t height = fl_ycc_chroma_height(&ycc), ends[3] = {ycc.height, height, height};
    out[1] = out[0] + (int64_t)ycc.width * ycc.height;
    out[2] = out[1] + (int64_t)width[1] * height;
    for (int32_t c = 0; c < 3; c++) {
        planes[c] = rows[c];
        for (int32_t i = 0; i < BAND; i++) rows[c][i] = what->band + (c * BAND + i) * what->pitch;
    }
    const int32_t band = BLOCK * image->factors[1];
    for (int32_t top = 0; top < ycc.height; top += band) {
        if (image->library->read_raw(state, planes, (unsigned)band) != (unsigned)band)
            refuse(state);
        for (int32_t c = 0; c < image->components; c++) {
            const int32_t step = c == 0 ? band : BLOCK, first = top / band * step;
            for (int32_t i = 0; i < step && first + i < ends[c]; i++, out[c] += width[c])
                memcpy(out[c], rows[c][i], (size_t)width[c]);
        }
    }
}

/* Decodes a unit, in place of libjpeg's function. */
static int decode_unit(fl_jpeg_state *state, fl_jpeg_block **blocks)
{
    decoder *d = state->owner;
    bool is_wanted = d->unit >= d->from && d->unit < d->to;
    if (!fl_jpeg_codes_read(d->codes, is_wanted ? blocks : NULL)) refuse(state);
    if (++d->unit == state->units[0]) d->unit = 0;
    return 1;
}

/* Makes libjpeg call decode_unit, if the state has the fields where they are expected. */
static void take_codes(decoder *d, const request *what)
{
    const fl_jpeg *image = what->image;
    const fl_jpeg_part *part = what->part;
    const int32_t across = BLOCK * image->factors[0], down = BLOCK * image->factors[1];
    const int32_t luma = image->factors[0] * image->factors[1];
    const unsigned columns = (unsigned)((image->width + across - 1) / across);
    bool is_known = d->state.units[0] == columns &&
                    d->state.units[1] == (unsigned)((image->height + down - 1) / down) &&
                    d->state.blocks == luma + image->components - 1 && d->state.entropy != NULL;
    if (!is_known ||
        !fl_jpeg_codes_open(d->codes, image->data, image->scan, image->data + image->bytes, luma))
        return;
    d->unit = d->from = 0;
    d->to = columns;
    if (part != NULL) {
        d->from = (unsigned)(part->left / across);
        d->to = (unsigned)((part->right + across - 1) / across);
    }
    d->state.entropy->decode = decode_unit;
}

/* Returns false if libjpeg refuses the file. */
static bool decode_all(decoder *d, const request *what)
{
    const fl_jpeg *image = what->image;
    fl_jpeg_state *state = &d->state;
    if (setjmp(d->refused) != 0) return false;
    image->library->create(state, FL_JPEG_VERSION, sizeof *state);
    state->input = &d->input;
    if (image->library->read_header(state, 1) != 1) refuse(state);
    const int colors = image->components == 1 ? FL_JPEG_GREY : FL_JPEG_YCC;
    if (state->width != (unsigned)image->width || state->height != (unsigned)image->height ||
        state->colors != colors)
        refuse(state);
    state->out_colors = FL_JPEG_RGB;
    state->is_raw = what->part == NULL;
    if (image->library->start(state) == 0) refuse(state);
    take_codes(d, what);
    (what->part != NULL ? read_part : read_planes)(state, what);
    return true;
}

static int decode(const request *what, fl_err *err)
{
    decoder d = {.codes = fl_alloc(sizeof *d.codes)};
    if (d.codes == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a JPEG file's codes");
    d.input = (fl_jpeg_input){.next = what->image->data,
                              .left = (size_t)what->image->bytes,
                              .begin = ignore,
                              .refill = refill,
                              .skip = skip,
                              .restart = restart,
                              .end = ignore};
    d.errors = (fl_jpeg_errors){.refuse = refuse, .note = note, .reset = ignore};
    d.state.errors = &d.errors;
    d.state.owner = &d;
    bool is_done = decode_all(&d, what);
    what->image->library->destroy(&d.state);
    fl_free(d.codes);
    if (is_done) return FL_OK;
    return fl_fail(err, FL_EINVAL, "libjpeg warns of a file or refuses the file");
}

/* ---- images */

void fl_jpeg_widen(const fl_jpeg *image, fl_jpeg_part *part)
{
    const int32_t unit = BLOCK * image->factors[0], width = image->width;
    const int32_t left = (int32_t)fl_max(part->left - MARGIN, 0) / unit * unit;
    const int32_t right = (int32_t)fl_min(fl_max(part->right + MARGIN, left + LEAST), width);
    const int32_t columns = right - left;
    bool is_whole = columns < LEAST || columns > width - 2 * BLOCK;
    part->left = is_whole ? 0 : left;
    part->right = is_whole ? width : right;
}

int fl_jpeg_read(const fl_jpeg *image, const fl_jpeg_part *part, uint8_t *out, fl_err *err)
{
    assert(part->top >= 0 && part->top < part->bottom && part->bottom <= image->height);
    assert(part->left >= 0 && part->left < part->right && part->right <= image->width);
    return decode(&(request){.image = image, .part = part, .out = out}, err);
}

bool fl_jpeg_planes(const fl_jpeg *image, fl_ycc *out)
{
    const int32_t *factors = image->factors;
    bool is_half = factors[1] == 2 && image->width > 4 && image->height > 1;
    *out = (fl_ycc){.width = image->width, .height = image->height, .chroma = FL_CHROMA_NONE};
    if (image->components == 3) out->chroma = is_half ? FL_CHROMA_HALF : FL_CHROMA_FULL;
    return is_half || factors[0] == 1;
}

int fl_jpeg_read_planes(const fl_jpeg *image, uint8_t *out, fl_err *err)
{
    const int64_t pitch = (int64_t)image->width + 2 * BAND; /* rows end in a whole block */
    uint8_t *band = fl_alloc(3 * BAND * pitch);
    if (band == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for rows of a JPEG file");
    int status = decode(&(request){.image = image, .out = out, .band = band, .pitch = pitch}, err);
    fl_free(band);
    return status;
}
