/* Tests of fl_jpeg: files that are not whole or of other kinds; a library that refuses at any call;
 * and parts and planes by libjpeg.so.62, where the machine has one. */
#include "jpeg_fixture.h"

#include "fl_jpeg.h"

#include <dlfcn.h>
#include <pthread.h>

enum { EDGE = 250, THREADS = 4 };

static writer file;

/* Opens a copy whose memory ends with the file. */
static bool opens(const uint8_t *data, int64_t bytes)
{
    uint8_t *copy = malloc((size_t)fl_max(bytes, 1));
    fl_jpeg image;
    memcpy(copy, data, (size_t)bytes);
    bool is_open = fl_jpeg_open(NULL, copy, bytes, &image);
    free(copy);
    return is_open;
}

static void test_a_file_is_taken_if_it_is_whole(void)
{
    make_file(&file, 37, 21, 3, 0x22, 1, NULL);
    CHECK(opens(file.data, file.bytes));
    for (int64_t bytes = 0; bytes < file.bytes; bytes++) CHECK(!opens(file.data, bytes));
    fl_jpeg image;
    CHECK(fl_jpeg_open(NULL, file.data, file.bytes, &image));
    CHECK(image.width == 37 && image.height == 21 && image.components == 3);
    CHECK(image.factors[0] == 2 && image.factors[1] == 2);
}

static void test_markers_of_other_kinds_are_left(void)
{
    make_file(&file, 37, 21, 3, 0x22, 1, NULL);
    uint8_t *frame = memmem(file.data, (size_t)file.bytes, "\xFF\xC0", 2);
    uint8_t *scan = memmem(file.data, (size_t)file.bytes, "\xFF\xDA", 2);
    const struct {
        uint8_t *at, value;
        bool is_taken;
    } changes[] = {
        {frame + 1, 0xC1, true},   {frame + 1, 0xC2, false},  {frame + 4, 12, false},
        {frame + 6, 0, false},     {frame + 9, 4, false},     {frame + 9, 2, false},
        {frame + 11, 0x11, true},  {frame + 11, 0x21, true},  {frame + 11, 0x12, false},
        {frame + 11, 0x41, false}, {frame + 14, 0x22, false}, {frame + 17, 0x12, false},
        {scan + 4, 1, false},      {scan + 1, 0xC0, false},   {file.data + 3, 0xC8, false},
        {frame + 10, 'R', false},  {frame + 13, 0, false},    {file.data + 3, 0xEE, true}};
    frame[5] = frame[7] = 0;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const uint8_t before = *changes[i].at;
        *changes[i].at = changes[i].value;
        CHECK(opens(file.data, file.bytes) == changes[i].is_taken);
        *changes[i].at = before;
    }
    const writer before = file;
    uint8_t *table = memmem(file.data, (size_t)file.bytes, "\xFF\xDB", 2);
    table[1] = 0xEE;
    memcpy(table + 4, "Adobe", 5);
    for (uint8_t transform = 0; transform < 3; transform++) {
        table[15] = transform;
        CHECK(opens(file.data, file.bytes) == (transform == 1));
    }
    file = before;
    for (int marker = 0; marker < 256; marker++) { /* within the scan */
        file.data[file.bytes - 4] = 0xFF;
        file.data[file.bytes - 3] = (uint8_t)marker;
        bool is_fine =
            marker == 0 || marker == 0xD9 || marker == 0xFF || (marker >= 0xD0 && marker <= 0xD7);
        CHECK(opens(file.data, file.bytes) == is_fine);
    }
}

static void test_any_bytes_are_read_within_their_memory(void)
{
    uint64_t random = 5;
    for (int i = 0; i < 20000; i++) {
        make_file(&file, 9, 9, i % 2 ? 3 : 1, 0x11, 1, NULL);
        for (int64_t k = random_below(&random, 4); k >= 0; k--)
            file.data[random_below(&random, file.bytes)] = (uint8_t)next_random(&random);
        (void)opens(file.data,
                    random_below(&random, 8) ? file.bytes : random_below(&random, file.bytes));
    }
}

static fl_jpeg_part draw_part(uint64_t *random, const fl_jpeg *image)
{
    fl_jpeg_part part = {.top = (int32_t)random_below(random, image->height),
                         .left = (int32_t)random_below(random, image->width)};
    part.bottom = part.top + 1 + (int32_t)random_below(random, image->height - part.top);
    part.right = part.left + 1 + (int32_t)random_below(random, image->width - part.left);
    return part;
}

