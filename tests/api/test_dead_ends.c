/* Nothing a request forbids leads a constrained reply to where no token is allowed: a grammar that
 * has come to its end ends the reply also under ignore_eos, and a ban gives way where the grammar
 * allows nothing else. Each form whole, twice at once and streamed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/api/api.h"
#include "engine/base/json.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/wire.h"

enum { PATIENCE_MS = 60000, MAX_TOKENS = 60, N_CHOICES = 2 };

#define CHAT "/v1/chat/completions"
#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define EOS ",\"ignore_eos\":true"
#define CHOICE ",\"guided_choice\":[\"yes\",\"no\"]"
#define SCHEMA                                                                                     \
    ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"r\",\"schema\":"   \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"}},\"required\":[\"a\"],"     \
    "\"additionalProperties\":false}}}"
#define OBJECT ",\"response_format\":{\"type\":\"json_object\"}"
#define TOOLS                                                                                      \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"    \
    "\"object\",\"properties\":{}}}}]"
#define M "\uFF5CDSML\uFF5C"
#define CALL "\n\n<" M " calls>\n<" M " invoke name=\"f\">\n\n</" M " invoke>\n</" M " calls>"

/* Tokens that the request bans: the end, all, or those whose text begins with a byte. */
enum { BANS_NOTHING = 0, BANS_END = -1, BANS_ALL = -2 };

typedef struct form {
    const char *more; /* of the request */
    int bans;         /* one of the above, or the byte */
    const char *wish; /* what the model would say; then it would end */
    const char *said; /* content or arguments; NULL: any */
    const char *finish;
    bool is_completion;
} form;

static const form forms[] = {
    {EOS CHOICE, BANS_NOTHING, "yes", "yes", "stop", false},
    {EOS SCHEMA, BANS_NOTHING, "{\"a\":true}", "{\"a\":true}", "stop", false},
    {EOS OBJECT, BANS_NOTHING, "{\"a\":1}", "{\"a\":1}", "stop", false},
    {EOS ",\"guided_regex\":\"[a-c]{3}\"", BANS_NOTHING, "cab", "cab", "stop", false},
    {EOS ",\"guided_grammar\":\"root ::= \\\"on\\\" | \\\"off\\\"\"", BANS_NOTHING, "off", "off",
        "stop", false},
    {EOS TOOLS ",\"tool_choice\":\"required\"", BANS_NOTHING, CALL, "{}", "tool_calls", false},
    {EOS TOOLS, BANS_NOTHING, CALL, "{}", "tool_calls", false},
    {EOS CHOICE, BANS_NOTHING, "no", "no", "stop", true},
    {SCHEMA, BANS_END, "{\"a\":true}", "{\"a\":true}", "stop", false},
    {CHOICE, BANS_ALL, "yes", "yes", "stop", false},
    {SCHEMA, '{', "{\"a\":false}", "{\"a\":false}", "stop", false},
    {EOS SCHEMA, BANS_ALL, "{\"a\":false}", "{\"a\":false}", "stop", false},
    {CHOICE ",\"temperature\":1,\"top_p\":0.9,\"top_k\":5", BANS_ALL, "yes", "yes", "stop", true},
    {"", BANS_ALL, "well", "well", "stop", false},
    /* What still can be kept is kept. */
    {CHOICE, 'y', "yes", "no", "stop", false},
    {EOS ",\"guided_regex\":\"a{2,5}\"", BANS_NOTHING, "aa", "aaaaa", "stop", false},
    {EOS ",\"guided_regex\":\"a+\"", BANS_NOTHING, "aa", NULL, "length", false},
};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

static tokenizer *tok;
static stub_server server;

static bool is_banned(int bans, int32_t id) {
    size_t len = 0;
    const char *bytes;
    if (bans == BANS_ALL) return true;
    if (bans == BANS_END) return id == tokenizer_controls(tok).eos;
    bytes = tokenizer_bytes(tok, id, &len);
    return len > 0 && bytes[0] == (char)bans;
}

static void put_bans(int bans, buf *out) {
    const char *comma = "";
    if (bans == BANS_NOTHING) return;
    buf_puts(out, ",\"logit_bias\":{");
    for (int32_t id = 0; id < tokenizer_size(tok); id++) {
        if (!is_banned(bans, id)) continue;
        buf_printf(out, "%s\"%d\":-100", comma, (int)id);
        comma = ",";
    }
    buf_puts(out, "}");
}

