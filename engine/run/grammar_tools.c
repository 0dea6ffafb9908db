/* The grammar of tool calls (api.md 8, chat.md 4.3): the tags are fixed text with one control
 * token each, names are the offered ones, parameters are an object written as tags. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/run/grammar_trie.h"
#include "engine/run/schema_internal.h"

typedef struct tools_job {
    grammar *g;
    const token_trie *t;
    const tools_options *o;
    err *e;
    uint32_t names;   /* rule: one alternative for each tool and kind of parameters */
    uint32_t n_tools; /* taken */
    uint32_t any;     /* automaton of all texts + 1; 0: not made */
    buf only;         /* name of the last tool taken */
} tools_job;

static int add_term(tools_job *j, const char *text, size_t len, rule_item *out) {
    dfa_word word = {text, len};
    dfa *d;
    int rc = dfa_from_words(&word, 1, &d, j->e);
    if (rc == OK) *out = (rule_item){ITEM_TERM, grammar_add_dfa(j->g, d)};
    return rc;
}

static int add_text_term(tools_job *j, const char *text, rule_item *out) {
    return add_term(j, text, strlen(text), out);
}

static rule_item mark(const tools_job *j) {
    return (rule_item){ITEM_TOKEN, (uint32_t)j->t->dsml};
}

/* Gives a rule its alternatives, which lie side by side. */
static void set_rule(grammar *g, uint32_t rule_index, uint32_t first, uint32_t n) {
    g->rules[rule_index].first = first;
    g->rules[rule_index].n = n;
}

/* The name as the prompt writes it: NAMESPACE::NAME. */
static int printed_name(const json *tool, const json *function, buf *out) {
    const json *space = json_get(function, "namespace");
    if (space == NULL) space = json_get(tool, "namespace");
    if (json_is_object(space)) space = json_get(space, "name");
    const char *name = json_str(json_get(function, "name")), *prefix = json_str(space);
    if (name == NULL) return ERR_FORMAT;
    if (prefix != NULL && prefix[0] != 0 && strstr(name, "::") == NULL) {
        int rc = buf_printf(out, "%s::", prefix);
        if (rc != OK) return rc;
    }
    return buf_puts(out, name);
}

static bool is_chosen(const tools_options *o, const char *printed, const char *plain) {
    if (o->names == NULL) return true;
    for (size_t i = 0; i < o->n_names; i++) {
        if (strcmp(o->names[i], printed) == 0 || strcmp(o->names[i], plain) == 0) return true;
    }
    return false;
}

/* A name is required that no property declares: the object is open then, or nothing could fulfil it. */
static bool requires_undeclared(const json *schema) {
    const json *properties = json_get(schema, "properties");
    const json *required = json_get(schema, "required");
    if (!json_is_array(required)) return false;
    JSON_EACH(item, required) {
        const char *name = json_str(item);
        if (name != NULL && json_get(properties, name) == NULL) return true;
    }
    return false;
}

/* Only what the tags show: names, required ones, and plain types. */
static void write_loose(json_w *w, const json *schema) {
    const json *others = json_get(schema, "additionalProperties");
    const json *properties = json_get(schema, "properties");
    json_w_object(w);
    json_w_kstr(w, "type", "object");
    json_w_key(w, "properties");
    json_w_object(w);
    JSON_EACH(item, properties) {
        const json *type = json_get(item, "type");
        json_w_key(w, json_key(item));
        json_w_object(w);
        if (type != NULL && grammar_knows_type(type)) {
            json_w_key(w, "type");
            json_w_value(w, type);
            if (json_is_true(json_get(item, "nullable"))) json_w_kbool(w, "nullable", true);
        }
        json_w_close(w);
    }
    json_w_close(w);
    json_w_key(w, "required");
    json_w_array(w);
    JSON_EACH(name, json_get(schema, "required")) {
        if (json_is_string(name)) json_w_value(w, name);
    }
    json_w_close(w);
    bool is_plain = json_get(schema, "$ref") == NULL && json_get(schema, "allOf") == NULL &&
                    json_get(schema, "anyOf") == NULL && json_get(schema, "oneOf") == NULL &&
                    json_get(schema, "patternProperties") == NULL && !requires_undeclared(schema);
    bool is_open = others != NULL ? !json_is_bool(others) || json_is_true(others) : !is_plain;
    json_w_kbool(w, "additionalProperties", is_open);
    json_w_close(w);
}

/* The schema itself; a plain list of properties is closed unless it says otherwise. */
static void write_whole(json_w *w, const json *schema) {
    static const char *const opens[] = {"additionalProperties", "unevaluatedProperties",
        "patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"};
    bool is_closed = !requires_undeclared(schema);
    for (size_t i = 0; i < sizeof opens / sizeof *opens; i++) {
        is_closed = is_closed && json_get(schema, opens[i]) == NULL;
    }
    json_w_object(w);
    JSON_EACH(item, schema) {
        json_w_key(w, json_key(item));
        json_w_value(w, item);
    }
    if (is_closed) json_w_kbool(w, "additionalProperties", false);
    json_w_close(w);
}

