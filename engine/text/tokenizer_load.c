/* Reading a tokenizer.json. Everything that would change ids and is not implemented is refused with
 * its name, never ignored. */
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/text/tokenizer_internal.h"

#define TOKENIZER_MAX_ID 2000000

/* --- checks --- */

static int refuse_option(const json *model, const char *key, err *e) {
    const json *v = json_get(model, key);
    if (v == NULL || json_is_null(v) || (json_is_bool(v) && !json_is_true(v))) return OK;
    if (json_is_string(v) && json_str(v)[0] == 0) return OK;
    return err_set(e, ERR_UNSUPPORTED, "tokenizer model uses '%s', which is not supported", key);
}

static int check_model(const json *model, err *e) {
    static const char *const unsupported[] = {"unk_token", "continuing_subword_prefix",
        "end_of_word_suffix", "fuse_unk", "byte_fallback"};
    const char *type = json_str(json_get(model, "type"));
    if (type == NULL || strcmp(type, "BPE") != 0) {
        return err_set(e, ERR_UNSUPPORTED,
            "tokenizer model is '%s'; only byte-level BPE is supported",
            type != NULL ? type : "(none)");
    }
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++) {
        int rc = refuse_option(model, unsupported[i], e);
        if (rc != OK) return rc;
    }
    const json *dropout = json_get(model, "dropout");
    double rate = 0;
    if (json_is_number(dropout) && json_double(dropout, &rate) == OK && rate != 0) {
        return err_set(e, ERR_UNSUPPORTED, "tokenizer model uses dropout");
    }
    return OK;
}

static int check_normalizer(const json *rule, err *e) {
    if (rule == NULL || json_is_null(rule)) return OK;
    const char *type = json_str(json_get(rule, "type"));
    if (str_eq(type, "Sequence") && json_count(json_get(rule, "normalizers")) == 0) return OK;
    return err_set(e, ERR_UNSUPPORTED, "tokenizer has the normalizer '%s'; this family has none",
        type != NULL ? type : "(none)");
}

static bool has_byte_level(const json *rule) {
    if (str_eq(json_str(json_get(rule, "type")), "ByteLevel")) return true;
    JSON_EACH(item, json_get(rule, "pretokenizers")) {
        if (str_eq(json_str(json_get(item, "type")), "ByteLevel")) return true;
    }
    return false;
}

/* --- vocabulary --- */

/* Grows the token array to hold id. */
static int reach_id(tokenizer *t, int64_t id, err *e) {
    if (id < 0 || id >= TOKENIZER_MAX_ID) {
        return err_set(
            e, ERR_FORMAT, "token id %lld is not in 0..%d", (long long)id, TOKENIZER_MAX_ID - 1);
    }
    if (id >= t->n_tokens) t->n_tokens = (int32_t)id + 1;
    return OK;
}

static int scan_ids(tokenizer *t, const json *vocab, const json *added, err *e) {
    int64_t id = 0;
    JSON_EACH(item, vocab) {
        if (json_i64(item, &id) != OK) {
            return err_set(
                e, ERR_FORMAT, "vocabulary entry '%.80s' has no integer id", json_key(item));
        }
        int rc = reach_id(t, id, e);
        if (rc != OK) return rc;
    }
    JSON_EACH(item, added) {
        if (json_i64(json_get(item, "id"), &id) != OK) {
            return err_set(e, ERR_FORMAT, "an added token has no integer id");
        }
        int rc = reach_id(t, id, e);
        if (rc != OK) return rc;
    }
    return OK;
}

/* Bytes of a vocabulary string in GPT-2's alphabet, appended to out. */
static int unmap_letters(const char *letters, buf *out) {
    size_t n = strlen(letters);
    int rc = OK;
    for (size_t i = 0; i < n && rc == OK;) {
        uint32_t cp;
        i += utf8_decode(letters + i, n - i, &cp);
        int byte = gpt2_byte(cp);
        if (byte < 0) return ERR_FORMAT;
        rc = buf_putc(out, (char)byte);
    }
    return rc;
}

