/* What an owner may rely on with agents: the loop guard (off unless asked for), the thinking budget,
 * and the room that long thinking leaves for the answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/api/api.h"
#include "engine/base/json.h"
#include "engine/base/rand.h"
#include "engine/run/novelty.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/wire.h"

enum { PATIENCE_MS = 120000, LONG = 900 };

#define ASK "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define LIMIT ",\"max_tokens\":900"
#define CHAT "/v1/chat/completions"
#define FORCED_CALL                                                                                \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"    \
    "\"object\",\"properties\":{}}}}],\"tool_choice\":\"required\""

static tokenizer *tok;
static stub_server server;
static const char *const circle[] = {"and ", "so ", "on "};
static bool guards_by_default;

static void adjust(api_options *o) {
    o->guards_loops = guards_by_default;
}

static void start(const stub_script *script) {
    stub_server_options o = {.tokenizer = tok, .adjust = adjust, .script = *script};
    o.script.max_rows = 64;
    stub_server_start(&server, &o);
}

static void start_circle(void) {
    start(&(stub_script){.pieces = circle, .n_pieces = 3, .n_times = LONG});
}

typedef struct said {
    int64_t n, n_reasoning;
    size_t n_content; /* bytes */
    char finish[16], stop_reason[16];
} said;

static void ask(const char *body, said *out) {
    wire w;
    wire_answer a;
    json *v = NULL;
    wire_open_unix(&w, server.socket_path);
    wire_request(&w, "POST", CHAT, "", body);
    wire_read(&w, &a, PATIENCE_MS);
    wire_close(&w);
    if (a.status != 200 || json_parse(buf_cstr(&a.body), a.body.len, NULL, &v, NULL) != OK) {
        fail_msg("%s: %d %s", body, a.status, buf_cstr(&a.body));
    }
    const json *choice = json_at(json_get(v, "choices"), 0);
    const json *usage = json_get(v, "usage");
    const char *content = json_str(json_get(json_get(choice, "message"), "content"));
    const char *stop = json_str(json_get(choice, "stop_reason"));
    json_i64(json_get(usage, "completion_tokens"), &out->n);
    json_i64(json_get(json_get(usage, "completion_tokens_details"), "reasoning_tokens"),
        &out->n_reasoning);
    out->n_content = content != NULL ? strlen(content) : 0;
    (void)snprintf(
        out->finish, sizeof out->finish, "%s", json_str(json_get(choice, "finish_reason")));
    (void)snprintf(out->stop_reason, sizeof out->stop_reason, "%s", stop != NULL ? stop : "");
    json_free(v);
    wire_answer_release(&a);
}

static void loops_end_only_when_asked(void **state) {
    said s;
    (void)state;
    guards_by_default = false;
    start_circle();
    ask(ASK LIMIT "}", &s);
    assert_int_equal(s.n, LONG);
    assert_string_equal(s.stop_reason, "");
    ask(ASK LIMIT ",\"loop_guard\":true}", &s);
    assert_in_range(s.n, 100, LONG - 1);
    assert_string_equal(s.finish, "length");
    assert_string_equal(s.stop_reason, "loop_guard");
    stub_server_stop(&server);
    guards_by_default = true;
    start_circle();
    ask(ASK LIMIT "}", &s);
    assert_string_equal(s.stop_reason, "loop_guard");
    ask(ASK LIMIT ",\"loop_guard\":false}", &s);
    assert_int_equal(s.n, LONG);
    stub_server_stop(&server);
    guards_by_default = false;
}

/* In thinking the guard closes the thought; what follows is the answer. */
static void a_loop_in_the_thinking_is_closed(void **state) {
    said s;
    (void)state;
    start_circle();
    ask(ASK ",\"max_tokens\":900,\"thinking\":true,\"loop_guard\":true}", &s);
    assert_in_range(s.n_reasoning, 100, LONG - 1);
    assert_true(s.n_content > 0);
    stub_server_stop(&server);
}

static void what_is_new_is_no_loop(void **state) {
    novelty *v = novelty_new();
    bool is_loop = false;
    (void)state;
    for (int32_t i = 0; i < 4000; i++) /* words that come again, never in the same order */
        is_loop |= novelty_take(v, (int32_t)(rand_keyed(7, (uint64_t)i, 1) % 200));
    assert_false(is_loop);
    for (int32_t i = 0; i < 2000 && !is_loop; i++)
        is_loop = novelty_take(v, i % 40);
    assert_true(is_loop);
    novelty_reset(v);
    assert_false(novelty_take(v, 1));
    novelty_free(v);
}

static void thinking_keeps_its_budget(void **state) {
    static const int budgets[] = {0, 1, 7, 100};
    said s;
    char body[200];
    (void)state;
    start_circle();
    for (int i = 0; i < 4; i++) {
        (void)snprintf(body, sizeof body,
            ASK ",\"max_tokens\":200,\"thinking\":true,\"thinking_budget\":%d}", budgets[i]);
        ask(body, &s);
        assert_int_equal(s.n, 200);
        assert_in_range(s.n_reasoning, 0, budgets[i] + 1); /* the closing mark counts */
        assert_true(s.n_content > 0);
    }
    ask(ASK ",\"max_tokens\":200,\"thinking\":true}", &s); /* without one it may take all */
    assert_int_equal(s.n_reasoning, 200);
    assert_int_equal(s.n_content, 0);
    stub_server_stop(&server);
}

/* A quarter of the limit, at most 1024 tokens. */
static void thinking_leaves_room_for_the_answer(void **state) {
    said s;
    (void)state;
    start_circle();
    ask(ASK ",\"max_tokens\":200,\"thinking\":true,\"keep_answer_room\":true}", &s);
    assert_in_range(s.n_reasoning, 145, 151);
    assert_true(s.n_content > 0);
    assert_string_equal(s.finish, "length");
    /* Without a limit of the client's there is nothing to leave room in. */
    ask(ASK ",\"max_tokens\":6000,\"thinking\":true,\"keep_answer_room\":true,\"loop_guard\":true}",
        &s);
    assert_true(s.n_content > 0);
    stub_server_stop(&server);
}

/* Demanded forms always get their room: the stub would think for ever. */
static void demanded_forms_get_their_room(void **state) {
    static const char *const demands[] = {",\"response_format\":{\"type\":\"json_object\"}",
        ",\"guided_regex\":\"[a-z]{3}\"", FORCED_CALL};
    static int32_t thought[LONG];
    said s;
    char body[500];
    (void)state;
    for (int i = 0; i < LONG; i++)
        thought[i] = 300 + i % 50;
    start(&(stub_script){.preferred = thought, .n_preferred = LONG});
    for (int i = 0; i < 3; i++) {
        (void)snprintf(
            body, sizeof body, ASK ",\"max_tokens\":160,\"thinking\":true%s}", demands[i]);
        ask(body, &s);
        assert_in_range(s.n_reasoning, 115, 121);
        assert_true(s.n > s.n_reasoning);
    }
    stub_server_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(loops_end_only_when_asked),
        cmocka_unit_test(a_loop_in_the_thinking_is_closed),
        cmocka_unit_test(what_is_new_is_no_loop), cmocka_unit_test(thinking_keeps_its_budget),
        cmocka_unit_test(thinking_leaves_room_for_the_answer),
        cmocka_unit_test(demanded_forms_get_their_room)};
    tok = stub_tokenizer_open();
    if (tok == NULL) {
        print_message("skipped: no demo tokenizer here\n");
        return 77;
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tok);
    return rc;
}
