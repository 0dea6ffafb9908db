/* Text completions, Messages and Responses over a scripted source; keys, CORS, deadlines, replay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/api/api.h"
#include "engine/api/keys.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/str.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/wire.h"

#define M "\uFF5CDSML\uFF5C"
#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define FUNCTION                                                                                   \
    "{\"type\":\"function\",\"name\":\"sh\",\"parameters\":{\"type\":\"object\",\"properties\":{"  \
    "\"c\":{\"type\":\"string\"}}}}"
#define CHAT_TOOL                                                                                  \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"sh\",\"parameters\":{\"type\":"    \
    "\"object\",\"properties\":{\"c\":{\"type\":\"string\"}}}}}]"
#define CALL                                                                                       \
    "one\n\n<" M " calls>\n<" M " invoke name=\"sh\">\n<" M                                        \
    " parameter name=\"c\" string=\"true\">ls \"x\" \xE2\x82\xAC</" M " parameter>\n</" M          \
    " invoke>\n</" M " calls>"

enum { PATIENCE_MS = 120000 };

static tokenizer *tok;
static char store[600][64];
static const char *pieces[600];

/* Cuts text into pieces of size bytes, never inside a character. */
static int cut(const char *text, size_t size) {
    size_t len = strlen(text);
    int n = 0;
    for (size_t at = 0; at < len && n < 600; n++) {
        size_t k = size;
        while (at + k < len && ((unsigned char)text[at + k] & 0xC0) == 0x80)
            k++;
        if (at + k > len) k = len - at;
        str_copy(store[n], k + 1, text + at);
        pieces[n] = store[n];
        at += k;
    }
    return n;
}

static void start(stub_server *s, const char *text, size_t size, bool thinks) {
    stub_server_options o = {.tokenizer = tok, .thinks_by_default = thinks};
    o.script.pieces = pieces;
    o.script.n_pieces = cut(text, size);
    stub_server_start(s, &o);
}

static void ask(const stub_server *s, const char *path, const char *body, wire_answer *a) {
    wire w;
    wire_open_unix(&w, s->socket_path);
    wire_request(&w, body != NULL ? "POST" : "GET", path, "", body);
    wire_read(&w, a, PATIENCE_MS);
    wire_close(&w);
}

static json *ask_json(const stub_server *s, const char *path, const char *body, int status) {
    wire_answer a;
    json *v = NULL;
    ask(s, path, body, &a);
    if (a.status != status) fail_msg("%s %s: %d %s", path, body, a.status, buf_cstr(&a.body));
    if (json_parse(buf_cstr(&a.body), a.body.len, NULL, &v, NULL) != OK) {
        fail_msg("no JSON: %s", buf_cstr(&a.body));
    }
    wire_answer_release(&a);
    return v;
}

static const char *str_at(const json *v, const char *key) {
    const char *s = json_str(json_get(v, key));
    return s != NULL ? s : "";
}

/* Calls fn with the data of each event of a stream; the names must agree with the data. */
static void each_event(const buf *body, void (*fn)(void *ctx, const json *event), void *ctx) {
    const char *p = buf_cstr(body);
    while ((p = strstr(p, "event: ")) != NULL) {
        const char *data = strstr(p, "\ndata: ");
        const char *end = strstr(p, "\n\n");
        json *v = NULL;
        assert_non_null(data);
        assert_int_equal(json_parse(data + 7, (size_t)(end - data - 7), NULL, &v, NULL), OK);
        const char *type = str_at(v, "type");
        assert_int_equal(strncmp(p + 7, type, strlen(type)), 0);
        fn(ctx, v);
        json_free(v);
        p = end;
    }
}

/* ---- Messages ---- */

typedef struct message_reader {
    buf content; /* a JSON array, as the whole answer has it */
    buf text;    /* of the open block */
    char type[32];
    buf head;
    int n_blocks;
    bool has_start, has_stop, is_open;
    char stop_reason[32];
} message_reader;

