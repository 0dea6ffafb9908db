#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

static uint64_t level_bit(const json_w *w) {
    return (uint64_t)1 << w->depth;
}

static void put(json_w *w, const char *s, size_t n) {
    if (w->rc == OK) w->rc = buf_append(w->out, s, n);
}

/* Comma and rules before a value. */
static void before_value(json_w *w) {
    bool in_object = (w->is_object & level_bit(w)) != 0;
    CHECK_MSG(!in_object || w->has_key, "json_w: a value in an object needs a key");
    CHECK_MSG(w->depth > 0 || (w->has_member & 1) == 0, "json_w: a second value");
    if (!in_object && (w->has_member & level_bit(w)) != 0) put(w, ",", 1);
    w->has_member |= level_bit(w);
    w->has_key = false;
}

void json_w_begin(json_w *w, buf *out) {
    *w = (json_w){.out = out, .rc = OK};
}

static void open_container(json_w *w, bool is_object) {
    before_value(w);
    put(w, is_object ? "{" : "[", 1);
    CHECK_MSG(w->depth < 63, "json_w: too deep");
    w->depth++;
    w->has_member &= ~level_bit(w);
    w->is_object &= ~level_bit(w);
    if (is_object) w->is_object |= level_bit(w);
}

void json_w_object(json_w *w) {
    open_container(w, true);
}

void json_w_array(json_w *w) {
    open_container(w, false);
}

void json_w_close(json_w *w) {
    CHECK_MSG(w->depth > 0 && !w->has_key, "json_w: nothing to close, or a key without value");
    put(w, (w->is_object & level_bit(w)) != 0 ? "}" : "]", 1);
    w->depth--;
}

void json_w_key(json_w *w, const char *key) {
    CHECK_MSG(
        (w->is_object & level_bit(w)) != 0 && !w->has_key, "json_w: no place for key %s", key);
    if ((w->has_member & level_bit(w)) != 0) put(w, ",", 1);
    if (w->rc == OK) w->rc = json_quote(w->out, key, strlen(key));
    put(w, ":", 1);
    w->has_key = true;
}

void json_w_strn(json_w *w, const char *s, size_t n) {
    before_value(w);
    if (w->rc == OK) w->rc = json_quote(w->out, s, n);
}

void json_w_raw(json_w *w, const char *text, size_t n) {
    before_value(w);
    put(w, text, n);
}

void json_w_null(json_w *w) {
    json_w_raw(w, "null", 4);
}

void json_w_str(json_w *w, const char *s) {
    if (s == NULL) {
        json_w_null(w);
    } else {
        json_w_strn(w, s, strlen(s));
    }
}

void json_w_i64(json_w *w, int64_t v) {
    before_value(w);
    if (w->rc == OK) w->rc = buf_printf(w->out, "%lld", (long long)v);
}

void json_w_u64(json_w *w, uint64_t v) {
    before_value(w);
    if (w->rc == OK) w->rc = buf_printf(w->out, "%llu", (unsigned long long)v);
}

void json_w_double(json_w *w, double v) {
    char text[40];
    if (!isfinite(v)) {
        json_w_null(w);
    } else {
        json_w_raw(w, text, print_double(v, text));
    }
}

void json_w_fixed(json_w *w, double v, int decimals) {
    if (!isfinite(v)) {
        json_w_null(w);
        return;
    }
    CHECK(decimals >= 0 && decimals <= 9);
    before_value(w);
    if (w->rc != OK) return;
    size_t before = w->out->len;
    w->rc = buf_printf(w->out, "%.*f", decimals, v);
    if (w->rc != OK || decimals == 0) return;
    /* The screens set a locale whose point may be a comma; JSON knows only the point. */
    char *comma = memchr(w->out->data + before, ',', w->out->len - before);
    if (comma != NULL) *comma = '.';
}

void json_w_bool(json_w *w, bool v) {
    json_w_raw(w, v ? "true" : "false", v ? 4 : 5);
}

void json_w_value(json_w *w, const json *v) {
    if (v == NULL) {
        json_w_null(w);
        return;
    }
    before_value(w);
    if (w->rc == OK) w->rc = json_print_compact(v, w->out);
}

void json_w_kstr(json_w *w, const char *key, const char *s) {
    json_w_key(w, key);
    json_w_str(w, s);
}

void json_w_ki64(json_w *w, const char *key, int64_t v) {
    json_w_key(w, key);
    json_w_i64(w, v);
}

void json_w_ku64(json_w *w, const char *key, uint64_t v) {
    json_w_key(w, key);
    json_w_u64(w, v);
}

void json_w_kdouble(json_w *w, const char *key, double v) {
    json_w_key(w, key);
    json_w_double(w, v);
}

void json_w_kbool(json_w *w, const char *key, bool v) {
    json_w_key(w, key);
    json_w_bool(w, v);
}

void json_w_knull(json_w *w, const char *key) {
    json_w_key(w, key);
    json_w_null(w);
}

int json_w_end(json_w *w) {
    CHECK_MSG(w->depth == 0, "json_w: %d containers are open", w->depth);
    return w->rc;
}
