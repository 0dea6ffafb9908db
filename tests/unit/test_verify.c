/* tandem verify against an endpoint that answers rightly, and against one that is wrong in one thing
 * at a time: the line that is about it fails with the reason, and no other. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/verify.h"

enum { REQUEST_MAX = 16 << 10, MAX_LINES = 64 };

/* What the endpoint does wrong. */
typedef enum fault {
    FINE,
    WRONG_SUM,
    REASONS_WHEN_OFF,
    NO_USAGE,
    NO_DONE,
    NO_REASONING,
    STRING_FOR_INTEGER,
    TEXT_AROUND_JSON,
    TAKES_BAD_REQUESTS,
    OTHER_TEXT_BESIDE,
    LOSES_A_CHARACTER,
    NO_TOOLS_IN_BUILD,
    NO_ANSWER,
    WRONG_KEY,
    IS_LOADING
} fault;

static atomic_int now = FINE;
static atomic_int n_sums;
static int listener = -1;
static char dir[] = "/tmp/tandem-verify-XXXXXX", path[64];

static bool is_fault(fault f) {
    return atomic_load(&now) == (int)f;
}

static void answer(int fd, int status, const char *type, const char *body) {
    char head[256];
    int n = snprintf(head, sizeof head,
        "HTTP/1.1 %d x\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
        status, type, strlen(body));
    (void)fd_write_full(fd, head, (size_t)n, NULL);
    (void)fd_write_full(fd, body, strlen(body), NULL);
}

static void say(int fd, const char *message, const char *finish) {
    char body[1024];
    snprintf(body, sizeof body,
        "{\"choices\":[{\"message\":{\"role\":\"assistant\",%s},\"finish_reason\":\"%s\"}]%s}",
        message, finish,
        is_fault(NO_USAGE) ? "" : ",\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":5}");
    answer(fd, 200, "application/json", body);
}

static void stream(int fd) {
    char body[1024];
    snprintf(body, sizeof body,
        "data: {\"choices\":[{\"delta\":{\"%s\":\"95 - 75\"}}]}\n\n"
        "data: {\"choices\":[{\"delta\":{\"content\":\"20\"},\"finish_reason\":\"stop\"}]}\n\n"
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":5}}\n\n%s",
        is_fault(NO_REASONING) ? "content" : "reasoning_content",
        is_fault(NO_DONE) ? "" : "data: [DONE]\n\n");
    answer(fd, 200, "text/event-stream", body);
}

static void call(int fd) {
    if (is_fault(NO_TOOLS_IN_BUILD)) {
        answer(fd, 400, "application/json",
            "{\"error\":{\"message\":\"tools are not offered by this build\"}}");
        return;
    }
    say(fd,
        is_fault(STRING_FOR_INTEGER)
            ? "\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
              "\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\",\\\"days\\\":\\\"3\\\"}\"}}]"
            : "\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
              "\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\",\\\"days\\\":3}\"}}]",
        "tool_calls");
}

static void chat(int fd, const char *body) {
    if (strstr(body, "17 + 19") != NULL) {
        bool is_other = is_fault(OTHER_TEXT_BESIDE) && atomic_fetch_add(&n_sums, 1) > 0;
        say(fd,
            is_fault(WRONG_SUM)          ? "\"content\":\"It is 37.\""
            : is_fault(REASONS_WHEN_OFF) ? "\"content\":\"36\",\"reasoning_content\":\"hm\""
            : is_other                   ? "\"content\":\"36 it is.\""
                                         : "\"content\":\"It is 36.\"",
            "stop");
    } else if (strstr(body, "apples") != NULL) {
        stream(fd);
    } else if (strstr(body, "get_weather") != NULL) {
        call(fd);
    } else if (strstr(body, "json_schema") != NULL) {
        say(fd,
            is_fault(TEXT_AROUND_JSON)
                ? "\"content\":\"Here: {\\\"name\\\":\\\"A\\\",\\\"age\\\":31,\\\"home\\\":{\\\"kind\\\":\\\"town\\\"}}\""
                : "\"content\":\"{\\\"name\\\":\\\"A\\\",\\\"age\\\":31,\\\"home\\\":{\\\"kind\\\":\\\"town\\\"}}\"",
            "stop");
    } else if (is_fault(TAKES_BAD_REQUESTS)) {
        say(fd, "\"content\":\"sure\"", "stop");
    } else {
        answer(fd, 400, "application/json", "{\"error\":{\"message\":\"that is wrong\"}}");
    }
}