static void vocab_insert(tokenizer *t, int32_t id) {
    const token_entry *k = &t->tokens[id];
    uint32_t hash = vocab_hash(t->bytes.data + k->start, k->len);
    size_t i = hash & t->vocab_mask;
    while (t->vocab[i].id >= 0)
        i = (i + 1) & t->vocab_mask;
    t->vocab[i] = (vocab_slot){hash, id};
}

static size_t table_size(size_t n) {
    size_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

static int add_vocab_token(tokenizer *t, const json *item, err *e) {
    int64_t id = 0;
    (void)json_i64(item, &id);
    size_t start = t->bytes.len;
    if (t->tokens[id].len != 0) {
        return err_set(e, ERR_FORMAT, "token id %lld is used twice", (long long)id);
    }
    int rc = unmap_letters(json_key(item), &t->bytes);
    if (rc == ERR_FORMAT) {
        /* Control tokens stand in the vocabulary too, as plain text; added_tokens has them. */
        buf_truncate(&t->bytes, start);
        return OK;
    }
    if (rc != OK) return err_set(e, rc, "vocabulary is too large");
    size_t len = t->bytes.len - start;
    if (len == 0) return err_set(e, ERR_FORMAT, "token id %lld is empty", (long long)id);
    if (tokenizer_find(t, t->bytes.data + start, len) >= 0) {
        return err_set(e, ERR_FORMAT, "vocabulary entry '%.80s' occurs twice", json_key(item));
    }
    t->tokens[id].start = (uint32_t)start;
    t->tokens[id].len = (uint32_t)len;
    if (len > t->longest_token) t->longest_token = len;
    if (len == 1) t->byte_ids[(uint8_t)t->bytes.data[start]] = (int32_t)id;
    vocab_insert(t, (int32_t)id);
    return OK;
}

static int load_vocab(tokenizer *t, const json *vocab, err *e) {
    size_t n = json_count(vocab);
    if (n == 0) return err_set(e, ERR_FORMAT, "tokenizer has no vocabulary");
    size_t size = table_size(n);
    t->vocab = mem_array(size, sizeof *t->vocab);
    for (size_t i = 0; i < size; i++)
        t->vocab[i].id = -1;
    t->vocab_mask = size - 1;
    t->longest_token = 1;
    for (int b = 0; b < 256; b++)
        t->byte_ids[b] = -1;
    JSON_EACH(item, vocab) {
        int rc = add_vocab_token(t, item, e);
        if (rc != OK) return rc;
    }
    for (int b = 0; b < 256; b++) {
        if (t->byte_ids[b] < 0) {
            return err_set(e, ERR_UNSUPPORTED,
                "vocabulary has no token for byte 0x%02x, so it is not byte-level", (unsigned)b);
        }
    }
    return OK;
}

/* --- merges --- */

static int32_t find_letters(const tokenizer *t, const char *s, size_t n, buf *work) {
    buf_reset(work);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += utf8_decode(s + i, n - i, &cp);
        int byte = gpt2_byte(cp);
        if (byte < 0 || buf_putc(work, (char)byte) != OK) return -1;
    }
    return tokenizer_find(t, buf_cstr(work), work->len);
}

static int add_merge(tokenizer *t, const int32_t pair[2], buf *work, err *e) {
    buf_reset(work);
    int rc = tokenizer_decode_bytes(t, pair, 2, work);
    int32_t id = rc == OK ? tokenizer_find(t, work->data, work->len) : -1;
    if (id < 0) {
        return err_set(
            e, ERR_FORMAT, "merge %u makes a token that the vocabulary does not have", t->n_merges);
    }
    if (tokenizer_merge(t, pair[0], pair[1]) == NULL) {
        uint64_t h = (uint64_t)(uint32_t)pair[0] << 32 | (uint32_t)pair[1];
        size_t i = (size_t)((h * 0x9E3779B97F4A7C15u) >> 32) & t->merge_mask;
        while (t->merges[i].left >= 0)
            i = (i + 1) & t->merge_mask;
        t->merges[i] = (merge_slot){pair[0], pair[1], t->n_merges, id};
    }
    t->n_merges++;
    return OK;
}