static void test_a_part_gets_the_columns_beside_it(void)
{
    uint64_t random = 3;
    for (int i = 0; i < 100000; i++) {
        const fl_jpeg image = {.width = 1 + (int32_t)random_below(&random, EDGE),
                               .height = 1,
                               .components = 3,
                               .factors = {1 + i % 2, 1}};
        const fl_jpeg_part asked = draw_part(&random, &image);
        fl_jpeg_part part = asked;
        fl_jpeg_widen(&image, &part);
        CHECK(part.top == asked.top && part.bottom == asked.bottom);
        CHECK(part.left % (8 * image.factors[0]) == 0 && part.right <= image.width);
        CHECK(part.left == 0 || part.left <= asked.left - 2);
        CHECK(part.right == image.width || part.right >= asked.right + 2);
        CHECK(part.right - part.left >= fl_min(64, image.width));
    }
}

/* ---- a library that refuses at a call */

enum { FINE, HEADER, WIDTH, HEIGHT, COLORS, START, CROPPED, NARROW, SKIPPED, READ, RAW, FAULTS };

static struct {
    fl_jpeg image;
    int fault, calls, refused_call, level, open, odd; /* odd: the field that is not as in libjpeg */
    unsigned row, left, width, row_units;
} fake;

static void take_call(fl_jpeg_state *state)
{
    if (++fake.calls != fake.refused_call) return;
    if (fake.level == 0) state->errors->refuse(state);
    state->errors->note(state, fake.level);
    CHECK(!"a warning returns");
}

static void fake_create(fl_jpeg_state *state, int version, size_t bytes)
{
    CHECK(version == 62 && bytes == sizeof *state);
    fl_jpeg_state cleared = {.errors = state->errors, .owner = state->owner};
    *state = cleared;
    take_call(state);
    state->memory = malloc(100);
    fake.open++;
}

static void fake_destroy(fl_jpeg_state *state)
{
    fake.open -= state->memory != NULL;
    free(state->memory);
}

static int fake_header(fl_jpeg_state *state, int needs_image)
{
    CHECK(needs_image == 1 && state->input->next == fake.image.data);
    state->errors->reset(state);
    state->errors->note(state, 1); /* not a warning */
    state->input->begin(state);
    state->input->skip(state, 0);
    state->input->skip(state, (long)fake.image.bytes);
    CHECK(state->input->left == 0);
    take_call(state);
    state->width = (unsigned)fake.image.width + (fake.fault == WIDTH);
    state->height = (unsigned)fake.image.height + (fake.fault == HEIGHT);
    state->colors = fake.image.components == 1 ? FL_JPEG_GREY : FL_JPEG_YCC;
    if (fake.fault == COLORS) state->colors = FL_JPEG_RGB;
    return fake.fault == HEADER ? 2 : 1;
}

static int fake_start(fl_jpeg_state *state)
{
    take_call(state);
    CHECK(state->out_colors == FL_JPEG_RGB);
    fake.row = fake.left = 0;
    fake.width = state->width;
    return fake.fault != START;
}

static void fake_crop(fl_jpeg_state *state, unsigned *left, unsigned *width)
{
    take_call(state);
    CHECK(*left % (8 * (unsigned)fake.image.factors[0]) == 0 && *left + *width <= state->width);
    fake.left = *left;
    fake.width = *width;
    *left += fake.fault == CROPPED;
    *width -= fake.fault == NARROW;
}

static unsigned fake_skip(fl_jpeg_state *state, unsigned rows)
{
    take_call(state);
    fake.row += rows;
    CHECK(rows > 0 && fake.row < state->height);
    return rows - (fake.fault == SKIPPED);
}

static uint8_t sample(unsigned row, unsigned column, unsigned c)
{
    return (uint8_t)(row * 31 + column * 7 + c * 101);
}

static unsigned fake_read(fl_jpeg_state *state, uint8_t **rows, unsigned count)
{
    take_call(state);
    CHECK(count == 1 && state->is_raw == 0 && fake.row < state->height);
    for (unsigned i = 0; i < fake.width * 3; i++)
        rows[0][i] = sample(fake.row, fake.left + i / 3, i % 3);
    fake.row++;
    return fake.fault != READ;
}

