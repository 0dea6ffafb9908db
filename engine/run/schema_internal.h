/* Shared inside the schema compiler. It works in three stages: the scan finds every schema of the
 * document, checks its keywords and resolves references; the expansion turns a set of schemas that
 * must (or must not) hold together into alternatives of plain rules; the building turns each
 * alternative into nodes of a grammar. Sets of schemas are numbered, so recursion ends. Worklists
 * everywhere: nothing recurses over the document. One thread per compiler. */
#ifndef TANDEM_RUN_SCHEMA_INTERNAL_H
#define TANDEM_RUN_SCHEMA_INTERNAL_H

#include "engine/run/grammar_internal.h"

#define SCHEMA_MAX_BYTES ((size_t)1 << 20)
#define SCHEMA_MAX_DEPTH 128
#define SCHEMA_MAX_PROPERTIES 5000
#define SCHEMA_MAX_MS 2000
#define SCHEMA_MAX_PARTIALS 200000
#define SCHEMA_MAX_ALTERNATIVES 400 /* of one value */
#define SCHEMA_MAX_VALUES 40000
#define SCHEMA_TRUE 0 /* the entry that allows everything; its negation allows nothing */

/* One schema of the document. */
typedef struct entry {
    const json *node;
    uint32_t parent;    /* for pointers in messages */
    const char *key[2]; /* path from the parent, one or two steps */
    uint32_t resource;  /* nearest entry around it that has an $id, or the root */
    uint32_t ref;       /* what $ref means; UINT32_MAX: none */
    uint16_t depth;
} entry;

/* A schema that must hold (even) or must not hold (odd): entry * 2 + is_negated. */
typedef uint32_t literal;

/* What unevaluated... of one schema sees. */
typedef struct scope {
    const struct scope *outer;
    uint32_t entry;
} scope;

enum {
    T_NULL = 1,
    T_TRUE = 2,
    T_FALSE = 4,
    T_NUMBER = 8,
    T_STRING = 16,
    T_ARRAY = 32,
    T_OBJECT = 64,
    T_ALL = 127
};

/* Rules; each but RULE_TYPES speaks only about values of its own type. */
typedef enum rule_kind {
    RULE_TYPES, /* n: mask */
    RULE_INTEGER,
    RULE_LOW, /* v, included */
    RULE_HIGH,
    RULE_STEP,
    RULE_NOT_STEP,
    RULE_NUMBERS, /* values, n; is_negated: none of them */
    RULE_TEXT,    /* d; is_negated */
    RULE_MIN_LENGTH,
    RULE_MAX_LENGTH,
    RULE_ITEM,     /* n: place, lit */
    RULE_REST,     /* n: first place, lit */
    RULE_CONTAINS, /* lit, n, max */
    RULE_MIN_ITEMS,
    RULE_MAX_ITEMS,
    RULE_UNIQUE,
    RULE_PROPERTY, /* name, lit */
    RULE_REQUIRED, /* name */
    RULE_PATTERN,  /* d, lit */
    RULE_OTHERS,   /* left_out, lit: properties that left_out does not name */
    RULE_EXISTS,   /* left_out, lit: some such property must be there */
    RULE_NAMES,    /* lit: for keys */
    RULE_MIN_PROPERTIES,
    RULE_MAX_PROPERTIES,
    RULE_BRINGS, /* name, values of source (array of strings) */
} rule_kind;

typedef struct name_text {
    const char *text;
    uint32_t len;
} name_text;

/* Names and patterns of properties. */
typedef struct key_set {
    const name_text *names;
    uint32_t n_names;
    const dfa *const *patterns;
    uint32_t n_patterns;
} key_set;

typedef struct atom {
    rule_kind kind;
    bool is_negated;
    uint32_t sequence; /* order of creation: declared order of properties */
    uint32_t from;     /* entry that asks it, for messages; 0: none */
    literal lit;
    uint64_t n, max;
    wide v;
    const wide *values;
    const dfa *d;
    name_text name;
    const key_set *left_out;
    const json *source;
    const scope *sc;
} atom;

/* Something that must hold: a literal, a rule, or one of several lists of such things. */
enum { NEED_LITERAL, NEED_ATOM, NEED_ONE_OF };
typedef struct need {
    struct need *next;
    int kind;
    literal lit;
    const scope *sc;
    const atom *a;
    struct need **lists;
    uint32_t n_lists;
} need;

/* An alternative once nothing is left to expand. */
typedef struct atom_list {
    const struct atom_list *next;
    const atom *a;
} atom_list;
typedef struct alternative {
    uint32_t types;
    const atom_list *atoms;
} alternative;
typedef struct alternative_list {
    alternative *at;
    uint32_t n, cap;
} alternative_list;

/* A numbered set of literals. */
typedef struct literal_set {
    const literal *at; /* sorted */
    uint32_t n;
    uint32_t value; /* of the grammar */
} literal_set;

/* Places of an array that must be filled with different values, for a check once all is built. */
typedef struct different_places {
    struct different_places *next;
    uint32_t array, n, from;
    uint32_t *shared; /* [n][n] the value that place i and an earlier place j have in common */
} different_places;

