/* Tests of fl_image_cache: processes and threads that put and find at once, processes that are
 * killed, files with any contents; and rows of RGB against sums for single pixels, by all tables of
 * kernels. */
#include "cpu_image_fixture.h"

#include "fl_image_cache.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { BYTES = 16 << 20, IMAGES = 400, WRITERS = 3, ROUNDS = 12 };

static const fl_boot boot = {"the first start!"}, later = {"a second start!!"};

static int make_file(int64_t bytes)
{
    char path[] = "/tmp/fastloop-test-XXXXXX";
    fl_image_head head;
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0);
    CHECK(fl_image_cache_format(bytes, &boot, &head) < bytes);
    CHECK(pwrite(fd, &head, sizeof head, 0) == sizeof head && ftruncate(fd, bytes) == 0);
    return fd;
}

static fl_image_cache *open_file(int fd, int64_t budget)
{
    fl_image_cache *cache;
    CHECK_INT(fl_image_cache_open(fd, budget, &boot, &cache, NULL), FL_OK);
    return cache;
}

/* ---- images: all that is in image n follows from n */

static fl_image_key key_of(int64_t n)
{
    uint64_t state = (uint64_t)n;
    fl_image_key key = {{next_random(&state), next_random(&state)}};
    if (n % 5 == 0) key.word[0] = (uint64_t)(n % 2); /* keys that have the same slot */
    return key;
}

static fl_ycc image_of(int64_t n, uint8_t *data)
{
    uint64_t state = (uint64_t)n + 1;
    fl_ycc image = {.data = data,
                    .width = 5 + (int32_t)random_below(&state, 60),
                    .height = 1 + (int32_t)random_below(&state, 60),
                    .chroma = (int32_t)(n % FL_CHROMAS)};
    fill_random(&state, (char *)data, fl_ycc_bytes(&image));
    return image;
}

static void check_found(int64_t n, const fl_ycc *found)
{
    static _Thread_local uint8_t data[3 * 65 * 65];
    const fl_ycc expected = image_of(n, data);
    CHECK(found->width == expected.width && found->height == expected.height);
    CHECK(found->chroma == expected.chroma);
    CHECK(memcmp(found->data, data, (size_t)fl_ycc_bytes(found)) == 0);
}

/* Puts and finds images in an order that depends on `seed`. Returns how many are there. */
static int64_t work(fl_image_cache *cache, uint64_t seed, int64_t steps)
{
    static _Thread_local uint8_t data[3 * 65 * 65];
    int64_t count = 0;
    for (int64_t i = 0; i < steps; i++) {
        const int64_t n = random_below(&seed, IMAGES);
        const fl_image_key key = key_of(n);
        const fl_ycc image = image_of(n, data);
        fl_ycc found;
        if (fl_image_cache_put(cache, &key, &image) == FL_IMAGE_PUT) count++;
        if (fl_image_cache_find(cache, &key, &found)) check_found(n, &found);
    }
    return count;
}

static int64_t count_found(const fl_image_cache *cache)
{
    int64_t count = 0;
    for (int64_t n = 0; n < IMAGES; n++) {
        const fl_image_key key = key_of(n);
        fl_ycc found;
        if (!fl_image_cache_find(cache, &key, &found)) continue;
        check_found(n, &found);
        count++;
    }
    return count;
}

/* ---- tests */

static void test_an_image_is_put_once(void)
{
    uint8_t data[3 * 65 * 65];
    fl_ycc found;
    int fd = make_file(BYTES);
    fl_image_cache *cache = open_file(fd, BYTES), *other = open_file(fd, BYTES);
    const fl_image_key key = key_of(1), same_slot = {{key.word[0], 7}};
    const fl_ycc image = image_of(1, data);
    CHECK(!fl_image_cache_find(cache, &key, &found));
    CHECK_INT(fl_image_cache_put(cache, &key, &image), FL_IMAGE_PUT);
    int64_t used = fl_image_cache_used(cache);
    CHECK_INT(fl_image_cache_put(other, &key, &image), FL_IMAGE_IS_THERE);
    CHECK_INT(fl_image_cache_put(other, &same_slot, &image), FL_IMAGE_IS_THERE);
    CHECK(fl_image_cache_used(other) == used && used % 64 == 0);
    CHECK(!fl_image_cache_find(other, &same_slot, &found));
    CHECK(fl_image_cache_find(other, &key, &found));
    check_found(1, &found);
    fl_image_cache_close(cache);
    fl_image_cache_close(other);
    CHECK(close(fd) == 0);
}

