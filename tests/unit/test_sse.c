#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "tui/chat_stream.h"
#include "tui/sse.h"

/* Events and comments are written one a line: "D text" and "C text". */
static int note_data(void *ctx, const char *data, size_t len, err *e) {
    (void)e;
    buf_puts(ctx, "D ");
    buf_append(ctx, data, len);
    buf_putc(ctx, '|');
    return OK;
}

static void note_comment(void *ctx, const char *text, size_t len) {
    buf_puts(ctx, "C ");
    buf_append(ctx, text, len);
    buf_putc(ctx, '|');
}

static void feed_in_steps(const char *text, size_t n, size_t step, buf *seen) {
    sse s;
    sse_init(&s, &(sse_sink){note_data, note_comment, seen});
    for (size_t at = 0; at < n; at += step) {
        size_t piece = n - at < step ? n - at : step;
        assert_int_equal(sse_feed(&s, text + at, piece, NULL), OK);
    }
    sse_release(&s);
}

static void assert_events(const char *text, const char *expected) {
    size_t n = strlen(text);
    for (size_t step = 1; step <= n; step++) {
        buf seen = BUF_INIT;
        feed_in_steps(text, n, step, &seen);
        assert_string_equal(buf_cstr(&seen), expected);
        buf_release(&seen);
    }
}

static void reads_events_cut_anywhere(void **state) {
    (void)state;
    assert_events("data: one\n\ndata:two\r\n\r\ndata: three\r\rdata: late", "D one|D two|D three|");
    assert_events("data: a\ndata: b\n\n", "D a\nb|");
    assert_events("data\n\n", "D |");
    assert_events("data:  two blanks\n\n", "D  two blanks|");
    assert_events("event: x\nid: 7\nretry: 1\nodd\n\n\n\n", "");
    assert_events(": keep-alive\n:\n:x\ndata: y\n\n", "C keep-alive|C |C x|D y|");
    assert_events("\xEF\xBB\xBF"
                  "data: bom\n\n",
        "D bom|");
    assert_events("data: \xE2\x82\xAC\r\n\r\n", "D \xE2\x82\xAC|");
    assert_events("datax: no\ndat: no\ndata: yes\n\n", "D yes|");
}

static void refuses_an_endless_event(void **state) {
    (void)state;
    buf seen = BUF_INIT;
    sse s;
    sse_init(&s, &(sse_sink){note_data, note_comment, &seen});
    char block[4096];
    memset(block, 'x', sizeof block);
    int rc = OK;
    err e = ERR_INIT;
    for (size_t sent = 0; sent <= SSE_MAX_EVENT_BYTES && rc == OK; sent += sizeof block) {
        rc = sse_feed(&s, block, sizeof block, &e);
    }
    assert_int_equal(rc, ERR_LIMIT);
    assert_true(s.line.cap <= 2 * SSE_MAX_EVENT_BYTES + 1);
    sse_release(&s);
    buf_release(&seen);
}

/* Chat stream. */

static void note_chat(void *ctx, const chat_event *ev) {
    static const char letters[] = "rRCTUFD";
    buf_putc(ctx, letters[ev->kind]);
    if (ev->len > 0) {
        buf_putc(ctx, '=');
        buf_append(ctx, ev->text, ev->len);
    }
    buf_putc(ctx, ' ');
}

static int feed_all(chat_stream *s, const char *const *events, size_t n, err *e) {
    int rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++) {
        rc = chat_stream_data(s, events[i], strlen(events[i]), e);
    }
    return rc;
}

