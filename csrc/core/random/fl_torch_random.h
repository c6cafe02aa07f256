/* fl_torch_random: torch's random generator of the CPU, word by word.
 *
 * Floor 1. at::CPUGeneratorImpl is a Mersenne Twister (MT19937) that keeps a spare normal number.
 * The state goes in and out as torch.Generator.get_state() lays it out, and each draw gives the
 * value that torch's function of that name gives, and leaves the state that torch leaves. Plain
 * data without pointers: one thread at a time; nothing blocks, allocates or fails but load.
 * docs/internals/zero-change.md tells whose state it is, and when it is read and put back. */
#ifndef FL_TORCH_RANDOM_H
#define FL_TORCH_RANDOM_H

#include "fl_base.h"

enum {
    FL_TWISTER_WORDS = 624,
    FL_TORCH_STATE_BYTES = 5056, /* of get_state() */
    FL_TORCH_NORMALS_BYTES = 40  /* of its end: spare normal numbers */
};

typedef struct fl_torch_random {
    uint64_t seed; /* as given; its low 32 bits alone make the words */
    uint32_t word[FL_TWISTER_WORDS];
    int32_t left; /* >= 1: so many words less one are left; then new ones are made */
    int32_t next; /* the place of the next word; next + left <= FL_TWISTER_WORDS + 1 */
    uint8_t normals[FL_TORCH_NORMALS_BYTES]; /* as they were loaded: no draw here touches them */
} fl_torch_random;

/* The state behind torch.manual_seed(seed). */
void fl_torch_random_seed(fl_torch_random *self, uint64_t seed);

/* Reads FL_TORCH_STATE_BYTES bytes of get_state(). FL_EINVAL: no state that torch can make; *self
 * is then as it was. */
int fl_torch_random_load(fl_torch_random *self, const void *state, fl_err *err);

/* Writes FL_TORCH_STATE_BYTES bytes that set_state() takes. */
void fl_torch_random_save(const fl_torch_random *self, void *state);

uint32_t fl_torch_random_word(fl_torch_random *self);

/* torch.rand() of float32. */
float fl_torch_random_unit(fl_torch_random *self);

/* torch.empty().uniform_(from, to) of float32. is_fused: whether this torch computes the number in
 * one rounding (with AVX2) or in two. */
float fl_torch_random_uniform(fl_torch_random *self, float from, float to, bool is_fused);

/* torch.randint(from, to); from < to. */
int64_t fl_torch_random_int(fl_torch_random *self, int64_t from, int64_t to);

/* torch.empty(dtype=torch.int64).random_(). */
int64_t fl_torch_random_int63(fl_torch_random *self);

/* torch.randperm(count) into out[count]; 0 <= count < 2^32 / 20, from where torch draws
 * otherwise. */
void fl_torch_random_permutation(fl_torch_random *self, int64_t count, int64_t *out);

#endif
