/* Shared inside engine/text: the serving parser. Its text is kept in an inner form: whole UTF-8 in
 * which the one token U+FF5C DSML U+FF5C is the byte REPLY_MARK, which UTF-8 cannot contain. */
#ifndef ENGINE_TEXT_REPLY_INTERNAL_H
#define ENGINE_TEXT_REPLY_INTERNAL_H

#include "engine/text/reply.h"
#include "engine/text/tokenizer.h"

#define REPLY_MARK '\xFF'
#define REPLY_BAR "\xEF\xBD\x9C"
#define REPLY_DSML REPLY_BAR "DSML" REPLY_BAR
#define REPLY_HEADER_MAX 4096 /* bytes of an opening tag with its name or key */

typedef enum tag_kind {
    TAG_NONE,    /* plain text */
    TAG_PARTIAL, /* could become a tag with more text */
    TAG_THINK_OPEN,
    TAG_THINK_CLOSE,
    TAG_OPEN_BLOCK,
    TAG_INVOKE, /* up to and including the word: attributes follow */
    TAG_PARAMETER,
    TAG_CLOSE_BLOCK,
    TAG_CLOSE_INVOKE,
    TAG_CLOSE_PARAMETER,
    TAG_CLOSE_OTHER,
} tag_kind;

/* The tag at p[0] == '<' in n bytes of inner text and its length. */
tag_kind reply_tag(const char *p, size_t n, size_t *len);
/* <think> or </think> at p, TAG_PARTIAL, or TAG_NONE. */
tag_kind reply_think_tag(const char *p, size_t n, size_t *len);
/* Is p[0..n) a beginning of word (1), word itself or longer (2), or neither (0)? */
int reply_word(const char *p, size_t n, const char *word);

typedef enum call_phase {
    CALL_BETWEEN,          /* in the block, outside any call */
    CALL_HEADER,           /* at an invoke tag */
    CALL_INSIDE,           /* in a call, between parameters */
    CALL_PARAMETER_HEADER, /* at a parameter tag */
    CALL_VALUE,
    CALL_BODY,   /* a JSON object in place of parameters */
    CALL_BROKEN, /* in a call that is not usable, up to its end */
} call_phase;

/* How the text of a value becomes JSON. */
typedef enum value_rule {
    VALUE_STREAM,      /* a JSON string, escaped as it comes */
    VALUE_TYPED,       /* raw if it is JSON of the declared type, else a string */
    VALUE_JSON_STRING, /* raw if it is a JSON string, else a string */
    VALUE_ANY_JSON,    /* raw if it is JSON, else a string */
} value_rule;

typedef struct call_state {
    call_phase phase;
    bool saw_invoke, is_block_closed;
    int n_begun, n_standing;
    bool is_begun, has_parameter, has_body;
    char id[64];
    buf name, key, value, raw;
    const json *properties; /* of the called tool, NULL when unknown */
    char *keys;             /* keys of this call so far, each with a NUL */
    size_t keys_len, keys_cap;
    value_rule rule;
    char declared[16];
    bool skips_value; /* a repeated parameter */
} call_state;

struct reply_parser {
    reply_options o;
    reply_state state;
    bool at_start;    /* reasoning: nothing came yet */
    bool has_content; /* content: something came */
    buf literal;      /* bytes that may still become the marker (reply_feed) */
    utf8_stream utf8;
    buf in; /* inner text not decided yet */
    size_t head;
    buf text; /* outer text of the next event */
    call_state call;
};

/* Appends inner text to out as outer text. */
int reply_outer(buf *out, const char *p, size_t n);
int reply_send(reply_parser *p, reply_event_kind kind, const char *text, size_t len);
/* Works through p->in in state CALLS until more text is needed or the state changes. */
int reply_parse_calls(reply_parser *p);
/* End of text in state CALLS. */
int reply_end_calls(reply_parser *p, reply_end how);
void reply_call_release(call_state *c);

#endif