static int make_schema(tools_job *j, const json *function, bool is_strict, json **out) {
    static const char none[] = "{\"type\":\"object\",\"additionalProperties\":false}";
    const json *schema = json_get(function, "parameters");
    if (schema == NULL) schema = json_get(function, "input_schema");
    if (!json_is_object(schema) || json_count(schema) == 0) {
        return json_parse(none, sizeof none - 1, NULL, out, j->e);
    }
    buf text = BUF_INIT;
    json_w w;
    json_w_begin(&w, &text);
    if (is_strict) {
        write_whole(&w, schema);
    } else {
        write_loose(&w, schema);
    }
    int rc = json_w_end(&w);
    if (rc == OK) rc = json_parse(text.data, text.len, NULL, out, j->e);
    buf_release(&text);
    return rc;
}

/* Raw text with limits is walked with an automaton, which then must be there. */
static int limit_texts(tools_job *j, uint32_t value) {
    const value_node *v = &j->g->values[value];
    for (uint32_t i = 0; i < v->n_choices; i++) {
        if (v->choices[i].kind != VALUE_STRING) continue;
        string_node *n = &j->g->strings[v->choices[i].index];
        if (n->content != NULL || (n->min == 0 && n->max == GRAMMAR_NO_LIMIT)) continue;
        if (j->any == 0) {
            dfa *d;
            int rc = dfa_any(&d, j->e);
            if (rc != OK) return rc;
            j->any = grammar_add_dfa(j->g, d) + 1;
        }
        n->content = j->g->dfas[j->any - 1];
    }
    return OK;
}

static bool can_be_written(const key_name *k) {
    for (uint32_t i = 0; i < k->len; i++) {
        if ((uint8_t)k->text[i] < 0x20 || k->text[i] == '"') return false;
    }
    return true;
}

static int make_tagged(tools_job *j, uint32_t object) {
    object_node *o = &j->g->objects[object];
    o->is_tagged = true;
    for (uint32_t i = 0; i < o->n_names; i++) {
        if (o->names[i].value == 0) continue;
        if (!can_be_written(&o->names[i])) {
            return err_set(j->e, ERR_UNSUPPORTED,
                "a parameter name with a quote or a control character cannot be written");
        }
        int rc = limit_texts(j, o->names[i].value);
        if (rc != OK) return rc;
    }
    for (uint32_t i = 0; i < o->n_classes; i++) {
        int rc = limit_texts(j, o->classes[i].value);
        if (rc != OK) return rc;
    }
    return OK;
}

/* A tool whose schema is compiled: its place among the values, and its opening tag. */
typedef struct tool_entry {
    uint32_t value;
    rule_item tag;
} tool_entry;

static int compile_tool(tools_job *j, const json *tool, size_t i, tool_entry *out) {
    const json *function = json_get(tool, "function");
    if (function == NULL) function = tool;
    bool is_strict = j->o->is_required || json_is_true(json_get(function, "strict")) ||
                     json_is_true(json_get(tool, "strict"));
    json *schema = NULL;
    buf tag = BUF_INIT;
    schema_options options = {.is_any_order = true};
    int rc = make_schema(j, function, is_strict, &schema);
    if (rc == OK) rc = schema_into(j->g, schema, &options, &out->value, j->e);
    json_free(schema);
    if (rc != OK && j->e != NULL) {
        char place[sizeof j->e->place];
        (void)snprintf(place, sizeof place, "tools[%zu].function.parameters%.60s", i, j->e->place);
        str_copy(j->e->place, sizeof j->e->place, place);
    }
    if (rc == OK) rc = buf_printf(&tag, " invoke name=\"%s\">\n", buf_cstr(&j->only));
    if (rc == OK) rc = add_text_term(j, buf_cstr(&tag), &out->tag);
    buf_release(&tag);
    return rc;
}

static int read_tools(tools_job *j, tool_entry *entries) {
    size_t i = 0;
    JSON_EACH(tool, j->o->tools) {
        const json *function = json_get(tool, "function");
        const char *type = json_str(json_get(tool, "type"));
        bool is_foreign = type != NULL && strcmp(type, "function") != 0 && function == NULL;
        if (is_foreign) { /* another vendor's built-in tool; it is not in the prompt either */
            i++;
            continue;
        }
        buf name = BUF_INIT;
        int rc = printed_name(tool, function != NULL ? function : tool, &name);
        const char *plain = json_str(json_get(function != NULL ? function : tool, "name"));
        if (rc == OK && is_chosen(j->o, buf_cstr(&name), plain)) {
            buf_reset(&j->only);
            rc = buf_append(&j->only, name.data, name.len);
            if (rc == OK) rc = compile_tool(j, tool, i, &entries[j->n_tools++]);
        } else if (rc == ERR_FORMAT) {
            rc = err_set(j->e, rc, "tools[%zu] has no name", i);
        }
        buf_release(&name);
        if (rc != OK) return rc;
        i++;
    }
    return j->n_tools > 0 ? OK : err_set(j->e, ERR_ARG, "no tool to call");
}

