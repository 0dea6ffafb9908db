#include "setup/verify_http.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

enum { BODY_MAX_BYTES = 16 << 20, CONNECT_MS = 5000 };

typedef struct transfer {
    verify_answer *answer;
    const verify_cut *cut;
    uint64_t begin_ns;
    bool is_cut;
} transfer;

static double ms_since(uint64_t begin_ns) {
    return (double)(clock_mono_ns() - begin_ns) / 1e6;
}

static size_t on_body(char *data, size_t size, size_t n, void *user) {
    transfer *t = user;
    size_t len = size * n;
    if (t->answer->body.len == 0) t->answer->first_ms = ms_since(t->begin_ns);
    if (buf_append(&t->answer->body, data, len) != OK) return 0;
    if (t->cut != NULL && t->cut->after_bytes > 0 && t->answer->body.len >= t->cut->after_bytes) {
        t->is_cut = true;
        return 0;
    }
    return len;
}

/* Not 0 ends the transfer. */
static int on_progress(
    void *user, curl_off_t down, curl_off_t down_now, curl_off_t up, curl_off_t up_now) {
    const verify_options *o = user;
    (void)down, (void)down_now, (void)up, (void)up_now;
    return o->stop != NULL && atomic_load(o->stop);
}

static void global_init(void) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* The header lines of a request; NULL when none could be made. */
static struct curl_slist *make_headers(const verify_options *o) {
    struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json");
    list = curl_slist_append(list, "Expect:");
    if (o->key == NULL) return list;
    buf line = BUF_INIT;
    buf_printf(&line, "Authorization: Bearer %s", o->key);
    list = curl_slist_append(list, buf_cstr(&line));
    memset(line.data, 0, line.len);
    buf_release(&line);
    return list;
}

static void set_target(CURL *c, const verify_options *o, const char *path, buf *url) {
    if (o->socket_path != NULL) {
        curl_easy_setopt(c, CURLOPT_UNIX_SOCKET_PATH, o->socket_path);
        buf_printf(url, "http://tandem%s", path);
    } else {
        size_t n = strlen(o->base_url);
        while (n > 0 && o->base_url[n - 1] == '/')
            n--;
        if (n >= 3 && memcmp(o->base_url + n - 3, "/v1", 3) == 0) n -= 3;
        buf_printf(url, "%.*s%s", (int)n, o->base_url, path);
    }
    curl_easy_setopt(c, CURLOPT_URL, buf_cstr(url));
}

int verify_http(const verify_options *o, const char *path, const char *body, const verify_cut *cut,
    verify_answer *out, err *e) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, global_init);
    *out = (verify_answer){.body = BUF_MAX(BODY_MAX_BYTES), .first_ms = -1};
    CURL *c = curl_easy_init();
    if (c == NULL) return err_set(e, ERR_INTERNAL, "the HTTP library does not start");
    char why[CURL_ERROR_SIZE] = "";
    buf url = BUF_INIT;
    transfer t = {out, cut, clock_mono_ns(), false};
    struct curl_slist *headers = make_headers(o);
    set_target(c, o, path, &url);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_PROXY, o->socket_path != NULL ? "" : NULL);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &t);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(
        c, CURLOPT_TIMEOUT_MS, (long)(o->timeout_ms > 0 ? o->timeout_ms : VERIFY_TIMEOUT_MS));
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, o);
    if (body != NULL) curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    CURLcode code = curl_easy_perform(c);
    long status = 0;
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    out->status = (int)status;
    out->total_ms = ms_since(t.begin_ns);
    int rc = OK;
    if (code != CURLE_OK && !t.is_cut) {
        int kind = code == CURLE_OPERATION_TIMEDOUT    ? ERR_TIMEOUT
                   : code == CURLE_ABORTED_BY_CALLBACK ? ERR_CANCELLED
                                                       : ERR_NET;
        rc = err_set(
            e, kind, "%s: %s", buf_cstr(&url), why[0] != '\0' ? why : curl_easy_strerror(code));
    }
    curl_slist_free_all(headers);
    curl_easy_cleanup(c);
    buf_release(&url);
    return rc;
}

void verify_answer_release(verify_answer *a) {
    buf_release(&a->body);
}

