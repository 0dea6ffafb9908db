#include "tui/client.h"

#include <curl/curl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/sse.h"

/* How long a reply may keep its connection open after its end marker. */
enum { AFTER_DONE_MS = 500, CONNECT_MS = 2000, RETRY_FIRST_MS = 250, RETRY_MAX_MS = 4000 };
enum { ERROR_BODY_MAX = 1 << 20, PLAIN_BODY_MAX = 64 << 20 };

typedef enum call_kind { CALL_PLAIN, CALL_CHAT, CALL_STATS } call_kind;
typedef enum call_state {
    CALL_NEW,     /* to be added to curl at the next pump */
    CALL_RUNNING, /* with curl */
    CALL_WAITING, /* stats: connection lost, comes back at retry_at */
    CALL_OVER     /* to be reported and freed at the next pump */
} call_state;

struct client_call {
    client_call *next;
    client *owner;
    call_kind kind;
    call_state state;
    CURL *easy;
    struct curl_slist *headers;
    buf body; /* plain answers, and the body of an error */
    char *post;
    sse events;
    chat_stream reply;
    client_sink sink;
    client_limits limits;
    uint64_t started_ms, heard_ms, retry_at_ms;
    int retry_ms;
    int status;
    bool is_open, was_lost;
    err error; /* code OK: none so far */
};

struct client {
    CURLM *multi;
    int epoll_fd;
    uint64_t timer_at_ms; /* curl's own timer; 0 = none */
    bool is_pumping;
    client_call *calls;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

/* Curl hooks. */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *known) {
    (void)easy;
    client *c = ctx;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    struct epoll_event ev = {.data.fd = fd};
    if (what & CURL_POLL_IN) ev.events |= EPOLLIN;
    if (what & CURL_POLL_OUT) ev.events |= EPOLLOUT;
    int op = known != NULL ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(c->epoll_fd, op, fd, &ev) != 0) return -1;
    curl_multi_assign(c->multi, fd, c);
    return 0;
}

static int on_timer(CURLM *multi, long timeout_ms, void *ctx) {
    (void)multi;
    client *c = ctx;
    c->timer_at_ms = timeout_ms < 0 ? 0 : clock_mono_ms() + (uint64_t)timeout_ms;
    return 0;
}

static void give(client_call *k, client_event *ev) {
    ev->status = k->status;
    if (k->kind == CALL_CHAT) ev->reply = &k->reply;
    if (k->sink.fn != NULL) k->sink.fn(k->sink.ctx, ev);
}

static void on_chat_event(void *ctx, const chat_event *chat) {
    client_event ev = {.kind = CLIENT_CHAT, .chat = chat};
    give(ctx, &ev);
}

static int on_event_data(void *ctx, const char *data, size_t len, err *e) {
    client_call *k = ctx;
    if (k->kind == CALL_CHAT) return chat_stream_data(&k->reply, data, len, e);
    client_event ev = {.kind = CLIENT_STATS, .text = data, .len = len};
    give(k, &ev);
    return OK;
}

/* ": prefill 4096/81920" tells how much of the prompt has been read. */
static void on_comment(void *ctx, const char *text, size_t len) {
    client_call *k = ctx;
    client_event ev = {.kind = CLIENT_PROGRESS, .done = -1, .total = -1};
    char line[64];
    if (len < sizeof line && len > 8 && memcmp(text, "prefill ", 8) == 0) {
        memcpy(line, text, len);
        line[len] = '\0';
        char *slash = strchr(line, '/');
        int64_t done = 0, total = 0;
        if (slash != NULL) {
            *slash = '\0';
            if (parse_i64(line + 8, &done) == OK && parse_i64(slash + 1, &total) == OK) {
                ev.done = done;
                ev.total = total;
            }
        }
    }
    if (k->kind == CALL_CHAT) give(k, &ev);
}

static size_t on_header(char *line, size_t size, size_t n, void *ctx) {
    client_call *k = ctx;
    size_t len = size * n;
    k->heard_ms = clock_mono_ms();
    if (len > 2 || k->is_open) return len;
    long status = 0;
    curl_easy_getinfo(k->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status < 200) return len; /* 100 Continue: the real head follows */
    (void)line;
    k->status = (int)status;
    k->is_open = true;
    k->retry_ms = RETRY_FIRST_MS;
    if (status < 300) {
        client_event ev = {.kind = CLIENT_OPEN};
        give(k, &ev);
    }
    return len;
}

