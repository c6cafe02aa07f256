/* fl_column_window: the kind of column whose rows are windows of tokens. Outputs: x; with targets
 * y; with documents positions, documents, mask; each [rows, length].
 *
 * Floor 1. Row i is window i of the batch's epoch. If reads have had to wait for the disk lately,
 * the layout of a batch asks the system to read the batch's windows ahead. */
#ifndef FL_COLUMN_WINDOW_H
#define FL_COLUMN_WINDOW_H

#include "fl_column.h"
#include "fl_token_reader.h"

enum { FL_WINDOW_OUTPUTS = 5 }; /* at most */

typedef struct fl_column_window_config {
    const fl_windows *windows; /* borrowed until the column is closed, like the reader */
    fl_token_reader *reader;
    int64_t length;  /* of a row */
    fl_dtype tokens; /* of x and y */
    bool has_y, has_documents;
    bool is_narrow; /* x and y are made at the destination, from rows of narrow tokens; needs
                    fl_column_window_can_narrow */
} fl_column_window_config;

/* Returns true if tokens are narrower in the files than in x and y, so that a device can widen
 * them. */
bool fl_column_window_can_narrow(const fl_column_window_config *config);

/* Opens a column; the caller closes *out. FL_ENOMEM. If a window cannot be read, a gather fails
 * with FL_EFILE or FL_ETOKEN, and the number of the file. */
int fl_column_window_open(const fl_column_window_config *config, fl_column **out, fl_err *err);

/* Writes the dtypes of the outputs, in their order, and returns how many outputs there are. */
int32_t fl_column_window_dtypes(const fl_column_window_config *config, fl_dtype *out);

#endif