static int load_merge(tokenizer *t, const json *item, buf *work, err *e) {
    const char *left = json_str(item), *right = NULL;
    size_t left_len = 0;
    if (left != NULL) {
        const char *space = strchr(left, ' ');
        if (space != NULL) {
            left_len = (size_t)(space - left);
            right = space + 1;
        }
    } else if (json_count(item) == 2) {
        left = json_str(json_at(item, 0));
        right = json_str(json_at(item, 1));
        left_len = left != NULL ? strlen(left) : 0;
    }
    if (left == NULL || right == NULL) {
        return err_set(e, ERR_FORMAT, "merge %u is not a pair of tokens", t->n_merges);
    }
    int32_t pair[2] = {
        find_letters(t, left, left_len, work), find_letters(t, right, strlen(right), work)};
    if (pair[0] < 0 || pair[1] < 0) {
        return err_set(e, ERR_FORMAT,
            "merge %u ('%.60s') names a token that the vocabulary does not "
            "have",
            t->n_merges, left);
    }
    return add_merge(t, pair, work, e);
}

static int load_merges(tokenizer *t, const json *merges, err *e) {
    if (!json_is_array(merges)) return err_set(e, ERR_FORMAT, "tokenizer has no list of merges");
    size_t size = table_size(json_count(merges));
    t->merges = mem_array(size, sizeof *t->merges);
    for (size_t i = 0; i < size; i++)
        t->merges[i].left = -1;
    t->merge_mask = size - 1;
    buf work = BUF_INIT;
    int rc = OK;
    JSON_EACH(item, merges) {
        rc = load_merge(t, item, &work, e);
        if (rc != OK) break;
    }
    buf_release(&work);
    return rc;
}

/* Is every merge later than all merges that make its parts? */
static bool merges_are_ordered(const tokenizer *t) {
    uint32_t *made = mem_array((size_t)t->n_tokens, sizeof *made); /* rank + 1, 0: by none */
    bool is_ordered = true;
    for (size_t i = 0; i <= t->merge_mask; i++) {
        const merge_slot *m = &t->merges[i];
        if (m->left < 0) continue;
        if (m->rank + 1 > made[m->id]) made[m->id] = m->rank + 1; /* the last one */
    }
    for (size_t i = 0; i <= t->merge_mask && is_ordered; i++) {
        const merge_slot *m = &t->merges[i];
        if (m->left < 0) continue;
        is_ordered = m->rank + 1 > made[m->left] && m->rank + 1 > made[m->right];
    }
    mem_free(made);
    return is_ordered;
}

/* --- added tokens --- */

static int32_t trie_child(tokenizer *t, int32_t node, uint8_t byte) {
    for (int32_t c = t->trie[node].first_child; c >= 0; c = t->trie[c].next_sibling) {
        if (t->trie[c].byte == byte) return c;
    }
    if (t->n_trie == t->trie_cap) {
        t->trie_cap = t->trie_cap < 64 ? 64 : t->trie_cap * 2;
        t->trie = mem_realloc(t->trie, t->trie_cap * sizeof *t->trie);
    }
    int32_t c = (int32_t)t->n_trie++;
    t->trie[c] = (trie_node){-1, t->trie[node].first_child, -1, byte};
    t->trie[node].first_child = c;
    return c;
}

static int load_added_token(tokenizer *t, const json *item, err *e) {
    static const char *const unsupported[] = {"single_word", "lstrip", "rstrip"};
    const char *text = json_str(json_get(item, "content"));
    if (text == NULL || text[0] == 0)
        return err_set(e, ERR_FORMAT, "an added token has no content");
    for (int i = 0; i < 3; i++) {
        if (json_is_true(json_get(item, unsupported[i]))) {
            return err_set(
                e, ERR_UNSUPPORTED, "added token '%.80s' asks for %s", text, unsupported[i]);
        }
    }
    int64_t id = 0;
    (void)json_i64(json_get(item, "id"), &id);
    size_t len = strlen(text);
    int32_t node = 0;
    for (size_t i = 0; i < len; i++)
        node = trie_child(t, node, (uint8_t)text[i]);
    if (t->trie[node].id >= 0) {
        return err_set(e, ERR_FORMAT, "added token '%.80s' occurs twice", text);
    }
    token_entry *k = &t->tokens[id];
    if (k->is_added) return err_set(e, ERR_FORMAT, "token id %lld is used twice", (long long)id);
    if (k->len != 0 && (k->len != len || memcmp(t->bytes.data + k->start, text, len) != 0)) {
        return err_set(e, ERR_FORMAT, "added token '%.80s' has the id of another token", text);
    }
    t->trie[node].id = (int32_t)id;
    t->starts_added[(uint8_t)text[0]] = true;
    *k = (token_entry){
        (uint32_t)t->bytes.len, (uint32_t)len, true, json_is_true(json_get(item, "special"))};
    int rc = buf_append(&t->bytes, text, len);
    return rc == OK ? OK : err_set(e, rc, "vocabulary is too large");
}

