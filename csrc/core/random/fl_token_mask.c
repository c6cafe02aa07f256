/* fl_token_mask: see fl_token_mask.h. torch draws each kind of number for all tokens, and uses only
 * the numbers of masked tokens. So random words of other tokens are skipped, not computed. */
#include "fl_token_mask.h"

static bool stays(const fl_token_mask *rule, int64_t token, int64_t id)
{
    if (rule->special != NULL) return rule->special[token];
    for (int64_t i = 0; i < rule->specials; i++)
        if (rule->special_ids[i] == id) return true;
    return false;
}

/* Draws which tokens are masked. Returns their number; their places go to `at`. */
static int64_t draw_masked(const fl_token_mask *rule, fl_torch_random *random, int64_t count,
                           const int64_t *ids, int64_t *labels, int64_t *at)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        bool is_masked = fl_torch_random_unit(random) < rule->masked && !stays(rule, i, ids[i]);
        labels[i] = is_masked ? ids[i] : FL_IGNORED_LABEL;
        if (is_masked) at[found++] = i;
    }
    return found;
}

/* Draws for each token whether it meets a probability. Keeps those tokens in `at` that do, or those
 * that do not, and returns their number. */
static int64_t draw_met(fl_torch_random *random, int64_t count, float probability, bool keeps_met,
                        int64_t *at, int64_t found)
{
    int64_t kept = 0, next = 0;
    for (int64_t i = 0; i < found; i++) {
        int64_t token = at[i];
        fl_torch_random_skip(random, token - next);
        next = token + 1;
        if ((fl_torch_random_unit(random) < probability) == keeps_met) at[kept++] = token;
    }
    fl_torch_random_skip(random, count - next);
    return kept;
}

void fl_token_mask_draw(const fl_token_mask *rule, fl_torch_random *random, int64_t count,
                        int64_t *ids, int64_t *labels, int64_t *at)
{
    int64_t found = draw_masked(rule, random, count, ids, labels, at), next = 0;
    for (int64_t i = 0; i < found; i++) ids[at[i]] = rule->mask_id;
    found = draw_met(random, count, rule->replaced, false, at, found);
    for (int64_t i = 0; i < found; i++) ids[at[i]] = labels[at[i]];
    if (rule->words == 0) return;
    found = draw_met(random, count, rule->changed, true, at, found);
    for (int64_t i = 0; i < found; i++) {
        fl_torch_random_skip(random, at[i] - next);
        next = at[i] + 1;
        ids[at[i]] = fl_torch_random_int(random, 0, rule->words);
    }
    fl_torch_random_skip(random, count - next);
}
