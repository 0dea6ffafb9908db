#include "tui/chat_settings.h"

#include <stddef.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/cmd_table.h"

typedef enum value_kind { VALUE_NUMBER, VALUE_INT, VALUE_STOP, VALUE_THINK } value_kind;

typedef struct field {
    const char *name;
    value_kind kind;
    uint32_t bit;
    size_t offset; /* in chat_options */
    double min, max;
} field;

#define AT(member) offsetof(chat_options, member)
static const field FIELDS[] = {
    {"temp", VALUE_NUMBER, CHAT_TEMPERATURE, AT(temperature), 0, 2},
    {"top-p", VALUE_NUMBER, CHAT_TOP_P, AT(top_p), 0, 1},
    {"top-k", VALUE_INT, CHAT_TOP_K, AT(top_k), 0, 1000000},
    {"min-p", VALUE_NUMBER, CHAT_MIN_P, AT(min_p), 0, 1},
    {"rep-pen", VALUE_NUMBER, CHAT_REPETITION_PENALTY, AT(repetition_penalty), 0.01, 2},
    {"seed", VALUE_INT, CHAT_SEED, AT(seed), 0, 9.2e18},
    {"max", VALUE_INT, CHAT_MAX_TOKENS, AT(max_tokens), 1, 1048576},
    {"stop", VALUE_STOP, 0, 0, 0, 0},
    {"think", VALUE_THINK, 0, 0, 0, 0},
    {"think-budget", VALUE_INT, CHAT_THINKING_BUDGET, AT(thinking_budget), 0, 1048576},
};
enum { N_FIELDS = sizeof FIELDS / sizeof FIELDS[0] };

void chat_settings_init(chat_settings *s) {
    *s = (chat_settings){0};
}

static void drop_stops(chat_settings *s) {
    for (int i = 0; i < s->options.n_stops; i++)
        mem_free(s->stop_texts[i]);
    s->options.n_stops = 0;
}

void chat_settings_release(chat_settings *s) {
    drop_stops(s);
    *s = (chat_settings){0};
}

const char *chat_settings_name(int i) {
    return i >= 0 && i < N_FIELDS ? FIELDS[i].name : NULL;
}

static const char *name_at(size_t i, void *ctx) {
    (void)ctx;
    return FIELDS[i].name;
}

static const field *find(const char *key, err *e) {
    for (size_t i = 0; i < N_FIELDS; i++) {
        if (str_eq(FIELDS[i].name, key)) return &FIELDS[i];
    }
    const char *near = str_nearest(key, name_at, N_FIELDS, NULL);
    err_set(e, ERR_ARG, "there is no chat setting \"%.30s\"%s%s%s", key,
        near != NULL ? "; did you mean " : "; there is: temp, top-p, top-k, min-p, rep-pen, seed, ",
        near != NULL ? near : "max, stop, think, think-budget", near != NULL ? "?" : "");
    return NULL;
}

static int set_number(chat_settings *s, const field *f, const char *value, err *e) {
    void *slot = (char *)&s->options + f->offset;
    int64_t i = 0;
    double v = 0;
    bool is_int = f->kind == VALUE_INT;
    bool fits = is_int ? parse_i64(value, &i) == OK : parse_double(value, &v) == OK;
    if (is_int) v = (double)i;
    if (!fits || v < f->min || v > f->max) {
        return err_set(e, ERR_ARG, "%s is \"%.40s\"; it must be %s from %g to %g", f->name, value,
            is_int ? "a whole number" : "a number", f->min, f->max);
    }
    if (is_int) {
        memcpy(slot, &i, sizeof i);
    } else {
        memcpy(slot, &v, sizeof v);
    }
    s->options.set |= f->bit;
    return OK;
}

static int add_stop(chat_settings *s, const char *value, err *e) {
    if (value[0] == '\0') return err_set(e, ERR_ARG, "a stop text needs at least one character");
    int n = s->options.n_stops;
    if (n >= CHAT_MAX_STOPS) {
        return err_set(e, ERR_ARG, "there are %d stop texts already, more are not allowed", n);
    }
    s->stop_texts[n] = mem_strdup(value);
    s->options.stops[n] = s->stop_texts[n];
    s->options.n_stops = n + 1;
    return OK;
}

