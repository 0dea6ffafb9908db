/* The real tandemd with the demo model: constrained replies are the same with drafts and without,
 * alone and four at once, with thinking, stops and log probabilities; prompts are scored as they were
 * generated; answers go on without their connection; the cache is seen, forgotten, and separated by
 * key; the engine proves itself. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/api/keys.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/str.h"
#include "tests/harness/live_daemon.h"
#include "tests/harness/wire.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { PATIENCE_MS = 900000 }; /* a sanitizer on a busy machine is slow */
#else
enum { PATIENCE_MS = 240000 };
#endif

#define USER(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define LIMITS ",\"max_completion_tokens\":260,\"seed\":11,\"temperature\":"
#define SCHEMA                                                                                          \
    "{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"alpha\",\"beta\"]},\"n\":{\"type\":"    \
    "\"integer\",\"minimum\":-50,\"maximum\":5000},\"list\":{\"type\":\"array\",\"items\":{\"type\":"   \
    "\"string\",\"maxLength\":9},\"minItems\":2,\"maxItems\":4,\"uniqueItems\":true},\"id\":{\"type\":" \
    "\"string\",\"pattern\":\"^[a-z0-9-]{2,12}$\"}},\"required\":[\"kind\",\"n\",\"list\",\"id\"],"     \
    "\"additionalProperties\":false}"
#define FORMAT                                                                                          \
    ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"r\",\"schema\":" SCHEMA \
    "}}"
#define TOOLS                                                                                      \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"note\",\"parameters\":" SCHEMA    \
    "}}],\"parallel_tool_calls\":false"
#define THINKS ",\"reasoning_effort\":\"low\",\"thinking_budget\":20"

/* What each reply must hold is looked at in check_content. */
static const char *const bodies[] = {
    "{" USER("Say something.") LIMITS "0" FORMAT ",\"logprobs\":true,\"top_logprobs\":3}",
    "{" USER("Tell me more.") LIMITS "0.9" FORMAT THINKS ",\"logprobs\":true}",
    "{" USER("Note this.") LIMITS "0.8" TOOLS ",\"tool_choice\":\"required\"}",
    "{" USER("Note that.") LIMITS "0.7" TOOLS THINKS ",\"tool_choice\":{\"type\":\"function\","
                                  "\"function\":{\"name\":\"note\"}}}",
    "{" USER("What now?") LIMITS "1"
                                 ",\"guided_regex\":\"[A-Z][a-z]{3,9}: [0-9]{2,4}(, [a-z ]*)?\","
                                 "\"logprobs\":true}",
    "{" USER("Stop at a comma.") LIMITS "0.5" FORMAT ",\"stop\":[\",\"],\"logprobs\":true}",
    "{" USER("Pick one.") LIMITS "0.9"
                                 ",\"guided_choice\":[\"yes\",\"no\",\"yes, but\"]}",
    "{" USER("Say it and go on.") LIMITS "0.9" FORMAT ",\"ignore_eos\":true}",
    "{" USER("Note it and go on.") LIMITS "0.9" TOOLS ",\"tool_choice\":\"required\","
                                          "\"ignore_eos\":true}",
    "{" USER("What is the capital of France?") LIMITS "0"
                                                      ",\"stop\":[\".\"],\"logprobs\":true,"
                                                      "\"top_logprobs\":2}",
};
#ifdef __SANITIZE_THREAD__
enum { N_BODIES = 3, CROWD = 3 }; /* a step takes seconds there */
#else
enum { N_BODIES = sizeof bodies / sizeof bodies[0], CROWD = 4 };
#endif

static live_daemon with_drafts, serial;

static void post(
    const live_daemon *d, const char *headers, const char *path, const char *body, wire_answer *a) {
    wire w;
    wire_open_unix(&w, d->socket_path);
    wire_request(&w, body != NULL ? "POST" : "GET", path, headers, body);
    wire_read(&w, a, PATIENCE_MS);
    wire_close(&w);
}

static json *ask(const live_daemon *d, const char *path, const char *body, int status) {
    wire_answer a;
    json *v = NULL;
    post(d, "", path, body, &a);
    if (a.status != status || json_parse(buf_cstr(&a.body), a.body.len, NULL, &v, NULL) != OK) {
        fail_msg("%s %s: %d %s", path, body != NULL ? body : "", a.status, buf_cstr(&a.body));
    }
    wire_answer_release(&a);
    return v;
}

static const json *choice_of(const json *answer) {
    return json_at(json_get(answer, "choices"), 0);
}

