/* fl_torch_random: torch's random generator of the CPU, word by word.
 *
 * Floor 1. at::CPUGeneratorImpl is a Mersenne Twister (MT19937) that keeps a spare normal number.
 * The state goes in and out in the layout of torch.Generator.get_state(). Each draw gives the value
 * that torch's function of the same name gives, and leaves the state that torch leaves. Plain data
 * without pointers: one thread at a time. Only load can fail; no function blocks or allocates.
 * docs/internals/zero-change.md tells who owns the state, and when it is read and put back. */
#ifndef FL_TORCH_RANDOM_H
#define FL_TORCH_RANDOM_H

#include "fl_base.h"

enum {
    FL_TWISTER_WORDS = 624,
    FL_TORCH_STATE_BYTES = 5056, /* of get_state() */
    FL_TORCH_NORMALS_BYTES = 40, /* spare normal numbers at the end of the state */
    FL_TORCH_SHARES = 8          /* most shares of a draw */
};

typedef struct fl_torch_random {
    uint64_t seed; /* as given; only the low 32 bits make the words */
    uint32_t word[FL_TWISTER_WORDS];
    int32_t left; /* >= 1: one less than this many words are left before new words are made */
    int32_t next; /* index of the next word; next + left <= FL_TWISTER_WORDS + 1 */
    uint8_t normals[FL_TORCH_NORMALS_BYTES]; /* spare numbers, in the layout of get_state() */
} fl_torch_random;

/* Sets the state that torch.manual_seed(seed) leaves. */
void fl_torch_random_seed(fl_torch_random *self, uint64_t seed);

/* Reads FL_TORCH_STATE_BYTES bytes of get_state(). FL_EINVAL: torch cannot make such a state; *self
 * has then not changed. */
int fl_torch_random_load(fl_torch_random *self, const void *state, fl_err *err);

/* Writes FL_TORCH_STATE_BYTES bytes for set_state(). */
void fl_torch_random_save(const fl_torch_random *self, void *state);

uint32_t fl_torch_random_word(fl_torch_random *self);

/* Draws words that nobody needs; count >= 0. */
void fl_torch_random_skip(fl_torch_random *self, int64_t count);

/* Draws torch.rand() of float32. */
float fl_torch_random_unit(fl_torch_random *self);

/* Draws torch.empty().uniform_(from, to) of float32. is_fused: this torch computes the number with
 * one rounding (with AVX2), not with two. */
float fl_torch_random_uniform(fl_torch_random *self, float from, float to, bool is_fused);

/* Draws torch.randint(from, to); from < to. */
int64_t fl_torch_random_int(fl_torch_random *self, int64_t from, int64_t to);

/* Draws torch.empty(dtype=torch.int64).random_(). */
int64_t fl_torch_random_int63(fl_torch_random *self);

/* Draws torch.randperm(count) into out[count]; 0 <= count < 2^32 / 20, because torch uses a
 * different algorithm for larger counts. */
void fl_torch_random_permutation(fl_torch_random *self, int64_t count, int64_t *out);

/* Draws torch.multinomial() of one number from `count` float32 weights on a CPU that is not
 * Intel's; there torch draws from a generator of its own. Each weight >= 0, count >= 1. */
int32_t fl_torch_random_choice(fl_torch_random *self, int32_t count, const float *weights);

/* Draws torch._sample_dirichlet() of `count` float32 parameters that are all `alpha` > 0 into
 * out[count]; count <= FL_TORCH_SHARES. Uses the spare normal number, and leaves one. */
void fl_torch_random_shares(fl_torch_random *self, int32_t count, float alpha, float *out);

#endif
