/* fl_document: positions, document numbers and a mask for the tokens of a window.
 *
 * Floor 1. A document ends with an EOS token, or at an end that an index gives. The token after an
 * end begins a document. A window counts from its first token, as if a document began there,
 * whatever lies before the window. Windows are read in pieces; a cursor carries the state from one
 * piece to the next. Results depend on the arguments only; any thread. */
#ifndef FL_DOCUMENT_H
#define FL_DOCUMENT_H

#include "fl_token_ops.h"

/* The rule that separates the documents of a file. */
typedef struct fl_document_rule {
    const fl_token_ops *ops; /* borrowed, static */
    fl_token_type type;
    bool has_eos; /* documents end with eos, which the type can hold; otherwise `ends` count */
    int64_t eos;
    const int64_t *ends; /* borrowed: the ends of documents in the file, rising or equal */
    int64_t documents;   /* number of ends; 0: the file is one document */
    bool masks_last; /* the mask is false at the last token of a document, whose target belongs to
                        the next document; otherwise at the first token, which is never a target
                      */
} fl_document_rule;

/* The state between two pieces. Zeroed before the first piece of a window. */
typedef struct fl_document_cursor {
    int64_t position; /* of the next token in its document */
    int64_t document; /* the document's number, from 0 in the window */
    bool is_over;     /* the last token ended its document */
} fl_document_cursor;

/* The memory for the elements of a piece. */
typedef struct fl_document_out {
    int64_t *position, *document;
    bool *mask;
} fl_document_out;

/* Writes the elements of `count` tokens; the first token is token `first` of the file. */
void fl_document_write(const fl_document_rule *rule, const char *tokens, int64_t first,
                       int64_t count, fl_document_cursor *cursor, const fl_document_out *out);

#endif
