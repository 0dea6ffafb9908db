/* The field cases of cases/schema: accepted texts are reachable byte by byte and token by token,
 * rejected ones are not, schemas that must be refused are refused, what is generated under the mask
 * keeps to the stated bounds. The folder comes from CASES_DIR. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/run/grammar.h"
#include "tests/harness/grammar_walk.h"
#include "tests/harness/vectors.h"

#define CASES_MAX 1000
#define WALKS 40

typedef struct setting {
    vectors v;
    tokenizer *tk;
    token_trie *trie;
} setting;

static void check(setting *s, const char *id, bool is_right, const char *what, const char *text) {
    char got[300];
    if (is_right) {
        vectors_pass(&s->v);
        return;
    }
    (void)snprintf(got, sizeof got, "not so: %.200s", text);
    vectors_fail(&s->v, id, what, got);
}

static void check_refused(setting *s, const char *id, const json *c) {
    grammar *g = NULL;
    err e = ERR_INIT;
    int rc = grammar_from_schema(s->trie, json_get(c, "schema"), &(schema_options){0}, &g, &e);
    const char *part = json_str(json_get(c, "error_contains"));
    bool is_right = rc != OK && rc != ERR_INTERNAL &&
                    (part == NULL || strstr(e.msg, part) != NULL || strstr(e.place, part) != NULL);
    check(s, id, is_right, "refused", e.msg);
    if (rc == OK) grammar_put(g);
}

static void check_key_order(setting *s, const char *id, const json *order, const json *value) {
    const json *want = json_first(order);
    JSON_EACH(member, value) {
        check(s, id, want != NULL && strcmp(json_key(member), json_str(want)) == 0, "key order",
            json_key(member));
        want = json_next(want);
    }
}

static long longest_run(const char *text, const char *of) {
    long best = 0, n = 0;
    for (; *text != 0; text++) {
        n = strchr(of, *text) != NULL ? n + 1 : 0;
        if (n > best) best = n;
    }
    return best;
}

/* Digits with what belongs to them, outside of strings. */
static long longest_number(const char *text) {
    bool is_inside = false;
    long best = 0, n = 0;
    for (; *text != 0; text++) {
        if (is_inside && *text == '\\' && text[1] != 0) {
            text++;
            continue;
        }
        if (*text == '"') is_inside = !is_inside;
        n = !is_inside && strchr("0123456789+-.eE", *text) != NULL ? n + 1 : 0;
        if (n > best) best = n;
    }
    return best;
}

/* Random replies under the mask. */
static void check_generated(setting *s, const char *id, const json *c, grammar *g) {
    int64_t most = 0;
    for (uint64_t seed = 0; seed < WALKS; seed++) {
        buf text = BUF_INIT;
        json *value = NULL;
        err e = ERR_INIT;
        if (!walk_random(g, s->tk, seed, 600, &text)) {
            buf_release(&text);
            continue;
        }
        int rc = json_parse(buf_cstr(&text), text.len, NULL, &value, &e);
        check(s, id, rc == OK, "a random reply is JSON", buf_cstr(&text));
        if (json_get(c, "generated_key_order") != NULL) {
            check_key_order(s, id, json_get(c, "generated_key_order"), value);
        }
        if (json_i64(json_get(c, "max_whitespace_run"), &most) == OK) {
            check(s, id, longest_run(buf_cstr(&text), " \n\r\t") <= most, "white space bounded",
                buf_cstr(&text));
        }
        if (json_i64(json_get(c, "max_number_chars"), &most) == OK) {
            check(
                s, id, longest_number(buf_cstr(&text)) <= most, "numbers bounded", buf_cstr(&text));
        }
        json_free(value);
        buf_release(&text);
    }
}

static void run_case(setting *s, const char *id, const json *c) {
    grammar *g = NULL;
    err e = ERR_INIT;
    int64_t most_ms;
    if (json_get(c, "request_status") != NULL) {
        check_refused(s, id, c);
        return;
    }
    int64_t start = vectors_cpu_ms();
    int rc = grammar_from_schema(s->trie, json_get(c, "schema"), &(schema_options){0}, &g, &e);
    if (json_i64(json_get(c, "compile_ms_max"), &most_ms) == OK) {
        check(s, id, vectors_cpu_ms() - start <= most_ms, "compiles in time", "late");
    }
    bool may_be_refused = json_is_true(json_get(c, "unsupported_ok"));
    if (rc == ERR_UNSUPPORTED && may_be_refused) {
        check(s, id, e.place[0] != 0, "the refusal names the keyword", e.msg);
        return;
    }
    check(s, id, rc == OK, "compiles", e.msg);
    if (rc != OK) return;
    JSON_EACH(text, json_get(c, "accept")) {
        check(s, id, walk_accepts(g, s->tk, json_str(text)), "accepts", json_str(text));
    }
    JSON_EACH(text, json_get(c, "reject")) {
        check(s, id, !walk_accepts(g, s->tk, json_str(text)), "rejects", json_str(text));
    }
    check_generated(s, id, c, g);
    grammar_put(g);
}

static int compare_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int main(void) {
    setting s = {0};
    char *names[CASES_MAX];
    size_t n = 0;
    buf dir = BUF_INIT;
    err e = ERR_INIT;
    if (path_join(&dir, vectors_cases_dir(), "schema") != OK) return 1;
    DIR *d = opendir(buf_cstr(&dir));
    if (d == NULL) {
        (void)printf("no folder %s\n", buf_cstr(&dir));
        return 1;
    }
    for (struct dirent *x; (x = readdir(d)) != NULL && n < CASES_MAX;) {
        if (strstr(x->d_name, ".json") != NULL) names[n++] = mem_strdup(x->d_name);
    }
    (void)closedir(d);
    qsort(names, n, sizeof *names, compare_text);
    if (walk_tokenizer(&s.tk, &s.trie, &e) != OK) {
        (void)printf("%s\n", e.msg);
        return 1;
    }
    for (size_t i = 0; i < n; i++) {
        json *c = vectors_load(buf_cstr(&dir), names[i]);
        run_case(&s, json_str(json_get(c, "id")), c);
        json_free(c);
        mem_free(names[i]);
    }
    token_trie_free(s.trie);
    tokenizer_close(s.tk);
    buf_release(&dir);
    return vectors_end(&s.v);
}
