#include "engine/text/self_test.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/text/chat.h"

enum { AROUND = 24 };

typedef struct self_test {
    const tokenizer *t;
    const json *set; /* of token digests, NULL: none for this tokenizer */
    self_test_result *r;
    sha256 *sum;
} self_test;

/* The set whose vocabulary has as many tokens. */
static const json *find_set(const json *root, const tokenizer *t, self_test_result *r) {
    JSON_EACH(set, json_get(root, "tokenizers")) {
        int64_t size = 0;
        const char *name = json_str(json_get(set, "name"));
        if (json_i64(json_get(set, "vocabulary"), &size) == OK && size == tokenizer_size(t) &&
            name != NULL) {
            str_copy(r->tokenizer, sizeof r->tokenizer, name);
            return json_get(set, "ids");
        }
    }
    return NULL;
}

static int text_differs(const char *id, const char *want, const char *got, err *e) {
    size_t n = 0;
    while (want[n] != '\0' && want[n] == got[n]) {
        n++;
    }
    size_t from = n > AROUND ? n - AROUND : 0;
    while (from < n && ((unsigned char)want[from] & 0xc0) == 0x80) {
        from++; /* not in the middle of a character */
    }
    return err_set(e, ERR_MISMATCH,
        "prompt self-test: case %s differs at byte %zu: \"%.48s\" instead of \"%.48s\"; this build "
        "would send wrong prompts, do not use it",
        id, n, got + from, want + from);
}

static int check_ids(self_test *s, const char *id, const chat_prompt *p, err *e) {
    token_list ids = {0};
    uint8_t raw[SHA256_BYTES];
    char hex[SHA256_HEX];
    int rc = chat_prompt_encode(p, s->t, false, &ids, e);
    if (rc == OK) {
        sha256_of(ids.ids, ids.len * sizeof *ids.ids, raw);
        sha256_hex(raw, hex);
        sha256_update(s->sum, raw, sizeof raw);
        const char *want = s->set != NULL ? json_str(json_get(s->set, id)) : NULL;
        if (want != NULL && !str_eq(want, hex))
            rc = err_set(e, ERR_MISMATCH,
                "prompt self-test: case %s has other token ids (%zu of them) than the reference; "
                "tokenizer.json is not the model's, or this build is wrong: fetch it again",
                id, ids.len);
        s->r->n_tokens += rc == OK && want != NULL;
    }
    token_list_release(&ids);
    return rc;
}

static int run_case(self_test *s, const json *c, err *e) {
    chat_prompt p = CHAT_PROMPT_INIT;
    const char *id = json_str(json_get(c, "id")), *want = json_str(json_get(c, "prompt"));
    const json *body = json_get(c, "body");
    if (id == NULL || want == NULL || body == NULL)
        return err_set(e, ERR_FORMAT, "prompt self-test: case %d is incomplete", s->r->n_cases + 1);
    s->r->n_cases++;
    int rc = chat_render_body(body, NULL, &p, e);
    if (rc != OK) {
        rc = err_set(e, ERR_MISMATCH, "prompt self-test: case %s is refused", id);
    } else {
        sha256_update(s->sum, p.text.data, p.text.len);
        if (!str_eq(want, buf_cstr(&p.text))) rc = text_differs(id, want, buf_cstr(&p.text), e);
    }
    s->r->n_prompts += rc == OK;
    if (rc == OK) rc = check_ids(s, id, &p, e);
    chat_prompt_release(&p);
    return rc;
}

int self_test_run(
    const char *cases, size_t len, const tokenizer *t, self_test_result *out, err *e) {
    json *root = NULL;
    uint8_t raw[SHA256_BYTES];
    *out = (self_test_result){0};
    int rc = json_parse(cases, len, NULL, &root, e);
    if (rc != OK) return err_add(e, rc, "the cases of the prompt self-test");
    self_test s = {.t = t, .r = out, .sum = sha256_new()};
    s.set = find_set(root, t, out);
    JSON_EACH(c, json_get(root, "cases")) {
        rc = run_case(&s, c, e);
        if (rc != OK) break;
    }
    if (rc == OK && out->n_cases == 0)
        rc = err_set(e, ERR_FORMAT, "the prompt self-test has no cases");
    sha256_finish(s.sum, raw);
    sha256_free(s.sum);
    sha256_hex(raw, out->digest);
    json_free(root);
    return rc;
}