static void route(int fd, const char *request) {
    const char *body = strstr(request, "\r\n\r\n");
    if (is_fault(NO_ANSWER)) return;
    if (is_fault(WRONG_KEY)) {
        answer(fd, 401, "application/json", "{\"error\":{\"message\":\"no such key\"}}");
    } else if (is_fault(IS_LOADING)) {
        answer(fd, 503, "application/json", "{\"error\":{\"message\":\"the model is loading\"}}");
    } else if (strstr(request, " /v1/chat/completions ") != NULL) {
        chat(fd, body);
    } else if (strstr(request, " /detokenize ") != NULL) {
        answer(fd, 200, "application/json",
            is_fault(LOSES_A_CHARACTER) ? "{\"prompt\":\"Tandem counts 1, 2, 3\"}"
                                        : "{\"prompt\":\"Tandem counts 1, 2, 3.\"}");
    } else if (strstr(request, " /tokenize ") != NULL) {
        answer(fd, 200, "application/json", "{\"tokens\":[1,2,3]}");
    } else if (strstr(request, " /v1/models ") != NULL) {
        answer(fd, 200, "application/json", "{\"data\":[{\"id\":\"stub\"}]}");
    } else {
        answer(fd, 200, "application/json", "{\"status\":\"ok\"}");
    }
}

/* Whether the whole request is there. */
static bool is_whole(const char *request, size_t n) {
    const char *body = strstr(request, "\r\n\r\n");
    const char *length = strcasestr(request, "content-length:");
    if (body == NULL) return false;
    size_t want = length != NULL && length < body ? (size_t)strtoul(length + 15, NULL, 10) : 0;
    return n >= (size_t)(body + 4 - request) + want;
}

static void *serve_one(void *arg) {
    int fd = (int)(intptr_t)arg;
    char *request = calloc(1, REQUEST_MAX + 1);
    size_t n = 0;
    while (n < REQUEST_MAX && !is_whole(request, n)) {
        ssize_t k = read(fd, request + n, REQUEST_MAX - n);
        if (k <= 0) break;
        n += (size_t)k;
        request[n] = '\0';
    }
    if (is_whole(request, n)) route(fd, request);
    free(request);
    close(fd);
    return NULL;
}

static void *serve(void *arg) {
    (void)arg;
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0;) {
        pthread_t t;
        if (pthread_create(&t, NULL, serve_one, (void *)(intptr_t)fd) == 0) pthread_detach(t);
    }
    return NULL;
}

/* ---- running it ---- */

typedef struct seen {
    verify_line line[MAX_LINES];
    int n;
} seen;

static void keep(void *ctx, const verify_line *line) {
    seen *s = ctx;
    assert_true(s->n < MAX_LINES);
    s->line[s->n++] = *line;
}

static int run(fault f, seen *s, verify_summary *sum, err *e) {
    verify_options o = {.socket_path = path, .level = 1, .timeout_ms = 120000};
    atomic_store(&now, (int)f);
    atomic_store(&n_sums, 0);
    memset(s, 0, sizeof *s);
    return verify_run(&o, keep, s, sum, e);
}

