/* Shared inside engine/text: the parts of a tokenizer. */
#ifndef ENGINE_TEXT_TOKENIZER_INTERNAL_H
#define ENGINE_TEXT_TOKENIZER_INTERNAL_H

#include <stdatomic.h>

#include "engine/base/json.h"
#include "engine/text/tokenizer.h"
#include "engine/text/unicode.h"

#define SPLIT_MAX_STAGES 16

typedef enum split_kind {
    SPLIT_NUMBER3, /* \p{N}{1,3} */
    SPLIT_CJK,     /* U+4E00-U+9FA5, U+3040-U+30FF runs */
    SPLIT_WORDS,   /* DeepSeek's third pattern */
    SPLIT_LITERAL, /* a literal text */
    SPLIT_REGEX,   /* any other pattern, by PCRE2 */
    SPLIT_DIGITS,  /* the Digits rule */
} split_kind;

typedef enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
} split_behavior;

typedef struct split_stage {
    split_kind kind;
    split_behavior behavior;
    bool is_inverted;
    bool is_single; /* SPLIT_DIGITS: every digit alone */
    char *literal;  /* SPLIT_LITERAL */
    size_t literal_len;
    void *regex; /* SPLIT_REGEX: pcre2_code */
} split_stage;

typedef struct token_entry {
    uint32_t start; /* in tokenizer.bytes */
    uint32_t len;
    bool is_added, is_special;
} token_entry;

/* Open addressing by bytes; id -1 is an empty slot. */
typedef struct vocab_slot {
    uint32_t hash;
    int32_t id;
} vocab_slot;

/* Open addressing by pair; left -1 is an empty slot. */
typedef struct merge_slot {
    int32_t left, right;
    uint32_t rank;
    int32_t id;
} merge_slot;

/* Trie of the added tokens by byte: children are a list sorted by nothing in particular (few). */
typedef struct trie_node {
    int32_t first_child, next_sibling;
    int32_t id; /* token that ends here, -1 none */
    uint8_t byte;
} trie_node;

struct tokenizer {
    uint8_t *groups; /* unicode table */
    buf bytes;       /* all token bytes */
    token_entry *tokens;
    int32_t n_tokens;
    int32_t byte_ids[256];
    vocab_slot *vocab;
    size_t vocab_mask;
    size_t longest_token; /* bytes, of the vocabulary */
    merge_slot *merges;
    size_t merge_mask;
    uint32_t n_merges;
    /* Every merge comes after the merges that make its two parts (so it is in trained files): then
     * a merge never brings up a pair of lower rank, and all places of one rank go together. */
    bool is_ordered;
    /* Is the token what its own bytes merge to? 0 not known yet, 1 yes, 2 no. Written by any
     * encoding thread; every writer writes the same value. */
    _Atomic uint8_t *whole;
    bool ignores_merges;
    trie_node *trie; /* node 0 is the root */
    size_t n_trie, trie_cap;
    bool starts_added[256]; /* bytes that some added token begins with */
    split_stage stages[SPLIT_MAX_STAGES];
    int n_stages;
    bool is_deepseek; /* the stages are NUMBER3, CJK, WORDS, isolated: one fused scan */
};

/* Pieces of a text repeat, and the vocabulary is far larger than the fast caches: the ids of recent
 * short pieces are kept here, one per slot. */
#define PIECE_MAX_BYTES 16
#define PIECE_MAX_IDS 5
#define PIECE_SLOTS 1024
#define PIECE_CACHE_FROM_BYTES 1024 /* shorter texts do without */
typedef struct piece_slot {
    uint64_t low, high; /* the bytes, zero-padded */
    uint16_t len;       /* 0: empty */
    uint16_t n;
    int32_t ids[PIECE_MAX_IDS];
} piece_slot;

/* State of one encoding call. Owned by that call. */
typedef struct encoder {
    const tokenizer *t;
    token_list *out;
    int rc;
    piece_slot *pieces; /* [PIECE_SLOTS], or NULL */
    /* work space for long pieces, grown on demand */
    void *work;
    size_t work_bytes;
} encoder;

uint32_t vocab_hash(const char *bytes, size_t len);
#define TOKENIZER_NO_RANK 0xFFFFFFFFu
const merge_slot *tokenizer_merge(const tokenizer *t, int32_t left, int32_t right);
static inline uint32_t tokenizer_rank(const tokenizer *t, int32_t left, int32_t right) {
    const merge_slot *m = tokenizer_merge(t, left, right);
    return m != NULL ? m->rank : TOKENIZER_NO_RANK;
}
/* Longest added token that begins at p and ends by end: its id and length, or -1. */
int32_t tokenizer_match_added(const tokenizer *t, const char *p, const char *end, size_t *len);

/* Appends the ids of one piece (bpe.c). */
void encoder_piece(encoder *enc, const char *p, size_t len);
/* The same for a piece of at least two bytes and any length (bpe_long.c). */
void encoder_long_piece(encoder *enc, const char *p, size_t len);
/* Splits [p, p+len) by the stages and encodes every piece (pretok.c). */
void encoder_text(encoder *enc, const char *p, size_t len);

/* A piece of split text given to a callback; false stops the walk. */
typedef bool (*piece_fn)(void *ctx, const char *p, size_t len);
/* Walks the pieces of a text through all stages. Returns OK, ERR_LIMIT (pattern too costly). */
int split_walk(const tokenizer *t, const char *p, size_t len, piece_fn fn, void *ctx);
/* End of the match or gap of DeepSeek's third pattern that begins at p. */
const uint8_t *split_words_next(const uint8_t *groups, const uint8_t *p, const uint8_t *end);

/* Reads the pre_tokenizer rule (pretok_load.c). */
int split_load(tokenizer *t, const json *rule, err *e);
void split_release(tokenizer *t);
/* Regular expressions (pretok_regex.c). */
int split_regex_compile(const char *pattern, void **out, err *e);
void split_regex_free(void *regex);
/* First match at or after from in [p, p+len): 1 with start and end, 0 none, negative on failure.
 * match_data is made by split_regex_data. */
void *split_regex_data(void *regex);
void split_regex_data_free(void *data);
int split_regex_find(
    void *regex, void *data, const char *p, size_t len, size_t from, size_t out[2]);

/* GPT-2's printable alphabet (gpt2_alphabet.c). */
uint32_t gpt2_letter(uint8_t byte);
/* The byte of a letter, -1 for a code point outside the alphabet. */
int gpt2_byte(uint32_t cp);

#endif