static void test_the_budget_is_kept(void)
{
    const int64_t budgets[] = {100 << 10, 200 << 10, BYTES};
    for (int k = 0; k < 3; k++) {
        int fd = make_file(BYTES);
        fl_image_cache *cache = open_file(fd, budgets[k]);
        struct stat file;
        work(cache, 3, 4 * IMAGES);
        CHECK(count_found(cache) > 0);
        CHECK(fl_image_cache_used(cache) <= budgets[k] && fl_image_cache_bytes(cache) == BYTES);
        CHECK(fstat(fd, &file) == 0 && file.st_size == BYTES);
        fl_image_cache_close(cache);
        CHECK(close(fd) == 0);
    }
}

/* A limit of the size of files stands for a full disk. */
static int put_on_a_full_disk(void *arg)
{
    static uint8_t data[3 * 65 * 65];
    fl_image_cache *cache = arg;
    const fl_image_key key = key_of(1);
    const fl_ycc image = image_of(1, data);
    fl_ycc found;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){1000, 1000}) == 0);
    CHECK_INT(fl_image_cache_put(cache, &key, &image), FL_IMAGE_CACHE_FULL);
    CHECK(!fl_image_cache_find(cache, &key, &found));
    return 0;
}

static void test_an_image_that_is_not_written_is_not_found(void)
{
    int fd = make_file(BYTES);
    fl_image_cache *cache = open_file(fd, BYTES);
    CHECK_INT(run_child(put_on_a_full_disk, cache), 0);
    CHECK_INT(count_found(cache), 0);
    fl_image_cache_close(cache);
    CHECK(close(fd) == 0);
}

typedef struct writer {
    fl_image_cache *cache;
    uint64_t seed;
    int64_t put;
} writer;

static void *write_images(void *arg)
{
    writer *self = arg;
    self->put = work(self->cache, self->seed, IMAGES);
    return NULL;
}

static void test_threads_put_and_find(void)
{
    int fd = make_file(BYTES);
    fl_image_cache *cache = open_file(fd, BYTES);
    writer writers[WRITERS];
    pthread_t threads[WRITERS];
    int64_t put = 0;
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = (writer){.cache = cache, .seed = (uint64_t)i};
        CHECK(pthread_create(&threads[i], NULL, write_images, &writers[i]) == 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        put += writers[i].put;
    }
    CHECK(put > IMAGES / 2);
    CHECK_INT(count_found(cache), put);
    fl_image_cache_close(cache);
    CHECK(close(fd) == 0);
}

/* Some writers share the parent's mapping, others have their own, and all are killed. */
static void test_writers_are_killed(void)
{
    int fd = make_file(BYTES);
    fl_image_cache *cache = open_file(fd, BYTES);
    uint64_t state = 9;
    for (int round = 0; round < ROUNDS; round++) {
        pid_t children[WRITERS];
        for (int i = 0; i < WRITERS; i++) {
            children[i] = fork();
            CHECK(children[i] >= 0);
            if (children[i] > 0) continue;
            fl_image_cache *own = i == 0 ? cache : open_file(fd, BYTES);
            work(own, (uint64_t)(round * WRITERS + i), INT64_MAX);
        }
        usleep((useconds_t)random_below(&state, 3000));
        for (int i = 0; i < WRITERS; i++) CHECK(kill(children[i], SIGKILL) == 0);
        for (int i = 0; i < WRITERS; i++) CHECK(waitpid(children[i], NULL, 0) == children[i]);
        count_found(cache);
    }
    work(cache, 1, 8 * IMAGES);
    /* A dead writer leaves at most one image that nobody puts again. Keys of one slot share it. */
    CHECK(count_found(cache) >= IMAGES - IMAGES / 5 - ROUNDS * WRITERS);
    fl_image_cache_close(cache);
    CHECK(close(fd) == 0);
}

