/* Regular expressions to a nondeterministic automaton: one pass with a stack of open groups, no
 * recursion. A repeated piece is copied: its states lie in one stretch. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/run/grammar_dfa.h"
#include "engine/run/grammar_regex_class.h"

#define REGEX_MAX_GROUPS 64
#define REGEX_MAX_REPEAT 100000

typedef struct group {
    uint32_t first;      /* index of the first state of the group */
    uint32_t alt[2];     /* alternatives finished so far; NFA_NONE: none */
    uint32_t seq[2];     /* the current alternative */
    uint32_t atom_first; /* first state of the newest piece */
    uint32_t atom[2];    /* the newest piece, not yet joined; NFA_NONE: none */
} group;

typedef struct regex {
    const char *p, *end, *text;
    nfa *n;
    group stack[REGEX_MAX_GROUPS];
    int depth;
    err *e;
} regex;

static void fragment_empty(nfa *n, uint32_t ends[2]) {
    ends[0] = ends[1] = nfa_add(n, (nfa_state){.kind = NFA_SPLIT, .a = NFA_NONE, .b = NFA_NONE});
}

static void fragment_join(nfa *n, uint32_t left[2], const uint32_t right[2]) {
    n->states[left[1]].a = right[0];
    left[1] = right[1];
}

static void group_begin(regex *r) {
    group *g = &r->stack[r->depth];
    g->first = (uint32_t)r->n->len;
    g->alt[0] = g->alt[1] = NFA_NONE;
    g->atom[0] = g->atom[1] = NFA_NONE;
    fragment_empty(r->n, g->seq);
}

static void atom_join(regex *r) {
    group *g = &r->stack[r->depth];
    if (g->atom[0] == NFA_NONE) return;
    fragment_join(r->n, g->seq, g->atom);
    g->atom[0] = g->atom[1] = NFA_NONE;
}

static void atom_set(regex *r, uint32_t first, const uint32_t ends[2]) {
    group *g = &r->stack[r->depth];
    g->atom_first = first;
    g->atom[0] = ends[0];
    g->atom[1] = ends[1];
}

/* Ends the current alternative of the group. */
static void group_alternative(regex *r) {
    group *g = &r->stack[r->depth];
    atom_join(r);
    if (g->alt[0] == NFA_NONE) {
        memcpy(g->alt, g->seq, sizeof g->alt);
    } else {
        nfa_state *s = r->n->states;
        uint32_t split =
            nfa_add(r->n, (nfa_state){.kind = NFA_SPLIT, .a = g->alt[0], .b = g->seq[0]});
        uint32_t end[2];
        fragment_empty(r->n, end);
        s = r->n->states;
        s[g->alt[1]].a = end[0];
        s[g->seq[1]].a = end[0];
        g->alt[0] = split;
        g->alt[1] = end[1];
    }
}

/* Copies the states [first, n->len) of a piece. */
static void fragment_copy(
    nfa *n, uint32_t first, uint32_t last, const uint32_t from[2], uint32_t to[2]) {
    uint32_t shift = (uint32_t)n->len - first;
    for (uint32_t i = first; i < last; i++) {
        nfa_state s = n->states[i];
        if (s.a != NFA_NONE && s.a >= first && s.a < last) s.a += shift;
        if (s.b != NFA_NONE && s.b >= first && s.b < last) s.b += shift;
        nfa_add(n, s);
        if (n->is_full) return;
    }
    to[0] = from[0] + shift;
    to[1] = from[1] + shift;
    n->states[to[1]].a = NFA_NONE;
}

/* x? of a fragment. */
static void fragment_optional(nfa *n, uint32_t f[2]) {
    uint32_t end[2];
    fragment_empty(n, end);
    uint32_t split = nfa_add(n, (nfa_state){.kind = NFA_SPLIT, .a = f[0], .b = end[0]});
    n->states[f[1]].a = end[0];
    f[0] = split;
    f[1] = end[1];
}

