#include "engine/api/constraint.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/fields.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

#define STORE_SLOTS 64

typedef struct kept {
    char *text; /* owned; NULL: free */
    size_t len;
    grammar *value;
    uint64_t used;
} kept;

struct constraint_store {
    pthread_mutex_t lock;
    token_trie *trie; /* made at the first use: many servers never need it */
    kept slots[STORE_SLOTS];
    uint64_t n_uses;
};

constraint_store *constraint_store_new(void) {
    constraint_store *s = mem_alloc(sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

void constraint_store_free(constraint_store *s) {
    if (s == NULL) return;
    for (int i = 0; i < STORE_SLOTS; i++) {
        grammar_put(s->slots[i].value);
        mem_free(s->slots[i].text);
    }
    token_trie_free(s->trie);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

/* ---- reading ---- */

static int set_constraint(
    gen_params *p, constraint_kind kind, const json *value, const char *field, api_error *e) {
    if (p->constraint != CONSTRAINT_NONE) {
        return api_bad(e, field, NULL, "%s and %s both constrain the answer; give one", field,
            p->constraint_field);
    }
    p->constraint = kind;
    p->constraint_value = value;
    p->constraint_field = field;
    return OK;
}

static int read_format(const json *body, gen_params *p, api_error *e) {
    static const char field[] = "response_format.json_schema.schema";
    const json *format = field_get(body, "response_format");
    if (format == NULL) return OK;
    const char *type = json_str(json_get(format, "type"));
    if (type != NULL && strcmp(type, "text") == 0) return OK;
    if (type != NULL && strcmp(type, "json_object") == 0) {
        return set_constraint(p, CONSTRAINT_OBJECT, NULL, "response_format", e);
    }
    if (type == NULL || strcmp(type, "json_schema") != 0) {
        return api_bad(e, "response_format", NULL,
            "response_format must be an object with type text, json_object or json_schema");
    }
    const json *inner = json_get(format, "json_schema");
    const json *schema = json_get(inner, "schema");
    if (!json_is_object(schema) && !json_is_bool(schema)) {
        return api_bad(e, field, NULL, "%s must be a JSON schema", field);
    }
    int rc = field_bool_in(inner, "response_format.json_schema", "strict", &p->is_strict, e);
    if (p->is_strict) warning_strict(p->warning, schema, "response_format");
    return rc == OK ? set_constraint(p, CONSTRAINT_SCHEMA, schema, field, e) : rc;
}

typedef struct spelling {
    const char *field, *inner; /* guided_json, structured_outputs.json */
    constraint_kind kind;
} spelling;

static int read_spelling(
    const json *v, const char *field, constraint_kind kind, gen_params *p, api_error *e) {
    if (kind == CONSTRAINT_SCHEMA && !json_is_object(v) && !json_is_bool(v) && !json_is_string(v)) {
        return api_bad(
            e, field, NULL, "%s must be a JSON schema, not a JSON %s", field, json_kind(v));
    }
    if (kind == CONSTRAINT_CHOICE && (!json_is_array(v) || json_count(v) == 0)) {
        return api_bad(e, field, NULL, "%s must be a list of strings", field);
    }
    if ((kind == CONSTRAINT_REGEX || kind == CONSTRAINT_EBNF) && !json_is_string(v)) {
        return api_bad(e, field, NULL, "%s must be a string, not a JSON %s", field, json_kind(v));
    }
    return set_constraint(p, kind, v, field, e);
}

int constraint_read(const json *body, gen_params *p, api_error *e) {
    static const spelling spellings[] = {{"guided_json", "json", CONSTRAINT_SCHEMA},
        {"guided_regex", "regex", CONSTRAINT_REGEX}, {"guided_choice", "choice", CONSTRAINT_CHOICE},
        {"guided_grammar", "grammar", CONSTRAINT_EBNF}};
    const json *outputs = field_get(body, "structured_outputs");
    int rc = read_format(body, p, e);
    if (rc == OK && outputs != NULL && !json_is_object(outputs)) {
        return api_bad(e, "structured_outputs", NULL, "structured_outputs must be an object");
    }
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0] && rc == OK; i++) {
        const json *v = field_get(body, spellings[i].field);
        if (v != NULL) rc = read_spelling(v, spellings[i].field, spellings[i].kind, p, e);
        v = field_get(outputs, spellings[i].inner);
        if (v != NULL && rc == OK) {
            rc = read_spelling(v, "structured_outputs", spellings[i].kind, p, e);
        }
    }
    return rc;
}

/* ---- compiling ---- */

/* How an engine error of a compile is told: the parameter is the pointer into the schema. The
 * sentence names the tool, which not every protocol has another place for. */
static int fail_compile(const char *field, const err *why, api_error *e) {
    const char *name = str_starts(why->place, field) ? why->place : field;
    if (why->code == ERR_MEMORY || why->code == ERR_INTERNAL) return api_from_err(e, why);
    const char *code =
        why->code == ERR_UNSUPPORTED || why->code == ERR_ARG ? "unsupported_schema" : NULL;
    return api_bad(e, why->place[0] != '\0' ? why->place : field, code, "%s: %s", name, why->msg);
}

static grammar *find_locked(constraint_store *s, const buf *text) {
    for (int i = 0; i < STORE_SLOTS; i++) {
        kept *k = &s->slots[i];
        if (k->text == NULL || k->len != text->len || memcmp(k->text, text->data, k->len) != 0) {
            continue;
        }
        k->used = ++s->n_uses;
        return grammar_get(k->value);
    }
    return NULL;
}

static void keep_locked(constraint_store *s, const buf *text, grammar *g) {
    kept *oldest = &s->slots[0];
    for (int i = 1; i < STORE_SLOTS; i++) {
        if (s->slots[i].used < oldest->used) oldest = &s->slots[i];
    }
    grammar_put(oldest->value);
    mem_free(oldest->text);
    *oldest = (kept){.text = mem_strndup(text->data, text->len),
        .len = text->len,
        .value = grammar_get(g),
        .used = ++s->n_uses};
}

typedef struct compile {
    api *a;
    const gen_params *p;
    bool is_calls;
    const char *field;
} compile;

static int compile_schema(const token_trie *t, const gen_params *p, grammar **out, err *e) {
    schema_options o = {.is_strict = p->is_strict};
    json *parsed = NULL;
    const json *schema = p->constraint_value;
    int rc = OK;
    if (json_is_string(schema)) { /* a schema as text */
        buf text = BUF_INIT;
        json_str_bytes(schema, &text);
        rc = json_parse(buf_cstr(&text), text.len, NULL, &parsed, e);
        buf_release(&text);
        schema = parsed;
    }
    if (rc == OK) rc = grammar_from_schema(t, schema, &o, out, e);
    json_free(parsed);
    return rc;
}

static int compile_one(const compile *c, const token_trie *t, grammar **out, err *e) {
    const gen_params *p = c->p;
    if (c->is_calls) {
        tools_options o = {.tools = p->tools,
            .names = p->n_callable > 0 ? p->callable : NULL,
            .n_names = p->n_callable,
            .is_required = p->must_call,
            .is_single = p->is_single_call};
        return grammar_from_tools(t, c->a->options.tokenizer, &o, out, e);
    }
    switch (p->constraint) {
    case CONSTRAINT_OBJECT:
        return grammar_from_json_object(t, out, e);
    case CONSTRAINT_SCHEMA:
        return compile_schema(t, p, out, e);
    case CONSTRAINT_REGEX:
        return grammar_from_regex(t, json_str(p->constraint_value), out, e);
    case CONSTRAINT_CHOICE:
        return grammar_from_choice(t, p->constraint_value, out, e);
    case CONSTRAINT_EBNF:
        return grammar_from_ebnf(t, json_str(p->constraint_value), out, e);
    case CONSTRAINT_NONE:
        break;
    }
    return err_set(e, ERR_INTERNAL, "nothing to compile");
}

/* What the compiled form depends on, as text. */
static void key_of(const compile *c, buf *key) {
    const gen_params *p = c->p;
    if (!c->is_calls) {
        buf_printf(key, "v%d%d ", (int)p->constraint, p->is_strict);
        if (p->constraint_value != NULL) json_print_compact(p->constraint_value, key);
        return;
    }
    buf_printf(key, "c%d%d ", p->must_call, p->is_single_call);
    for (size_t i = 0; i < p->n_callable; i++) {
        buf_printf(key, "%s\n", p->callable[i]);
    }
    json_print_compact(p->tools, key);
}

static int get_grammar(const compile *c, grammar **out, api_error *e) {
    constraint_store *s = c->a->constraints;
    buf key = BUF_INIT;
    err why = ERR_INIT;
    int rc = OK;
    key_of(c, &key);
    pthread_mutex_lock(&s->lock);
    if (s->trie == NULL) rc = token_trie_new(c->a->options.tokenizer, &s->trie, &why);
    *out = rc == OK ? find_locked(s, &key) : NULL;
    const token_trie *trie = s->trie;
    pthread_mutex_unlock(&s->lock);
    if (rc == OK && *out == NULL) {
        uint64_t start = clock_mono_ns();
        rc = compile_one(c, trie, out, &why);
        metric_observe(c->a->metrics.grammar_compile, (double)(clock_mono_ns() - start) / 1e9);
        if (rc == OK) {
            pthread_mutex_lock(&s->lock);
            keep_locked(s, &key, *out);
            pthread_mutex_unlock(&s->lock);
        }
    }
    buf_release(&key);
    return rc == OK ? OK : fail_compile(c->field, &why, e);
}

int params_compile(api *a, gen_params *p, bool has_tools, api_error *e) {
    compile c = {.a = a, .p = p, .field = p->constraint_field};
    int rc = OK;
    if (p->constraint != CONSTRAINT_NONE && !(has_tools && p->must_call)) {
        rc = get_grammar(&c, &p->value, e);
    }
    if (rc == OK && has_tools && p->tools != NULL) {
        c.is_calls = true;
        c.field = p->is_legacy ? "functions" : "tools";
        rc = get_grammar(&c, &p->calls, e);
    }
    return rc;
}