static void close_block(message_reader *r) {
    if (r->n_blocks > 1) buf_putc(&r->content, ',');
    buf_append(&r->content, buf_cstr(&r->head), r->head.len);
    if (strcmp(r->type, "tool_use") == 0) {
        buf_append(&r->content, buf_cstr(&r->text), r->text.len);
    } else {
        json_quote(&r->content, buf_cstr(&r->text), r->text.len);
    }
    buf_putc(&r->content, '}');
    r->is_open = false;
}

static void read_message_event(void *ctx, const json *event) {
    message_reader *r = ctx;
    const char *type = str_at(event, "type");
    const json *block = json_get(event, "content_block");
    const json *delta = json_get(event, "delta");
    int64_t index = -1;
    if (json_get(event, "index") != NULL) {
        assert_int_equal(json_i64(json_get(event, "index"), &index), OK);
    }
    assert_true(strcmp(type, "message_start") == 0 ? !r->has_start : r->has_start);
    r->has_start = true;
    if (strcmp(type, "content_block_start") == 0) {
        assert_false(r->is_open);
        assert_int_equal(index, r->n_blocks++);
        r->is_open = true;
        str_copy(r->type, sizeof r->type, str_at(block, "type"));
        buf_reset(&r->text);
        buf_reset(&r->head);
        if (strcmp(r->type, "tool_use") == 0) {
            buf_printf(&r->head, "{\"name\":\"%s\",\"input\":", str_at(block, "name"));
        } else {
            buf_printf(&r->head, "{\"%s\":", r->type);
        }
    } else if (strcmp(type, "content_block_delta") == 0) {
        static const char *const names[] = {"text", "thinking", "partial_json"};
        assert_true(r->is_open);
        for (int i = 0; i < 3; i++) {
            if (json_get(delta, names[i]) != NULL)
                json_str_bytes(json_get(delta, names[i]), &r->text);
        }
    } else if (strcmp(type, "content_block_stop") == 0) {
        close_block(r);
    } else if (strcmp(type, "message_delta") == 0) {
        assert_false(r->is_open);
        str_copy(r->stop_reason, sizeof r->stop_reason, str_at(delta, "stop_reason"));
    } else if (strcmp(type, "message_stop") == 0) {
        r->has_stop = true;
    }
}

/* The whole answer's content in the same short form. */
static void short_content(const json *answer, buf *out) {
    bool is_first = true;
    JSON_EACH(block, json_get(answer, "content")) {
        const char *type = str_at(block, "type");
        if (!is_first) buf_putc(out, ',');
        is_first = false;
        if (strcmp(type, "tool_use") == 0) {
            buf_printf(out, "{\"name\":\"%s\",\"input\":", str_at(block, "name"));
            json_print(json_get(block, "input"), out);
        } else {
            buf_printf(out, "{\"%s\":", type);
            json_print(json_get(block, type), out);
        }
        buf_putc(out, '}');
    }
}

static const struct {
    const char *text;
    bool thinks;
    const char *stop_reason;
} texts[] = {{"thought </think>answer \"quoted\" \\ \xE2\x82\xAC", true, "end_turn"},
    {CALL, false, "tool_use"}, {"2 < 3 and <thin", false, "end_turn"}};
enum { N_TEXTS = sizeof texts / sizeof texts[0] };