static void ask(const form *f, const char *how, wire_answer *a) {
    wire w;
    buf body = BUF_INIT;
    buf_printf(&body, "{%s,\"max_tokens\":%d%s%s",
        f->is_completion ? "\"prompt\":\"hi\"" : MESSAGES, MAX_TOKENS, how, f->more);
    put_bans(f->bans, &body);
    buf_puts(&body, "}");
    wire_open_unix(&w, server.socket_path);
    wire_request(&w, "POST", f->is_completion ? "/v1/completions" : CHAT, "", buf_cstr(&body));
    wire_read(&w, a, PATIENCE_MS);
    wire_close(&w);
    if (a->status != 200) fail_msg("%s %s: %d %s", f->more, how, a->status, buf_cstr(&a->body));
    buf_release(&body);
}

/* What a choice or a piece of one says: text, content or arguments. */
static void put_said(const json *choice, const char *key, buf *out) {
    const json *part = json_get(choice, key);
    const char *text = json_str(json_get(choice, "text"));
    const char *content = json_str(json_get(part, "content"));
    if (text != NULL) buf_puts(out, text);
    if (content != NULL) buf_puts(out, content);
    JSON_EACH(call, json_get(part, "tool_calls")) {
        const char *arguments = json_str(json_get(json_get(call, "function"), "arguments"));
        if (arguments != NULL) buf_puts(out, arguments);
    }
}

static void check(const form *f, const char *said, const char *finish) {
    if (f->said != NULL && strcmp(said, f->said) != 0) fail_msg("%s: %s", f->more, said);
    if (finish == NULL || strcmp(finish, f->finish) != 0) fail_msg("%s: %s", f->more, finish);
}

/* Both choices say the same; it is left in out. */
static void check_whole(const form *f, buf *out) {
    wire_answer a;
    json *v = NULL;
    ask(f, ",\"n\":2", &a);
    assert_int_equal(json_parse(buf_cstr(&a.body), a.body.len, NULL, &v, NULL), OK);
    assert_int_equal(json_count(json_get(v, "choices")), N_CHOICES);
    for (size_t i = 0; i < N_CHOICES; i++) {
        const json *choice = json_at(json_get(v, "choices"), i);
        buf_reset(out);
        put_said(choice, "message", out);
        check(f, buf_cstr(out), json_str(json_get(choice, "finish_reason")));
    }
    json_free(v);
    wire_answer_release(&a);
}

static void check_stream(const form *f, const char *whole) {
    static const char data[] = "data: ";
    wire_answer a;
    buf said = BUF_INIT;
    char finish[32] = "";
    bool is_done = false;
    ask(f, ",\"stream\":true", &a);
    const char *at = strstr(buf_cstr(&a.body), data);
    for (; at != NULL; at = strstr(at, data)) {
        json *v = NULL;
        const char *text = at + sizeof data - 1;
        at = strchr(text, '\n');
        assert_non_null(at);
        is_done = strncmp(text, "[DONE]", 6) == 0;
        if (is_done) break;
        assert_int_equal(json_parse(text, (size_t)(at - text), NULL, &v, NULL), OK);
        const json *choice = json_at(json_get(v, "choices"), 0);
        const char *reason = json_str(json_get(choice, "finish_reason"));
        if (json_get(v, "error") != NULL) fail_msg("%s: %s", f->more, text);
        put_said(choice, "delta", &said);
        if (reason != NULL) (void)snprintf(finish, sizeof finish, "%s", reason);
        json_free(v);
    }
    assert_true(is_done);
    check(f, buf_cstr(&said), finish);
    assert_string_equal(buf_cstr(&said), whole);
    buf_release(&said);
    wire_answer_release(&a);
}

static void no_limits_leave_nothing(void **state) {
    (void)state;
    for (int i = 0; i < N_FORMS; i++) {
        const form *f = &forms[i];
        token_list wish = {0};
        text_span span = {.text = f->wish, .len = strlen(f->wish), .is_template = true};
        buf whole = BUF_INIT;
        assert_int_equal(tokenizer_encode(tok, span, &wish, NULL), OK);
        stub_server_options o = {
            .tokenizer = tok, .script = {.preferred = wish.ids, .n_preferred = (int32_t)wish.len}};
        stub_server_start(&server, &o);
        check_whole(f, &whole);
        check_stream(f, buf_cstr(&whole));
        stub_server_stop(&server);
        buf_release(&whole);
        token_list_release(&wish);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_limits_leave_nothing)};
    tok = stub_tokenizer_need();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tok);
    return rc;
}