static size_t on_body(char *bytes, size_t size, size_t n, void *ctx) {
    client_call *k = ctx;
    size_t len = size * n;
    k->heard_ms = clock_mono_ms();
    if (k->state != CALL_RUNNING) return 0; /* cancelled inside a callback */
    int rc;
    if (k->kind != CALL_PLAIN && k->status < 300) {
        rc = sse_feed(&k->events, bytes, len, &k->error);
    } else {
        rc = buf_append(&k->body, bytes, len);
        if (rc != OK) err_set(&k->error, rc, "the engine's answer is too long");
    }
    return rc == OK && k->state == CALL_RUNNING ? len : 0;
}

/* Calls. */

static int setup_easy(client_call *k, const char *path, err *e) {
    k->easy = curl_easy_init();
    if (k->easy == NULL) return err_set(e, ERR_INTERNAL, "libcurl cannot make a handle");
    buf url = BUF_INIT;
    buf_printf(&url, "http://localhost%s", path);
    CURL *h = k->easy;
    curl_easy_setopt(h, CURLOPT_URL, buf_cstr(&url));
    buf_release(&url);
    curl_easy_setopt(h, CURLOPT_UNIX_SOCKET_PATH, k->owner->path);
    curl_easy_setopt(h, CURLOPT_PROXY, "");
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "tandem");
    curl_easy_setopt(h, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    int connect_ms = k->limits.connect_ms > 0 ? k->limits.connect_ms : CONNECT_MS;
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, (long)connect_ms);
    curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(h, CURLOPT_HEADERDATA, k);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, k);
    curl_easy_setopt(h, CURLOPT_PRIVATE, k);
    if (k->post != NULL) {
        /* An Expect: 100-continue would cost a second with a server that ignores it. */
        k->headers = curl_slist_append(NULL, "Content-Type: application/json");
        k->headers = curl_slist_append(k->headers, "Expect:");
        curl_easy_setopt(h, CURLOPT_HTTPHEADER, k->headers);
        curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(k->post));
        curl_easy_setopt(h, CURLOPT_POSTFIELDS, k->post);
    }
    return OK;
}

static void call_free(client_call *k) {
    if (k->easy != NULL) curl_easy_cleanup(k->easy);
    curl_slist_free_all(k->headers);
    sse_release(&k->events);
    chat_stream_release(&k->reply);
    buf_release(&k->body);
    mem_free(k->post);
    mem_free(k);
}

typedef struct call_start {
    call_kind kind;
    const char *path;
    char *post; /* taken */
    client_limits limits;
    client_sink sink;
    bool is_delete;
} call_start;

static int call_begin(client *c, const call_start *s, client_call **out, err *e) {
    client_call *k = mem_alloc(sizeof *k);
    k->owner = c;
    k->kind = s->kind;
    k->post = s->post;
    k->sink = s->sink;
    k->limits = s->limits;
    k->retry_ms = RETRY_FIRST_MS;
    k->started_ms = k->heard_ms = clock_mono_ms();
    k->body = (buf)BUF_MAX(s->kind == CALL_PLAIN ? PLAIN_BODY_MAX : ERROR_BODY_MAX);
    sse_init(&k->events, &(sse_sink){on_event_data, on_comment, k});
    chat_stream_init(&k->reply, on_chat_event, k);
    int rc = setup_easy(k, s->path, e);
    if (rc == OK && s->is_delete) curl_easy_setopt(k->easy, CURLOPT_CUSTOMREQUEST, "DELETE");
    if (rc != OK) {
        call_free(k);
        return rc;
    }
    /* The newest goes last, so that calls start in order. */
    client_call **at = &c->calls;
    while (*at != NULL)
        at = &(*at)->next;
    *at = k;
    if (out != NULL) *out = k;
    return OK;
}

/* From outside or from a callback: curl is told at the next pump, never from inside its own call. */
static void call_over(client_call *k) {
    k->state = CALL_OVER;
}