/* Strings outside the byte alphabet are skipped above and must have come from added_tokens. */
static int check_skipped(const tokenizer *t, const json *vocab, err *e) {
    JSON_EACH(item, vocab) {
        int64_t id = 0;
        (void)json_i64(item, &id);
        if (t->tokens[id].len == 0) {
            return err_set(e, ERR_FORMAT,
                "vocabulary entry '%.80s' is neither in the byte alphabet nor an added token",
                json_key(item));
        }
    }
    return OK;
}

static int load_added(tokenizer *t, const json *added, err *e) {
    t->trie_cap = 64;
    t->trie = mem_array(t->trie_cap, sizeof *t->trie);
    t->trie[0] = (trie_node){-1, -1, -1, 0};
    t->n_trie = 1;
    JSON_EACH(item, added) {
        int rc = load_added_token(t, item, e);
        if (rc != OK) return rc;
    }
    return OK;
}

/* --- the whole --- */

static int load_all(tokenizer *t, const json *root, err *e) {
    const json *model = json_get(root, "model");
    const json *vocab = json_get(model, "vocab"), *added = json_get(root, "added_tokens");
    const json *rule = json_get(root, "pre_tokenizer");
    int rc = check_model(model, e);
    if (rc == OK) rc = check_normalizer(json_get(root, "normalizer"), e);
    if (rc == OK) rc = split_load(t, rule, e);
    if (rc == OK && !has_byte_level(rule)) {
        rc = err_set(e, ERR_UNSUPPORTED, "tokenizer is not byte-level (no ByteLevel rule)");
    }
    if (rc == OK) rc = scan_ids(t, vocab, added, e);
    if (rc != OK) return rc;
    t->tokens = mem_array((size_t)t->n_tokens, sizeof *t->tokens);
    t->whole = mem_alloc((size_t)t->n_tokens);
    t->ignores_merges = json_is_true(json_get(model, "ignore_merges"));
    rc = load_vocab(t, vocab, e);
    if (rc == OK) rc = load_merges(t, json_get(model, "merges"), e);
    t->is_ordered = rc == OK && merges_are_ordered(t);
    if (rc == OK) rc = load_added(t, added, e);
    return rc == OK ? check_skipped(t, vocab, e) : rc;
}

int tokenizer_parse(const char *json_text, size_t len, tokenizer **out, err *e) {
    json *root = NULL;
    json_limits limits = {.max_bytes = TOKENIZER_FILE_MAX_BYTES};
    int rc = json_parse(json_text, len, &limits, &root, e);
    if (rc != OK) return err_add(e, rc, "tokenizer.json");
    tokenizer *t = mem_alloc(sizeof *t);
    t->bytes = (buf)BUF_INIT;
    t->groups = mem_alloc(UNICODE_TABLE_SIZE);
    unicode_table_fill(t->groups);
    rc = load_all(t, root, e);
    json_free(root);
    if (rc != OK) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return OK;
}

int tokenizer_open(const char *path, tokenizer **out, err *e) {
    buf text = BUF_MAX(TOKENIZER_FILE_MAX_BYTES);
    int rc = file_read(path, &text, TOKENIZER_FILE_MAX_BYTES, e);
    if (rc == OK) rc = tokenizer_parse(text.data, text.len, out, e);
    buf_release(&text);
    return err_add(e, rc, "reading tokenizer %s", path);
}

void tokenizer_close(tokenizer *t) {
    if (t == NULL) return;
    split_release(t);
    mem_free(t->groups);
    buf_release(&t->bytes);
    mem_free(t->tokens);
    mem_free(t->vocab);
    mem_free(t->merges);
    mem_free((void *)t->whole);
    mem_free(t->trie);
    mem_free(t);
}