/* Everything of a choice but the names of calls. */
static void print_choice(const json *answer, buf *out) {
    const json *choice = choice_of(answer);
    const json *message = json_get(choice, "message");
    json_print(json_get(message, "content"), out);
    json_print(json_get(message, "reasoning_content"), out);
    JSON_EACH(call, json_get(message, "tool_calls")) {
        json_print(json_get(call, "function"), out);
    }
    json_print(json_get(choice, "logprobs"), out);
    json_print(json_get(choice, "finish_reason"), out);
    json_print(json_get(choice, "stop_reason"), out);
}

static void reply_to(const live_daemon *d, int i, buf *out) {
    json *v = ask(d, "/v1/chat/completions", bodies[i], 200);
    print_choice(v, out);
    json_free(v);
}

typedef struct asker {
    const live_daemon *daemon;
    int i;
    buf said;
} asker;

static void *ask_in_thread(void *arg) {
    asker *a = arg;
    reply_to(a->daemon, a->i, &a->said);
    return NULL;
}

/* All bodies, four at once. */
static void ask_crowd(const live_daemon *d, asker askers[N_BODIES]) {
    for (int from = 0; from < N_BODIES; from += CROWD) {
        pthread_t threads[CROWD];
        int n = N_BODIES - from < CROWD ? N_BODIES - from : CROWD;
        for (int k = 0; k < n; k++) {
            askers[from + k] = (asker){.daemon = d, .i = from + k, .said = BUF_INIT};
            assert_int_equal(
                pthread_create(&threads[k], NULL, ask_in_thread, &askers[from + k]), 0);
        }
        for (int k = 0; k < n; k++)
            pthread_join(threads[k], NULL);
    }
}

static void check_object(const json *text) {
    json *v = NULL;
    const json *list = NULL;
    int64_t n = 0;
    assert_int_equal(json_parse(json_str(text), strlen(json_str(text)), NULL, &v, NULL), OK);
    assert_int_equal(json_i64(json_get(v, "n"), &n), OK);
    assert_true(n >= -50 && n <= 5000);
    list = json_get(v, "list");
    assert_true(json_count(list) >= 2 && json_count(list) <= 4);
    assert_true(strlen(json_str(json_get(v, "id"))) >= 2);
    json_free(v);
}

static void constrained_replies_keep_their_form(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        json *v = ask(&with_drafts, "/v1/chat/completions", bodies[i], 200);
        const json *message = json_get(choice_of(v), "message");
        const json *call = json_at(json_get(message, "tool_calls"), 0);
        check_object(i < 2 ? json_get(message, "content")
                           : json_get(json_get(call, "function"), "arguments"));
        if (i == 1 || i == 3) assert_non_null(json_get(message, "reasoning_content"));
        json_free(v);
    }
}

static void drafts_and_company_change_nothing(void **state) {
    static asker together[N_BODIES], alone_together[N_BODIES];
    (void)state;
    ask_crowd(&with_drafts, together);
    ask_crowd(&serial, alone_together);
    for (int i = 0; i < N_BODIES; i++) {
        buf want = BUF_INIT, drafted = BUF_INIT;
        reply_to(&serial, i, &want);
        reply_to(&with_drafts, i, &drafted);
        assert_string_equal(buf_cstr(&drafted), buf_cstr(&want));
        assert_string_equal(buf_cstr(&together[i].said), buf_cstr(&want));
        assert_string_equal(buf_cstr(&alone_together[i].said), buf_cstr(&want));
        buf_release(&want);
        buf_release(&drafted);
        buf_release(&together[i].said);
        buf_release(&alone_together[i].said);
    }
    json *v = ask(&with_drafts, "/v1/chat/completions", bodies[0], 200);
    int64_t n = 0;
    assert_int_equal(json_i64(json_get(json_get(v, "timings"), "draft_n"), &n), OK);
    assert_true(n > 0); /* there were drafts */
    json_free(v);
}

/* ---- scoring ---- */

static void put_list(const json *v, const char *key, buf *out) {
    JSON_EACH(item, json_get(json_get(choice_of(v), "logprobs"), key)) {
        json_print(item, out);
        buf_putc(out, ' ');
    }
}

