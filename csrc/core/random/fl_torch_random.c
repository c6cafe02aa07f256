/* fl_torch_random: see fl_torch_random.h. */
#include "fl_torch_random.h"

#include <float.h>
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
enum { AT_SPARE = 8, AT_HAS_SPARE = 24 }; /* in the normals: a double, an int32 */

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

/* Draws a number of [0, 1) of float64. */
static double draw_unit64(fl_torch_random *self)
{
    const uint64_t bits = (UINT64_C(1) << 53) - 1;
    return (double)(read_word64(self) & bits) * 0x1p-53;
}

int32_t fl_torch_random_choice(fl_torch_random *self, int32_t count, const float *weights)
{
    int32_t chosen = 0;
    float most = -1;
    for (int32_t i = 0; i < count; i++) {
        float share = weights[i] / (float)-log1p(-draw_unit64(self));
        if (share > most) most = share, chosen = i;
    }
    return chosen;
}

/* Draws a normal number of float64. Numbers are made in pairs, and the second one is kept. */
static double draw_normal(fl_torch_random *self)
{
    double spare;
    int32_t has_spare;
    memcpy(&spare, self->normals + AT_SPARE, sizeof spare);
    memcpy(&has_spare, self->normals + AT_HAS_SPARE, sizeof has_spare);
    double number = spare;
    if (!has_spare) {
        double turn = 2 * 3.14159265358979323846 * draw_unit64(self);
        double radius = sqrt(-2 * log1p(-draw_unit64(self)));
        number = radius * cos(turn);
        spare = radius * sin(turn);
    } else {
        spare = 0;
    }
    has_spare = !has_spare;
    memcpy(self->normals + AT_SPARE, &spare, sizeof spare);
    memcpy(self->normals + AT_HAS_SPARE, &has_spare, sizeof has_spare);
    return number;
}

/* Draws a number of the gamma distribution, as torch does, by the method of Marsaglia and Tsang
 * (2000). torch has two constants in float32. */
static double draw_gamma(fl_torch_random *self, double alpha)
{
    double scale = 1;
    if (alpha < 1) {
        scale = pow(1 - draw_unit64(self), 1 / alpha);
        alpha += 1;
    }
    const double d = alpha - (double)(1.0f / 3.0f), c = 1 / sqrt(9 * d);
    for (;;) {
        double x, root;
        do {
            x = draw_normal(self);
            root = 1 + c * x;
        } while (root <= 0);
        double v = root * root * root, unit = 1 - draw_unit64(self), square = x * x;
        if (unit < 1 - (double)0.0331f * square * square ||
            log(unit) < 0.5 * square + d * (1 - v + log(v)))
            return fmax(scale * d * v, DBL_MIN);
    }
}

void fl_torch_random_shares(fl_torch_random *self, int32_t count, float alpha, float *out)
{
    double number[FL_TORCH_SHARES], sum = 0;
    for (int32_t k = 0; k < count; k++) sum += number[k] = draw_gamma(self, (double)alpha);
    for (int32_t k = 0; k < count; k++)
        out[k] = fminf(fmaxf((float)(number[k] / sum), FLT_MIN), 1 - FLT_EPSILON / 2);
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