static void curl_sentence(client_call *k, CURLcode code) {
    if (k->error.code != OK) return;
    const char *path = k->owner->path;
    switch (code) {
    case CURLE_COULDNT_CONNECT:
        err_set(
            &k->error, ERR_NOT_FOUND, "no engine answers at %s; start it with: tandem start", path);
        return;
    case CURLE_OPERATION_TIMEDOUT:
        err_set(
            &k->error, ERR_TIMEOUT, "the engine did not accept the connection in time (%s)", path);
        return;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
        err_set(&k->error, ERR_MISMATCH,
            "the program behind %s is no engine of Tandem; choose another socket with TANDEM_SOCKET",
            path);
        return;
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
        err_set(&k->error, ERR_NET,
            k->kind == CALL_CHAT ? "the engine ended during the reply"
                                 : "the engine closed the connection");
        return;
    default:
        err_set(&k->error, ERR_NET, "the connection to the engine failed: %s",
            curl_easy_strerror(code));
    }
}

/* Curl is finished with this call. */
static void call_finished(client_call *k, CURLcode code) {
    curl_multi_remove_handle(k->owner->multi, k->easy);
    if (k->state == CALL_OVER) return; /* cancelled in its own callback */
    bool is_complete = k->kind == CALL_CHAT && k->reply.is_done;
    if (!is_complete && code != CURLE_OK) curl_sentence(k, code);
    if (k->error.code == OK && k->status >= 400) {
        chat_error_body(k->status, buf_cstr(&k->body), k->body.len, &k->error);
    }
    if (k->error.code == OK && k->kind == CALL_CHAT) chat_stream_end(&k->reply, &k->error);
    if (k->kind != CALL_STATS) {
        call_over(k);
        return;
    }
    if (k->error.code == OK) err_set(&k->error, ERR_NET, "the engine closed the stats stream");
    client_event ev = {.kind = CLIENT_LOST, .error = &k->error};
    k->state = CALL_WAITING;
    k->retry_at_ms = clock_mono_ms() + (uint64_t)k->retry_ms;
    k->retry_ms = k->retry_ms * 2 < RETRY_MAX_MS ? k->retry_ms * 2 : RETRY_MAX_MS;
    bool is_news = k->is_open || !k->was_lost;
    k->was_lost = true;
    k->is_open = false;
    if (is_news) give(k, &ev);
}

static void call_retry(client_call *k) {
    k->error = (err)ERR_INIT;
    k->status = 0;
    k->heard_ms = clock_mono_ms();
    buf_reset(&k->body);
    sse_release(&k->events);
    sse_init(&k->events, &(sse_sink){on_event_data, on_comment, k});
    k->state = CALL_NEW;
}

/* The next moment at which this call wants attention; 0 = none. */
static uint64_t call_deadline(const client_call *k) {
    if (k->state == CALL_NEW || k->state == CALL_OVER) return 1;
    if (k->state == CALL_WAITING) return k->retry_at_ms;
    uint64_t at = 0;
    if (k->limits.total_ms > 0) at = k->started_ms + (uint64_t)k->limits.total_ms;
    int silence = k->reply.is_done ? AFTER_DONE_MS : k->limits.stall_ms;
    if (silence > 0) {
        uint64_t stall = k->heard_ms + (uint64_t)silence;
        if (at == 0 || stall < at) at = stall;
    }
    return at;
}

static void call_late(client_call *k, uint64_t now) {
    curl_multi_remove_handle(k->owner->multi, k->easy);
    bool is_total = k->limits.total_ms > 0 && now >= k->started_ms + (uint64_t)k->limits.total_ms;
    if (!k->reply.is_done) {
        int limit = is_total ? k->limits.total_ms : k->limits.stall_ms;
        err_set(&k->error, ERR_TIMEOUT,
            is_total ? "the engine did not answer within %.1f s"
                     : "the engine has been silent for %.1f s",
            limit / 1000.0);
    }
    call_over(k);
}

static void step_call(client *c, client_call *k, uint64_t now) {
    if (k->state == CALL_WAITING && now >= k->retry_at_ms) call_retry(k);
    if (k->state == CALL_NEW) {
        k->state = CALL_RUNNING;
        if (curl_multi_add_handle(c->multi, k->easy) != CURLM_OK) {
            err_set(&k->error, ERR_INTERNAL, "libcurl refused the request");
            call_over(k);
        }
    }
    uint64_t deadline = call_deadline(k);
    if (k->state == CALL_RUNNING && deadline != 0 && now >= deadline) call_late(k, now);
}

