/* EBNF in the form of GBNF: NAME ::= alternatives of literals, character classes, names and groups,
 * each with ? * + {m} {m,} {m,n}. A literal or class with its repeat becomes one automaton; other
 * repeats become rules. One pass with a stack of open groups. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/run/grammar_internal.h"

#define EBNF_MAX_BYTES ((size_t)1 << 20)
#define EBNF_GROUPS_MAX 64
#define EBNF_REPEAT_MAX 1000
#define EBNF_SIZE_MAX 50000 /* items and automata together */

/* A sequence or a list of alternatives in the making. */
typedef struct item_list {
    rule_item *at;
    uint32_t n, cap;
} item_list;

typedef struct open_group {
    uint32_t rule;    /* becomes its alternatives */
    item_list *lists; /* alternatives so far */
    uint32_t n_lists, cap_lists;
} open_group;

typedef struct ebnf {
    grammar *g;
    const char *text, *p, *end;
    struct {
        const char *name;
        uint32_t len, rule;
        bool is_defined;
    } * names;
    uint32_t n_names, cap_names;
    open_group stack[EBNF_GROUPS_MAX];
    uint32_t depth;
    buf pattern; /* of the terminal being read */
    err *e;
} ebnf;

static int fail(ebnf *x, int code, const char *what) {
    int line = 1;
    for (const char *p = x->text; p < x->p; p++)
        line += *p == '\n';
    return err_set(x->e, code, "grammar line %d: %s", line, what);
}

static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static const char *skip_space(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r' || *p == '#')) {
        if (*p == '#') {
            while (p < end && *p != '\n')
                p++;
        } else {
            p++;
        }
    }
    return p;
}

/* The end of a name at p, or p. */
static const char *name_end(const char *p, const char *end) {
    while (p < end && is_name_char(*p))
        p++;
    return p;
}

static bool is_definition(const char *p, const char *end) {
    const char *after = name_end(p, end);
    if (after == p) return false;
    while (after < end && (*after == ' ' || *after == '\t'))
        after++;
    return end - after >= 3 && memcmp(after, "::=", 3) == 0;
}

static uint32_t name_entry(ebnf *x, const char *name, size_t len) {
    for (uint32_t i = 0; i < x->n_names; i++) {
        if (x->names[i].len == len && memcmp(x->names[i].name, name, len) == 0) return i;
    }
    if (x->n_names == x->cap_names) {
        x->cap_names = x->cap_names == 0 ? 32 : x->cap_names * 2;
        x->names = mem_realloc(x->names, x->cap_names * sizeof *x->names);
    }
    x->names[x->n_names].name = name;
    x->names[x->n_names].len = (uint32_t)len;
    x->names[x->n_names].rule = grammar_add_rule(x->g);
    x->names[x->n_names].is_defined = false;
    return x->n_names++;
}

static void list_append(item_list *l, rule_item item) {
    if (l->n == l->cap) {
        l->cap = l->cap == 0 ? 8 : l->cap * 2;
        l->at = mem_realloc(l->at, l->cap * sizeof *l->at);
    }
    l->at[l->n++] = item;
}

static item_list *current(ebnf *x) {
    open_group *o = &x->stack[x->depth - 1];
    return &o->lists[o->n_lists - 1];
}

static void begin_alternative(open_group *o) {
    if (o->n_lists == o->cap_lists) {
        o->cap_lists = o->cap_lists == 0 ? 4 : o->cap_lists * 2;
        o->lists = mem_realloc(o->lists, o->cap_lists * sizeof *o->lists);
    }
    o->lists[o->n_lists++] = (item_list){0};
}

static int begin_group(ebnf *x, uint32_t rule_index) {
    if (x->depth == EBNF_GROUPS_MAX) return fail(x, ERR_LIMIT, "groups nested too deep");
    x->stack[x->depth] = (open_group){.rule = rule_index};
    begin_alternative(&x->stack[x->depth++]);
    return OK;
}

