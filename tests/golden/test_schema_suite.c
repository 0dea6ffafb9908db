/* The official JSON-Schema test suite: every valid instance must be reachable under the grammar of
 * its schema, every invalid one must not be. The suite is no part of this repository: draft 2020-12
 * is fetched as a Debian package and the older draft as a package of npm; one that cannot be had is
 * skipped with a line that says so. The environment variable SCHEMA_SUITE_DIR names a folder
 * tests/draft2020-12 to be used instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/run/grammar.h"
#include "tests/harness/grammar_walk.h"
#include "tests/harness/npm_package.h"
#include "tests/harness/schema_check.h"
#include "tests/harness/vectors.h"

#define SKIPPED 77
#define WALKS 6 /* random replies for each schema */
#define FREE_TOKENS 30

static const char *const files[] = {"additionalItems", "additionalProperties", "allOf", "anchor",
    "anyOf", "boolean_schema", "const", "contains", "content", "default", "defs", "dependencies",
    "dependentRequired", "dependentSchemas", "enum", "exclusiveMaximum", "exclusiveMinimum",
    "if-then-else", "infinite-loop-detection", "items", "maxContains", "maxItems", "maxLength",
    "maxProperties", "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum",
    "multipleOf", "not", "oneOf", "pattern", "patternProperties", "prefixItems", "properties",
    "propertyNames", "ref", "required", "type", "unevaluatedItems", "unevaluatedProperties",
    "uniqueItems", "optional/non-bmp-regex", "optional/dependencies-compatibility",
    "optional/no-schema", "optional/unknownKeyword", "optional/ecmascript-regex",
    "optional/format/date", "optional/format/date-time", "optional/format/time",
    "optional/format/duration", "optional/format/email", "optional/format/hostname",
    "optional/format/ipv4", "optional/format/ipv6", "optional/format/uuid", "optional/format/uri",
    "optional/format/uri-reference", "optional/format/json-pointer"};

#define LEAP "leap seconds are not offered"

/* Cases whose answer differs on purpose, by the text of group and test, with the reason. */
static const struct {
    const char *group, *test, *why;
} differs[] = {
    {"", "float overflow", "numbers are bounded to 24 digits"},
    {"", "a valid date-time with a leap second, UTC", LEAP},
    {"", "a valid date-time with a leap second, with minus offset", LEAP},
    {"", "a valid time string with leap second, Zulu", LEAP},
    {"", "valid leap second, zero time-offset", LEAP},
    {"", "valid leap second, positive time-offset", LEAP},
    {"", "valid leap second, large positive time-offset", LEAP},
    {"", "valid leap second, negative time-offset", LEAP},
    {"", "valid leap second, large negative time-offset", LEAP},
};

typedef struct setting {
    vectors v;
    tokenizer *tk;
    token_trie *trie;
    int n_refused;
} setting;

/* Numbers as a reply writes them: whole ones without a fraction, small ones without exponent. */
static void write_number(buf *out, const char *text, size_t n) {
    char copy[64], plain[400];
    double v;
    if (n >= sizeof copy || memchr(text, '"', n) != NULL) {
        (void)buf_append(out, text, n);
        return;
    }
    memcpy(copy, text, n);
    copy[n] = 0;
    bool is_plain = strpbrk(copy, ".eE") == NULL;
    if (is_plain || parse_double(copy, &v) != OK || v > 1e15 || v < -1e15) {
        (void)buf_append(out, text, n);
        return;
    }
    int len = snprintf(plain, sizeof plain, "%.15f", v);
    while (len > 0 && plain[len - 1] == '0')
        len--;
    if (len > 0 && plain[len - 1] == '.') len--;
    (void)buf_append(out, plain, (size_t)len);
}

static void write_instance(const json *v, buf *out) {
    buf text = BUF_INIT;
    if (json_print_compact(v, &text) != OK) exit(1);
    const char *p = buf_cstr(&text), *end = p + text.len;
    while (p < end) {
        const char *from = p;
        if (*p == '"') {
            for (p++; *p != '"'; p++)
                p += *p == '\\';
            p++;
            (void)buf_append(out, from, (size_t)(p - from));
        } else if (*p == '-' || (*p >= '0' && *p <= '9')) {
            p += strspn(p, "0123456789+-.eE");
            write_number(out, from, (size_t)(p - from));
        } else {
            (void)buf_append(out, p++, 1);
        }
    }
    buf_release(&text);
}

static const char *reason(const char *group, const char *test) {
    for (size_t i = 0; i < sizeof differs / sizeof *differs; i++) {
        bool is_group = differs[i].group[0] == 0 || strcmp(differs[i].group, group) == 0;
        if (is_group && (differs[i].test[0] == 0 || strcmp(differs[i].test, test) == 0)) {
            return differs[i].why;
        }
    }
    return NULL;
}

