/* fl_document: see fl_document.h. A piece is cut at the ends of documents, and written run by
 * run. */
#include "fl_document.h"

#include <string.h>

/* Returns the index of the first end after token `token`; `documents`: there is no such end. */
static int64_t find_end(const fl_document_rule *rule, int64_t token)
{
    int64_t low = 0, high = rule->documents;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (rule->ends[middle] > token)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Returns how many of the tokens at <= i < count belong to the document at `at`; *is_end: these
 * tokens end the document. */
static int64_t measure_run(const fl_document_rule *rule, const char *tokens, int64_t first,
                           int64_t at, int64_t count, bool *is_end)
{
    int64_t left = count - at, run = left;
    if (rule->has_eos) {
        run =
            rule->ops->find[rule->type](tokens + at * fl_token_bytes(rule->type), left, rule->eos);
        *is_end = run < left;
        return *is_end ? run + 1 : left;
    }
    int64_t next = find_end(rule, first + at);
    if (next < rule->documents) run = rule->ends[next] - (first + at);
    *is_end = next < rule->documents && run <= left;
    return fl_min(run, left);
}

static void write_run(const fl_document_rule *rule, int64_t at, int64_t run,
                      fl_document_cursor *cursor, const fl_document_out *out)
{
    rule->ops->count_up(out->position + at, cursor->position, run);
    rule->ops->fill(out->document + at, cursor->document, run);
    memset(out->mask + at, true, (size_t)run);
    if (rule->masks_last ? cursor->is_over : cursor->position == 0)
        out->mask[rule->masks_last ? at + run - 1 : at] = false;
    cursor->position += run;
}

void fl_document_write(const fl_document_rule *rule, const char *tokens, int64_t first,
                       int64_t count, fl_document_cursor *cursor, const fl_document_out *out)
{
    for (int64_t at = 0, run; at < count; at += run) {
        if (cursor->is_over) {
            cursor->position = 0;
            cursor->document++;
        }
        run = measure_run(rule, tokens, first, at, count, &cursor->is_over);
        write_run(rule, at, run, cursor, out);
    }
}
