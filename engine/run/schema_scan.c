/* Finds every schema of the document, checks keywords, resolves references. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/run/schema_internal.h"

enum {
    HOLDS_SCHEMA = 1,
    HOLDS_LIST,
    HOLDS_MAP,
    HOLDS_ITEMS,
    HOLDS_MIXED,
    HOLDS_COUNT,
    HOLDS_NUMBER,
    HOLDS_BOOL,
    HOLDS_STRING,
    HOLDS_STRINGS,
    HOLDS_STRING_LISTS,
    HOLDS_TYPE,
    HOLDS_VALUES,
    HOLDS_LIMIT,
    REFUSED
};

static const struct {
    const char *name;
    int holds;
} keywords[] = {{"type", HOLDS_TYPE}, {"enum", HOLDS_VALUES}, {"properties", HOLDS_MAP},
    {"required", HOLDS_STRINGS}, {"additionalProperties", HOLDS_SCHEMA},
    {"patternProperties", HOLDS_MAP}, {"propertyNames", HOLDS_SCHEMA},
    {"minProperties", HOLDS_COUNT}, {"maxProperties", HOLDS_COUNT},
    {"dependentRequired", HOLDS_STRING_LISTS}, {"dependentSchemas", HOLDS_MAP},
    {"dependencies", HOLDS_MIXED}, {"items", HOLDS_ITEMS}, {"prefixItems", HOLDS_LIST},
    {"additionalItems", HOLDS_SCHEMA}, {"minItems", HOLDS_COUNT}, {"maxItems", HOLDS_COUNT},
    {"contains", HOLDS_SCHEMA}, {"minContains", HOLDS_COUNT}, {"maxContains", HOLDS_COUNT},
    {"uniqueItems", HOLDS_BOOL}, {"minLength", HOLDS_COUNT}, {"maxLength", HOLDS_COUNT},
    {"pattern", HOLDS_STRING}, {"format", HOLDS_STRING}, {"minimum", HOLDS_NUMBER},
    {"maximum", HOLDS_NUMBER}, {"exclusiveMinimum", HOLDS_LIMIT}, {"exclusiveMaximum", HOLDS_LIMIT},
    {"multipleOf", HOLDS_NUMBER}, {"anyOf", HOLDS_LIST}, {"oneOf", HOLDS_LIST},
    {"allOf", HOLDS_LIST}, {"not", HOLDS_SCHEMA}, {"if", HOLDS_SCHEMA}, {"then", HOLDS_SCHEMA},
    {"else", HOLDS_SCHEMA}, {"$ref", HOLDS_STRING}, {"$defs", HOLDS_MAP},
    {"definitions", HOLDS_MAP}, {"$anchor", HOLDS_STRING}, {"$id", HOLDS_STRING},
    {"unevaluatedProperties", HOLDS_SCHEMA}, {"unevaluatedItems", HOLDS_SCHEMA},
    {"nullable", HOLDS_BOOL}, {"$dynamicRef", REFUSED}, {"$recursiveRef", REFUSED},
    {"divisibleBy", REFUSED}, {"disallow", REFUSED}, {"extends", REFUSED}};

#define N_KEYWORDS (sizeof keywords / sizeof *keywords)

void *schema_alloc(schema_compiler *c, size_t n) {
    return arena_alloc(&c->memory, n);
}

/* Appends one step of a JSON pointer. */
static void pointer_step(char *out, size_t cap, const char *step) {
    size_t n = strlen(out);
    if (n + 1 < cap) out[n++] = '/';
    for (; *step != 0 && n + 2 < cap; step++) {
        if (*step == '~' || *step == '/') {
            out[n++] = '~';
            out[n++] = *step == '~' ? '0' : '1';
        } else {
            out[n++] = *step;
        }
    }
    out[n < cap ? n : cap - 1] = 0;
}

int schema_fail(
    schema_compiler *c, int code, uint32_t entry_index, const char *keyword, const char *what) {
    char place[sizeof((err *)0)->place] = "";
    uint32_t path[SCHEMA_MAX_DEPTH + 2];
    uint32_t n = 0;
    for (uint32_t i = entry_index; i > 1 && n < SCHEMA_MAX_DEPTH; i = c->entries[i].parent) {
        path[n++] = i;
    }
    while (n-- > 0) {
        for (int k = 0; k < 2; k++) {
            const char *step = c->entries[path[n]].key[k];
            if (step != NULL) pointer_step(place, sizeof place, step);
        }
    }
    if (keyword != NULL) pointer_step(place, sizeof place, keyword);
    err_set(c->e, code, "schema at %s: %s", place[0] == 0 ? "the root" : place, what);
    if (c->e != NULL) str_copy(c->e->place, sizeof c->e->place, place);
    return code;
}