static void messages_streamed_equal_whole(void **state) {
    (void)state;
    static const char tools[] =
        ",\"tools\":[{\"name\":\"sh\",\"input_schema\":{\"type\":\"object\","
        "\"properties\":{\"c\":{\"type\":\"string\"}}}}]";
    for (size_t i = 0; i < N_TEXTS; i++) {
        for (size_t size = 1; size < 60; size += 7) {
            stub_server s;
            wire_answer a;
            message_reader r = {.content = BUF_INIT, .text = BUF_INIT, .head = BUF_INIT};
            buf body = BUF_INIT;
            buf want = BUF_INIT;
            start(&s, texts[i].text, size, texts[i].thinks);
            buf_printf(&body, "{\"max_tokens\":4000," ASK "%s}", tools);
            json *whole = ask_json(&s, "/v1/messages?beta=true", buf_cstr(&body), 200);
            buf_truncate(&body, body.len - 1);
            buf_puts(&body, ",\"stream\":true}");
            ask(&s, "/v1/messages", buf_cstr(&body), &a);
            each_event(&a.body, read_message_event, &r);
            short_content(whole, &want);
            assert_string_equal(buf_cstr(&r.content), buf_cstr(&want));
            assert_string_equal(r.stop_reason, texts[i].stop_reason);
            assert_string_equal(str_at(whole, "stop_reason"), texts[i].stop_reason);
            assert_true(r.has_stop);
            json_free(whole);
            wire_answer_release(&a);
            buf_release(&body);
            buf_release(&want);
            buf_release(&r.content);
            buf_release(&r.text);
            buf_release(&r.head);
            stub_server_stop(&s);
        }
    }
}

/* ---- Responses ---- */

typedef struct response_reader {
    int n_events, n_added, n_done;
    char ids[8][64];
    buf deltas[8], items; /* items: of output_item.done, comma separated */
    buf output;           /* of the last event */
    char last[40];
} response_reader;

static void read_response_event(void *ctx, const json *event) {
    response_reader *r = ctx;
    const char *type = str_at(event, "type");
    const json *given = json_get(event, "item");
    int64_t n = -1;
    assert_int_equal(json_i64(json_get(event, "sequence_number"), &n), OK);
    assert_int_equal(n, r->n_events++);
    if (strcmp(type, "response.output_item.added") == 0) {
        str_copy(r->ids[r->n_added++], 64, str_at(given, "id"));
    } else if (strcmp(type, "response.output_item.done") == 0) {
        assert_string_equal(r->ids[r->n_done], str_at(given, "id"));
        if (r->n_done++ > 0) buf_putc(&r->items, ',');
        json_print_compact(given, &r->items);
    } else if (str_ends(type, ".delta")) {
        assert_string_equal(r->ids[r->n_added - 1], str_at(event, "item_id"));
        json_str_bytes(json_get(event, "delta"), &r->deltas[r->n_added - 1]);
    }
    buf_reset(&r->output);
    JSON_EACH(one, json_get(json_get(event, "response"), "output")) {
        if (r->output.len > 0) buf_putc(&r->output, ',');
        json_print_compact(one, &r->output);
    }
    str_copy(r->last, sizeof r->last, type);
}

static const json *item_text(const json *one) {
    const json *part = json_at(json_get(one, "content"), 0);
    return part != NULL ? json_get(part, "text") : json_get(one, "arguments");
}

static void responses_streamed_equal_whole(void **state) {
    (void)state;
    for (size_t i = 0; i < N_TEXTS; i++) {
        for (size_t size = 1; size < 60; size += 7) {
            stub_server s;
            wire_answer a;
            response_reader r = {.items = BUF_INIT, .output = BUF_INIT};
            int k = 0;
            start(&s, texts[i].text, size, texts[i].thinks);
            json *whole =
                ask_json(&s, "/v1/responses", "{\"input\":\"hi\",\"tools\":[" FUNCTION "]}", 200);
            ask(&s, "/v1/responses", "{\"input\":\"hi\",\"stream\":true,\"tools\":[" FUNCTION "]}",
                &a);
            each_event(&a.body, read_response_event, &r);
            assert_string_equal(r.last, "response.completed");
            assert_string_equal(buf_cstr(&r.items), buf_cstr(&r.output));
            assert_int_equal(r.n_added, r.n_done);
            JSON_EACH(one, json_get(whole, "output")) {
                buf want = BUF_INIT;
                json_str_bytes(item_text(one), &want);
                assert_string_equal(buf_cstr(&want), buf_cstr(&r.deltas[k++]));
                buf_release(&want);
            }
            assert_int_equal(k, r.n_done);
            for (int d = 0; d < 8; d++) {
                buf_release(&r.deltas[d]);
            }
            buf_release(&r.items);
            buf_release(&r.output);
            json_free(whole);
            wire_answer_release(&a);
            stub_server_stop(&s);
        }
    }
}