void verify_reply_init(verify_reply *r) {
    *r = (verify_reply){.content = BUF_INIT,
        .reasoning = BUF_INIT,
        .call_name = BUF_INIT,
        .call_arguments = BUF_INIT,
        .completion_tokens = -1,
        .prompt_tokens = -1,
        .cached_tokens = -1};
}

void verify_reply_release(verify_reply *r) {
    buf_release(&r->content);
    buf_release(&r->reasoning);
    buf_release(&r->call_name);
    buf_release(&r->call_arguments);
}

static void add_text(buf *to, const json *v) {
    const char *text = json_str(v);
    if (text != NULL) buf_puts(to, text);
}

/* A message or a delta. */
static void add_message(verify_reply *r, const json *m) {
    add_text(&r->content, json_get(m, "content"));
    add_text(&r->reasoning, json_get(m, "reasoning_content"));
    const json *call = json_at(json_get(m, "tool_calls"), 0);
    const json *function = json_get(call, "function");
    add_text(&r->call_name, json_get(function, "name"));
    add_text(&r->call_arguments, json_get(function, "arguments"));
}

static void add_usage(verify_reply *r, const json *usage) {
    if (!json_is_object(usage)) return;
    json_i64(json_get(usage, "completion_tokens"), &r->completion_tokens);
    json_i64(json_get(usage, "prompt_tokens"), &r->prompt_tokens);
    json_i64(
        json_get(json_get(usage, "prompt_tokens_details"), "cached_tokens"), &r->cached_tokens);
}

static void add_choice(verify_reply *r, const json *choice, const char *part) {
    const char *finish = json_str(json_get(choice, "finish_reason"));
    add_message(r, json_get(choice, part));
    if (finish != NULL) str_copy(r->finish, sizeof r->finish, finish);
}

int verify_reply_whole(const verify_answer *a, verify_reply *r, err *e) {
    json *v = NULL;
    int rc = json_parse(a->body.data, a->body.len, NULL, &v, e);
    if (rc != OK) return err_add(e, rc, "the answer is no JSON");
    const json *choice = json_at(json_get(v, "choices"), 0);
    if (!json_is_object(json_get(choice, "message"))) {
        rc = err_set(e, ERR_FORMAT, "the answer has no choices[0].message");
    } else {
        add_choice(r, choice, "message");
        add_usage(r, json_get(v, "usage"));
    }
    json_free(v);
    return rc;
}

/* One data: payload. */
static int add_event(verify_reply *r, const char *data, size_t len, err *e) {
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        r->has_done = true;
        return OK;
    }
    json *v = NULL;
    int rc = json_parse(data, len, NULL, &v, e);
    if (rc != OK) return err_add(e, rc, "an event of the stream is no JSON");
    if (json_get(v, "error") != NULL) r->has_error = true;
    const json *choice = json_at(json_get(v, "choices"), 0);
    if (choice != NULL) add_choice(r, choice, "delta");
    add_usage(r, json_get(v, "usage"));
    json_free(v);
    return OK;
}

int verify_reply_stream(const verify_answer *a, verify_reply *r, err *e) {
    const char *at = a->body.data, *end = at + a->body.len;
    while (at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (line_end == NULL) return err_set(e, ERR_FORMAT, "the stream ends inside a line");
        size_t n = (size_t)(line_end - at);
        if (r->has_done && n > 0) return err_set(e, ERR_FORMAT, "the stream goes on after [DONE]");
        if (n > 6 && memcmp(at, "data: ", 6) == 0) {
            int rc = add_event(r, at + 6, n - 6, e);
            if (rc != OK) return rc;
        } else if (n > 0 && at[0] != ':') {
            return err_set(e, ERR_FORMAT, "the stream has the line \"%.60s\"", at);
        }
        at = line_end + 1;
    }
    return OK;
}

void verify_error_text(const verify_answer *a, char *text, size_t cap) {
    json *v = NULL;
    const char *message = NULL;
    if (json_parse(a->body.data, a->body.len, NULL, &v, NULL) == OK)
        message = json_str(json_get(json_get(v, "error"), "message"));
    snprintf(text, cap, "status %d%s%s", a->status, message != NULL ? ": " : "",
        message != NULL ? message : "");
    json_free(v);
}
