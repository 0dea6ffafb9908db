/* From literals that must hold together to alternatives of plain rules. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/run/schema_internal.h"

/* One alternative in the making. Its lists are shared with others and never change. */
typedef struct partial {
    const need *open;  /* literals and rules still to look at */
    const need *forks; /* choices still to make */
    const need *seen;  /* literals looked at */
    const atom_list *atoms;
    uint32_t types;
} partial;

typedef struct partials {
    partial *at;
    uint32_t n, cap;
} partials;

static void push(partials *p, const partial *x) {
    if (p->n == p->cap) {
        p->cap = p->cap == 0 ? 32 : p->cap * 2;
        p->at = mem_realloc(p->at, p->cap * sizeof *p->at);
    }
    p->at[p->n++] = *x;
}

static bool was_seen(const partial *p, literal lit, const scope *sc, bool *is_broken) {
    for (const need *n = p->seen; n != NULL; n = n->next) {
        if (n->lit == (lit ^ 1u)) *is_broken = true; /* it and its opposite */
        if (n->lit == lit && n->sc == sc) return true;
    }
    return false;
}

static const need *append_open(schema_compiler *c, const need *list, const need *more) {
    return need_append(c, more, (need *)(uintptr_t)list);
}

static int open_literal(schema_compiler *c, partial *p, const need *n) {
    bool is_broken = false;
    need *list;
    if (was_seen(p, n->lit, n->sc, &is_broken)) return OK;
    if (is_broken) {
        p->types = 0;
        return OK;
    }
    p->seen = need_literal(c, n->lit, n->sc, (need *)(uintptr_t)p->seen);
    int rc =
        (n->lit & 1) != 0 ? schema_breaks(c, n->lit, &list) : schema_needs(c, n->lit, n->sc, &list);
    if (rc == OK) p->open = append_open(c, p->open, list);
    return rc;
}

/* Looks at everything that leaves no choice. */
static int close_partial(schema_compiler *c, partial *p) {
    while (p->open != NULL && p->types != 0) {
        const need *n = p->open;
        p->open = n->next;
        if (n->kind == NEED_LITERAL) {
            int rc = open_literal(c, p, n);
            if (rc != OK) return rc;
        } else if (n->kind == NEED_ONE_OF) {
            need *fork = schema_alloc(c, sizeof *fork);
            *fork = *n;
            fork->next = (need *)(uintptr_t)p->forks;
            p->forks = fork;
        } else {
            if (n->a->kind == RULE_TYPES) p->types &= (uint32_t)n->a->n;
            if (n->a->kind == RULE_TYPES && n->a->sc == NULL) continue;
            atom_list *l = schema_alloc(c, sizeof *l);
            *l = (atom_list){p->atoms, n->a};
            p->atoms = l;
        }
    }
    return OK;
}

static int out_of_bounds(schema_compiler *c, literal lit, const char *what) {
    return schema_fail(c, ERR_UNSUPPORTED, lit / 2, NULL, what);
}

static void keep(alternative_list *out, const partial *p) {
    if (out->n == out->cap) {
        out->cap = out->cap == 0 ? 8 : out->cap * 2;
        out->at = mem_realloc(out->at, out->cap * sizeof *out->at);
    }
    out->at[out->n++] = (alternative){p->types, p->atoms};
}

int schema_expand(
    schema_compiler *c, const literal *lits, uint32_t n, uint32_t types, alternative_list *out) {
    partials work = {0};
    partial p = {.types = types};
    int rc = OK;
    for (uint32_t i = n; i-- > 0;) {
        p.open = need_literal(c, lits[i], NULL, (need *)(uintptr_t)p.open);
    }
    push(&work, &p);
    while (work.n > 0 && rc == OK) {
        p = work.at[--work.n];
        rc = close_partial(c, &p);
        if (rc != OK || p.types == 0) continue;
        if (p.forks == NULL) {
            keep(out, &p);
            if (out->n > SCHEMA_MAX_ALTERNATIVES) {
                rc = out_of_bounds(c, lits[0], "too many combinations of alternatives");
            }
            continue;
        }
        const need *fork = p.forks;
        p.forks = fork->next;
        for (uint32_t i = fork->n_lists; i-- > 0;) {
            partial branch = p;
            branch.open = fork->lists[i];
            push(&work, &branch);
        }
        c->n_partials += fork->n_lists;
        if (c->n_partials > SCHEMA_MAX_PARTIALS || clock_thread_ms() > c->limit_ms) {
            rc = out_of_bounds(c, lits[0], "too many combinations to work out");
        }
    }
    mem_free(work.at);
    return rc;
}