static void release_group(open_group *o) {
    for (uint32_t i = 0; i < o->n_lists; i++)
        mem_free(o->lists[i].at);
    mem_free(o->lists);
}

/* The newest group's alternatives become its rule. */
static void end_group(ebnf *x) {
    open_group *o = &x->stack[--x->depth];
    uint32_t first = x->g->n_alternatives;
    for (uint32_t i = 0; i < o->n_lists; i++) {
        grammar_add_alternative(x->g, o->lists[i].at, o->lists[i].n);
    }
    x->g->rules[o->rule].first = first;
    x->g->rules[o->rule].n = o->n_lists;
    release_group(o);
}

static uint32_t rule_of(
    grammar *g, const rule_item *a, uint32_t n_a, const rule_item *b, uint32_t n_b) {
    uint32_t r = grammar_add_rule(g);
    g->rules[r].first = grammar_add_alternative(g, a, n_a);
    grammar_add_alternative(g, b, n_b);
    g->rules[r].n = 2;
    return r;
}

/* item repeated without upper limit, perhaps not at all. */
static rule_item star_of(grammar *g, rule_item item) {
    uint32_t r = grammar_add_rule(g);
    const rule_item more[] = {item, {ITEM_RULE, r}};
    g->rules[r].first = grammar_add_alternative(g, more, 2);
    grammar_add_alternative(g, NULL, 0);
    g->rules[r].n = 2;
    return (rule_item){ITEM_RULE, r};
}

static bool take_count(ebnf *x, int64_t *out) {
    const char *start = x->p;
    int64_t v = 0;
    while (x->p < x->end && *x->p >= '0' && *x->p <= '9' && v <= EBNF_REPEAT_MAX) {
        v = v * 10 + (*x->p++ - '0');
    }
    *out = v;
    return x->p > start;
}

/* The repeat behind an item; 1 to 1 when there is none. max -1: no limit. */
static int take_repeat(ebnf *x, int64_t *min, int64_t *max) {
    *min = *max = 1;
    if (x->p >= x->end) return OK;
    switch (*x->p) {
    case '?':
        *min = 0;
        break;
    case '*':
        *min = 0, *max = -1;
        break;
    case '+':
        *max = -1;
        break;
    case '{':
        x->p++;
        if (!take_count(x, min)) return fail(x, ERR_FORMAT, "a count is needed in { }");
        *max = *min;
        if (x->p < x->end && *x->p == ',') {
            x->p++;
            if (!take_count(x, max)) *max = -1;
        }
        if (x->p >= x->end || *x->p != '}') return fail(x, ERR_FORMAT, "{ is not closed");
        if (*max >= 0 && *max < *min) return fail(x, ERR_FORMAT, "counts out of order in { }");
        break;
    default:
        return OK;
    }
    x->p++;
    if (*min > EBNF_REPEAT_MAX || *max > EBNF_REPEAT_MAX) {
        return fail(x, ERR_LIMIT, "a repeat above 1,000");
    }
    return OK;
}

static int add_repeated(ebnf *x, rule_item item, int64_t min, int64_t max) {
    item_list *l = current(x);
    for (int64_t i = 0; i < min; i++)
        list_append(l, item);
    if (max < 0) list_append(l, star_of(x->g, item));
    rule_item rest = {ITEM_END, 0};
    for (int64_t i = min; i < max; i++) { /* (item (item (...)?)?)? */
        const rule_item some[] = {item, rest};
        rest = (rule_item){ITEM_RULE, rule_of(x->g, some, rest.kind == ITEM_END ? 1 : 2, NULL, 0)};
    }
    if (rest.kind != ITEM_END) list_append(l, rest);
    if (x->g->n_items + x->g->n_dfas > EBNF_SIZE_MAX) return fail(x, ERR_LIMIT, "too large");
    return OK;
}

