/* Byte-level BPE tokenizer read from a Hugging Face tokenizer.json (chat.md 3). Text is cut at
 * added tokens (only where the caller trusts it), split by the file's patterns in sequence, and
 * merged by lowest rank. An open tokenizer never changes: any thread may use it, several at once.
 * The tokenizer owns everything that its functions return pointers to, until it is closed. */
#ifndef ENGINE_TEXT_TOKENIZER_H
#define ENGINE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

typedef struct tokenizer tokenizer;

#define TOKENIZER_FILE_MAX_BYTES ((size_t)64 << 20)
#define TOKENIZER_TEXT_MAX_BYTES ((size_t)1 << 30) /* per call of an encode function */

/* A growing list of token ids. Owned by the caller. {0} is empty. */
typedef struct token_list {
    int32_t *ids;
    size_t len, cap;
} token_list;
void token_list_release(token_list *l);
void token_list_reset(token_list *l);
/* ERR_MEMORY when the list cannot grow. */
int token_list_push(token_list *l, int32_t id);

/* A stretch of text. Added tokens are matched only where they lie wholly in template text. */
typedef struct text_span {
    const char *text;
    size_t len;
    bool is_template;
} text_span;

/* Reads a tokenizer.json. The caller frees *out with tokenizer_close. Errors: ERR_NOT_FOUND,
 * ERR_FORMAT (damaged), ERR_UNSUPPORTED (another kind of tokenizer; the message names the rule). */
int tokenizer_open(const char *path, tokenizer **out, err *e);
/* The same from memory. */
int tokenizer_parse(const char *json_text, size_t len, tokenizer **out, err *e);
void tokenizer_close(tokenizer *t);

/* Highest id + 1: ids are 0 .. size-1, and a few of them may be unused. */
int32_t tokenizer_size(const tokenizer *t);
/* The bytes an id stands for (an added token: its own text). Empty for an unused or bad id; never
 * NULL; not NUL-terminated. */
const char *tokenizer_bytes(const tokenizer *t, int32_t id, size_t *len);
/* The string of the vocabulary file (bytes as GPT-2's printable letters; added tokens as they
 * are). Appends to out. */
int tokenizer_raw(const tokenizer *t, int32_t id, buf *out);
/* Id of an added token by its exact text, else -1. */
int32_t tokenizer_added(const tokenizer *t, const char *text);
/* Id of a vocabulary token by its bytes, else -1. Added tokens are not looked at. */
int32_t tokenizer_find(const tokenizer *t, const char *bytes, size_t len);
bool tokenizer_is_added(const tokenizer *t, int32_t id);
/* Marked "special" in the file: left out of text by decoders that skip special tokens. */
bool tokenizer_is_special(const tokenizer *t, int32_t id);

/* The control tokens of the chat protocol; -1 where the file has none. */
typedef struct control_ids {
    int32_t bos, eos, pad, eot;
    int32_t system, user, assistant, latest_reminder;
    int32_t think_open, think_close, dsml, image;
} control_ids;
control_ids tokenizer_controls(const tokenizer *t);

/* Appends the ids of the joined spans to out. Spans are joined before splitting, so a border
 * between two spans changes nothing except where added tokens may match. Bytes that are not UTF-8
 * are encoded byte by byte. ERR_LIMIT for more than TOKENIZER_TEXT_MAX_BYTES, ERR_MEMORY. */
int tokenizer_encode_spans(
    const tokenizer *t, const text_span *spans, size_t n, token_list *out, err *e);
/* One span. match_added: the text is trusted, so added tokens in it are matched. */
int tokenizer_encode(const tokenizer *t, text_span span, token_list *out, err *e);
/* The pieces that the file's pre-tokenizer cuts a text into, as end offsets, without added tokens
 * and without merging (for tests and for the split rules of other files). */
int tokenizer_split(
    const tokenizer *t, const char *text, size_t len, size_t **ends, size_t *n, err *e);

/* Appends the text of ids: bytes joined, then every maximal bad sequence replaced by U+FFFD. */
int tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, buf *out);
/* Appends the joined bytes as they are. */
int tokenizer_decode_bytes(const tokenizer *t, const int32_t *ids, size_t n, buf *out);

/* Turns a stream of byte pieces into a stream of valid UTF-8: an unfinished sequence is held back
 * until it is complete or can never become complete (then U+FFFD, one for each maximal part). The
 * joined output equals the decode of the joined input. {0} is a fresh stream; no storage. */
typedef struct utf8_stream {
    char pending[4];
    unsigned n_pending;
} utf8_stream;
int utf8_stream_feed(utf8_stream *s, const char *bytes, size_t len, buf *out);
/* What is still held back can never become complete: U+FFFD for it. The stream is fresh again. */
int utf8_stream_end(utf8_stream *s, buf *out);

#endif