static unsigned fake_raw(fl_jpeg_state *state, uint8_t ***planes, unsigned rows)
{
    take_call(state);
    CHECK(state->is_raw == 1 && rows == 8 * (unsigned)fake.image.factors[1]);
    for (unsigned c = 0; c < (unsigned)fake.image.components; c++) {
        const unsigned across = c == 0 ? 1 : (unsigned)fake.image.factors[0];
        const unsigned down = c == 0 ? 1 : (unsigned)fake.image.factors[1];
        const unsigned width = ((state->width + across - 1) / across + 7) / 8 * 8;
        for (unsigned y = 0; y < rows / down; y++)
            for (unsigned x = 0; x < width; x++)
                planes[c][y][x] = sample(fake.row / down + y, x, c);
    }
    fake.row += rows;
    return fake.fault == RAW ? 0 : rows;
}

static const fl_jpeg_library fakes = {fake_create, fake_destroy, fake_header, fake_start,
                                      fake_crop,   fake_skip,    fake_read,   fake_raw};

static void open_fake(int width, int height, int components, int factors)
{
    make_file(&file, width, height, components, factors, 1, NULL);
    memset(&fake, 0, sizeof fake);
    CHECK(fl_jpeg_open(&fakes, file.data, file.bytes, &fake.image));
}

/* Decodes a part to memory of its size, and checks the bytes. */
static int read_fake(const fl_jpeg_part *part)
{
    const unsigned width = (unsigned)(part->right - part->left);
    const int64_t bytes = (int64_t)width * (part->bottom - part->top) * 3;
    uint8_t *out = malloc((size_t)bytes);
    int status = fl_jpeg_read(&fake.image, part, out, NULL);
    for (int64_t i = 0; status == FL_OK && i < bytes; i++)
        CHECK(out[i] == sample((unsigned)part->top + (unsigned)(i / (3 * width)),
                               (unsigned)part->left + (unsigned)(i / 3 % width),
                               (unsigned)(i % 3)));
    free(out);
    CHECK_INT(fake.open, 0);
    return status;
}

static int read_fake_planes(void *unused)
{
    fl_ycc form;
    CHECK(unused == NULL && fl_jpeg_planes(&fake.image, &form));
    uint8_t *out = malloc((size_t)fl_ycc_bytes(&form)), *at = out;
    int status = fl_jpeg_read_planes(&fake.image, out, NULL);
    for (unsigned c = 0; status == FL_OK && c < (unsigned)fake.image.components; c++) {
        const int width = c == 0 ? form.width : fl_ycc_chroma_width(&form);
        const int height = c == 0 ? form.height : fl_ycc_chroma_height(&form);
        for (int y = 0; y < height; y++)
            for (int x = 0; x < width; x++) CHECK(*at++ == sample((unsigned)y, (unsigned)x, c));
    }
    CHECK(status != FL_OK || at == out + fl_ycc_bytes(&form));
    free(out);
    CHECK_INT(fake.open, 0);
    return status;
}

static void test_a_part_is_cropped_and_skipped_to(void)
{
    uint64_t random = 1;
    for (int i = 0; i < 3000; i++) {
        const int factors[] = {0x11, 0x21, 0x22}, components = i % 4 ? 3 : 1;
        if (i % 50 == 0)
            open_fake(1 + (int)random_below(&random, EDGE), 1 + (int)random_below(&random, 60),
                      components, components == 1 ? 0x11 : factors[i / 50 % 3]);
        fl_jpeg_part part = draw_part(&random, &fake.image);
        fl_jpeg_widen(&fake.image, &part);
        CHECK_INT(read_fake(&part), FL_OK);
    }
}

static void test_planes_are_cut_to_the_image(void)
{
    const int factors[] = {0x11, 0x22};
    for (int width = 5; width < 40; width++)
        for (int height = 2; height < 40; height++) {
            open_fake(width, height, width % 3 ? 3 : 1, width % 3 ? factors[height % 2] : 0x11);
            CHECK_INT(read_fake_planes(NULL), FL_OK);
        }
    fl_ycc form;
    const int others[][3] = {{37, 21, 0x21}, {4, 21, 0x22}, {37, 1, 0x22}};
    for (int i = 0; i < 3; i++) {
        open_fake(others[i][0], others[i][1], 3, others[i][2]);
        CHECK(!fl_jpeg_planes(&fake.image, &form));
    }
}