/* One character of a literal as the same character of a regular expression. */
static int pattern_char(ebnf *x, uint32_t cp) {
    return buf_printf(&x->pattern, "\\u{%x}", cp);
}

static int hex_escape(ebnf *x, int n) {
    unsigned v = 0;
    char digits[9] = {0};
    if (x->end - x->p < n) return fail(x, ERR_FORMAT, "an escape is cut off");
    memcpy(digits, x->p, (size_t)n);
    if ((int)strspn(digits, "0123456789abcdefABCDEF") != n || sscanf(digits, "%x", &v) != 1 ||
        v > 0x10FFFF || (v >= 0xD800 && v < 0xE000)) {
        return fail(x, ERR_FORMAT, "an escape that is no character");
    }
    x->p += n;
    return pattern_char(x, v);
}

/* A character of a literal or class, escapes undone, appended to the pattern. */
static int take_char(ebnf *x) {
    uint32_t cp;
    if (*x->p != '\\') {
        x->p += utf8_decode(x->p, (size_t)(x->end - x->p), &cp);
        if (cp == UTF8_INVALID) return fail(x, ERR_FORMAT, "bytes that are not UTF-8");
        return pattern_char(x, cp);
    }
    if (x->end - x->p < 2) return fail(x, ERR_FORMAT, "a backslash at the end");
    char c = x->p[1];
    x->p += 2;
    switch (c) {
    case 'n':
        return pattern_char(x, '\n');
    case 'r':
        return pattern_char(x, '\r');
    case 't':
        return pattern_char(x, '\t');
    case 'x':
        return hex_escape(x, 2);
    case 'u':
        return hex_escape(x, 4);
    case 'U':
        return hex_escape(x, 8);
    default:
        if (strchr("\"'\\[]-^/", c) == NULL || c == 0) return fail(x, ERR_FORMAT, "unknown escape");
        return pattern_char(x, (uint32_t)c);
    }
}

static int take_literal(ebnf *x) {
    char quote = *x->p++;
    int rc = buf_puts(&x->pattern, "(?:");
    while (rc == OK && x->p < x->end && *x->p != quote)
        rc = take_char(x);
    if (rc == OK && x->p >= x->end) rc = fail(x, ERR_FORMAT, "a literal is not closed");
    x->p++;
    return rc == OK ? buf_puts(&x->pattern, ")") : rc;
}

static int take_class(ebnf *x) {
    x->p++;
    int rc = buf_puts(&x->pattern, "[");
    if (rc == OK && x->p < x->end && *x->p == '^') {
        rc = buf_puts(&x->pattern, "^");
        x->p++;
    }
    while (rc == OK && x->p < x->end && *x->p != ']') {
        rc = take_char(x);
        if (rc == OK && x->end - x->p >= 2 && *x->p == '-' && x->p[1] != ']') {
            rc = buf_puts(&x->pattern, "-");
            x->p++;
            if (rc == OK) rc = take_char(x);
        }
    }
    if (rc == OK && x->p >= x->end) rc = fail(x, ERR_FORMAT, "a class is not closed");
    x->p++;
    return rc == OK ? buf_puts(&x->pattern, "]") : rc;
}

/* A literal, class or point with its repeat. */
static int take_terminal(ebnf *x) {
    int64_t min, max;
    dfa *d;
    int rc = OK;
    buf_reset(&x->pattern);
    if (*x->p == '"' || *x->p == '\'') {
        rc = take_literal(x);
    } else if (*x->p == '[') {
        rc = take_class(x);
    } else {
        x->p++;
        rc = buf_puts(&x->pattern, "[^]");
    }
    if (rc == OK) rc = take_repeat(x, &min, &max);
    if (rc != OK) return rc;
    rc = max < 0 ? buf_printf(&x->pattern, "{%d,}", (int)min)
                 : buf_printf(&x->pattern, "{%d,%d}", (int)min, (int)max);
    if (rc == OK) rc = dfa_from_regex(x->pattern.data, x->pattern.len, REGEX_WHOLE, &d, x->e);
    if (rc != OK) return rc;
    return add_repeated(x, (rule_item){ITEM_TERM, grammar_add_dfa(x->g, d)}, 1, 1);
}

