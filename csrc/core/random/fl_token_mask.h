/* fl_token_mask: which tokens of a batch a masked language model must predict.
 *
 * Floor 1. Draws what transformers' DataCollatorForLanguageModeling draws of torch's generator, in
 * the same order: four numbers for each token. Plain data; allocates nothing and cannot fail. */
#ifndef FL_TOKEN_MASK_H
#define FL_TOKEN_MASK_H

#include "fl_torch_random.h"

enum { FL_IGNORED_LABEL = -100, FL_MOST_WORDS = (1 << 28) - 1 };

typedef struct fl_token_mask {
    const uint8_t *special; /* borrowed: for each token whether it stays; NULL: ask special_ids */
    const int64_t *special_ids;      /* borrowed: the ids of tokens that stay */
    int64_t specials;                /* number of special_ids */
    float masked, replaced, changed; /* probabilities; changed: of those that are not replaced */
    int64_t mask_id;                 /* the id of replaced tokens */
    int64_t words; /* changed tokens get an id below this, 1 to FL_MOST_WORDS; 0: none is changed */
} fl_token_mask;

/* Draws for `count` tokens. Masked tokens are labelled with their ids, and other tokens with
 * FL_IGNORED_LABEL; then ids of masked tokens are replaced or changed. `at` has room for `count`
 * numbers, which this function uses. */
void fl_token_mask_draw(const fl_token_mask *rule, fl_torch_random *random, int64_t count,
                        int64_t *ids, int64_t *labels, int64_t *at);

#endif