int schema_fail_rule(schema_compiler *c, const alternative *alt, rule_kind kind,
    const char *keyword, const char *what) {
    uint32_t from = 1;
    for (const atom_list *l = alt->atoms; l != NULL; l = l->next) {
        if (l->a->kind == kind && l->a->from != 0) from = l->a->from;
    }
    if (json_get(c->entries[from].node, keyword) == NULL) keyword = NULL;
    return schema_fail(c, ERR_UNSUPPORTED, from, keyword, what);
}

static uint32_t hash_pointer(const void *p) {
    uint64_t h = (uint64_t)(uintptr_t)p * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32);
}

static uint32_t *entry_slot(const schema_compiler *c, const json *node) {
    uint32_t i = hash_pointer(node) & (c->entry_table_size - 1);
    while (c->entry_table[i] != 0 && c->entries[c->entry_table[i] - 1].node != node) {
        i = (i + 1) & (c->entry_table_size - 1);
    }
    return &c->entry_table[i];
}

uint32_t schema_find(const schema_compiler *c, const json *node) {
    uint32_t at = *entry_slot(c, node);
    CHECK(at != 0);
    return at - 1;
}

static uint32_t entry_add(schema_compiler *c, const json *node) {
    if (c->n_entries == c->cap_entries) {
        c->cap_entries = c->cap_entries == 0 ? 64 : c->cap_entries * 2;
        c->entries = mem_realloc(c->entries, c->cap_entries * sizeof *c->entries);
    }
    c->entries[c->n_entries] = (entry){.node = node, .ref = UINT32_MAX};
    c->n_entries++;
    if (c->n_entries * 2 > c->entry_table_size) {
        mem_free(c->entry_table);
        c->entry_table_size = c->entry_table_size == 0 ? 256 : c->entry_table_size * 2;
        c->entry_table = mem_array(c->entry_table_size, sizeof *c->entry_table);
        for (uint32_t i = 0; i < c->n_entries; i++)
            *entry_slot(c, c->entries[i].node) = i + 1;
    } else {
        *entry_slot(c, node) = c->n_entries;
    }
    return c->n_entries - 1;
}

static int add_child(
    schema_compiler *c, uint32_t parent, const json *node, const char *key0, const char *key1) {
    if (*entry_slot(c, node) != 0) return OK;
    if (!json_is_object(node) && !json_is_bool(node)) {
        return schema_fail(c, ERR_FORMAT, parent, key0, "an object or a boolean is needed here");
    }
    uint32_t depth = (uint32_t)c->entries[parent].depth + 1;
    if (depth > SCHEMA_MAX_DEPTH) {
        return schema_fail(c, ERR_LIMIT, parent, key0, "nested deeper than 128 levels");
    }
    uint32_t resource = c->entries[parent].resource;
    uint32_t i = entry_add(c, node);
    entry *x = &c->entries[i];
    x->parent = parent;
    x->key[0] = key0;
    x->key[1] = key1;
    x->depth = (uint16_t)depth;
    const char *id = json_str(json_get(node, "$id"));
    x->resource = id != NULL && id[0] != '#' ? i : resource;
    return OK;
}

static const char *index_text(schema_compiler *c, size_t i) {
    char *text = schema_alloc(c, 24);
    (void)snprintf(text, 24, "%zu", i);
    return text;
}

static int scan_list(schema_compiler *c, uint32_t i, const char *key, const json *v) {
    size_t n = 0;
    if (!json_is_array(v) || json_count(v) == 0) {
        return schema_fail(c, ERR_FORMAT, i, key, "a list of schemas is needed");
    }
    JSON_EACH(item, v) {
        int rc = add_child(c, i, item, key, index_text(c, n++));
        if (rc != OK) return rc;
    }
    return OK;
}

static int scan_map(schema_compiler *c, uint32_t i, const char *key, const json *v, bool is_mixed) {
    if (!json_is_object(v)) return schema_fail(c, ERR_FORMAT, i, key, "an object is needed");
    JSON_EACH(item, v) {
        if (is_mixed && json_is_array(item)) continue;
        int rc = add_child(c, i, item, key, json_key(item));
        if (rc != OK) return rc;
    }
    if (strcmp(key, "properties") == 0) {
        c->n_properties += (uint32_t)json_count(v);
        if (c->n_properties > SCHEMA_MAX_PROPERTIES) {
            return schema_fail(c, ERR_LIMIT, i, key, "more than 5,000 properties");
        }
    }
    return OK;
}