static void prompts_are_scored_as_generated(void **state) {
    (void)state;
    buf body = BUF_INIT, written = BUF_INIT, scored = BUF_INIT, text = BUF_INIT;
    json *v = ask(&with_drafts, "/v1/completions",
        "{\"prompt\":\"The capital of France\",\"max_tokens\":24,\"temperature\":0,\"logprobs\":2}",
        200);
    put_list(v, "token_logprobs", &written);
    put_list(v, "top_logprobs", &written);
    buf_puts(&text, "The capital of France");
    json_str_bytes(json_get(choice_of(v), "text"), &text);
    json_free(v);
    buf_puts(&body, "{\"max_tokens\":0,\"echo\":true,\"logprobs\":2,\"prompt\":");
    json_quote(&body, text.data, text.len);
    buf_putc(&body, '}');
    v = ask(&serial, "/v1/completions", buf_cstr(&body), 200);
    assert_string_equal(json_str(json_get(choice_of(v), "text")), buf_cstr(&text));
    put_list(v, "token_logprobs", &scored);
    buf_putc(&scored, '|');
    put_list(v, "top_logprobs", &scored);
    /* The scores of what was generated end the list of those of all tokens. */
    const char *bar = strchr(buf_cstr(&scored), '|');
    size_t n_numbers = strcspn(buf_cstr(&written), "{");
    assert_int_equal(strncmp(bar - n_numbers, buf_cstr(&written), n_numbers), 0);
    assert_true(str_ends(buf_cstr(&scored), buf_cstr(&written) + n_numbers));
    int64_t n = -1;
    json_i64(json_get(json_get(v, "usage"), "completion_tokens"), &n);
    assert_int_equal(n, 0);
    json_free(v);
    buf_release(&body);
    buf_release(&written);
    buf_release(&scored);
    buf_release(&text);
}

/* ---- answers without their connection ---- */

#define LONG_STREAM                                                                                \
    "{" USER(                                                                                      \
        "Tell me a story about a dog.") ",\"max_tokens\":160,\"temperature\":0,\"ignore_eos\":true,\"stream\":true}"

static void answers_go_on_without_connection(void **state) {
    (void)state;
    wire w;
    wire_answer a;
    char path[160], id[64] = "";
    wire_open_unix(&w, with_drafts.socket_path);
    wire_request(&w, "POST", "/v1/chat/completions", "tandem-detach: 1\r\n", LONG_STREAM);
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    const char *at = NULL;
    while (at == NULL && clock_mono_ms() < deadline) {
        wire_receive(&w, 100);
        at = strstr(buf_cstr(&w.in), "chatcmpl-");
        if (at != NULL && strchr(at, '"') == NULL) at = NULL;
    }
    assert_non_null(at);
    str_copy(id, strcspn(at, "\"") + 1, at);
    wire_close(&w); /* the client goes */
    (void)snprintf(path, sizeof path, "/tandem/v1/replies/%s", id);
    post(&with_drafts, "", path, NULL, &a);
    assert_int_equal(a.status, 200);
    assert_true(str_ends(buf_cstr(&a.body), "data: [DONE]\n\n"));
    assert_non_null(strstr(buf_cstr(&a.body), "\"finish_reason\":\"length\""));
    buf whole = BUF_INIT;
    buf_append(&whole, buf_cstr(&a.body), a.body.len);
    wire_answer_release(&a);
    (void)snprintf(path, sizeof path, "/tandem/v1/replies/%s?from=%zu", id, whole.len / 2);
    post(&with_drafts, "", path, NULL, &a);
    assert_string_equal(buf_cstr(&a.body), buf_cstr(&whole) + whole.len / 2);
    wire_answer_release(&a);
    buf_release(&whole);
    json_free(ask(&with_drafts, "/tandem/v1/replies/nothing", NULL, 404));
}

/* ---- the cache ---- */

static int64_t cached_of(const live_daemon *d, const char *headers, const char *body) {
    wire w;
    wire_answer a;
    json *v = NULL;
    int64_t n = -1;
    wire_open_tcp(&w, d->port);
    wire_request(&w, "POST", "/v1/chat/completions", headers, body);
    wire_read(&w, &a, PATIENCE_MS);
    wire_close(&w);
    if (a.status != 200 || json_parse(buf_cstr(&a.body), a.body.len, NULL, &v, NULL) != OK) {
        fail_msg("%d %s", a.status, buf_cstr(&a.body));
    }
    json_i64(json_get(json_get(v, "usage"), "prompt_cache_hit_tokens"), &n);
    json_free(v);
    wire_answer_release(&a);
    return n;
}

