/* fl_column_window: the kind of column whose rows are windows of tokens: outputs x, y where there
 * are targets, and with documents positions, documents, mask, each [rows, length].
 *
 * Floor 1. Row i is window i of the batch's epoch. When a batch is laid out, the system is asked to
 * read its windows ahead, if reads have had to wait for the disk of late. */
#ifndef FL_COLUMN_WINDOW_H
#define FL_COLUMN_WINDOW_H

#include "fl_column.h"
#include "fl_token_reader.h"

enum { FL_WINDOW_OUTPUTS = 5 }; /* at most */

typedef struct fl_column_window_config {
    const fl_windows *windows; /* borrowed until the column is closed, as the reader is */
    fl_token_reader *reader;
    int64_t length;  /* of a row */
    fl_dtype tokens; /* of x and y */
    bool has_y, has_documents;
    bool is_cut; /* x and y are made at the destination, of rows of narrow tokens; only where
                    fl_column_window_can_cut */
} fl_column_window_config;

/* Whether tokens are narrower in the files than in x and y, so that a device can widen them. */
bool fl_column_window_can_cut(const fl_column_window_config *config);

/* FL_ENOMEM. A gather says FL_EFILE or FL_ETOKEN, with the number of the file, where one of its
 * windows cannot be had. */
int fl_column_window_open(const fl_column_window_config *config, fl_column **out, fl_err *err);

/* The elements of the outputs, in their order; how many there are. */
int32_t fl_column_window_dtypes(const fl_column_window_config *config, fl_dtype *out);

#endif