static bool is_string_list(const json *v) {
    if (!json_is_array(v)) return false;
    JSON_EACH(item, v) {
        if (!json_is_string(item)) return false;
    }
    return true;
}

static bool is_type_name(const json *v) {
    static const char *const names[] = {
        "null", "boolean", "number", "integer", "string", "array", "object"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (json_is_string(v) && strcmp(json_str(v), names[i]) == 0) return true;
    }
    return false;
}

bool grammar_knows_type(const json *v) {
    if (!json_is_array(v)) return is_type_name(v);
    JSON_EACH(item, v) {
        if (!is_type_name(item)) return false;
    }
    return json_count(v) > 0;
}

static const char *fault_of(int holds, const json *v) {
    switch (holds) {
    case HOLDS_NUMBER:
        return json_is_number(v) ? NULL : "a number is needed";
    case HOLDS_LIMIT:
        return json_is_number(v) || json_is_bool(v) ? NULL : "a number is needed";
    case HOLDS_COUNT:
        return json_is_number(v) ? NULL : "a count is needed";
    case HOLDS_BOOL:
        return json_is_bool(v) ? NULL : "true or false is needed";
    case HOLDS_STRING:
        return json_is_string(v) ? NULL : "a string is needed";
    case HOLDS_STRINGS:
        /* draft 4 wrote a boolean in a property; it restricted nothing that this page knows */
        return is_string_list(v) ? NULL : "a list of strings is needed";
    case HOLDS_STRING_LISTS:
        if (!json_is_object(v)) return "an object is needed";
        JSON_EACH(item, v) {
            if (!is_string_list(item)) return "lists of strings are needed";
        }
        return NULL;
    case HOLDS_TYPE:
        return grammar_knows_type(v) ? NULL : "not the name of a type";
    case HOLDS_VALUES:
        return json_is_array(v) ? NULL : "a list is needed";
    default:
        return "this keyword cannot be enforced";
    }
}

static int scan_keyword(schema_compiler *c, uint32_t i, const json *v) {
    const char *key = json_key(v);
    int holds = 0;
    for (size_t k = 0; k < N_KEYWORDS && holds == 0; k++) {
        if (strcmp(keywords[k].name, key) == 0) holds = keywords[k].holds;
    }
    /* Some languages write an empty map or list as null; read as either it asks nothing. */
    bool is_list = holds == HOLDS_STRINGS || (holds == HOLDS_MAP && strcmp(key, "properties") == 0);
    if (is_list && json_is_null(v)) return OK;
    switch (holds) {
    case 0:
        return OK; /* not a rule of the standard: an annotation */
    case HOLDS_SCHEMA:
        return add_child(c, i, v, key, NULL);
    case HOLDS_LIST:
        return scan_list(c, i, key, v);
    case HOLDS_MAP:
        return scan_map(c, i, key, v, false);
    case HOLDS_MIXED:
        return scan_map(c, i, key, v, true);
    case HOLDS_ITEMS:
        return json_is_array(v) && json_count(v) > 0 ? scan_list(c, i, key, v)
               : json_is_array(v)                    ? OK
                                                     : add_child(c, i, v, key, NULL);
    default: {
        const char *fault = fault_of(holds, v);
        int code = holds == REFUSED ? ERR_UNSUPPORTED : ERR_FORMAT;
        return fault == NULL ? OK : schema_fail(c, code, i, key, fault);
    }
    }
}

/* Scans entries from first on, which adds more. */
static int scan_from(schema_compiler *c, uint32_t first) {
    for (uint32_t i = first; i < c->n_entries; i++) {
        JSON_EACH(v, c->entries[i].node) {
            int rc = json_is_object(c->entries[i].node) ? scan_keyword(c, i, v) : OK;
            if (rc != OK) return rc;
        }
    }
    return OK;
}

int schema_entry(schema_compiler *c, const json *node, uint32_t parent, const char *key0,
    const char *key1, uint32_t *out) {
    uint32_t first = c->n_entries;
    int rc = add_child(c, parent, node, key0, key1);
    if (rc == OK) rc = scan_from(c, first);
    if (rc == OK) *out = schema_find(c, node);
    return rc;
}

/* One step of a pointer, %XX and ~0 ~1 undone. */
static void pointer_decode(const char *from, size_t len, char *out) {
    for (size_t i = 0; i < len; i++) {
        unsigned v;
        if (from[i] == '%' && i + 2 < len && sscanf(from + i + 1, "%2x", &v) == 1) {
            *out++ = (char)v;
            i += 2;
        } else {
            *out++ = from[i];
        }
    }
    *out = 0;
}