static void long_body(buf *out, const char *more) {
    buf_puts(out, "{\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 50; i++)
        buf_printf(out, "Line %d says that all is well. ", i);
    buf_printf(out, "\"}]%s}", more);
}

static void the_cache_is_seen_and_forgotten(void **state) {
    (void)state;
    buf body = BUF_INIT;
    int64_t n = 0, id = -1;
    char path[80];
    wire w;
    wire_answer a;
    long_body(&body, "");
    json_free(ask(&serial, "/v1/chat/completions", buf_cstr(&body), 200));
    json *v = ask(&serial, "/tandem/v1/cache", NULL, 200);
    assert_int_equal(json_i64(json_get(v, "n_entries"), &n), OK);
    assert_true(n > 0);
    const json *first = json_at(json_get(v, "entries"), 0);
    assert_int_equal(json_i64(json_get(first, "id"), &id), OK);
    assert_true(json_is_number(json_get(first, "tokens")));
    assert_true(json_is_true(json_get(first, "in_memory")));
    assert_true(json_is_bool(json_get(first, "on_disk")));
    json_free(v);
    (void)snprintf(path, sizeof path, "/tandem/v1/cache/%lld", (long long)id);
    for (int i = 0; i < 2; i++) {
        wire_open_unix(&w, serial.socket_path);
        wire_request(&w, "DELETE", path, "", NULL);
        wire_read(&w, &a, PATIENCE_MS);
        assert_int_equal(a.status, i == 0 ? 200 : 404);
        wire_answer_release(&a);
        wire_close(&w);
    }
    buf_release(&body);
}

static void keys_do_not_share_the_cache(void **state) {
    char keys_path[64], key[2][64], header[2][160];
    const char *const arguments[] = {"--keys", keys_path, "--cache-per-key", "on", NULL};
    const key_limits no_limits = {0};
    live_daemon d;
    err e = ERR_INIT;
    buf body = BUF_INIT, salted = BUF_INIT;
    (void)state;
    (void)snprintf(keys_path, sizeof keys_path, "/tmp/tandem-live-keys-%ld", (long)getpid());
    (void)unlink(keys_path);
    for (int i = 0; i < 2; i++) {
        key_make(key[i], sizeof key[i]);
        assert_int_equal(keys_add(keys_path, i == 0 ? "one" : "two", key[i], &no_limits, &e), OK);
        (void)snprintf(header[i], sizeof header[i], "x-api-key: %s\r\n", key[i]);
    }
    if (live_daemon_start(&d, arguments, &e) != OK) fail_msg("%s", e.msg);
    long_body(&body, "");
    long_body(&salted, ",\"cache_salt\":\"s\"");
    assert_int_equal(cached_of(&d, header[0], buf_cstr(&body)), 0);
    assert_true(cached_of(&d, header[0], buf_cstr(&body)) > 100);
    assert_int_equal(cached_of(&d, header[0], buf_cstr(&salted)), 0);
    assert_int_equal(cached_of(&d, header[1], buf_cstr(&body)), 0);
    assert_true(cached_of(&d, header[1], buf_cstr(&body)) > 100);
    live_daemon_stop(&d);
    unlink(keys_path);
    buf_release(&body);
    buf_release(&salted);
}

/* ---- proof and log ---- */

static void the_engine_proves_itself(void **state) {
    (void)state;
    json *v = ask(&with_drafts, "/tandem/v1/verify", "{\"level\":2}", 200);
    assert_true(json_is_true(json_get(v, "ok")));
    assert_int_equal(json_count(json_get(v, "checks")), 2);
    json_free(v);
    json_free(ask(&with_drafts, "/tandem/v1/verify", "{\"level\":3}", 400));
}

static void the_log_is_followed(void **state) {
    (void)state;
    wire w;
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    wire_open_unix(&w, with_drafts.socket_path);
    wire_request(&w, "GET", "/tandem/v1/log?level=info&rank=0", "", NULL);
    while (strstr(buf_cstr(&w.in), "model loaded") == NULL && clock_mono_ms() < deadline)
        wire_receive(&w, 100);
    assert_non_null(strstr(buf_cstr(&w.in), "data: {\"number\":"));
    assert_non_null(strstr(buf_cstr(&w.in), "model loaded"));
    json_free(ask(&serial, "/v1/chat/completions", "{" USER("x") ",\"max_tokens\":1}", 200));
    json_free(ask(&with_drafts, "/v1/chat/completions", "{" USER("x") ",\"max_tokens\":1}", 200));
    while (strstr(buf_cstr(&w.in), "reply ended") == NULL && clock_mono_ms() < deadline)
        wire_receive(&w, 100);
    assert_non_null(strstr(buf_cstr(&w.in), "reply ended"));
    wire_close(&w);
    json_free(ask(&with_drafts, "/tandem/v1/log?rank=1", NULL, 400));
    json_free(ask(&with_drafts, "/tandem/v1/log?level=loud", NULL, 400));
}

/* ---- memory ---- */

static size_t resident_bytes(const live_daemon *d) {
    char path[64];
    buf text = BUF_INIT;
    unsigned long long all = 0;
    unsigned long long resident = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)d->pid);
    assert_int_equal(file_read(path, &text, 4096, NULL), OK);
    assert_int_equal(sscanf(buf_cstr(&text), "%llu %llu", &all, &resident), 2);
    buf_release(&text);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* The tree of a large body is many small blocks, which an allocator would keep. */