static int take_item(ebnf *x) {
    int64_t min, max;
    const char *after = name_end(x->p, x->end);
    if (*x->p == '(') {
        x->p++;
        return begin_group(x, grammar_add_rule(x->g));
    }
    if (*x->p == ')') {
        if (x->depth < 2) return fail(x, ERR_FORMAT, "a ) without a (");
        rule_item item = {ITEM_RULE, x->stack[x->depth - 1].rule};
        end_group(x);
        x->p++;
        int rc = take_repeat(x, &min, &max);
        return rc == OK ? add_repeated(x, item, min, max) : rc;
    }
    if (*x->p == '|') {
        begin_alternative(&x->stack[x->depth - 1]);
        x->p++;
        return OK;
    }
    if (after > x->p) {
        uint32_t i = name_entry(x, x->p, (size_t)(after - x->p));
        x->p = after;
        int rc = take_repeat(x, &min, &max);
        return rc == OK ? add_repeated(x, (rule_item){ITEM_RULE, x->names[i].rule}, min, max) : rc;
    }
    if (strchr("\"'[.", *x->p) == NULL) return fail(x, ERR_FORMAT, "unexpected character");
    return take_terminal(x);
}

static int take_rule(ebnf *x) {
    const char *after = name_end(x->p, x->end);
    if (!is_definition(x->p, x->end)) return fail(x, ERR_FORMAT, "NAME ::= is needed");
    uint32_t i = name_entry(x, x->p, (size_t)(after - x->p));
    if (x->names[i].is_defined) return fail(x, ERR_FORMAT, "a rule is defined twice");
    x->names[i].is_defined = true;
    x->p = strstr(after, "::=") + 3;
    int rc = begin_group(x, x->names[i].rule);
    for (;;) {
        x->p = skip_space(x->p, x->end);
        if (rc != OK || x->p >= x->end || is_definition(x->p, x->end)) break;
        rc = take_item(x);
    }
    if (rc == OK && x->depth != 1) rc = fail(x, ERR_FORMAT, "a ( is not closed");
    if (rc == OK) end_group(x);
    return rc;
}

typedef bool (*item_test)(const grammar *g, rule_item item, const uint8_t *known);

static bool is_empty_item(const grammar *g, rule_item item, const uint8_t *known) {
    if (item.kind == ITEM_RULE) return known[item.index] != 0;
    return g->dfas[item.index]->accepts[g->dfas[item.index]->start] != 0;
}

static bool is_productive_item(const grammar *g, rule_item item, const uint8_t *known) {
    if (item.kind == ITEM_RULE) return known[item.index] != 0;
    return g->dfas[item.index]->start != 0;
}

static bool all_items(const grammar *g, uint32_t first, item_test test, const uint8_t *known) {
    for (uint32_t i = first; g->items[i].kind != ITEM_END; i++) {
        if (!test(g, g->items[i], known)) return false;
    }
    return true;
}

/* Rules with an alternative all of whose items pass, by repeating. The caller frees it. */
static uint8_t *find_rules(const grammar *g, item_test test) {
    uint8_t *known = mem_alloc(g->n_rules + 1);
    for (bool has_changed = true; has_changed;) {
        has_changed = false;
        for (uint32_t r = 0; r < g->n_rules; r++) {
            for (uint32_t k = 0; k < g->rules[r].n && !known[r]; k++) {
                if (!all_items(g, g->alternatives[g->rules[r].first + k], test, known)) continue;
                known[r] = 1;
                has_changed = true;
            }
        }
    }
    return known;
}

