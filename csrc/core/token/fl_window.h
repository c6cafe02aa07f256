/* fl_window: the tokens of a window: from the window's index in the epoch to a file and a token in
 * the file.
 *
 * Floor 1. Several files are one array of windows; no window crosses the end of a file. Only the
 * numbers of tokens are known here, not the files. Read-only once open; any thread. Users can
 * reproduce where windows begin, so the meaning of a seed never changes. */
#ifndef FL_WINDOW_H
#define FL_WINDOW_H

#include "fl_base.h"

typedef enum fl_window_mode {
    FL_WINDOW_STRIDED,  /* window k of a file begins at token k * stride */
    FL_WINDOW_JITTERED, /* at token j + k * stride; j in [0, stride) is drawn for the epoch */
    FL_WINDOW_RANDOM    /* at any token of any file, drawn for the epoch and the window */
} fl_window_mode;

typedef struct fl_window_config {
    const int64_t *tokens; /* of each file, >= 0; only read by fl_windows_open */
    int64_t files;
    int64_t length; /* tokens that a window takes, >= 1 */
    int64_t stride; /* >= 1. FL_WINDOW_RANDOM: an epoch has one window for every `stride` tokens */
    fl_window_mode mode;
    uint64_t seed;
} fl_window_config;

typedef struct fl_window {
    int64_t file;
    int64_t first; /* token, counted from the first token of the file */
} fl_window;

typedef struct fl_windows fl_windows;

/* Opens a table of windows; the caller closes *out. FL_EINVAL: no file is as long as a window, or
 * the files together have more than 2^62 tokens; FL_ENOMEM. */
int fl_windows_open(const fl_window_config *config, fl_windows **out, fl_err *err);
void fl_windows_close(fl_windows *windows);

/* Returns the windows of an epoch, the same number for every epoch. */
int64_t fl_windows_count(const fl_windows *windows);

/* Returns how many windows file f has; FL_WINDOW_RANDOM: at how many tokens a window can begin. */
int64_t fl_windows_of_file(const fl_windows *windows, int64_t f);

/* Returns window `index` of the epoch, 0 <= index < fl_windows_count. */
fl_window fl_windows_find(const fl_windows *windows, int64_t index, uint32_t epoch);

/* Returns the window's first token, counted from the first token of all files laid end to end. For
 * file `files` and token 0: the number of all tokens. */
int64_t fl_windows_position(const fl_windows *windows, fl_window window);

#endif
