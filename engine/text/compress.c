#include "engine/text/compress.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/text/tokenizer_internal.h"

#define GUARD "\xEE\x80\x80" /* U+E000 */
#define REPLACEMENT "\xEF\xBF\xBD"
#define CLASS_FILE_MAX_BYTES ((size_t)64 << 20)

void class_map_release(class_map *m) {
    mem_free(m->classes);
    *m = (class_map){0};
}

/* --- the key of a token --- */

/* out = in mapped by utf8proc. */
static int map_text(const buf *in, buf *out, utf8proc_option_t options) {
    utf8proc_uint8_t *mapped = NULL;
    utf8proc_ssize_t n = utf8proc_map(
        (const utf8proc_uint8_t *)buf_cstr(in), (utf8proc_ssize_t)in->len, &mapped, options);
    buf_reset(out);
    int rc = n < 0 ? ERR_INTERNAL : buf_append(out, mapped, (size_t)n);
    free(mapped);
    return rc;
}

static bool is_mark(uint32_t cp) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

/* Appends in without combining marks, in lower case, white-space runs as one blank. */
static int fold(const buf *in, buf *out) {
    bool in_run = false;
    int rc = OK;
    for (size_t i = 0; i < in->len && rc == OK;) {
        uint32_t cp;
        char utf8[4];
        i += utf8_decode(in->data + i, in->len - i, &cp);
        if (is_mark(cp)) continue;
        bool is_blank = cp == ' ' || cp == '\t' || cp == '\r' || cp == '\n';
        if (is_blank && !in_run) rc = buf_putc(out, ' ');
        in_run = is_blank;
        if (is_blank) continue;
        cp = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
        rc = buf_append(out, utf8, utf8_encode(cp, utf8));
    }
    return rc;
}

/* Cuts white space off both ends of out. */
static void strip(const uint8_t *groups, buf *out) {
    size_t start = 0, end = 0;
    bool seen = false;
    for (size_t i = 0; i < out->len;) {
        uint32_t cp;
        size_t len = utf8_decode(out->data + i, out->len - i, &cp);
        if ((unicode_flags(groups, cp) & UNICODE_SPACE) == 0) {
            if (!seen) start = i;
            seen = true;
            end = i + len;
        }
        i += len;
    }
    buf_truncate(out, seen ? end : 0);
    buf_consume(out, start);
}

/* out = N(text); work is scratch. */
static int normalize(const uint8_t *groups, const buf *text, buf *work, buf *out) {
    int rc = map_text(text, work, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    if (rc == OK) rc = map_text(work, out, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    if (rc != OK) return rc;
    buf_reset(work);
    rc = fold(out, work);
    buf_reset(out);
    if (rc == OK) rc = buf_append(out, work->data, work->len);
    if (rc != OK) return rc;
    if (out->len == 1 && out->data[0] == ' ') return OK; /* a single blank is guarded: it stays */
    strip(groups, out);
    if (out->len == 3 && memcmp(out->data, GUARD, 3) == 0) {
        buf_reset(out);
        return buf_putc(out, ' ');
    }
    return OK;
}

typedef struct keys {
    buf text, work, key;
} keys;

static int token_key(const tokenizer *t, int32_t id, keys *k) {
    buf_reset(&k->text);
    buf_reset(&k->key);
    int rc = tokenizer_decode(t, &id, 1, &k->text);
    if (rc != OK) return rc;
    if (strstr(buf_cstr(&k->text), REPLACEMENT) != NULL) return tokenizer_raw(t, id, &k->key);
    rc = normalize(t->groups, &k->text, &k->work, &k->key);
    if (rc != OK || k->key.len > 0) return rc;
    return buf_append(&k->key, k->text.data, k->text.len);
}

/* --- classes by key --- */

typedef struct key_slot {
    uint32_t hash, start, len;
    int32_t class; /* -1: empty */
} key_slot;

typedef struct key_table {
    key_slot *slots;
    size_t mask;
    buf text;
    int32_t n;
} key_table;

static int class_of(key_table *t, const buf *key, int32_t *out) {
    uint32_t hash = vocab_hash(buf_cstr(key), key->len);
    size_t i = hash & t->mask;
    for (; t->slots[i].class >= 0; i = (i + 1) & t->mask) {
        const key_slot *s = &t->slots[i];
        if (s->hash == hash && s->len == key->len &&
            memcmp(buf_cstr(&t->text) + s->start, buf_cstr(key), key->len) == 0) {
            *out = s->class;
            return OK;
        }
    }
    t->slots[i] = (key_slot){hash, (uint32_t)t->text.len, (uint32_t)key->len, t->n};
    *out = t->n++;
    return buf_append(&t->text, buf_cstr(key), key->len);
}

int class_map_build(const tokenizer *t, class_map *out, err *e) {
    size_t n = (size_t)tokenizer_size(t), size = 16;
    while (size < 2 * n)
        size *= 2;
    key_table table = {.slots = mem_array(size, sizeof *table.slots), .mask = size - 1};
    keys k = {BUF_INIT, BUF_INIT, BUF_INIT};
    for (size_t i = 0; i < size; i++)
        table.slots[i].class = -1;
    *out = (class_map){.classes = mem_array(n, sizeof *out->classes), .n_tokens = (int32_t)n};
    int rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++) {
        rc = token_key(t, (int32_t)i, &k);
        if (rc == OK) rc = class_of(&table, &k.key, &out->classes[i]);
    }
    out->n_classes = table.n;
    mem_free(table.slots);
    buf_release(&table.text);
    buf_release(&k.text);
    buf_release(&k.work);
    buf_release(&k.key);
    if (rc != OK) {
        class_map_release(out);
        return err_set(e, rc, "making the token classes from the tokenizer");
    }
    return OK;
}

void class_map_sha256(const class_map *m, unsigned char digest[32]) {
    sha256 *s = sha256_new();
    for (int32_t i = 0; i < m->n_tokens; i++) {
        uint32_t v = (uint32_t)m->classes[i];
        const uint8_t le[4] = {
            (uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
        sha256_update(s, le, sizeof le);
    }
    sha256_finish(s, digest);
    sha256_free(s);
}

/* --- ready-made tables --- */

static int read_classes(const json *list, class_map *out, err *e) {
    size_t n = json_count(list), i = 0;
    if (n == 0) return err_set(e, ERR_FORMAT, "it has no list 'token_map'");
    *out = (class_map){.classes = mem_array(n, sizeof *out->classes), .n_tokens = (int32_t)n};
    JSON_EACH(item, list) {
        int64_t v = 0;
        if (json_i64(item, &v) != OK || v < 0 || v >= (int64_t)n) {
            return err_set(
                e, ERR_FORMAT, "entry %zu of token_map is no class from 0 to %zu", i, n - 1);
        }
        out->classes[i++] = (int32_t)v;
        if (v >= out->n_classes) out->n_classes = (int32_t)v + 1;
    }
    return OK;
}

int class_map_read(const char *path, class_map *out, err *e) {
    json *root = NULL;
    json_limits limits = {.max_bytes = CLASS_FILE_MAX_BYTES};
    *out = (class_map){0};
    int rc = json_parse_file(path, &limits, &root, e);
    if (rc == OK) rc = read_classes(json_get(root, "token_map"), out, e);
    json_free(root);
    if (rc != OK) class_map_release(out);
    return err_add(e, rc, "token classes %s", path);
}