static void run_test(setting *s, grammar *g, const char *id, const json *group, const json *test) {
    buf text = BUF_INIT;
    char name[400];
    const char *title = json_str(json_get(group, "description"));
    const char *what = json_str(json_get(test, "description"));
    bool is_valid = json_is_true(json_get(test, "valid"));
    const char *why = reason(title, what);
    write_instance(json_get(test, "data"), &text);
    (void)snprintf(name, sizeof name, "%s: %s: %s", id, title, what);
    bool is_encoded = strstr(title, "punycode") != NULL || strstr(what, "punycode") != NULL;
    if (is_valid && is_encoded && strstr(buf_cstr(&text), "--") != NULL) {
        why = "encoded names of other scripts are not offered";
    }
    if (why != NULL) {
        vectors_skip(&s->v, name, why);
    } else if ((g != NULL && walk_accepts_bytes(g, s->tk, buf_cstr(&text), text.len)) == is_valid) {
        vectors_pass(&s->v);
    } else {
        vectors_fail(&s->v, name, is_valid ? "reachable" : "not reachable", buf_cstr(&text));
    }
    buf_release(&text);
}

/* Random replies, which the validator of the tests must pass. */
static void run_random(setting *s, grammar *g, const char *id, const json *group) {
    const json *schema = json_get(group, "schema");
    if (strncmp(id, "optional", 8) == 0 || !schema_check_knows(schema)) return;
    for (uint64_t seed = 0; seed < WALKS; seed++) {
        buf text = BUF_INIT;
        json *value = NULL;
        err e = ERR_INIT;
        if (!walk_random(g, s->tk, seed, FREE_TOKENS, &text)) {
            buf_release(&text);
            continue;
        }
        int rc = json_parse(buf_cstr(&text), text.len, NULL, &value, &e);
        if (rc == OK && schema_check(schema, schema, value)) {
            vectors_pass(&s->v);
        } else {
            vectors_fail(&s->v, json_str(json_get(group, "description")),
                "a random reply that fulfils the schema", buf_cstr(&text));
        }
        json_free(value);
        buf_release(&text);
    }
}

static void run_group(setting *s, const char *id, const json *group) {
    grammar *g = NULL;
    err e = ERR_INIT;
    schema_options o = {.is_any_order = true};
    int rc = grammar_from_schema(s->trie, json_get(group, "schema"), &o, &g, &e);
    if (rc == ERR_UNSUPPORTED) {
        char name[400];
        (void)snprintf(name, sizeof name, "%s: %s", id, json_str(json_get(group, "description")));
        vectors_skip(&s->v, name, e.msg);
        s->n_refused++;
        return;
    }
    if (rc != OK && rc != ERR_ARG) {
        vectors_fail(&s->v, json_str(json_get(group, "description")), "compiles", e.msg);
        return;
    }
    JSON_EACH(test, json_get(group, "tests")) run_test(s, g, id, group, test);
    if (rc != OK) return;
    run_random(s, g, id, group);
    grammar_put(g);
}

static void run_suite(setting *s, const char *dir) {
    int n_files = 0;
    int n_refused = s->n_refused;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[100];
        (void)snprintf(name, sizeof name, "%s.json", files[i]);
        buf path = BUF_INIT;
        bool is_there = path_join(&path, dir, name) == OK && file_exists(buf_cstr(&path));
        buf_release(&path);
        if (!is_there) continue; /* another draft has other files */
        n_files++;
        json *groups = vectors_load(dir, name);
        JSON_EACH(group, groups) run_group(s, files[i], group);
        json_free(groups);
    }
    (void)printf("%d files of %s, %d schemas refused as not enforceable\n", n_files, dir,
        s->n_refused - n_refused);
    if (n_files == 0) vectors_fail(&s->v, "files", "some", "none");
}

/* False: it cannot be had, which is said. */
static bool run_fetched(setting *s, const char *what, int (*fetch)(buf *dir, err *e)) {
    buf dir = BUF_INIT;
    err e = ERR_INIT;
    int rc = fetch(&dir, &e);
    if (rc == OK) {
        run_suite(s, buf_cstr(&dir));
    } else {
        (void)printf("skipped: the JSON-Schema test suite, %s: %s\n", what, e.msg);
    }
    buf_release(&dir);
    return rc == OK;
}

int main(void) {
    setting s = {0};
    err e = ERR_INIT;
    bool has_any = true;
    const char *given = getenv("SCHEMA_SUITE_DIR");
    if (walk_tokenizer(&s.tk, &s.trie, &e) != OK) {
        (void)printf("%s\n", e.msg);
        return 1;
    }
    if (given != NULL) {
        run_suite(&s, given);
    } else {
        has_any = run_fetched(&s, "draft 2020-12", deb_schema_suite);
        has_any |= run_fetched(&s, "draft 4", npm_schema_suite);
    }
    token_trie_free(s.trie);
    tokenizer_close(s.tk);
    int rc = vectors_end(&s.v);
    return has_any ? rc : SKIPPED;
}
