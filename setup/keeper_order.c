#include <stddef.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/keeper.h"

typedef struct number_field {
    const char *name;
    size_t offset;
    int64_t min, max, fallback;
} number_field;

static const number_field NUMBERS[] = {
    {"gate_mib", offsetof(keeper_order, gate_mib), 0, 1 << 22, 0},
    {"gate_s", offsetof(keeper_order, gate_s), 0, 86400, 600},
    {"peer_s", offsetof(keeper_order, peer_s), 1, 86400, 60},
    {"hang_s", offsetof(keeper_order, hang_s), 1, 86400, 420},
    {"ready_s", offsetof(keeper_order, ready_s), 1, 86400, 1800},
    {"stop_s", offsetof(keeper_order, stop_s), 0, 3600, 30},
    {"restarts", offsetof(keeper_order, restarts), 0, 64, 3},
    {"guard_mib", offsetof(keeper_order, guard_mib), 0, 1 << 22, 0},
    {"guard_s", offsetof(keeper_order, guard_s), 1, 3600, 6},
    {"log_keep", offsetof(keeper_order, log_keep), 1, 1000, 10},
};
enum { N_NUMBERS = sizeof NUMBERS / sizeof NUMBERS[0] };

static int64_t *number_at(keeper_order *o, const number_field *f) {
    return (int64_t *)(void *)((char *)o + f->offset);
}

void keeper_order_init(keeper_order *o) {
    *o = (keeper_order){0};
    for (size_t i = 0; i < N_NUMBERS; i++)
        *number_at(o, &NUMBERS[i]) = NUMBERS[i].fallback;
}

void keeper_order_release(keeper_order *o) {
    explicit_bzero(o->secret, sizeof o->secret);
    for (int i = 0; i < o->n_words; i++)
        mem_free(o->words[i]);
    for (int i = 0; i < o->n_env; i++)
        mem_free(o->env[i]);
    mem_free(o->link_host);
    mem_free(o->evict_dir);
    mem_free(o->log_dir);
    *o = (keeper_order){0};
}

static void put_list(json_w *w, const char *key, char *const *words, int n) {
    json_w_key(w, key);
    json_w_array(w);
    for (int i = 0; i < n; i++)
        json_w_str(w, words[i]);
    json_w_close(w);
}

int keeper_order_print(const keeper_order *o, buf *out) {
    json_w w;
    char hex[SHA256_HEX], id[17];
    sha256_hex(o->secret, hex);
    buf text = BUF_INIT;
    buf_printf(&text, "%016llx", (unsigned long long)o->start_id);
    str_copy(id, sizeof id, buf_cstr(&text));
    buf_release(&text);
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_ki64(&w, "v", 1);
    json_w_ki64(&w, "rank", o->rank);
    json_w_kstr(&w, "secret", hex);
    explicit_bzero(hex, sizeof hex);
    json_w_kstr(&w, "start_id", id);
    json_w_kstr(&w, "settings", o->settings);
    json_w_kstr(&w, "link_host", o->link_host);
    json_w_ki64(&w, "link_port", o->link_port);
    put_list(&w, "words", o->words, o->n_words);
    put_list(&w, "env", o->env, o->n_env);
    json_w_kstr(&w, "evict_dir", o->evict_dir);
    json_w_kstr(&w, "log_dir", o->log_dir);
    for (size_t i = 0; i < N_NUMBERS; i++)
        json_w_ki64(&w, NUMBERS[i].name, *number_at((keeper_order *)(uintptr_t)o, &NUMBERS[i]));
    json_w_close(&w);
    return json_w_end(&w);
}

static int take_list(const json *v, const char *key, char **words, int cap, int *n, err *e) {
    JSON_EACH(item, json_get(v, key)) {
        const char *text = json_str(item);
        if (text == NULL || *n >= cap)
            return err_set(
                e, ERR_FORMAT, "\"%s\" of the order is no list of at most %d texts", key, cap);
        words[(*n)++] = mem_strdup(text);
    }
    return OK;
}

static int hex_u64(const char *text, uint64_t *out) {
    uint64_t value = 0;
    if (text == NULL || strlen(text) != 16) return ERR_FORMAT;
    for (int i = 0; i < 16; i++) {
        const char *digits = "0123456789abcdef", *at = strchr(digits, text[i]);
        if (at == NULL) return ERR_FORMAT;
        value = value << 4 | (uint64_t)(at - digits);
    }
    *out = value;
    return OK;
}

static char *text_of(const json *v, const char *key) {
    const char *text = json_str(json_get(v, key));
    return text != NULL && text[0] != '\0' ? mem_strdup(text) : NULL;
}

static int take_numbers(keeper_order *o, const json *v, err *e) {
    for (size_t i = 0; i < N_NUMBERS; i++) {
        const number_field *f = &NUMBERS[i];
        const json *item = json_get(v, f->name);
        int64_t *at = number_at(o, f);
        if (item == NULL) continue;
        if (json_i64(item, at) != OK || *at < f->min || *at > f->max)
            return err_set(e, ERR_FORMAT, "\"%s\" of the order must be from %lld to %lld", f->name,
                (long long)f->min, (long long)f->max);
    }
    return OK;
}

int keeper_order_parse(keeper_order *o, const json *v, err *e) {
    int64_t rank = -1, port = 0, version = 0;
    const char *secret = json_str(json_get(v, "secret"));
    const char *settings = json_str(json_get(v, "settings"));
    if (json_i64(json_get(v, "v"), &version) != OK || version != 1)
        return err_set(e, ERR_FORMAT,
            "the order is of another version; use the same build on both "
            "machines");
    if (json_i64(json_get(v, "rank"), &rank) != OK || rank < 0 || rank > 1)
        return err_set(e, ERR_FORMAT, "the order names no rank");
    if (secret == NULL || sha256_parse(secret, o->secret) != OK)
        return err_set(e, ERR_FORMAT, "the order has no secret");
    if (hex_u64(json_str(json_get(v, "start_id")), &o->start_id) != OK)
        return err_set(e, ERR_FORMAT, "the order has no start id");
    if (json_i64(json_get(v, "link_port"), &port) != OK || port < 1 || port > 65535)
        return err_set(e, ERR_FORMAT, "the order names no port of the keepers");
    o->rank = (int)rank;
    o->link_port = (int)port;
    str_copy(o->settings, sizeof o->settings, settings != NULL ? settings : "");
    o->link_host = text_of(v, "link_host");
    o->evict_dir = text_of(v, "evict_dir");
    o->log_dir = text_of(v, "log_dir");
    int rc = take_list(v, "words", o->words, KEEPER_WORDS_MAX - 1, &o->n_words, e);
    if (rc == OK) rc = take_list(v, "env", o->env, KEEPER_ENV_MAX, &o->n_env, e);
    if (rc == OK) rc = take_numbers(o, v, e);
    if (rc == OK && (o->n_words == 0 || o->words[0][0] != '/' || o->link_host == NULL))
        rc = err_set(e, ERR_FORMAT, "the order names no program or no address");
    return rc;
}