static int open_and_look(int fd, int64_t *found)
{
    fl_image_cache *cache;
    fl_err err;
    int status = fl_image_cache_open(fd, INT64_MAX, &boot, &cache, &err);
    if (status != FL_OK) return status;
    for (int64_t n = 0; n < 40; n++) {
        static uint8_t data[3 * 65 * 65];
        const fl_image_key key = key_of(n);
        const fl_ycc image = image_of(n, data);
        fl_ycc ycc;
        if (fl_image_cache_find(cache, &key, &ycc)) {
            /* The count depends on the bytes, so that no compiler leaves the reads out. */
            *found += ycc.data[0] + ycc.data[fl_ycc_bytes(&ycc) - 1] == 3 ? 2 : 1;
        }
        fl_image_cache_put(cache, &key, &image);
    }
    fl_image_cache_close(cache);
    return FL_OK;
}

/* Bytes of a file that change anything never lead out of its mapping. */
static void test_files_with_any_contents(void)
{
    const int64_t bytes = 1 << 17, front = 4096;
    static char before[4096], now[4096];
    uint64_t state = 4;
    int64_t opened = 0, found = 0;
    for (int n = 0; n < 1500; n++) {
        int fd = make_file(bytes);
        if (n % 2 == 0) CHECK_INT(open_and_look(fd, &found), FL_OK);
        CHECK(pread(fd, before, (size_t)front, 0) == front);
        memcpy(now, before, sizeof now);
        const int64_t from = n % 3 == 0 ? 0 : 64; /* the head, or numbers behind the checked part */
        for (int64_t k = 1 + random_below(&state, 40); k > 0; k--) {
            const int64_t at = from + random_below(&state, (k % 2 == 0 ? 128 : 1024) - from);
            now[at] = (char)(random_below(&state, 3) != 0 ? next_random(&state) : 0x7F);
        }
        CHECK(pwrite(fd, now, (size_t)front, 0) == front);
        if (n % 7 == 0) CHECK(ftruncate(fd, random_below(&state, bytes)) == 0);
        int status = open_and_look(fd, &found);
        CHECK(status == FL_OK || status == FL_EINVAL);
        opened += status == FL_OK;
        CHECK(close(fd) == 0);
    }
    CHECK(opened > 300 && found > 300);
}

static void test_files_that_are_refused(void)
{
    fl_image_cache *cache;
    fl_err err;
    int fd = make_file(BYTES);
    CHECK_INT(fl_image_cache_open(fd, BYTES, &later, &cache, &err), FL_EINVAL);
    CHECK(strstr(err.text, "older than the machine's start") != NULL);
    CHECK(ftruncate(fd, BYTES - 1) == 0);
    CHECK_INT(fl_image_cache_open(fd, BYTES, &boot, &cache, &err), FL_EINVAL);
    CHECK(strstr(err.text, "not a whole cache") != NULL);
    CHECK(close(fd) == 0);
}

static int open_once(void *arg)
{
    fl_image_cache *cache;
    int status = fl_image_cache_open(*(int *)arg, BYTES, &boot, &cache, NULL);
    if (status == FL_OK) fl_image_cache_close(cache);
    return status;
}

static void test_no_memory(void)
{
    int fd = make_file(BYTES);
    CHECK_INT(refuse_each(open_once, &fd), 2);
    CHECK(close(fd) == 0);
}

/* ---- RGB */