/* ---- text completions and old functions ---- */

static void completions_have_the_old_shape(void **state) {
    (void)state;
    stub_server s;
    start(&s, "<think>raw & \xE2\x82\xAC", 1, false);
    json *v = ask_json(&s, "/completions",
        "{\"prompt\":[\"a\",[5,6]],\"n\":2,\"logprobs\":1,\"max_tokens\":9,\"echo\":false}", 200);
    assert_int_equal(json_count(json_get(v, "choices")), 4);
    int i = 0;
    JSON_EACH(choice, json_get(v, "choices")) {
        int64_t index = -1;
        json_i64(json_get(choice, "index"), &index);
        assert_int_equal(index, i++);
        assert_string_equal(str_at(choice, "text"), "<think>ra");
        assert_string_equal(str_at(choice, "finish_reason"), "length");
        assert_int_equal(json_count(json_get(json_get(choice, "logprobs"), "tokens")), 9);
    }
    assert_string_equal(str_at(v, "object"), "text_completion");
    json_free(v);
    json_free(ask_json(&s, "/completions", "{\"prompt\":\"a\",\"best_of\":2}", 400));
    json_free(ask_json(&s, "/completions", "{\"prompt\":\"a\",\"max_tokens\":0}", 400));
    json_free(ask_json(&s, "/completions", "{\"prompt\":[]}", 400));
    json_free(ask_json(&s, "/completions", "{\"prompt\":[1,\"a\"]}", 400));
    json_free(ask_json(&s, "/completions", "{}", 400));
    stub_server_stop(&s);
}

static void old_functions_answer_in_kind(void **state) {
    (void)state;
    stub_server s;
    start(&s, CALL, 9, false);
    json *v = ask_json(&s, "/v1/chat/completions",
        "{" ASK
        ",\"functions\":[{\"name\":\"sh\",\"parameters\":{\"type\":\"object\",\"properties\":{"
        "\"c\":{\"type\":\"string\"}}}}]}",
        200);
    const json *choice = json_at(json_get(v, "choices"), 0);
    assert_string_equal(str_at(choice, "finish_reason"), "function_call");
    const json *call = json_get(json_get(choice, "message"), "function_call");
    assert_string_equal(str_at(call, "name"), "sh");
    json_free(v);
    stub_server_stop(&s);
}

static void refusals_have_the_shape_of_the_route(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *param;
    } cases[] = {
        {"/v1/messages", "{" ASK "}", "max_tokens"},
        {"/v1/messages", "{\"max_tokens\":0," ASK "}", "max_tokens"},
        {"/v1/messages", "{\"max_tokens\":5,\"messages\":[]}", "messages"},
        {"/v1/messages", "{\"max_tokens\":5," ASK ",\"thinking\":{\"type\":\"x\"}}", "thinking"},
        {"/v1/messages",
            "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"x\"}]}]}",
            "messages[0].content"},
        {"/v1/responses", "{}", "input"},
        {"/v1/responses", "{\"input\":\"a\",\"previous_response_id\":\"r\"}",
            "previous_response_id"},
        {"/v1/responses",
            "{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"x\"}]}",
            "input[0].call_id"},
        {"/v1/responses", "{\"input\":[{\"type\":\"item_reference\",\"id\":\"i\"}]}",
            "input[0].type"},
    };
    stub_server s;
    start(&s, "x", 1, false);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json *v = ask_json(&s, cases[i].path, cases[i].body, 400);
        const json *error = json_get(v, "error");
        assert_string_equal(str_at(error, "type"), "invalid_request_error");
        if (strstr(cases[i].path, "messages") != NULL) {
            assert_string_equal(str_at(v, "type"), "error");
            assert_non_null(strstr(str_at(error, "message"), cases[i].param));
            assert_true(str_at(v, "request_id")[0] != '\0');
        } else {
            assert_string_equal(str_at(error, "param"), cases[i].param);
        }
        json_free(v);
    }
    json_free(ask_json(&s, "/v1/messages/count_tokens", "{" ASK "}", 200));
    stub_server_stop(&s);
}