/* x* of a fragment. */
static void fragment_star(nfa *n, uint32_t f[2]) {
    uint32_t end[2];
    fragment_empty(n, end);
    uint32_t split = nfa_add(n, (nfa_state){.kind = NFA_SPLIT, .a = f[0], .b = end[0]});
    n->states[f[1]].a = split;
    f[0] = split;
    f[1] = end[1];
}

/* Replaces the newest piece by itself repeated min to max times (max < 0: no limit). */
static void repeat_atom(regex *r, int64_t min, int64_t max) {
    group *g = &r->stack[r->depth];
    nfa *n = r->n;
    uint32_t first = g->atom_first, last = (uint32_t)n->len;
    uint32_t out[2], piece[2];
    fragment_empty(n, out);
    int64_t n_copies = max < 0 ? min + 1 : max;
    for (int64_t i = 0; i < n_copies && !n->is_full; i++) {
        fragment_copy(n, first, last, g->atom, piece);
        if (n->is_full) return;
        if (max < 0 && i == min) {
            fragment_star(n, piece);
        } else if (i >= min) {
            fragment_optional(n, piece);
        }
        fragment_join(n, out, piece);
    }
    g->atom[0] = out[0];
    g->atom[1] = out[1];
}

static int fail(regex *r, int code, const char *what) {
    return err_set(r->e, code, "pattern: %s at offset %zu", what, (size_t)(r->p - r->text));
}

static bool take_count(const char **p, const char *end, int64_t *out) {
    const char *s = *p;
    int64_t v = 0;
    while (s < end && *s >= '0' && *s <= '9') {
        v = v * 10 + (*s++ - '0');
        if (v > REGEX_MAX_REPEAT) v = REGEX_MAX_REPEAT + 1;
    }
    if (s == *p) return false;
    *p = s;
    *out = v;
    return true;
}

/* {m}, {m,}, {m,n}. False when the brace is plain text. */
static bool take_braces(regex *r, int64_t *min, int64_t *max) {
    const char *p = r->p + 1;
    if (!take_count(&p, r->end, min)) return false;
    *max = *min;
    if (p < r->end && *p == ',') {
        p++;
        if (!take_count(&p, r->end, max)) *max = -1;
    }
    if (p >= r->end || *p != '}') return false;
    r->p = p + 1;
    return true;
}

static int parse_quantifier(regex *r, bool *is_quantifier) {
    int64_t min = 0, max = -1;
    *is_quantifier = true;
    switch (*r->p) {
    case '*':
        r->p++;
        break;
    case '+':
        min = 1, r->p++;
        break;
    case '?':
        max = 1, r->p++;
        break;
    case '{':
        if (take_braces(r, &min, &max)) break;
        *is_quantifier = false;
        return OK;
    default:
        *is_quantifier = false;
        return OK;
    }
    if (r->stack[r->depth].atom[0] == NFA_NONE) {
        return fail(r, ERR_FORMAT, "nothing to repeat");
    }
    if (max >= 0 && max < min) return fail(r, ERR_FORMAT, "numbers out of order in a repeat");
    if (min > REGEX_MAX_REPEAT || max > REGEX_MAX_REPEAT) {
        return fail(r, ERR_LIMIT, "a repeat is too large");
    }
    if (r->p < r->end && *r->p == '?') r->p++; /* lazy: the language is the same */
    repeat_atom(r, min, max);
    return OK;
}

