/* What must not leave the machine does not; what helps to understand a fault stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "setup/redact.h"

static const redact_names NAMES = {
    .home = "/home/ada", .name = {{"spark-one", "head"}, {"spark-two", "worker"}}, .n_names = 2};

static void expect(const char *in, const char *want) {
    buf out = BUF_INIT;
    assert_int_equal(redact_text(&NAMES, in, strlen(in), &out, NULL), OK);
    if (strcmp(buf_cstr(&out), want) != 0)
        fail_msg("\"%s\"\n  gave     \"%s\"\n  expected \"%s\"", in, buf_cstr(&out), want);
    buf_release(&out);
}

static void secrets_go(void **state) {
    (void)state;
    expect("token hf_abcdefghijKLMN12 used", "token <secret> used");
    expect("Authorization: Bearer abc.def-123456", "Authorization: Bearer <secret>");
    expect(
        "{\"password\":\"a \\\"b\\\" c\",\"port\":22}", "{\"password\":\"<secret>\",\"port\":22}");
    expect("HF_TOKEN=verysecret1", "HF_TOKEN=<secret>");
    expect("HF_ENDPOINT=https://hub.example (file)", "HF_ENDPOINT=https://hub.example (file)");
    expect("HF_TOKEN_FILE=/etc/hub", "HF_TOKEN_FILE=/etc/hub");
    expect("x-api-key: sk-1234567890abc", "x-api-key: <secret>");
    expect("\"api_key\" : \"k\"", "\"api_key\" : \"<secret>\"");
    expect("password=\"open end", "password=\"<secret>");
    expect("\"password\":\"cut\\", "\"password\":\"<secret>");
}

static void addresses_and_names(void **state) {
    (void)state;
    expect("eth0 aa:bb:cc:dd:ee:ff up", "eth0 aa:bb:cc:xx:xx:xx up");
    expect("from 93.184.216.34:443 to 10.0.0.2, 192.168.177.11 and 127.0.0.1",
        "from <address>:443 to 10.0.0.2, 192.168.177.11 and 127.0.0.1");
    expect("version 1.2.3.4.5 and 300.1.1.1", "version 1.2.3.4.5 and 300.1.1.1");
    expect("at [2001:db8::7]:443, 2a00:1450:4001:0:0:0:0:5: no; fe80::1, ::1 and 10:20:30 stay",
        "at [<address>]:443, <address>: no; fe80::1, ::1 and 10:20:30 stay");
    expect("spark-one: /home/ada/models, spark-two-b", "head: ~/models, spark-two-b");
    expect("/home/adam", "/home/adam");
}

static void prompts_go_and_words_stay(void **state) {
    (void)state;
    expect("{\"role\":\"user\",\"content\":\"my diary\"}",
        "{\"role\":\"user\",\"content\":\"<text>\"}");
    expect("the content: of this line stays", "the content: of this line stays");
    expect("tokens=5 tokenizer=ok prompt 12", "tokens=5 tokenizer=ok prompt 12");
    expect("basic facts, sk-short", "basic facts, sk-short");
}

static void counts_and_limit(void **state) {
    (void)state;
    const char *in = "hf_abcdefghijk aa:bb:cc:dd:ee:ff spark-one";
    redact_counts c = {0};
    buf out = BUF_INIT;
    assert_int_equal(redact_text(&NAMES, in, strlen(in), &out, &c), OK);
    assert_int_equal(c.secrets, 1);
    assert_int_equal(c.addresses, 1);
    assert_int_equal(c.names, 1);
    buf_release(&out);
    buf small = BUF_MAX(4);
    assert_int_equal(redact_text(&NAMES, in, strlen(in), &small, NULL), ERR_LIMIT);
    buf_release(&small);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(secrets_go),
        cmocka_unit_test(addresses_and_names), cmocka_unit_test(prompts_go_and_words_stay),
        cmocka_unit_test(counts_and_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
