/* fl_window: which tokens a window is: from its index in the epoch to a file and a token in it.
 *
 * Floor 1. Several files are one array of windows; no window crosses the end of a file. Pure: it
 * knows how many tokens files have, not where they are. Read-only once open; any thread. Where
 * windows begin is part of what users can reproduce, so the meaning of a seed never changes. */
#ifndef FL_WINDOW_H
#define FL_WINDOW_H

#include "fl_base.h"

typedef enum fl_window_mode {
    FL_WINDOW_STRIDED,  /* window k of a file begins at token k * stride */
    FL_WINDOW_JITTERED, /* at j + k * stride; j in [0, stride) is drawn for the epoch */
    FL_WINDOW_RANDOM    /* at any token of any file, drawn for the epoch and the window */
} fl_window_mode;

typedef struct fl_window_config {
    const int64_t *tokens; /* of each file, >= 0; read by fl_windows_open only */
    int64_t files;
    int64_t length; /* tokens that a window takes, >= 1 */
    int64_t stride; /* >= 1. FL_WINDOW_RANDOM: an epoch has a window for so many tokens */
    fl_window_mode mode;
    uint64_t seed;
} fl_window_config;

typedef struct fl_window {
    int64_t file;
    int64_t first; /* token, counted from the first of the file */
} fl_window;

typedef struct fl_windows fl_windows;

/* The caller owns *out. FL_EINVAL: no file is as long as a window, or all of them together have
 * more than 2^62 tokens; FL_ENOMEM. */
int fl_windows_open(const fl_window_config *config, fl_windows **out, fl_err *err);
void fl_windows_close(fl_windows *windows);

/* Windows of an epoch; the same for every epoch. */
int64_t fl_windows_count(const fl_windows *windows);

/* How many windows file f has; FL_WINDOW_RANDOM: at how many tokens one can begin. */
int64_t fl_windows_of_file(const fl_windows *windows, int64_t f);

/* Window `index` of the epoch, 0 <= index < fl_windows_count. */
fl_window fl_windows_find(const fl_windows *windows, int64_t index, uint32_t epoch);

/* Its first token, counted from the first of all files, were these laid end to end. Of file
 * `files` and token 0: all tokens. */
int64_t fl_windows_place(const fl_windows *windows, fl_window window);

#endif