/* The rule of names: an alternative for each kind of object of each tool. */
static int build_names(tools_job *j, const tool_entry *entries) {
    grammar *g = j->g;
    uint32_t first = g->n_alternatives;
    for (uint32_t i = 0; i < j->n_tools; i++) {
        uint32_t n_objects = 0;
        for (uint32_t k = 0; k < g->values[entries[i].value].n_choices; k++) {
            value_choice x = g->values[entries[i].value].choices[k];
            if (x.kind != VALUE_OBJECT) continue;
            int rc = make_tagged(j, x.index);
            if (rc != OK) return rc;
            const rule_item items[] = {entries[i].tag, {ITEM_PARAMETERS, x.index}};
            grammar_add_alternative(g, items, 2);
            n_objects++;
        }
        if (n_objects == 0) {
            return err_set(j->e, ERR_ARG, "tool %u: no parameters can fulfil its schema", i);
        }
    }
    set_rule(g, j->names, first, g->n_alternatives - first);
    return OK;
}

/* From behind the first mark to the end. */
static int build_block(tools_job *j) {
    grammar *g = j->g;
    uint32_t invokes = grammar_add_rule(g), tail = grammar_add_rule(g);
    uint32_t root = grammar_add_rule(g);
    rule_item head, less, close, end, line, opener;
    int rc = add_text_term(j, " calls>\n", &head);
    if (rc == OK) rc = add_text_term(j, "<", &less);
    if (rc == OK) rc = add_text_term(j, "</", &close);
    if (rc == OK) rc = add_text_term(j, " calls>", &end);
    if (rc == OK) rc = add_text_term(j, "\n", &line);
    if (rc == OK) rc = add_text_term(j, "\n\n<", &opener);
    if (rc != OK) return rc;
    const rule_item invoke[] = {less, mark(j), {ITEM_RULE, j->names}, line, {ITEM_RULE, tail}};
    set_rule(g, invokes, grammar_add_alternative(g, invoke, 5), 1);
    const rule_item finish[] = {close, mark(j), end}, again[] = {{ITEM_RULE, invokes}};
    uint32_t first = grammar_add_alternative(g, finish, 3);
    if (!j->o->is_single) grammar_add_alternative(g, again, 1);
    set_rule(g, tail, first, j->o->is_single ? 1 : 2);
    const rule_item whole[] = {opener, mark(j), head, {ITEM_RULE, invokes}};
    uint32_t skip = j->o->is_required ? 0 : 2;
    set_rule(g, root, grammar_add_alternative(g, whole + skip, 4 - skip), 1);
    g->root = (rule_item){ITEM_RULE, root};
    return OK;
}

/* The tokens that a forced call begins with. */
static int build_opening(tools_job *j, const tokenizer *tk) {
    size_t len;
    const char *mark_text = tokenizer_bytes(tk, j->t->dsml, &len);
    buf text = BUF_INIT;
    token_list ids = {0};
    if (!j->o->is_required) return OK;
    int rc = buf_printf(
        &text, "\n\n<%.*s calls>\n<%.*s invoke name=\"", (int)len, mark_text, (int)len, mark_text);
    if (rc == OK && j->n_tools == 1) rc = buf_printf(&text, "%s\">\n", buf_cstr(&j->only));
    /* The name is the client's text, but no control token can begin or end inside the tag. */
    text_span span = {.text = buf_cstr(&text), .len = text.len, .is_template = true};
    if (rc == OK) rc = tokenizer_encode(tk, span, &ids, j->e);
    if (rc == OK) {
        j->g->opening = mem_array(ids.len + 1, sizeof *j->g->opening);
        memcpy(j->g->opening, ids.ids, ids.len * sizeof *ids.ids);
        j->g->n_opening = (uint32_t)ids.len;
    }
    token_list_release(&ids);
    buf_release(&text);
    return rc;
}

int grammar_from_tools(
    const token_trie *t, const tokenizer *tk, const tools_options *o, grammar **out, err *e) {
    size_t n = json_count(o->tools);
    if (t->dsml < 0) return err_set(e, ERR_UNSUPPORTED, "the vocabulary has no token for calls");
    tools_job j = {.g = grammar_begin(t), .t = t, .o = o, .e = e, .only = BUF_INIT};
    tool_entry *entries = mem_array(n + 1, sizeof *entries);
    j.names = grammar_add_rule(j.g);
    int rc = read_tools(&j, entries);
    if (rc == OK) schema_prune(j.g);
    if (rc == OK) rc = build_names(&j, entries);
    if (rc == OK) rc = build_block(&j);
    if (rc == OK) rc = build_opening(&j, tk);
    mem_free(entries);
    buf_release(&j.only);
    if (rc != OK) {
        grammar_put(j.g);
        return rc;
    }
    grammar_prepare_masks(j.g);
    *out = j.g;
    return OK;
}