static void tilde_decode(char *s) {
    char *out = s;
    for (; *s != 0; s++) {
        if (s[0] == '~' && (s[1] == '0' || s[1] == '1')) {
            *out++ = s[1] == '0' ? '~' : '/';
            s++;
        } else {
            *out++ = *s;
        }
    }
    *out = 0;
}

static const json *follow_pointer(schema_compiler *c, const json *at, const char *p) {
    char *all = schema_alloc(c, strlen(p) + 1);
    pointer_decode(p, strlen(p), all);
    while (at != NULL && *all == '/') {
        char *step = all + 1;
        char *end = strchr(step, '/');
        if (end == NULL) end = step + strlen(step);
        char saved = *end;
        *end = 0;
        char *name = arena_strdup(&c->memory, step);
        *end = saved;
        tilde_decode(name);
        uint64_t n;
        if (json_is_array(at)) {
            at = parse_u64(name, &n) == OK ? json_at(at, (size_t)n) : NULL;
        } else {
            at = json_get(at, name);
        }
        all = end;
    }
    return *all == 0 ? at : NULL;
}

/* The resource that the part of a reference before '#' names; UINT32_MAX: none here. */
static uint32_t find_resource(
    const schema_compiler *c, uint32_t from, const char *ref, size_t len) {
    if (len == 0) return c->entries[from].resource;
    for (uint32_t i = 1; i < c->n_entries; i++) {
        const char *id = json_str(json_get(c->entries[i].node, "$id"));
        if (id == NULL) continue;
        size_t n = strcspn(id, "#");
        if (n == len && memcmp(id, ref, len) == 0) return i;
        /* A relative reference beside a full id: the last part decides. */
        if (n > len && id[n - len - 1] == '/' && memcmp(id + n - len, ref, len) == 0) return i;
        if (len > n && n > 0 && ref[len - n - 1] == '/' && memcmp(ref + len - n, id, n) == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

static const json *find_anchor(const schema_compiler *c, uint32_t resource, const char *name) {
    for (uint32_t i = 1; i < c->n_entries; i++) {
        const char *anchor = json_str(json_get(c->entries[i].node, "$anchor"));
        const char *other = json_str(json_get(c->entries[i].node, "$dynamicAnchor"));
        if (c->entries[i].resource != resource) continue;
        if (other != NULL && strcmp(other, name) == 0) return c->entries[i].node;
        if (anchor != NULL && strcmp(anchor, name) == 0) return c->entries[i].node;
        const char *id = json_str(json_get(c->entries[i].node, "$id"));
        if (id != NULL && id[0] == '#' && strcmp(id + 1, name) == 0) return c->entries[i].node;
    }
    return NULL;
}

static int resolve(schema_compiler *c, uint32_t i) {
    const char *ref = json_str(json_get(c->entries[i].node, "$ref"));
    char what[300];
    if (ref == NULL) return OK;
    size_t base = strcspn(ref, "#");
    uint32_t resource = find_resource(c, i, ref, base);
    if (resource == UINT32_MAX) {
        (void)snprintf(what, sizeof what, "'%.200s' lies outside of this schema", ref);
        return schema_fail(c, ERR_UNSUPPORTED, i, "$ref", what);
    }
    const char *fragment = ref[base] == '#' ? ref + base + 1 : "";
    const json *target = fragment[0] == 0 || fragment[0] == '/'
                             ? follow_pointer(c, c->entries[resource].node, fragment)
                             : find_anchor(c, resource, fragment);
    if (target == NULL) {
        (void)snprintf(what, sizeof what, "'%.200s' does not exist", ref);
        return schema_fail(c, ERR_FORMAT, i, "$ref", what);
    }
    uint32_t found;
    int rc = schema_entry(c, target, i, "$ref", NULL, &found);
    if (rc == OK) c->entries[i].ref = found;
    return rc;
}

int schema_scan(schema_compiler *c, const json *root) {
    static const char text[] = "true";
    json *all = NULL;
    int rc = json_parse(text, sizeof text - 1, NULL, &all, c->e);
    if (rc != OK) return rc;
    schema_own(c, all);
    entry_add(c, all);
    if (!json_is_object(root) && !json_is_bool(root)) {
        return err_set(c->e, ERR_FORMAT, "schema: an object is needed, not %s", json_kind(root));
    }
    entry_add(c, root);
    c->entries[1].resource = 1;
    rc = scan_from(c, 1);
    for (uint32_t i = 1; i < c->n_entries && rc == OK; i++)
        rc = resolve(c, i);
    return rc;
}
