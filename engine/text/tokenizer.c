#include "engine/text/tokenizer.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/text/tokenizer_internal.h"

void token_list_release(token_list *l) {
    mem_free(l->ids);
    *l = (token_list){0};
}

void token_list_reset(token_list *l) {
    l->len = 0;
}

int token_list_push(token_list *l, int32_t id) {
    if (l->len == l->cap) {
        size_t cap = l->cap < 64 ? 64 : l->cap * 2;
        int32_t *ids = mem_try_alloc(cap * sizeof *ids);
        if (ids == NULL) return ERR_MEMORY;
        if (l->len > 0) memcpy(ids, l->ids, l->len * sizeof *ids);
        mem_free(l->ids);
        l->ids = ids;
        l->cap = cap;
    }
    l->ids[l->len++] = id;
    return OK;
}

int32_t tokenizer_size(const tokenizer *t) {
    return t->n_tokens;
}

const char *tokenizer_bytes(const tokenizer *t, int32_t id, size_t *len) {
    if (id < 0 || id >= t->n_tokens || t->tokens[id].len == 0) {
        *len = 0;
        return "";
    }
    *len = t->tokens[id].len;
    return t->bytes.data + t->tokens[id].start;
}

int tokenizer_raw(const tokenizer *t, int32_t id, buf *out) {
    size_t len;
    const char *p = tokenizer_bytes(t, id, &len);
    if (tokenizer_is_added(t, id)) return buf_append(out, p, len);
    int rc = OK;
    for (size_t i = 0; i < len && rc == OK; i++) {
        char utf8[4];
        rc = buf_append(out, utf8, utf8_encode(gpt2_letter((uint8_t)p[i]), utf8));
    }
    return rc;
}

int32_t tokenizer_find(const tokenizer *t, const char *bytes, size_t len) {
    if (len == 0 || len > t->longest_token) return -1;
    uint32_t hash = vocab_hash(bytes, len);
    for (size_t i = hash & t->vocab_mask; t->vocab[i].id >= 0; i = (i + 1) & t->vocab_mask) {
        const token_entry *k = &t->tokens[t->vocab[i].id];
        if (t->vocab[i].hash == hash && k->len == len &&
            memcmp(t->bytes.data + k->start, bytes, len) == 0) {
            return t->vocab[i].id;
        }
    }
    return -1;
}

bool tokenizer_is_added(const tokenizer *t, int32_t id) {
    return id >= 0 && id < t->n_tokens && t->tokens[id].is_added;
}

bool tokenizer_is_special(const tokenizer *t, int32_t id) {
    return id >= 0 && id < t->n_tokens && t->tokens[id].is_special;
}

int32_t tokenizer_match_added(const tokenizer *t, const char *p, const char *end, size_t *len) {
    int32_t node = 0, best = -1;
    for (const char *q = p; q < end; q++) {
        int32_t child = t->trie[node].first_child;
        while (child >= 0 && t->trie[child].byte != (uint8_t)*q) {
            child = t->trie[child].next_sibling;
        }
        if (child < 0) break;
        node = child;
        if (t->trie[node].id >= 0) {
            best = t->trie[node].id;
            *len = (size_t)(q - p) + 1;
        }
    }
    return best;
}

int32_t tokenizer_added(const tokenizer *t, const char *text) {
    size_t len = strlen(text), match_len = 0;
    int32_t id = tokenizer_match_added(t, text, text + len, &match_len);
    return id >= 0 && match_len == len ? id : -1;
}

#define BAR "\xEF\xBD\x9C"   /* U+FF5C */
#define BLANK "\xE2\x96\x81" /* U+2581 */

control_ids tokenizer_controls(const tokenizer *t) {
    return (control_ids){
        .bos = tokenizer_added(t, "<" BAR "begin" BLANK "of" BLANK "sentence" BAR ">"),
        .eos = tokenizer_added(t, "<" BAR "end" BLANK "of" BLANK "sentence" BAR ">"),
        .pad = tokenizer_added(t, "<" BAR BLANK "pad" BLANK BAR ">"),
        .eot = tokenizer_added(t, "<|EOT|>"),
        .system = tokenizer_added(t, "<" BAR "System" BAR ">"),
        .user = tokenizer_added(t, "<" BAR "User" BAR ">"),
        .assistant = tokenizer_added(t, "<" BAR "Assistant" BAR ">"),
        .latest_reminder = tokenizer_added(t, "<" BAR "latest_reminder" BAR ">"),
        .think_open = tokenizer_added(t, "<think>"),
        .think_close = tokenizer_added(t, "</think>"),
        .dsml = tokenizer_added(t, BAR "DSML" BAR),
        .image = tokenizer_added(t, "<" BAR "deepseek_image" BAR ">"),
    };
}

