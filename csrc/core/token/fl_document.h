/* fl_document: what the documents in a window make of its tokens: positions, numbers, a mask.
 *
 * Floor 1. A document ends with an EOS token, or where an index says so. A token behind an end
 * begins a document, unless it is the first of its window: a window begins as if it began one,
 * whatever lies before it. Windows are read in pieces; a cursor carries over what a piece leaves.
 * Pure; any thread. */
#ifndef FL_DOCUMENT_H
#define FL_DOCUMENT_H

#include "fl_token_ops.h"

/* How the documents of a file are told apart. */
typedef struct fl_document_rule {
    const fl_token_ops *ops; /* borrowed, static */
    fl_token_type type;
    bool has_eos; /* which the type can hold; else `ends` count */
    int64_t eos;
    const int64_t *ends; /* borrowed: where documents end in the file, rising or equal */
    int64_t documents;   /* how many ends; 0: the file is one document */
    bool masks_last;     /* the mask is false at the last token of a document, whose target is
                            another's; else at the first, which is nobody's target */
} fl_document_rule;

/* Zeroed before the first piece of a window. */
typedef struct fl_document_cursor {
    int64_t position; /* of the next token in its document */
    int64_t document; /* its number, from 0 in the window */
    bool is_over;     /* the last token ended its document */
} fl_document_cursor;

/* Where the elements of a piece go. */
typedef struct fl_document_out {
    int64_t *position, *document;
    bool *mask;
} fl_document_out;

/* Writes the elements of `count` tokens, the first of which is token `first` of the file. */
void fl_document_write(const fl_document_rule *rule, const char *tokens, int64_t first,
                       int64_t count, fl_document_cursor *cursor, const fl_document_out *out);

#endif