static void a_right_endpoint_passes(void **state) {
    static const char *const ids[] = {
        "chat", "thinking", "tool", "schema", "isolation", "tokenize"};
    seen s;
    verify_summary sum;
    err e = ERR_INIT;
    (void)state;
    if (run(FINE, &s, &sum, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(s.n, 6);
    for (int i = 0; i < 6; i++) {
        assert_string_equal(s.line[i].id, ids[i]);
        if (s.line[i].verdict != VERIFY_PASS) fail_msg("%s: %s", ids[i], s.line[i].reason);
    }
    assert_int_equal(sum.n_pass, 6);
    assert_int_equal(sum.n_fail + sum.n_warn + sum.n_skip, 0);
    assert_string_equal(sum.model, "stub");
    assert_false(sum.is_demo);
    assert_non_null(strstr(s.line[0].got, "It is 36."));
}

static void what_is_wrong_is_named(void **state) {
    static const struct {
        fault f;
        const char *id, *reason;
        verify_verdict verdict;
    } cases[] = {{WRONG_SUM, "chat", "36 is not in the answer", VERIFY_FAIL},
        {REASONS_WHEN_OFF, "chat", "reasoning although thinking is off", VERIFY_FAIL},
        {NO_USAGE, "chat", "usage is missing", VERIFY_FAIL},
        {NO_DONE, "thinking", "no [DONE]", VERIFY_FAIL},
        {NO_REASONING, "thinking", "reasoning_content is empty", VERIFY_FAIL},
        {STRING_FOR_INTEGER, "tool", "days is missing or not between", VERIFY_FAIL},
        {NO_TOOLS_IN_BUILD, "tool", "does not offer this", VERIFY_SKIP},
        {TEXT_AROUND_JSON, "schema", "text around it", VERIFY_FAIL},
        {TAKES_BAD_REQUESTS, "isolation", "did not get status 400", VERIFY_FAIL},
        {OTHER_TEXT_BESIDE, "isolation", "another text", VERIFY_FAIL},
        {LOSES_A_CHARACTER, "tokenize", "did not come back", VERIFY_FAIL}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        seen s;
        verify_summary sum;
        err e = ERR_INIT;
        if (run(cases[i].f, &s, &sum, &e) != OK) fail_msg("%s", e.msg);
        for (int k = 0; k < s.n; k++) {
            bool is_it = strcmp(s.line[k].id, cases[i].id) == 0;
            /* Without a first text there is nothing to compare with beside bad requests. */
            bool follows =
                strcmp(s.line[k].id, "isolation") == 0 && strcmp(cases[i].id, "chat") == 0;
            verify_verdict want = is_it ? cases[i].verdict : follows ? VERIFY_FAIL : VERIFY_PASS;
            if (s.line[k].verdict != want ||
                (is_it && strstr(s.line[k].reason, cases[i].reason) == NULL))
                fail_msg("case %zu, line %s: %s, %s", i, s.line[k].id,
                    verify_verdict_name(s.line[k].verdict), s.line[k].reason);
        }
    }
}

static void an_endpoint_that_is_not_there_is_an_error(void **state) {
    seen s;
    verify_summary sum;
    err e = ERR_INIT;
    verify_options o = {.socket_path = "/nowhere/engine.sock", .level = 1, .timeout_ms = 2000};
    (void)state;
    memset(&s, 0, sizeof s);
    assert_int_equal(verify_run(&o, keep, &s, &sum, &e), ERR_NET);
    assert_non_null(strstr(e.msg, "tandem start"));
    assert_int_equal(run(WRONG_KEY, &s, &sum, &e), ERR_AUTH);
    assert_non_null(strstr(e.msg, "--key-file"));
    assert_int_equal(run(IS_LOADING, &s, &sum, &e), ERR_NET);
    assert_non_null(strstr(e.msg, "the model is loading"));
    assert_int_not_equal(run(NO_ANSWER, &s, &sum, &e), OK);
    assert_int_equal(s.n, 0);
}

static void a_stop_ends_it(void **state) {
    seen s;
    verify_summary sum;
    err e = ERR_INIT;
    atomic_bool stop = true;
    verify_options o = {.socket_path = path, .level = 1, .timeout_ms = 2000, .stop = &stop};
    (void)state;
    memset(&s, 0, sizeof s);
    atomic_store(&now, FINE);
    assert_int_equal(verify_run(&o, keep, &s, &sum, &e), ERR_CANCELLED);
    assert_int_equal(s.n, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_endpoint_passes),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(an_endpoint_that_is_not_there_is_an_error),
        cmocka_unit_test(a_stop_ends_it),
    };
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    pthread_t t;
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(path, sizeof path, "%s/engine.sock", dir);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 16) != 0 ||
        pthread_create(&t, NULL, serve, NULL) != 0) {
        return 1;
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)dir_remove_all(dir, NULL);
    return rc;
}
