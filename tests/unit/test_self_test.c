/* The prompt self-test: the cases that come with the program hold for the demo model's tokenizer and,
 * where it can be had, for DeepSeek's own; a case whose text or ids differ is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/text/self_test.h"
#include "tests/harness/real_tokenizer.h"
#include "tests/harness/vectors.h"

static buf cases = BUF_MAX(SELF_TEST_MAX_BYTES);
static tokenizer *demo;

static const char *source_dir(void) {
    const char *dir = getenv("TANDEM_SOURCE_DIR");
    return dir != NULL ? dir : ".";
}

static void demo_tokenizer_passes(void **state) {
    (void)state;
    self_test_result r;
    err e = ERR_INIT;
    if (self_test_run(cases.data, cases.len, demo, &r, &e) != OK) fail_msg("%s", e.msg);
    assert_string_equal(r.tokenizer, "tandem-demo");
    assert_int_equal(r.n_prompts, r.n_cases);
    assert_int_equal(r.n_tokens, r.n_cases);
    assert_true(r.n_cases >= 35);
    assert_int_equal(strlen(r.digest), 64);
    printf("%d prompts, %d lists of ids of %s, renderer %.16s\n", r.n_prompts, r.n_tokens,
        r.tokenizer, r.digest);
}

static void real_tokenizer_passes(void **state) {
    (void)state;
    self_test_result r;
    buf text = BUF_MAX(64 << 20);
    tokenizer *t = NULL;
    char why[256] = "";
    err e = ERR_INIT;
    if (real_tokenizer_v41(vectors_golden_dir(), &text, why) != OK) {
        printf("not fetched: %s\n", why);
        buf_release(&text);
        skip();
    }
    assert_int_equal(tokenizer_parse(text.data, text.len, &t, &e), OK);
    if (self_test_run(cases.data, cases.len, t, &r, &e) != OK) fail_msg("%s", e.msg);
    assert_string_equal(r.tokenizer, "deepseek-v4.1");
    assert_true(r.n_tokens >= 35);
    tokenizer_close(t);
    buf_release(&text);
}

/* Changes one word in the cases and runs them. */
static int run_changed(const char *from, const char *to, err *e) {
    self_test_result r;
    buf text = BUF_MAX(SELF_TEST_MAX_BYTES);
    buf_append(&text, cases.data, cases.len);
    char *at = strstr(buf_cstr(&text), from);
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    int rc = self_test_run(text.data, text.len, demo, &r, e);
    buf_release(&text);
    return rc;
}

static void a_wrong_prompt_is_named(void **state) {
    (void)state;
    err e = ERR_INIT;
    assert_int_equal(run_changed("Reasoning Effort: 75 (range", "Reasoning Effort: 57 (range", &e),
        ERR_MISMATCH);
    if (strstr(e.msg, "differs at byte") == NULL || strstr(e.msg, "do not use it") == NULL)
        fail_msg("%s", e.msg);
}

static void wrong_ids_are_named(void **state) {
    (void)state;
    err e = ERR_INIT;
    char from[96], to[96];
    const char *set = strstr(buf_cstr(&cases), "\"tandem-demo\"");
    const char *at = set != NULL ? strstr(set, "\"agent-turn\": \"") : NULL;
    assert_non_null(at);
    snprintf(from, sizeof from, "%.40s", at);
    snprintf(to, sizeof to, "%.40s", at);
    to[20] = to[20] == '0' ? '1' : '0';
    /* The same id stands in the other set first: cut to the digest, which is unique. */
    assert_int_equal(run_changed(from + 15, to + 15, &e), ERR_MISMATCH);
    if (strstr(e.msg, "case agent-turn has other token ids") == NULL) fail_msg("%s", e.msg);
}

static void damaged_cases_are_no_pass(void **state) {
    (void)state;
    self_test_result r;
    err e = ERR_INIT;
    assert_int_not_equal(self_test_run("{", 1, demo, &r, &e), OK);
    assert_int_equal(self_test_run("{}", 2, demo, &r, &e), ERR_FORMAT);
    assert_int_equal(self_test_run("{\"cases\":[{\"id\":\"x\"}]}", 23, demo, &r, &e), ERR_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_tokenizer_passes),
        cmocka_unit_test(real_tokenizer_passes),
        cmocka_unit_test(a_wrong_prompt_is_named),
        cmocka_unit_test(wrong_ids_are_named),
        cmocka_unit_test(damaged_cases_are_no_pass),
    };
    char path[512];
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/templates/prompt-self-test.json", source_dir());
    int rc = file_read(path, &cases, SELF_TEST_MAX_BYTES, &e);
    snprintf(path, sizeof path, "%s/templates/demo-model/tokenizer.json", source_dir());
    if (rc == OK) rc = tokenizer_open(path, &demo, &e);
    if (rc != OK) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(demo);
    buf_release(&cases);
    return rc;
}
