/* Tests of fl_document: positions, numbers and masks against their definition, token by token, for
 * documents by EOS and by an index, in pieces of every size. */
#include "check.h"
#include "fl_cpu_tokens.h"
#include "fl_document.h"

enum { MOST = 90, EOS = 3, ROUNDS = 300 };

typedef struct result {
    int64_t position[MOST], document[MOST];
    bool mask[MOST];
} result;

/* Returns true if token t of a file ends a document. */
static bool is_end(const fl_document_rule *rule, const uint16_t *file, int64_t t)
{
    if (rule->has_eos) return file[t] == EOS;
    for (int64_t i = 0; i < rule->documents; i++)
        if (rule->ends[i] == t + 1) return true;
    return false;
}

static result
define(const fl_document_rule *rule, const uint16_t *file, int64_t first, int64_t count)
{
    result made;
    memset(&made, 0x55, sizeof made);
    for (int64_t t = 0; t < count; t++) {
        bool begins = t > 0 && is_end(rule, file, first + t - 1);
        made.position[t] = t == 0 || begins ? 0 : made.position[t - 1] + 1;
        made.document[t] = t == 0 ? 0 : made.document[t - 1] + begins;
        made.mask[t] = rule->masks_last ? !is_end(rule, file, first + t) : made.position[t] != 0;
    }
    return made;
}

static void check_pieces(const fl_document_rule *rule, const uint16_t *file, int64_t first,
                         int64_t count, int64_t piece)
{
    result made, expected = define(rule, file, first, count);
    memset(&made, 0x55, sizeof made);
    fl_document_cursor cursor = {0};
    for (int64_t at = 0; at < count; at += piece) {
        fl_document_out out = {made.position + at, made.document + at, made.mask + at};
        fl_document_write(rule, (const char *)(file + first + at), first + at,
                          fl_min(piece, count - at), &cursor, &out);
    }
    CHECK(memcmp(&made, &expected, sizeof made) == 0);
}

static void check_rule(fl_document_rule rule, const uint16_t *file, uint64_t *state)
{
    int64_t first = random_below(state, 20), count = 1 + random_below(state, MOST - 20);
    for (int masks_last = 0; masks_last < 2; masks_last++) {
        rule.masks_last = masks_last;
        for (int64_t piece = 1; piece <= count; piece += 1 + piece / 3)
            check_pieces(&rule, file, first, count, piece);
        check_pieces(&rule, file, first, count, count);
    }
}

static void test_documents_by_eos(void)
{
    uint64_t state = 1;
    fl_document_rule rule = {
        .ops = &fl_cpu_tokens_plain, .type = FL_TOKEN_U16, .has_eos = true, .eos = EOS};
    for (int r = 0; r < ROUNDS; r++) {
        uint16_t file[MOST];
        int64_t kinds = 1 + (r % 5) * (r % 5); /* from EOS alone to rare ones */
        for (int i = 0; i < MOST; i++) file[i] = (uint16_t)(EOS + random_below(&state, kinds));
        check_rule(rule, file, &state);
    }
}

static void test_documents_by_index(void)
{
    uint64_t state = 2;
    uint16_t file[MOST] = {0};
    for (int r = 0; r < ROUNDS; r++) {
        int64_t ends[3 * MOST], count = 0, at = 0;
        int64_t longest = 1 + r % 30;
        while (at < MOST) { /* also empty documents */
            int64_t tokens = random_below(&state, longest + 1) + (count % 3 > 1);
            at = fl_min(MOST, at + tokens);
            ends[count++] = at;
        }
        fl_document_rule rule = {
            .ops = &fl_cpu_tokens_plain, .type = FL_TOKEN_U16, .ends = ends, .documents = count};
        check_rule(rule, file, &state);
    }
}

static void test_one_document(void)
{
    uint64_t state = 3;
    uint16_t file[MOST] = {0};
    fl_document_rule rule = {.ops = &fl_cpu_tokens_plain, .type = FL_TOKEN_U16};
    check_rule(rule, file, &state);
}

int main(void)
{
    start_tests();
    RUN(test_documents_by_eos);
    RUN(test_documents_by_index);
    RUN(test_one_document);
}