/* ---- a call comes back as it was written ---- */

static void calls_are_replayed_exactly(void **state) {
    (void)state;
    stub_server s;
    buf body = BUF_INIT;
    /* Two line breaks inside the value's tag would not come back from the arguments alone. */
    start(&s,
        "<" M " calls>\n<" M " invoke name=\"sh\">\n<" M
        " parameter name=\"c\" string=\"true\">ls</" M " parameter>\n\n\n</" M " invoke>\n</" M
        " calls>",
        5, false);
    json *v = ask_json(&s, "/v1/chat/completions", "{" ASK "," CHAT_TOOL "}", 200);
    const json *message = json_get(json_at(json_get(v, "choices"), 0), "message");
    const json *call = json_at(json_get(message, "tool_calls"), 0);
    assert_non_null(call);
    int64_t counts[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        buf_reset(&body);
        buf_printf(&body,
            "{" CHAT_TOOL ",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":"
            "\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\","
            "\"function\":{\"name\":\"sh\",\"arguments\":\"{\\\"c\\\":  \\\"ls\\\"}\"}}]},"
            "{\"role\":\"tool\",\"tool_call_id\":\"x\",\"content\":\"r\"}]}",
            i == 0 ? str_at(call, "id") : "unknown");
        json *t = ask_json(&s, "/tokenize", buf_cstr(&body), 200);
        json_i64(json_get(t, "count"), &counts[i]);
        json_free(t);
    }
    json_free(v);
    buf_release(&body);
    stub_server_stop(&s);
    assert_true(counts[0] > counts[1]);
}

/* ---- the door ---- */

static char key_path[96];

static void with_keys(api_options *o) {
    o->keys_path = key_path;
    o->cors_origins = "http://a.example, http://b.example";
}

static void with_short_times(api_options *o) {
    with_keys(o);
    o->head_timeout_ms = 300;
    o->body_timeout_ms = 1000;
    o->idle_timeout_ms = 1000;
}

static int knock(int port, const char *method, const char *headers, wire_answer *a) {
    wire w;
    wire_open_tcp(&w, port);
    wire_request(&w, method, "/v1/models", headers, NULL);
    wire_read(&w, a, PATIENCE_MS);
    wire_close(&w);
    return a->status;
}

static int knock_with(int port, const char *format, const char *key) {
    char line[200];
    wire_answer a;
    snprintf(line, sizeof line, format, key);
    int status = knock(port, "GET", line, &a);
    wire_answer_release(&a);
    return status;
}