int chat_settings_think(chat_settings *s, const char *word, err *e) {
    static const char *const efforts[] = {
        "minimal", "low", "medium", "high", "xhigh", "max", "ultra"};
    chat_options *o = &s->options;
    if (str_eq(word, "off") || str_eq(word, "none")) {
        o->thinking = CHAT_THINKING_OFF;
        o->effort[0] = '\0';
        return OK;
    }
    if (str_eq(word, "on")) {
        o->thinking = CHAT_THINKING_ON;
        o->effort[0] = '\0';
        return OK;
    }
    int64_t budget = 0;
    bool is_known = parse_i64(word, &budget) == OK && budget >= 1 && budget <= 100;
    for (size_t i = 0; i < sizeof efforts / sizeof efforts[0]; i++) {
        is_known = is_known || str_eq(word, efforts[i]);
    }
    if (!is_known) {
        return err_set(e, ERR_ARG,
            "\"%.20s\" is no thinking effort; use off, on, minimal, low, medium, high, xhigh, max or "
            "1 to 100",
            word);
    }
    o->thinking = CHAT_THINKING_ON;
    str_copy(o->effort, sizeof o->effort, word);
    return OK;
}

int chat_settings_set(chat_settings *s, const char *key, const char *value, err *e) {
    const field *f = find(key, e);
    if (f == NULL) return ERR_ARG;
    if (f->kind == VALUE_STOP) return add_stop(s, value, e);
    if (f->kind == VALUE_THINK) return chat_settings_think(s, value, e);
    return set_number(s, f, value, e);
}

int chat_settings_set_pair(chat_settings *s, const char *pair, err *e) {
    size_t n = strcspn(pair, "= \t");
    if (pair[n] == '\0') {
        return err_set(e, ERR_ARG, "\"%.40s\" needs a value: KEY=VALUE", pair);
    }
    char *key = mem_strndup(pair, n);
    const char *value = pair + n + 1;
    if (pair[n] != '=') value += strspn(value, " \t");
    int rc = chat_settings_set(s, key, value, e);
    mem_free(key);
    return rc;
}

int chat_settings_unset(chat_settings *s, const char *key, err *e) {
    const field *f = find(key, e);
    if (f == NULL) return ERR_ARG;
    s->options.set &= ~f->bit;
    if (f->kind == VALUE_STOP) drop_stops(s);
    if (f->kind == VALUE_THINK) {
        s->options.thinking = CHAT_THINKING_DEFAULT;
        s->options.effort[0] = '\0';
    }
    return OK;
}

static const char *think_word(const chat_options *o) {
    if (o->effort[0] != '\0') return o->effort;
    return o->thinking == CHAT_THINKING_ON ? "on" : o->thinking == CHAT_THINKING_OFF ? "off" : "";
}

static void put_number(const chat_options *o, const field *f, buf *out) {
    const void *slot = (const char *)o + f->offset;
    if (f->kind == VALUE_INT) {
        int64_t i;
        memcpy(&i, slot, sizeof i);
        buf_printf(out, "%lld", (long long)i);
    } else {
        double v;
        char text[40];
        memcpy(&v, slot, sizeof v);
        print_double(v, text);
        buf_puts(out, text);
    }
}

void chat_settings_value(const chat_settings *s, const char *key, buf *out) {
    const chat_options *o = &s->options;
    const field *f = find(key, NULL);
    CHECK(f != NULL);
    if (f->kind == VALUE_THINK) {
        buf_puts(out, think_word(o));
    } else if (f->kind == VALUE_STOP) {
        for (int i = 0; i < o->n_stops; i++) {
            if (i > 0) buf_putc(out, ' ');
            json_quote(out, o->stops[i], strlen(o->stops[i]));
        }
    } else if (o->set & f->bit) {
        put_number(o, f, out);
    }
}

void chat_settings_json(const chat_settings *s, buf *out) {
    const chat_options *o = &s->options;
    json_w w;
    json_w_begin(&w, out);
    json_w_object(&w);
    for (size_t i = 0; i < N_FIELDS; i++) {
        const field *f = &FIELDS[i];
        if (f->kind != VALUE_STOP && f->kind != VALUE_THINK && (o->set & f->bit)) {
            buf text = BUF_INIT;
            put_number(o, f, &text);
            json_w_key(&w, f->name);
            json_w_raw(&w, buf_cstr(&text), text.len);
            buf_release(&text);
        }
    }
    if (think_word(o)[0] != '\0') json_w_kstr(&w, "think", think_word(o));
    if (o->n_stops > 0) {
        json_w_key(&w, "stop");
        json_w_array(&w);
        for (int i = 0; i < o->n_stops; i++)
            json_w_str(&w, o->stops[i]);
        json_w_close(&w);
    }
    json_w_close(&w);
    json_w_end(&w);
}