/* Returns sample (x, y) of a plane of half the size: nearer samples weigh 3 of 4 each way. */
static int upsample(const uint8_t *plane, int32_t width, int32_t height, int32_t x, int32_t y)
{
    const int32_t columns[] = {x / 2, x / 2 + (x % 2 == 0 ? -1 : 1)};
    const int32_t rows[] = {y / 2, y / 2 + (y % 2 == 0 ? -1 : 1)};
    int sum = x % 2 == 0 ? 8 : 7;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) {
            int64_t row = fl_max(0, fl_min(rows[i], height - 1));
            int64_t column = fl_max(0, fl_min(columns[k], width - 1));
            sum += (i == 0 ? 3 : 1) * (k == 0 ? 3 : 1) * plane[row * width + column];
        }
    return sum / 16;
}

static uint8_t cut(double value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

static double fixed(double number) { return (double)(int64_t)(number * 65536 + 0.5) / 65536; }

static double half_up(double value)
{
    int64_t below = (int64_t)(value + 1000 + 0.5);
    return (double)(below - 1000);
}

static void make_pixel(const fl_ycc *image, int32_t x, int32_t y, uint8_t rgb[3])
{
    const int32_t width = fl_ycc_chroma_width(image), height = fl_ycc_chroma_height(image);
    const int64_t plane = (int64_t)image->width * image->height;
    const int64_t at = (int64_t)y * image->width + x;
    const uint8_t *cb = image->data + plane, *cr = cb + (int64_t)width * height;
    double luma = image->data[at], b = 0, r = 0;
    if (image->chroma == FL_CHROMA_FULL) {
        b = cb[at] - 128;
        r = cr[at] - 128;
    } else if (image->chroma == FL_CHROMA_HALF) {
        b = upsample(cb, width, height, x, y) - 128;
        r = upsample(cr, width, height, x, y) - 128;
    }
    rgb[0] = cut(luma + half_up(fixed(1.402) * r));
    rgb[1] = cut(luma + half_up(-fixed(0.34414) * b - fixed(0.71414) * r));
    rgb[2] = cut(luma + half_up(fixed(1.772) * b));
}

static void test_rows_of_rgb(void)
{
    static const int32_t widths[] = {5, 6, 7, 31, 64, 511, 512, 513, 1025, 1100};
    uint64_t state = 6;
    for (int n = 0; n < 600; n++) {
        const int32_t width = n % 3 == 0 ? widths[n / 3 % 10] : 5 + (int32_t)(n % 77);
        fl_ycc image = {.width = width,
                        .height = 1 + (int32_t)random_below(&state, 6),
                        .chroma = n % FL_CHROMAS};
        const int64_t bytes = fl_ycc_bytes(&image);
        uint8_t *data = part_of(&fences[0], bytes, n % 2 == 0);
        fill_random(&state, (char *)data, bytes);
        image.data = data;
        const int32_t row = (int32_t)random_below(&state, image.height);
        const int32_t from = (int32_t)random_below(&state, n % 4 == 0 ? 1 : width);
        const int32_t count = n % 4 == 0 ? width : 1 + (int32_t)random_below(&state, width - from);
        uint8_t *expected = part_of(&fences[2], 3 * count, true);
        for (int32_t i = 0; i < count; i++) {
            uint8_t rgb[3];
            make_pixel(&image, from + i, row, rgb);
            for (int c = 0; c < 3; c++) expected[c * count + i] = rgb[c];
        }
        EACH_VARIANT(ops)
        {
            uint8_t *dst = part_of(&fences[1], 3 * count, true);
            memset(dst, PATTERN, (size_t)(3 * count));
            ops->read_ycc(dst, count, &image, row, from, from + count);
            CHECK(memcmp(dst, expected, (size_t)(3 * count)) == 0);
        }
    }
}

int main(void)
{
    start_tests();
    find_variants();
    make_fences();
    RUN(test_an_image_is_put_once);
    RUN(test_the_budget_is_kept);
    RUN(test_an_image_that_is_not_written_is_not_found);
    RUN(test_threads_put_and_find);
    RUN(test_writers_are_killed);
    RUN(test_files_with_any_contents);
    RUN(test_files_that_are_refused);
    RUN(test_no_memory);
    RUN(test_rows_of_rgb);
    return 0;
}