static void large_bodies_leave_no_memory(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* their allocators keep what was freed */
#endif
    enum { N_ITEMS = 300000, N_ROUNDS = 6, GIVE_BACK_MS = 60000 };
    buf body = BUF_INIT;
    buf_puts(&body, "{\"metadata\":{");
    for (int i = 0; i < N_ITEMS; i++) {
        buf_printf(&body, "%s\"name %d\":[%d,{\"a\":null}]", i > 0 ? "," : "", i, i);
    }
    buf_puts(&body, "},\"messages\":[]}");
    json_free(ask(&with_drafts, "/v1/chat/completions", "{}", 400));
    size_t before = resident_bytes(&with_drafts);
    size_t limit = before + ((size_t)8 << 20);
    for (int i = 0; i < N_ROUNDS; i++) {
        json_free(ask(&with_drafts, "/v1/chat/completions", buf_cstr(&body), 400));
        /* It is given back behind the answer. */
        uint64_t deadline = clock_mono_ms() + GIVE_BACK_MS;
        while (resident_bytes(&with_drafts) > limit && clock_mono_ms() < deadline)
            sleep_ms(50);
        size_t after = resident_bytes(&with_drafts);
        if (after > limit) fail_msg("%zu bytes before, %zu now", before, after);
    }
    buf_release(&body);
}

/* ---- the end ---- */

static void a_stop_may_name_its_deadline(void **state) {
    static const char *const none[] = {NULL};
    live_daemon d;
    err e = ERR_INIT;
    wire w;
    (void)state;
    if (live_daemon_start(&d, none, &e) != OK) fail_msg("%s", e.msg);
    wire_open_unix(&w, d.socket_path);
    wire_request(&w, "POST", "/v1/chat/completions", "", LONG_STREAM);
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    while (strstr(buf_cstr(&w.in), "\"content\":\"\"") == NULL && clock_mono_ms() < deadline)
        wire_receive(&w, 50);
    json_free(ask(&d, "/tandem/v1/stop", "{\"deadline_s\":\"soon\"}", 400));
    json_free(ask(&d, "/tandem/v1/stop", "{\"deadline_s\":0}", 200));
    while (!w.is_closed && clock_mono_ms() < deadline)
        wire_receive(&w, 50);
    assert_true(w.is_closed);
    wire_close(&w);
    while (waitpid(d.pid, NULL, WNOHANG) == 0 && clock_mono_ms() < deadline)
        sleep_ms(10);
    d.pid = -1; /* it has ended by itself */
    live_daemon_stop(&d);
}

int main(void) {
    /* Two engines on one machine: threads that wait for each other would take turns. */
    static const char *const drafts[] = {"--threads", "1", NULL};
    static const char *const no_drafts[] = {"--threads", "1", "--no-drafts", NULL};
    err e = ERR_INIT;
    const struct CMUnitTest tests[] = {cmocka_unit_test(constrained_replies_keep_their_form),
        cmocka_unit_test(drafts_and_company_change_nothing),
        cmocka_unit_test(prompts_are_scored_as_generated),
        cmocka_unit_test(answers_go_on_without_connection),
        cmocka_unit_test(the_cache_is_seen_and_forgotten),
        cmocka_unit_test(keys_do_not_share_the_cache), cmocka_unit_test(the_engine_proves_itself),
        cmocka_unit_test(the_log_is_followed), cmocka_unit_test(large_bodies_leave_no_memory),
        cmocka_unit_test(a_stop_may_name_its_deadline)};
    (void)signal(SIGPIPE, SIG_IGN);
    int rc = live_daemon_start(&with_drafts, drafts, &e);
    if (rc == ERR_NOT_FOUND) {
        print_message("skipped: %s\n", e.msg);
        return 77;
    }
    if (rc == OK) rc = live_daemon_start(&serial, no_drafts, &e);
    if (rc != OK) {
        print_message("%s\n", e.msg);
        live_daemon_stop(&with_drafts);
        return 1;
    }
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    live_daemon_stop(&with_drafts);
    live_daemon_stop(&serial);
    return n_failed;
}