static void test_each_refused_call_is_an_error(void)
{
    const fl_jpeg_part part = {3, 9, 64, 160};
    for (int level = -1; level <= 0; level++) {
        int calls[2] = {0};
        for (int reads_planes = 0; reads_planes < 2; reads_planes++)
            for (int n = 1, status = FL_EINVAL; status != FL_OK; n++) {
                open_fake(200, 21, 3, 0x22);
                fake.refused_call = n;
                fake.level = level;
                status = reads_planes ? read_fake_planes(NULL) : read_fake(&part);
                CHECK(status == FL_OK || (status == FL_EINVAL && fake.calls == n));
                calls[reads_planes] = n - 1;
            }
        CHECK_INT(calls[0], 5 + 6); /* create, header, start, crop, skip, rows */
        CHECK_INT(calls[1], 3 + 2);
    }
}

static void test_each_wrong_answer_is_an_error(void)
{
    const fl_jpeg_part part = {3, 9, 64, 160};
    for (int fault = FINE; fault < FAULTS; fault++) {
        open_fake(200, 21, 3, 0x22);
        fake.fault = fault;
        bool is_fine = fault == FINE || fault == RAW;
        CHECK_INT(read_fake(&part), is_fine ? FL_OK : FL_EINVAL);
        is_fine = fault == FINE || (fault >= CROPPED && fault <= READ);
        CHECK_INT(read_fake_planes(NULL), is_fine ? FL_OK : FL_EINVAL);
    }
}

static int ask_for_input(fl_jpeg_state *state, int needs_image)
{
    (void)needs_image;
    fake.calls++;
    if (fake.fault == 0) (void)state->input->refill(state);
    if (fake.fault == 1) (void)state->input->restart(state, 3);
    if (fake.fault == 2) state->input->skip(state, (long)fake.image.bytes + 1);
    CHECK(!"comes here");
    return 1;
}

static void test_a_file_that_ends_early_is_an_error(void)
{
    const fl_jpeg_part part = {0, 21, 0, 37};
    fl_jpeg_library library = fakes;
    library.read_header = ask_for_input;
    for (int fault = 0; fault < 3; fault++) {
        open_fake(37, 21, 3, 0x22);
        fake.image.library = &library;
        fake.fault = fault;
        CHECK_INT(read_fake(&part), FL_EINVAL);
    }
}

static void test_missing_memory_is_an_error(void)
{
    open_fake(37, 21, 3, 0x22);
    CHECK_INT(refuse_each(read_fake_planes, NULL), 2);
}

/* ---- a library that asks for units */

static fl_jpeg_entropy entropy;
static uint8_t unit_blocks[8 * EDGE * 90];

static int decode_nothing(fl_jpeg_state *state, fl_jpeg_block **blocks)
{
    return state != NULL && blocks != NULL;
}

/* Has the fields of a state as libjpeg has them, or other numbers there. */
static int start_units(fl_jpeg_state *state)
{
    const int across = 8 * fake.image.factors[0], down = 8 * fake.image.factors[1];
    state->units[0] = (state->width + (unsigned)across - 1) / (unsigned)across + (fake.odd == 1);
    state->units[1] = (state->height + (unsigned)down - 1) / (unsigned)down + (fake.odd == 2);
    state->blocks = across * down / 64 + fake.image.components - 1 + (fake.odd == 3);
    entropy = (fl_jpeg_entropy){.decode = decode_nothing};
    state->entropy = fake.odd == 4 ? NULL : &entropy;
    return fake_start(state);
}

static unsigned skip_units(fl_jpeg_state *state, unsigned rows)
{
    for (unsigned i = 0; i < fake.row_units && entropy.decode != decode_nothing; i++)
        CHECK(entropy.decode(state, NULL) == 1);
    return rows;
}

/* Decodes the units of a row when its first row of pixels is asked for. */
static unsigned read_units(fl_jpeg_state *state, uint8_t **rows, unsigned count)
{
    (void)rows;
    const unsigned across = 8 * (unsigned)fake.image.factors[0];
    for (unsigned unit = 0; unit < state->units[0] && fake.row++ < state->units[0]; unit++) {
        fl_jpeg_block numbers[FL_JPEG_BLOCKS] = {{0}}, *blocks[FL_JPEG_BLOCKS];
        const unsigned left = unit * across, right = fake.left + fake.width;
        for (int i = 0; i < FL_JPEG_BLOCKS; i++) blocks[i] = &numbers[i];
        CHECK(entropy.decode(state, blocks) == 1);
        const uint8_t *values = unit_blocks + (fake.row_units + unit) * (unsigned)state->blocks;
        for (int i = 0; i < state->blocks && entropy.decode != decode_nothing; i++)
            CHECK_INT(numbers[i][0],
                      left + across > fake.left && left < right ? 8 * (values[i] - 128) : 0);
    }
    return count;
}