/* A rule that can begin with itself would never come to its first byte: rules are taken away while
 * all that they can begin with are gone; what is left goes in a circle. */
static bool has_left_recursion(const grammar *g, const uint8_t *empty) {
    uint8_t *gone = mem_alloc(g->n_rules + 1);
    uint32_t n_gone = 0;
    for (bool has_changed = true; has_changed;) {
        has_changed = false;
        for (uint32_t r = 0; r < g->n_rules; r++) {
            bool waits = gone[r] != 0;
            for (uint32_t k = 0; k < g->rules[r].n && !waits; k++) {
                uint32_t i = g->alternatives[g->rules[r].first + k];
                for (; g->items[i].kind != ITEM_END && !waits; i++) {
                    waits = g->items[i].kind == ITEM_RULE && !gone[g->items[i].index];
                    if (!is_empty_item(g, g->items[i], empty)) break;
                }
            }
            if (waits) continue;
            gone[r] = 1;
            n_gone++;
            has_changed = true;
        }
    }
    mem_free(gone);
    return n_gone < g->n_rules;
}

/* Alternatives that can never be finished are taken out of their rules. */
static void keep_productive(grammar *g, const uint8_t *productive) {
    for (uint32_t r = 0; r < g->n_rules; r++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < g->rules[r].n; k++) {
            uint32_t at = g->alternatives[g->rules[r].first + k];
            if (!all_items(g, at, is_productive_item, productive)) continue;
            g->alternatives[g->rules[r].first + n++] = at;
        }
        g->rules[r].n = n;
    }
}

static int finish(ebnf *x) {
    grammar *g = x->g;
    uint32_t root = UINT32_MAX;
    for (uint32_t i = 0; i < x->n_names; i++) {
        if (!x->names[i].is_defined) {
            return err_set(x->e, ERR_FORMAT, "grammar: the rule '%.*s' does not exist",
                (int)(x->names[i].len > 100 ? 100 : x->names[i].len), x->names[i].name);
        }
        if (x->names[i].len == 4 && memcmp(x->names[i].name, "root", 4) == 0) {
            root = x->names[i].rule;
        }
    }
    if (root == UINT32_MAX) return err_set(x->e, ERR_FORMAT, "grammar: there is no rule 'root'");
    uint8_t *productive = find_rules(g, is_productive_item);
    keep_productive(g, productive);
    uint8_t *empty = find_rules(g, is_empty_item);
    bool is_endless = has_left_recursion(g, empty);
    bool is_void = !productive[root];
    mem_free(productive);
    mem_free(empty);
    if (is_void) return err_set(x->e, ERR_ARG, "grammar: no text can match 'root'");
    if (is_endless) {
        return err_set(x->e, ERR_UNSUPPORTED,
            "grammar: a rule begins with itself (left recursion, or a repeat of something empty)");
    }
    g->root = (rule_item){ITEM_RULE, root};
    return OK;
}

int grammar_from_ebnf(const token_trie *t, const char *text, grammar **out, err *e) {
    ebnf *x = mem_alloc(sizeof *x);
    *x = (ebnf){.g = grammar_begin(t), .text = text, .p = text, .e = e, .pattern = BUF_INIT};
    x->end = text + strlen(text);
    int rc = OK;
    if (strlen(text) > EBNF_MAX_BYTES) rc = fail(x, ERR_LIMIT, "larger than 1 MiB");
    x->p = skip_space(x->p, x->end);
    while (rc == OK && x->p < x->end) {
        rc = take_rule(x);
        x->p = skip_space(x->p, x->end);
    }
    if (rc == OK) rc = finish(x);
    while (x->depth > 0)
        release_group(&x->stack[--x->depth]);
    grammar *g = x->g;
    mem_free(x->names);
    buf_release(&x->pattern);
    mem_free(x);
    if (rc != OK) {
        grammar_put(g);
        return rc;
    }
    grammar_prepare_masks(g);
    *out = g;
    return OK;
}
