/* fl_torch_random: see fl_torch_random.h. */
#include "fl_torch_random.h"

#include <math.h>
#include <string.h>

enum { SHIFT = 397 }; /* of MT19937 */

/* Byte offsets in the state of get_state(); little endian. */
enum {
    AT_SEED = 0,
    AT_LEFT = 8,
    AT_IS_SEEDED = 12,
    AT_NEXT = 16,
    AT_WORDS = 24,
    AT_NORMALS = 5016
};

static const uint32_t upper_bit = 0x80000000u, lower_bits = 0x7FFFFFFFu, twist_bits = 0x9908B0DFu;
static const int64_t two_words_from = INT64_C(1) << 28; /* larger ranges take two words */

void fl_torch_random_seed(fl_torch_random *self, uint64_t seed)
{
    *self = (fl_torch_random){.seed = seed, .left = 1};
    uint32_t word = (uint32_t)seed;
    self->word[0] = word;
    for (uint32_t i = 1; i < FL_TWISTER_WORDS; i++)
        self->word[i] = word = 1812433253u * (word ^ (word >> 30)) + i;
}

int fl_torch_random_load(fl_torch_random *self, const void *state, fl_err *err)
{
    const char *from = state;
    fl_torch_random loaded;
    int32_t left, is_seeded;
    uint64_t next, word;
    memcpy(&left, from + AT_LEFT, sizeof left);
    memcpy(&is_seeded, from + AT_IS_SEEDED, sizeof is_seeded);
    memcpy(&next, from + AT_NEXT, sizeof next);
    if (left < 1 || left > FL_TWISTER_WORDS || is_seeded != 1 || next > FL_TWISTER_WORDS ||
        next + (uint64_t)left > FL_TWISTER_WORDS + 1)
        return fl_fail(err, FL_EINVAL, "damaged state of torch's generator (left %d, next %llu)",
                       left, (unsigned long long)next);
    memcpy(&loaded.seed, from + AT_SEED, sizeof loaded.seed);
    loaded.left = left;
    loaded.next = (int32_t)next;
    for (int i = 0; i < FL_TWISTER_WORDS; i++) {
        memcpy(&word, from + AT_WORDS + 8 * i, sizeof word);
        loaded.word[i] = (uint32_t)word;
    }
    memcpy(loaded.normals, from + AT_NORMALS, sizeof loaded.normals);
    *self = loaded;
    return FL_OK;
}

void fl_torch_random_save(const fl_torch_random *self, void *state)
{
    char *to = state;
    int32_t is_seeded = 1;
    uint64_t next = (uint64_t)self->next, word;
    memcpy(to + AT_SEED, &self->seed, sizeof self->seed);
    memcpy(to + AT_LEFT, &self->left, sizeof self->left);
    memcpy(to + AT_IS_SEEDED, &is_seeded, sizeof is_seeded);
    memcpy(to + AT_NEXT, &next, sizeof next);
    for (int i = 0; i < FL_TWISTER_WORDS; i++) {
        word = self->word[i];
        memcpy(to + AT_WORDS + 8 * i, &word, sizeof word);
    }
    memcpy(to + AT_NORMALS, self->normals, sizeof self->normals);
}

static uint32_t twist(uint32_t upper, uint32_t lower)
{
    uint32_t mixed = (upper & upper_bit) | (lower & lower_bits);
    return mixed >> 1 ^ (lower & 1 ? twist_bits : 0);
}

static void make_words(fl_torch_random *self)
{
    uint32_t *word = self->word;
    int i = 0;
    for (; i < FL_TWISTER_WORDS - SHIFT; i++)
        word[i] = word[i + SHIFT] ^ twist(word[i], word[i + 1]);
    for (; i < FL_TWISTER_WORDS - 1; i++)
        word[i] = word[i + SHIFT - FL_TWISTER_WORDS] ^ twist(word[i], word[i + 1]);
    word[i] = word[i + SHIFT - FL_TWISTER_WORDS] ^ twist(word[i], word[0]);
    self->left = FL_TWISTER_WORDS;
    self->next = 0;
}

uint32_t fl_torch_random_word(fl_torch_random *self)
{
    if (--self->left == 0) make_words(self);
    uint32_t word = self->word[self->next++];
    word ^= word >> 11;
    word ^= word << 7 & 0x9D2C5680u;
    word ^= word << 15 & 0xEFC60000u;
    return word ^ word >> 18;
}

void fl_torch_random_skip(fl_torch_random *self, int64_t count)
{
    while (count >= self->left) {
        count -= self->left; /* the last one is the first of the new words */
        make_words(self);
        self->next = 1;
    }
    self->left -= (int32_t)count;
    self->next += (int32_t)count;
}

/* Reads two words; the first becomes the upper half. */
static uint64_t read_word64(fl_torch_random *self)
{
    uint64_t upper = fl_torch_random_word(self);
    return upper << 32 | fl_torch_random_word(self);
}

float fl_torch_random_unit(fl_torch_random *self)
{
    return (float)(fl_torch_random_word(self) & 0xFFFFFF) * 0x1p-24f;
}

float fl_torch_random_uniform(fl_torch_random *self, float from, float to, bool is_fused)
{
    float unit = fl_torch_random_unit(self), range = to - from;
    float number = is_fused ? fmaf(unit, range, from) : unit * range + from;
    return number == to ? from : number; /* rounding may give `to`, which is out of range */
}

int64_t fl_torch_random_int(fl_torch_random *self, int64_t from, int64_t to)
{
    uint64_t range = (uint64_t)to - (uint64_t)from;
    bool needs_two = range >= (uint64_t)two_words_from;
    uint64_t word = needs_two ? read_word64(self) : fl_torch_random_word(self);
    return (int64_t)((uint64_t)from + word % range);
}

int64_t fl_torch_random_int63(fl_torch_random *self)
{
    return (int64_t)(read_word64(self) & INT64_MAX);
}

int32_t fl_torch_random_choice(fl_torch_random *self, int32_t count, const float *weights)
{
    const uint64_t bits = (UINT64_C(1) << 53) - 1;
    int32_t chosen = 0;
    float most = -1;
    for (int32_t i = 0; i < count; i++) {
        double unit = (double)(read_word64(self) & bits) * 0x1p-53;
        float share = weights[i] / (float)-log1p(-unit);
        if (share > most) most = share, chosen = i;
    }
    return chosen;
}

void fl_torch_random_permutation(fl_torch_random *self, int64_t count, int64_t *out)
{
    for (int64_t i = 0; i < count; i++) out[i] = i;
    for (int64_t i = 0; i + 1 < count; i++) {
        int64_t j = i + (int64_t)(fl_torch_random_word(self) % (uint64_t)(count - i));
        int64_t swapped = out[i];
        out[i] = out[j];
        out[j] = swapped;
    }
}