static void gives_typed_events_in_order(void **state) {
    (void)state;
    static const char *const events[] = {
        "{\"id\":\"chatcmpl-1\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\","
        "\"content\":\"\"},\"finish_reason\":null}],\"usage\":null}",
        "{\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"hm\",\"reasoning\":\"hm\"}}]}",
        "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\",\"new_field\":[1]}}]}",
        "{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"other choice\"}}]}",
        "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}",
        "{\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7,"
        "\"prompt_tokens_details\":{\"cached_tokens\":4}},\"timings\":{\"predicted_per_second\":38.5,"
        "\"draft_n\":10,\"draft_n_accepted\":7}}",
        "[DONE]",
        "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"after the end\"}}]}",
    };
    buf seen = BUF_INIT;
    chat_stream s;
    chat_stream_init(&s, note_chat, &seen);
    assert_int_equal(feed_all(&s, events, sizeof events / sizeof events[0], NULL), OK);
    assert_string_equal(buf_cstr(&seen), "r R=hm C=Hi F=stop U D ");
    assert_string_equal(buf_cstr(&s.content), "Hi");
    assert_string_equal(buf_cstr(&s.reasoning), "hm");
    assert_string_equal(s.id, "chatcmpl-1");
    assert_int_equal(s.usage.cached_tokens, 4);
    assert_int_equal(s.usage.reasoning_tokens, -1);
    assert_true(s.usage.predicted_per_second > 38.4);
    assert_int_equal(s.usage.draft_n_accepted, 7);
    assert_int_equal(chat_stream_end(&s, NULL), OK);
    chat_stream_release(&s);
    buf_release(&seen);
}

static void a_stream_without_end_marker_is_an_error(void **state) {
    (void)state;
    static const char *const events[] = {
        "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}"};
    chat_stream s;
    err e = ERR_INIT;
    chat_stream_init(&s, NULL, NULL);
    assert_int_equal(feed_all(&s, events, 1, &e), OK);
    assert_int_equal(chat_stream_end(&s, &e), ERR_NET);
    assert_string_equal(buf_cstr(&s.content), "Hi");
    chat_stream_release(&s);
}

static void an_error_event_keeps_its_sentence(void **state) {
    (void)state;
    static const char *const events[] = {
        "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"par\"}}]}",
        "{\"error\":{\"message\":\"rank 1 is gone\",\"type\":\"server_error\",\"param\":null,"
        "\"code\":\"engine_failed\"}}"};
    chat_stream s;
    err e = ERR_INIT;
    chat_stream_init(&s, NULL, NULL);
    assert_int_equal(feed_all(&s, events, 2, &e), ERR_NET);
    assert_string_equal(e.msg, "rank 1 is gone");
    assert_string_equal(buf_cstr(&s.content), "par");
    chat_stream_release(&s);
    chat_stream_init(&s, NULL, NULL);
    assert_int_equal(chat_stream_data(&s, "{broken", 7, &e), ERR_FORMAT);
    assert_int_equal(chat_stream_data(&s, "[1]", 3, &e), ERR_FORMAT);
    chat_stream_release(&s);
}

static void a_tool_call_out_of_order_is_refused(void **state) {
    (void)state;
    static const char *const events[] = {
        "{\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":3,\"function\":{}}]}}]}",
        "{\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":-1,\"function\":{}}]}}]}"};
    for (size_t i = 0; i < 2; i++) {
        chat_stream s;
        chat_stream_init(&s, NULL, NULL);
        assert_int_equal(feed_all(&s, &events[i], 1, NULL), ERR_FORMAT);
        chat_stream_release(&s);
    }
}

static void reads_error_bodies(void **state) {
    (void)state;
    static const struct {
        int status, code;
        const char *body, *message;
    } cases[] = {
        {400, ERR_ARG, "{\"error\":{\"message\":\"bad field\"}}", "bad field"},
        {503, ERR_BUSY, "{\"error\":{\"message\":\"loading\",\"code\":\"loading\"}}", "loading"},
        {404, ERR_NOT_FOUND, "", "the engine answered with status 404"},
        {502, ERR_NET, "<html>", "the engine answered with status 502"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        err e = ERR_INIT;
        int rc = chat_error_body(cases[i].status, cases[i].body, strlen(cases[i].body), &e);
        assert_int_equal(rc, cases[i].code);
        assert_string_equal(e.msg, cases[i].message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_events_cut_anywhere),
        cmocka_unit_test(refuses_an_endless_event),
        cmocka_unit_test(gives_typed_events_in_order),
        cmocka_unit_test(a_stream_without_end_marker_is_an_error),
        cmocka_unit_test(an_error_event_keeps_its_sentence),
        cmocka_unit_test(a_tool_call_out_of_order_is_refused),
        cmocka_unit_test(reads_error_bodies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