/* Reports and frees one call that is over. False when there is none. */
static bool reap_one(client *c) {
    for (client_call **at = &c->calls; *at != NULL; at = &(*at)->next) {
        client_call *k = *at;
        if (k->state != CALL_OVER) continue;
        curl_multi_remove_handle(c->multi, k->easy); /* no harm when it is not there */
        curl_off_t retry_after = 0;
        curl_easy_getinfo(k->easy, CURLINFO_RETRY_AFTER, &retry_after);
        *at = k->next;
        client_event ev = {.kind = CLIENT_END,
            .text = buf_cstr(&k->body),
            .len = k->body.len,
            .error = k->error.code != OK ? &k->error : NULL,
            .retry_after_s = retry_after > 0 && retry_after < 86400 ? (int)retry_after : -1};
        give(k, &ev);
        call_free(k);
        return true;
    }
    return false;
}

static void read_finished(client *c) {
    int left = 0;
    CURLMsg *msg;
    while ((msg = curl_multi_info_read(c->multi, &left)) != NULL) {
        if (msg->msg != CURLMSG_DONE) continue;
        client_call *k = NULL;
        CURLcode code = msg->data.result;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &k);
        call_finished(k, code);
    }
}

static void move_bytes(client *c) {
    struct epoll_event ready[16];
    int running = 0;
    int n = epoll_wait(c->epoll_fd, ready, 16, 0);
    for (int i = 0; i < n; i++) {
        int mask = 0;
        if (ready[i].events & (EPOLLIN | EPOLLHUP)) mask |= CURL_CSELECT_IN;
        if (ready[i].events & EPOLLOUT) mask |= CURL_CSELECT_OUT;
        if (ready[i].events & EPOLLERR) mask |= CURL_CSELECT_ERR;
        curl_multi_socket_action(c->multi, ready[i].data.fd, mask, &running);
    }
    if (c->timer_at_ms != 0 && clock_mono_ms() >= c->timer_at_ms) {
        c->timer_at_ms = 0;
        curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
}

void client_pump(client *c) {
    if (c->is_pumping) return; /* called from a callback: the outer pump goes on */
    c->is_pumping = true;
    uint64_t now = clock_mono_ms();
    for (client_call *k = c->calls; k != NULL; k = k->next)
        step_call(c, k, now);
    move_bytes(c);
    read_finished(c);
    while (reap_one(c))
        continue;
    c->is_pumping = false;
}

int client_timeout_ms(const client *c) {
    uint64_t at = c->timer_at_ms;
    for (const client_call *k = c->calls; k != NULL; k = k->next) {
        uint64_t d = call_deadline(k);
        if (d != 0 && (at == 0 || d < at)) at = d;
    }
    if (at == 0) return -1;
    uint64_t now = clock_mono_ms();
    if (at <= now) return 0;
    return at - now > 60000 ? 60000 : (int)(at - now);
}

int client_fd(const client *c) {
    return c->epoll_fd;
}

const char *client_socket_path(const client *c) {
    return c->path;
}

int client_open(const char *socket_path, client **out, err *e) {
    client *c = mem_alloc(sizeof *c);
    c->epoll_fd = -1;
    int rc = OK;
    if (str_copy(c->path, sizeof c->path, socket_path) >= sizeof c->path) {
        rc = err_set(e, ERR_ARG,
            "the socket path %s is longer than %zu bytes; set TANDEM_SOCKET to a shorter one",
            socket_path, sizeof c->path - 1);
    }
    if (rc == OK && curl_global_init(CURL_GLOBAL_DEFAULT) != 0) {
        rc = err_set(e, ERR_INTERNAL, "libcurl cannot start");
    }
    if (rc == OK) {
        c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        if (c->epoll_fd < 0) rc = err_errno(e, "cannot make an event queue");
    }
    if (rc == OK) {
        c->multi = curl_multi_init();
        if (c->multi == NULL) rc = err_set(e, ERR_INTERNAL, "libcurl cannot start");
    }
    if (rc != OK) {
        client_close(c);
        return rc;
    }
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
    *out = c;
    return OK;
}

void client_close(client *c) {
    if (c == NULL) return;
    while (c->calls != NULL) {
        client_call *k = c->calls;
        c->calls = k->next;
        if (c->multi != NULL) curl_multi_remove_handle(c->multi, k->easy);
        call_free(k);
    }
    if (c->multi != NULL) curl_multi_cleanup(c->multi);
    if (c->epoll_fd >= 0) close(c->epoll_fd);
    mem_free(c);
}

int client_chat(client *c, const chat_request *r, client_sink sink, client_call **out, err *e) {
    buf body = BUF_INIT;
    int rc = client_chat_body(r, &body, e);
    if (rc != OK) {
        buf_release(&body);
        return rc;
    }
    call_start s = {CALL_CHAT, "/v1/chat/completions", buf_take(&body), r->limits, sink, false};
    return call_begin(c, &s, out, e);
}

int client_stats(client *c, int interval_ms, client_sink sink, client_call **out, err *e) {
    buf path = BUF_INIT;
    buf_printf(&path, "/tandem/v1/stats?interval_ms=%d", interval_ms);
    /* Three missed samples and the daemon is taken for gone; never under 5 s on a busy machine. */
    int stall_ms = interval_ms * 3 > 5000 ? interval_ms * 3 : 5000;
    call_start s = {CALL_STATS, buf_cstr(&path), NULL, {.stall_ms = stall_ms}, sink, false};
    int rc = call_begin(c, &s, out, e);
    buf_release(&path);
    return rc;
}

int client_request_start(
    client *c, const client_request *r, client_sink sink, client_call **out, err *e) {
    char *post = r->body != NULL ? mem_strdup(r->body) : NULL;
    call_start s = {CALL_PLAIN, r->path, post, r->limits, sink, r->is_delete};
    return call_begin(c, &s, out, e);
}

bool client_is_live(const client *c, const client_call *call) {
    for (const client_call *k = c->calls; k != NULL; k = k->next) {
        if (k == call) return true;
    }
    return false;
}

void client_cancel(client *c, client_call *call) {
    if (!client_is_live(c, call) || call->state == CALL_OVER) return;
    err_set(&call->error, ERR_CANCELLED, "stopped by you");
    call_over(call);
}

int client_n_calls(const client *c) {
    int n = 0;
    for (const client_call *k = c->calls; k != NULL; k = k->next)
        n++;
    return n;
}

int client_wait(client *c, client_call *call, int stop_fd, int timeout_ms, err *e) {
    uint64_t end = timeout_ms < 0 ? 0 : clock_mono_ms() + (uint64_t)timeout_ms;
    for (;;) {
        client_pump(c);
        if (!client_is_live(c, call)) return OK;
        int wait = client_timeout_ms(c);
        if (end != 0) {
            uint64_t now = clock_mono_ms();
            if (now >= end) return err_set(e, ERR_TIMEOUT, "the engine did not answer in time");
            if (wait < 0 || (uint64_t)wait > end - now) wait = (int)(end - now);
        }
        struct pollfd fds[2] = {
            {.fd = c->epoll_fd, .events = POLLIN}, {.fd = stop_fd, .events = POLLIN}};
        if (poll(fds, stop_fd >= 0 ? 2 : 1, wait) > 0 && fds[1].revents != 0) {
            return err_set(e, ERR_CANCELLED, "interrupted");
        }
    }
}

typedef struct fetch_ctx {
    buf *out;
    int status;
    err error;
} fetch_ctx;

static void on_fetch(void *ctx, const client_event *ev) {
    fetch_ctx *f = ctx;
    if (ev->kind != CLIENT_END) return;
    f->status = ev->status;
    if (ev->error != NULL) f->error = *ev->error;
    if (buf_append(f->out, ev->text, ev->len) != OK && ev->error == NULL) {
        err_set(&f->error, ERR_LIMIT, "the engine's answer is too long");
    }
}

int client_fetch(client *c, const client_request *r, buf *out, int *status, err *e) {
    fetch_ctx f = {.out = out};
    client_call *call = NULL;
    int rc = client_request_start(c, r, (client_sink){on_fetch, &f}, &call, e);
    if (rc == OK) rc = client_wait(c, call, -1, -1, e);
    if (status != NULL) *status = f.status;
    if (rc == OK && f.error.code != OK) {
        if (e != NULL) *e = f.error;
        rc = f.error.code;
    }
    return rc;
}
