/* fl_window: see fl_window.h. A window's file is found by binary search in sums of windows. */
#include "fl_window.h"

#include "fl_philox.h"

enum { JITTER_SLOT = 0x57, RANDOM_SLOT = 0x58 }; /* of fl_philox_of_sample */
#define MOST_TOKENS ((int64_t)1 << 62)

struct fl_windows {
    fl_window_mode mode;
    uint64_t seed;
    int64_t stride;
    int64_t count;
    int64_t files;
    int64_t *begin; /* [files + 1]: first token of each file, with all files laid end to end; in the
                       memory of `end` */
    int64_t end[];  /* windows of the files up to this one; FL_WINDOW_RANDOM: tokens at which a
                       window can begin */
};

/* Returns the windows of a file; FL_WINDOW_RANDOM: the tokens at which a window can begin. */
static int64_t count_windows(const fl_window_config *config, int64_t tokens)
{
    bool is_jittered = config->mode == FL_WINDOW_JITTERED;
    int64_t slack = is_jittered ? config->stride - 1 : 0;
    if (tokens < config->length || tokens - config->length < slack) return 0;
    int64_t places = tokens - config->length - slack;
    return config->mode == FL_WINDOW_RANDOM ? places + 1 : places / config->stride + 1;
}

static int sum_windows(const fl_window_config *config, fl_windows *windows, fl_err *err)
{
    int64_t end = 0, all = 0;
    for (int64_t f = 0; f < config->files; f++) {
        windows->begin[f] = all;
        if (!fl_add(all, config->tokens[f], &all) || all > MOST_TOKENS)
            return fl_fail(err, FL_EINVAL, "the files must have at most 2^62 tokens, got more");
        end += count_windows(config, config->tokens[f]);
        windows->end[f] = end;
    }
    windows->begin[config->files] = all;
    if (end == 0)
        return fl_fail(err, FL_EINVAL,
                       "one of the %lld files must have the %lld tokens of a window",
                       (long long)config->files, (long long)config->length);
    windows->count = config->mode == FL_WINDOW_RANDOM ? fl_max(1, all / config->stride) : end;
    return FL_OK;
}

int fl_windows_open(const fl_window_config *config, fl_windows **out, fl_err *err)
{
    *out = NULL;
    int64_t bytes;
    bool fits = fl_mul(config->files, 2 * (int64_t)sizeof(int64_t), &bytes) &&
                fl_add(bytes, (int64_t)sizeof(fl_windows) + (int64_t)sizeof(int64_t), &bytes);
    fl_windows *windows = fits ? fl_alloc(bytes) : NULL;
    if (windows == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a table of windows");
    windows->mode = config->mode;
    windows->seed = config->seed;
    windows->stride = config->stride;
    windows->files = config->files;
    windows->begin = windows->end + config->files;
    int status = sum_windows(config, windows, err);
    if (status == FL_OK)
        *out = windows;
    else
        fl_windows_close(windows);
    return status;
}

void fl_windows_close(fl_windows *windows) { fl_free(windows); }

int64_t fl_windows_count(const fl_windows *windows) { return windows->count; }

int64_t fl_windows_of_file(const fl_windows *windows, int64_t f)
{
    return windows->end[f] - (f > 0 ? windows->end[f - 1] : 0);
}

/* Returns the file that has position `at` of all positions, and makes *at a position in the
 * file. */
static int64_t find_file(const fl_windows *windows, int64_t *at)
{
    int64_t low = 0, high = windows->files - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (*at < windows->end[middle])
            high = middle;
        else
            low = middle + 1;
    }
    if (low > 0) *at -= windows->end[low - 1];
    return low;
}

/* Draws a number in [0, bound), bound >= 1; probabilities differ from uniform by at most bound /
 * 2^64. */
static int64_t
draw_below(const fl_windows *windows, int64_t index, uint32_t epoch, uint8_t slot, int64_t bound)
{
    fl_sample_key key = {.seed = windows->seed, .index = index, .epoch = epoch};
    fl_philox_block block = fl_philox_of_sample(&key, slot, 0);
    uint64_t bits = block.word[0] | (uint64_t)block.word[1] << 32;
    return (int64_t)((unsigned __int128)bits * (uint64_t)bound >> 64);
}

fl_window fl_windows_find(const fl_windows *windows, int64_t index, uint32_t epoch)
{
    int64_t at = index;
    if (windows->mode == FL_WINDOW_RANDOM)
        at = draw_below(windows, index, epoch, RANDOM_SLOT, windows->end[windows->files - 1]);
    fl_window window = {.file = find_file(windows, &at), .first = at};
    if (windows->mode != FL_WINDOW_RANDOM) window.first *= windows->stride;
    if (windows->mode == FL_WINDOW_JITTERED)
        window.first += draw_below(windows, 0, epoch, JITTER_SLOT, windows->stride);
    return window;
}

int64_t fl_windows_position(const fl_windows *windows, fl_window window)
{
    return windows->begin[window.file] + window.first;
}
