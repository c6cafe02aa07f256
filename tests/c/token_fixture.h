/* token_fixture.h: tokens of every type in memory and in a file, for readers. */
#ifndef TOKEN_FIXTURE_H
#define TOKEN_FIXTURE_H

#include "check.h"
#include "fl_cpu_tokens.h"
#include "fl_token_reader.h"

enum { TOKENS = 60000, LENGTH_MOST = 40000, HEAD = 6 };

typedef enum token_place { IN_MEMORY, IN_MAPPED_MEMORY, IN_FILE, PLACES } token_place;

/* Tokens of one type, in memory and in a file after HEAD bytes. */
typedef struct tokens {
    char *memory; /* owned; HEAD bytes, then the tokens */
    mapped_file file;
    fl_token_type type;
} tokens;

static inline tokens make_tokens(fl_token_type type, uint64_t seed)
{
    int64_t bytes = HEAD + TOKENS * fl_token_bytes(type);
    tokens made = {.memory = fl_alloc(bytes), .type = type};
    fill_random(&seed, made.memory, bytes);
    made.file = map_file(made.memory, bytes, MAP_SHARED);
    return made;
}

static inline void drop_tokens(tokens *made)
{
    unmap_file(&made->file);
    fl_free(made->memory);
}

static inline fl_token_source source_of(const tokens *from, token_place place)
{
    fl_token_source source = {.fd = -1, .tokens = TOKENS, .type = from->type, .most = UINT64_MAX};
    source.first_byte = HEAD;
    if (place == IN_FILE) source.fd = from->file.fd;
    if (place == IN_MEMORY) source.data = from->memory;
    if (place == IN_MAPPED_MEMORY) source.data = from->file.data;
    source.is_volatile = place == IN_MAPPED_MEMORY;
    return source;
}

static inline fl_token_config
config_of(const fl_token_source *sources, int64_t count, int64_t length)
{
    return (fl_token_config){.sources = sources,
                             .count = count,
                             .length = length,
                             .targets = FL_TARGETS_SHIFT,
                             .out = FL_TOKEN_OUT_64,
                             .ops = fl_cpu_token_ops_find()};
}

#endif