static void keys_open_the_door(void **state) {
    (void)state;
    char key[64];
    char other[64];
    char text[200];
    err e = ERR_INIT;
    wire_answer a;
    stub_server s;
    key_limits none = {0};
    key_limits small = {.context = 4};
    stub_server_options o = {.tokenizer = tok, .adjust = with_keys};
    snprintf(key_path, sizeof key_path, "/tmp/tandem-keys-%ld", (long)getpid());
    unlink(key_path);
    key_make(key, sizeof key);
    key_make(other, sizeof other);
    assert_int_equal(keys_add(key_path, "one", key, &none, &e), OK);
    assert_int_equal(keys_add(key_path, "one", other, &none, &e), ERR_EXISTS);
    o.script.pieces = pieces;
    o.script.n_pieces = cut("hello", 1);
    stub_server_start(&s, &o);
    assert_int_equal(knock(s.port, "GET", "", &a), 401);
    wire_header(&a, "WWW-Authenticate", text, sizeof text);
    assert_string_equal(text, "Bearer");
    wire_answer_release(&a);
    assert_int_equal(knock_with(s.port, "Authorization: Bearer %s\r\n", key), 200);
    assert_int_equal(knock_with(s.port, "x-api-key: %s\r\n", key), 200);
    assert_int_equal(knock_with(s.port, "x-api-key: %s\r\n", other), 401);
    assert_int_equal(keys_add(key_path, "two", other, &small, &e), OK);
    assert_int_equal(knock_with(s.port, "x-api-key: %s\r\n", other), 200);
    assert_int_equal(keys_remove(key_path, "one", &e), OK);
    assert_int_equal(knock_with(s.port, "x-api-key: %s\r\n", key), 401);
    chmod(key_path, 0644); /* others can read it now: closed, not open */
    sleep_ms(20);
    buf file = BUF_INIT;
    assert_int_equal(file_read(key_path, &file, 10000, &e), OK);
    assert_null(strstr(buf_cstr(&file), other));
    assert_int_equal(file_write_atomic(key_path, file.data, file.len, 0644, &e), OK);
    assert_int_equal(knock_with(s.port, "x-api-key: %s\r\n", other), 401);
    buf_release(&file);
    assert_int_equal(knock(s.port, "OPTIONS",
                         "Origin: http://b.example\r\nAccess-Control-Request-Headers: x-a\r\n", &a),
        204);
    wire_header(&a, "Access-Control-Allow-Origin", text, sizeof text);
    assert_string_equal(text, "http://b.example");
    wire_header(&a, "Access-Control-Allow-Headers", text, sizeof text);
    assert_string_equal(text, "x-a");
    wire_answer_release(&a);
    assert_int_equal(knock(s.port, "OPTIONS", "Origin: http://c.example\r\n", &a), 204);
    wire_header(&a, "Access-Control-Allow-Origin", text, sizeof text);
    assert_string_equal(text, "");
    wire_answer_release(&a);
    /* A request is noted when its answer has gone out. */
    size_t n_done = 0;
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    while (n_done < 6 && clock_mono_ms() < deadline) {
        json *v = ask_json(&s, "/tandem/v1/requests", NULL, 200);
        n_done = json_count(json_get(v, "done"));
        json_free(v);
        sleep_ms(2);
    }
    assert_true(n_done >= 6);
    stub_server_stop(&s);
    unlink(key_path);
}

static void dripping_heads_are_cut(void **state) {
    (void)state;
    char key[64];
    err e = ERR_INIT;
    stub_server s;
    wire w;
    key_limits none = {0};
    stub_server_options o = {.tokenizer = tok, .adjust = with_short_times};
    snprintf(key_path, sizeof key_path, "/tmp/tandem-keys-%ld", (long)getpid());
    unlink(key_path);
    key_make(key, sizeof key);
    assert_int_equal(keys_add(key_path, "one", key, &none, &e), OK);
    o.script.pieces = pieces;
    o.script.n_pieces = cut("hello", 1);
    stub_server_start(&s, &o);
    wire_open_tcp(&w, s.port);
    wire_send(&w, "GET /health HTTP/1.1\r\nHost: x\r\nx-slow: ", 39);
    uint64_t begin = clock_mono_ms();
    while (!w.is_closed && clock_mono_ms() - begin < PATIENCE_MS) {
        wire_send(&w, "a", 1);
        wire_receive(&w, 50);
    }
    assert_true(w.is_closed);
    wire_close(&w);
    stub_server_stop(&s);
    unlink(key_path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_streamed_equal_whole),
        cmocka_unit_test(responses_streamed_equal_whole),
        cmocka_unit_test(completions_have_the_old_shape),
        cmocka_unit_test(old_functions_answer_in_kind),
        cmocka_unit_test(refusals_have_the_shape_of_the_route),
        cmocka_unit_test(calls_are_replayed_exactly),
        cmocka_unit_test(keys_open_the_door),
        cmocka_unit_test(dripping_heads_are_cut),
    };
    tok = stub_tokenizer_open();
    if (tok == NULL) {
        print_message("skipped: no demo tokenizer here (templates/demo-model or DEMO_WEIGHTS)\n");
        return 77;
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tok);
    return rc;
}