typedef struct schema_compiler {
    grammar *g;
    arena memory;
    const schema_options *options;
    err *e;
    json **owned; /* schemas made for constants */
    uint32_t n_owned, cap_owned;
    struct schema_cached *cached; /* what was made from a node of the document before */
    uint32_t n_cached, cap_cached;
    entry *entries;
    uint32_t n_entries, cap_entries;
    uint32_t *entry_table; /* json node to entry + 1 */
    uint32_t entry_table_size;
    literal_set *sets;
    uint32_t n_sets, cap_sets;
    uint32_t *set_table;
    uint32_t set_table_size;
    uint32_t n_built;
    uint32_t n_partials, n_atoms, n_properties;
    different_places *different;
    uint32_t asking;   /* the entry whose rules are being made */
    uint64_t limit_ms; /* of clock_thread_ms */
    const dfa *any;
} schema_compiler;

void *schema_alloc(schema_compiler *c, size_t n); /* never NULL; ends with the compiler */

/* schema_scan.c */
int schema_scan(schema_compiler *c, const json *root);
/* The entry of a node, which is scanned with all below it if it is new. */
int schema_entry(schema_compiler *c, const json *node, uint32_t parent, const char *key0,
    const char *key1, uint32_t *out);
/* For a node that the scan has seen; CHECKs that it has. */
uint32_t schema_find(const schema_compiler *c, const json *node);
/* Sets the error with the pointer of keyword (may be NULL) in entry; returns code. */
int schema_fail(
    schema_compiler *c, int code, uint32_t entry_index, const char *keyword, const char *what);

/* ERR_UNSUPPORTED at the keyword of the schema that the first rule of a kind comes from. */
int schema_fail_rule(schema_compiler *c, const alternative *alt, rule_kind kind,
    const char *keyword, const char *what);

/* schema_keywords.c: what a schema asks, or what it takes to break it. */
int schema_needs(schema_compiler *c, literal lit, const scope *sc, need **out);
/* schema_negate.c */
int schema_breaks(schema_compiler *c, literal lit, need **out);
need *need_literal(schema_compiler *c, literal lit, const scope *sc, need *next);
need *need_atom(schema_compiler *c, const atom *a, need *next);
need *need_types(schema_compiler *c, uint32_t types, need *next);
need *need_one_of(schema_compiler *c, uint32_t n, need *next); /* lists to be filled in */
atom *schema_atom(schema_compiler *c, rule_kind kind, const scope *sc);
/* The parts of one keyword that both directions share. */
int schema_pattern(schema_compiler *c, uint32_t i, const json *v, const dfa **out);
int schema_format(schema_compiler *c, uint32_t i, const json *v, bool is_written, const dfa **out);
/* *side: 0, or 1 / -1 when the number lies above / below everything that can be written. */
int schema_decimal(schema_compiler *c, uint32_t i, const char *key, wide *out, int *side);
int schema_count(schema_compiler *c, uint32_t i, const char *key, uint64_t *out);
int schema_left_out(schema_compiler *c, uint32_t i, const key_set **out);
name_text schema_name(schema_compiler *c, const char *json_text);
/* The values of enum or const (key): what is one of them, what is none. Appended to *yes, *no. */
int schema_constants(schema_compiler *c, uint32_t i, const char *key, need **yes, need **no);
/* A list with all members of b in front of a. */
need *need_append(schema_compiler *c, const need *b, need *a);
/* Keeps a made schema or automaton for the life of the compiler; finds it by its source. */
void schema_own(schema_compiler *c, json *v);
typedef struct schema_cached {
    const json *source;
    const dfa *d;
    need *yes, *no;
} schema_cached;
schema_cached *schema_cache(schema_compiler *c, const json *source);
/* Moves a new automaton into the grammar and gives it back read-only. */
const dfa *schema_keep_dfa(schema_compiler *c, dfa *d);
uint32_t schema_type_mask(const json *v, bool is_nullable, bool *is_integer);
/* OK, or ERR_LIMIT when the number cannot be counted in units of 10^-18 (*sign: which side). */
int decimal_parse(const char *text, wide *out, int *sign);
/* NULL for a format that is only an annotation. is_written: what a reply may write; else all texts
 * of the format, which differ in runs of digits that have no end. */
const char *format_pattern(const char *name, bool is_written);
/* Characters at most, which the pattern does not say; 0: no limit. */
uint32_t format_length_max(const char *name);
const json *schema_items_prefix(const json *s);
const json *schema_items_rest(const json *s);

/* schema_expand.c */
int schema_expand(
    schema_compiler *c, const literal *lits, uint32_t n, uint32_t types, alternative_list *out);
/* schema_build.c, schema_object.c: adds what an alternative allows to a value. */
int schema_build(schema_compiler *c, uint32_t value, const alternative *a);
int schema_build_array(schema_compiler *c, uint32_t value, const alternative *a);
int schema_build_object(schema_compiler *c, uint32_t value, const alternative *a);
/* The text automaton and lengths of an alternative; *d NULL: any. */
int schema_text_rules(schema_compiler *c, const alternative *a, string_node *out);
void schema_add_choice(schema_compiler *c, uint32_t value, uint32_t kind, uint32_t index);
/* The value of a set of literals, numbered now and built later. */
int schema_value(schema_compiler *c, const literal *lits, uint32_t n, uint32_t *value);
/* schema_compile.c */
int schema_compile_all(schema_compiler *c);
/* Finds which nodes have values at all and cuts what has none. */
void schema_prune(grammar *g);
/* Compiles a schema into g; *value is its node. What a call's parameters need. */
int schema_into(grammar *g, const json *schema, const schema_options *o, uint32_t *value, err *e);

#endif
