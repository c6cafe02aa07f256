/* fl_mixture: in which order an endless mixture takes the samples of its sources.
 *
 * Floor 1. Each source has a weight, an integer. The sources are the leaves of a binary tree: a
 * node deals its positions out to its two children. Of the first n positions the lighter child, of
 * weight a, has floor(n a / s + 1/2), a Beatty sequence; s is the weight of the node. So any
 * position is found without the positions before it, and without rounding: products have 128 bits.
 * The tree is the one of least bound for up to FL_MIXTURE_SEARCHED sources, and Huffman's for more.
 * Read-only once open; any thread. The order of the same arguments never changes, because resumed
 * epochs rely on the order. */
#ifndef FL_MIXTURE_H
#define FL_MIXTURE_H

#include "fl_base.h"

enum { FL_MIXTURE_SEARCHED = 10 };        /* most sources whose best tree is searched */
enum { FL_MIXTURE_SOURCES = 1 << 20 };    /* most sources */
#define FL_MIXTURE_MAX ((int64_t)1 << 62) /* weights together, and positions, are below */

typedef struct fl_mixture fl_mixture;

/* Opens the order of `count` sources, each with a weight >= 1. is_even: positions of the lighter
 * child are as even as they can be. Otherwise the child has one position in each of its periods, at
 * a random point that `key` decides, so that no stride meets one child alone. The caller closes
 * *out. FL_EINVAL: a number is out of range; FL_ENOMEM. */
int fl_mixture_open(const int64_t *weights, int32_t count, bool is_even, uint64_t key,
                    fl_mixture **out, fl_err *err);
void fl_mixture_close(fl_mixture *mixture);

/* Returns the bound: for every n and every source, the number of the source's samples among the
 * first n differs from the source's share of n by at most the bound. docs/internals/mixtures.md has
 * the proof. */
double fl_mixture_bound(const fl_mixture *mixture);

/* Returns the source at position n, and how many of its samples come before: 0 <= n. */
int32_t fl_mixture_find(const fl_mixture *mixture, int64_t n, int64_t *sample);

/* Adds to counts[places[i]] how many samples of source i are among the first n. */
void fl_mixture_count(const fl_mixture *mixture, int64_t n, const int64_t *places, int64_t *counts);

#endif