/* --- encoding --- */

/* Cuts one text at the added tokens that lie in [from, to) of it and encodes the rest. */
typedef struct cutter {
    encoder enc;
    const char *text;
    size_t done; /* everything before is encoded */
} cutter;

static void cut_template(cutter *c, size_t from, size_t to) {
    const tokenizer *t = c->enc.t;
    const char *end = c->text + to;
    size_t i = from;
    while (i < to && c->enc.rc == OK) {
        if (!t->starts_added[(uint8_t)c->text[i]]) {
            i++;
            continue;
        }
        size_t len = 0;
        int32_t id = tokenizer_match_added(t, c->text + i, end, &len);
        if (id < 0) {
            i++;
            continue;
        }
        encoder_text(&c->enc, c->text + c->done, i - c->done);
        if (c->enc.rc == OK) c->enc.rc = token_list_push(c->enc.out, id);
        i += len;
        c->done = i;
    }
}

static int encode_joined(cutter *c, const text_span *spans, size_t n, size_t total, err *e) {
    size_t at = 0;
    if (total >= PIECE_CACHE_FROM_BYTES) {
        c->enc.pieces = mem_array(PIECE_SLOTS, sizeof *c->enc.pieces);
    }
    for (size_t i = 0; i < n && c->enc.rc == OK;) {
        size_t from = at;
        bool is_template = spans[i].is_template;
        while (i < n && spans[i].is_template == is_template)
            at += spans[i++].len;
        if (is_template) cut_template(c, from, at);
    }
    encoder_text(&c->enc, c->text + c->done, total - c->done);
    mem_free(c->enc.work);
    mem_free(c->enc.pieces);
    int rc = c->enc.rc;
    if (rc == ERR_MEMORY) return err_set(e, rc, "no memory to tokenize %zu bytes", total);
    if (rc != OK) return err_set(e, rc, "a split pattern of the tokenizer is too costly here");
    return OK;
}

int tokenizer_encode_spans(
    const tokenizer *t, const text_span *spans, size_t n, token_list *out, err *e) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        if (spans[i].len > TOKENIZER_TEXT_MAX_BYTES - total) {
            return err_set(e, ERR_LIMIT, "text to tokenize is longer than %zu bytes",
                TOKENIZER_TEXT_MAX_BYTES);
        }
        total += spans[i].len;
    }
    cutter c = {.enc = {.t = t, .out = out}};
    if (total == 0) return OK;
    if (n == 1) {
        c.text = spans[0].text;
        return encode_joined(&c, spans, n, total, e);
    }
    char *text = mem_try_alloc(total);
    if (text == NULL) return err_set(e, ERR_MEMORY, "no memory to tokenize %zu bytes", total);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (spans[i].len > 0) memcpy(text + at, spans[i].text, spans[i].len);
        at += spans[i].len;
    }
    c.text = text;
    int rc = encode_joined(&c, spans, n, total, e);
    mem_free(text);
    return rc;
}

int tokenizer_encode(const tokenizer *t, text_span span, token_list *out, err *e) {
    return tokenizer_encode_spans(t, &span, 1, out, e);
}

typedef struct end_list {
    const char *base;
    size_t *ends;
    size_t n, cap;
} end_list;

static bool note_end(void *ctx, const char *p, size_t len) {
    end_list *l = ctx;
    if (l->n == l->cap) {
        l->cap = l->cap < 16 ? 16 : l->cap * 2;
        l->ends = mem_realloc(l->ends, l->cap * sizeof *l->ends);
    }
    l->ends[l->n++] = (size_t)(p - l->base) + len;
    return true;
}

int tokenizer_split(
    const tokenizer *t, const char *text, size_t len, size_t **ends, size_t *n, err *e) {
    end_list l = {.base = text};
    int rc = split_walk(t, text, len, note_end, &l);
    if (rc != OK) {
        mem_free(l.ends);
        return err_set(e, rc, "a split pattern of the tokenizer is too costly here");
    }
    *ends = l.ends;
    *n = l.n;
    return OK;
}

/* --- decoding --- */

int tokenizer_decode_bytes(const tokenizer *t, const int32_t *ids, size_t n, buf *out) {
    int rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++) {
        size_t len;
        const char *p = tokenizer_bytes(t, ids[i], &len);
        rc = buf_append(out, p, len);
    }
    return rc;
}

int tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, buf *out) {
    utf8_stream s = {0};
    int rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++) {
        size_t len;
        const char *p = tokenizer_bytes(t, ids[i], &len);
        rc = utf8_stream_feed(&s, p, len, out);
    }
    return rc == OK ? utf8_stream_end(&s, out) : rc;
}