static void test_libjpeg_gets_the_numbers_of_units(void)
{
    const int forms[][2] = {{1, 0x11}, {3, 0x11}, {3, 0x21}, {3, 0x22}};
    const fl_jpeg_library library = {fake_create, fake_destroy, fake_header, start_units,
                                     fake_crop,   skip_units,   read_units,  fake_raw};
    for (int i = 0; i < 400; i++) {
        const int width = 100 + i % 150, edge = 8 * (forms[i % 4][1] & 15);
        make_file(&file, width, 2 * edge, forms[i % 4][0], forms[i % 4][1], 1, unit_blocks);
        memset(&fake, 0, sizeof fake);
        CHECK(fl_jpeg_open(&library, file.data, file.bytes, &fake.image));
        fake.odd = i / 4 % 5;
        fake.row_units = (unsigned)((width - 1) / (8 * fake.image.factors[0]) + 1);
        fl_jpeg_part part = {edge, 2 * edge, i % 60, i % 7 ? 80 + i % 20 : width};
        uint8_t out[3 * EDGE];
        fl_jpeg_widen(&fake.image, &part);
        part.bottom = part.top + 1; /* a row of pixels is a row of units here */
        CHECK_INT(fl_jpeg_read(&fake.image, &part, out, NULL), FL_OK);
        CHECK((entropy.decode == decode_nothing) == (fake.odd > 0));
    }
}

/* ---- libjpeg-turbo itself */

static bool find_library(fl_jpeg_library *out)
{
    static const char *const names[] = {"jpeg_CreateDecompress", "jpeg_destroy_decompress",
                                        "jpeg_read_header",      "jpeg_start_decompress",
                                        "jpeg_crop_scanline",    "jpeg_skip_scanlines",
                                        "jpeg_read_scanlines",   "jpeg_read_raw_data"};
    void *functions[8], *handle = dlopen("libjpeg.so.62", RTLD_NOW);
    for (int i = 0; i < 8; i++)
        if (handle == NULL || (functions[i] = dlsym(handle, names[i])) == NULL) return false;
    memcpy(out, functions, sizeof functions);
    return true;
}

static fl_jpeg_library real;

static void check_parts(const fl_jpeg *image, uint64_t seed, int count)
{
    const int64_t pitch = 3 * (int64_t)image->width;
    const fl_jpeg_part all = {0, image->height, 0, image->width};
    uint8_t *whole = malloc((size_t)(pitch * image->height));
    CHECK_INT(fl_jpeg_read(image, &all, whole, NULL), FL_OK);
    for (int i = 0; i < count; i++) {
        const fl_jpeg_part asked = draw_part(&seed, image);
        fl_jpeg_part part = asked;
        fl_jpeg_widen(image, &part);
        const int64_t step = 3 * (int64_t)(part.right - part.left);
        const int64_t bytes = 3 * (int64_t)(asked.right - asked.left);
        uint8_t *out = malloc((size_t)(step * (part.bottom - part.top)));
        CHECK_INT(fl_jpeg_read(image, &part, out, NULL), FL_OK);
        for (int32_t y = part.top; y < part.bottom; y++)
            CHECK(memcmp(out + (y - part.top) * step + 3 * (asked.left - part.left),
                         whole + y * pitch + 3 * asked.left, (size_t)bytes) == 0);
        free(out);
    }
    free(whole);
}

/* Opens a file of random size and form. */
static void open_real(uint64_t *random, fl_jpeg *image, uint8_t *blocks)
{
    static const int forms[][2] = {{1, 0x11}, {3, 0x11}, {3, 0x21}, {3, 0x22}};
    const int form = (int)random_below(random, 4);
    const int width = 1 + (int)random_below(random, EDGE),
              height = 1 + (int)random_below(random, 90);
    make_file(&file, width, height, forms[form][0], forms[form][1], next_random(random), blocks);
    CHECK(fl_jpeg_open(&real, file.data, file.bytes, image));
}

static void test_parts_have_the_bits_of_whole_images(void)
{
    uint64_t random = 7;
    fl_jpeg image;
    for (int i = 0; i < 300; i++) {
        open_real(&random, &image, NULL);
        check_parts(&image, next_random(&random), 12);
    }
}