static int open_group(regex *r) {
    r->p++;
    if (r->p < r->end && *r->p == '?') {
        if (r->end - r->p >= 2 && r->p[1] == ':') {
            r->p += 2;
        } else if (r->end - r->p >= 3 && r->p[1] == '<' && r->p[2] != '=' && r->p[2] != '!') {
            const char *close = memchr(r->p, '>', (size_t)(r->end - r->p));
            if (close == NULL) return fail(r, ERR_FORMAT, "a group name is not closed");
            r->p = close + 1;
        } else if (r->end - r->p >= 2 && strchr("=!<", r->p[1]) != NULL) {
            return fail(r, ERR_UNSUPPORTED, "look-around cannot be enforced");
        } else {
            return fail(r, ERR_FORMAT, "unknown group");
        }
    }
    if (r->depth + 1 >= REGEX_MAX_GROUPS) return fail(r, ERR_LIMIT, "groups nested too deep");
    atom_join(r);
    r->depth++;
    group_begin(r);
    return OK;
}

static int close_group(regex *r) {
    if (r->depth == 0) return fail(r, ERR_FORMAT, "a closing parenthesis without an opening one");
    group_alternative(r);
    group *g = &r->stack[r->depth--];
    atom_set(r, g->first, g->alt);
    r->p++;
    return OK;
}

static void add_assertion(regex *r, uint8_t kind) {
    uint32_t first = (uint32_t)r->n->len;
    uint32_t ends[2];
    atom_join(r);
    ends[0] = nfa_add(r->n, (nfa_state){.kind = kind, .a = first + 1, .b = NFA_NONE});
    ends[1] = nfa_add(r->n, (nfa_state){.kind = NFA_SPLIT, .a = NFA_NONE, .b = NFA_NONE});
    atom_set(r, first, ends);
    r->p++;
}

static int parse_atom(regex *r) {
    cp_set set = {0};
    const char *what = NULL;
    int rc = OK;
    if (*r->p == '[') {
        rc = regex_class(&r->p, r->end, &set, &what);
    } else if (*r->p == '\\') {
        rc = regex_escape(&r->p, r->end, &set, &what);
    } else if (*r->p == '.') {
        r->p++;
        cp_set_dot(&set);
    } else {
        uint32_t cp;
        size_t n = utf8_decode(r->p, (size_t)(r->end - r->p), &cp);
        if (cp == UTF8_INVALID) return fail(r, ERR_FORMAT, "bytes that are not UTF-8");
        r->p += n;
        cp_set_add(&set, cp, cp);
    }
    if (rc == OK) {
        uint32_t ends[2];
        atom_join(r);
        uint32_t first = (uint32_t)r->n->len;
        nfa_add_ranges(r->n, set.ranges, set.len, ends);
        atom_set(r, first, ends);
    } else {
        rc = fail(r, rc, what);
    }
    cp_set_release(&set);
    return rc;
}

static int parse_piece(regex *r) {
    bool is_quantifier;
    int rc = parse_quantifier(r, &is_quantifier);
    if (rc != OK || is_quantifier) return rc;
    switch (*r->p) {
    case '(':
        return open_group(r);
    case ')':
        return close_group(r);
    case '|':
        group_alternative(r);
        fragment_empty(r->n, r->stack[r->depth].seq);
        r->p++;
        return OK;
    case '^':
        add_assertion(r, NFA_BEGIN);
        return OK;
    case '$':
        add_assertion(r, NFA_END);
        return OK;
    default:
        return parse_atom(r);
    }
}

int regex_parse(const char *pattern, size_t len, nfa *n, uint32_t ends[2], err *e) {
    regex *r = mem_alloc(sizeof *r);
    *r = (regex){.p = pattern, .end = pattern + len, .text = pattern, .n = n, .e = e};
    int rc = OK;
    group_begin(r);
    while (r->p < r->end && rc == OK && !n->is_full)
        rc = parse_piece(r);
    if (rc == OK && n->is_full) rc = fail(r, ERR_LIMIT, "too large");
    if (rc == OK && r->depth > 0) rc = fail(r, ERR_FORMAT, "a group is not closed");
    if (rc == OK) {
        group_alternative(r);
        memcpy(ends, r->stack[0].alt, sizeof(uint32_t[2]));
        if (n->is_full) rc = fail(r, ERR_LIMIT, "too large");
    }
    mem_free(r);
    return rc;
}