static void test_planes_have_the_values_of_the_blocks(void)
{
    static uint8_t blocks[8 * EDGE * 90];
    uint64_t random = 9;
    for (int i = 0; i < 300; i++) {
        fl_jpeg image;
        fl_ycc form;
        open_real(&random, &image, blocks);
        if (!fl_jpeg_planes(&image, &form)) continue;
        uint8_t *out = malloc((size_t)fl_ycc_bytes(&form));
        CHECK_INT(fl_jpeg_read_planes(&image, out, NULL), FL_OK);
        const int unit = image.factors[0], luma = unit * unit, step = luma + image.components - 1;
        const int columns = (image.width + 8 * unit - 1) / (8 * unit);
        const int64_t plane = (int64_t)form.width * form.height;
        for (int y = 0; y < form.height; y++)
            for (int x = 0; x < form.width; x++) {
                const uint8_t *at = blocks + (y / 8 / unit * columns + x / 8 / unit) * step;
                CHECK(out[y * form.width + x] == at[y / 8 % unit * unit + x / 8 % unit]);
                if (image.components == 1) continue;
                const int width = fl_ycc_chroma_width(&form);
                const int64_t chroma = (int64_t)(y / unit) * width + x / unit;
                CHECK(out[plane + chroma] == at[luma]);
                CHECK(out[plane + (int64_t)width * fl_ycc_chroma_height(&form) + chroma] ==
                      at[luma + 1]);
            }
        free(out);
    }
}

static void create_other(fl_jpeg_state *state, int version, size_t bytes)
{
    real.create(state, version + (fake.fault == 0), bytes - (fake.fault != 0));
}

static void test_another_interface_is_refused(void)
{
    fl_jpeg_library library = real;
    library.create = create_other;
    for (int fault = 0; fault < 2; fault++) {
        open_fake(37, 21, 3, 0x22);
        fake.image.library = &library;
        fake.fault = fault;
        CHECK_INT(fl_jpeg_read(&fake.image, &(fl_jpeg_part){0, 1, 0, 37}, NULL, NULL), FL_EINVAL);
    }
}

static void *decode_parts(void *image)
{
    check_parts(image, (uint64_t)(uintptr_t)&image, 50);
    return NULL;
}

static void test_threads_decode_one_file_at_once(void)
{
    pthread_t thread[THREADS];
    uint64_t random = 11;
    fl_jpeg image;
    open_real(&random, &image, NULL);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, decode_parts, &image) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(thread[i], NULL) == 0);
}

static void test_damaged_files_are_refused_or_decoded(void)
{
    uint64_t random = 13;
    int refused = 0, decoded = 0;
    for (int i = 0; i < 2000; i++) {
        fl_jpeg image;
        open_real(&random, &image, NULL);
        for (int64_t k = random_below(&random, 3); k >= 0; k--)
            file.data[random_below(&random, file.bytes)] = (uint8_t)next_random(&random);
        if (!fl_jpeg_open(&real, file.data, file.bytes, &image) || image.width > 2 * EDGE ||
            image.height > 2 * EDGE)
            continue;
        fl_jpeg_part part = draw_part(&random, &image);
        fl_jpeg_widen(&image, &part);
        uint8_t *out =
            malloc(3 * (size_t)(part.right - part.left) * (size_t)(part.bottom - part.top));
        int status = fl_jpeg_read(&image, &part, out, NULL);
        CHECK(status == FL_OK || status == FL_EINVAL);
        *(status == FL_OK ? &decoded : &refused) += 1;
        free(out);
    }
    CHECK(refused > 20 && decoded > 20);
}

int main(void)
{
    start_tests();
    RUN(test_a_file_is_taken_if_it_is_whole);
    RUN(test_markers_of_other_kinds_are_left);
    RUN(test_any_bytes_are_read_within_their_memory);
    RUN(test_a_part_gets_the_columns_beside_it);
    RUN(test_a_part_is_cropped_and_skipped_to);
    RUN(test_planes_are_cut_to_the_image);
    RUN(test_each_refused_call_is_an_error);
    RUN(test_each_wrong_answer_is_an_error);
    RUN(test_a_file_that_ends_early_is_an_error);
    RUN(test_missing_memory_is_an_error);
    RUN(test_libjpeg_gets_the_numbers_of_units);
    if (!find_library(&real)) {
        printf("no libjpeg.so.62 on this machine\n");
        return 0;
    }
    RUN(test_parts_have_the_bits_of_whole_images);
    RUN(test_planes_have_the_values_of_the_blocks);
    RUN(test_another_interface_is_refused);
    RUN(test_threads_decode_one_file_at_once);
    RUN(test_damaged_files_are_refused_or_decoded);
    return 0;
}
