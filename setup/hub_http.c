#include "setup/hub_http.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/version.h"

enum { RECEIVE_BYTES = 512 * 1024, TAKE_TEXT = 1 };

struct hub_http {
    CURL *curl;
    hub_limits limits;
    /* of the request in work */
    const hub_get *get;
    hub_reply *reply;
    bool has_body, is_text;
    int rc; /* what ended it from inside */
    uint64_t begun_ms, window_ms;
    uint64_t n_bytes, window_bytes;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void begin(void) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

hub_http *hub_http_new(const hub_limits *limits) {
    pthread_once(&once, begin);
    hub_http *h = mem_alloc(sizeof *h);
    h->curl = curl_easy_init();
    CHECK(h->curl != NULL);
    h->limits = *limits;
    if (h->limits.connect_ms <= 0) h->limits.connect_ms = 15000;
    if (h->limits.first_byte_ms <= 0) h->limits.first_byte_ms = 30000;
    if (h->limits.stall_ms <= 0) h->limits.stall_ms = 30000;
    if (h->limits.stall_bytes <= 0) h->limits.stall_bytes = 10240;
    return h;
}

void hub_http_free(hub_http *h) {
    if (h == NULL) return;
    curl_easy_cleanup(h->curl);
    mem_free(h);
}

/* Headers. */

/* Copies a value without what could act on a terminal, and without surrounding blanks. */
static void keep(char *out, size_t cap, const char *value, size_t n) {
    while (n > 0 && (*value == ' ' || *value == '\t'))
        value++, n--;
    while (n > 0 && (unsigned char)value[n - 1] <= ' ')
        n--;
    size_t k = 0;
    for (; k < n && k + 1 < cap; k++) {
        unsigned char c = (unsigned char)value[k];
        out[k] = c < 32 || c >= 127 ? '?' : value[k];
    }
    out[k] = '\0';
}

static bool read_number(const char **at, uint64_t *out) {
    if (**at < '0' || **at > '9') return false;
    uint64_t v = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++) {
        if (v > (UINT64_MAX - 9) / 10) return false;
        v = v * 10 + (uint64_t)(**at - '0');
    }
    *out = v;
    return true;
}

/* bytes A-B/TOTAL, and nothing else. */
static void read_content_range(hub_reply *r, const char *v) {
    uint64_t a, b, total;
    r->has_range = false;
    if (!str_starts(v, "bytes ")) return;
    v += 6;
    if (!read_number(&v, &a) || *v++ != '-' || !read_number(&v, &b) || *v++ != '/' ||
        !read_number(&v, &total) || *v != '\0' || a > b || b >= total)
        return;
    r->has_range = true;
    r->range_start = a;
    r->range_end = b;
    r->range_total = total;
}

static void read_retry_after(hub_reply *r, const char *v) {
    uint64_t seconds;
    const char *at = v;
    if (read_number(&at, &seconds) && *at == '\0') {
        r->retry_after_ms = seconds > 86400 ? 86400000 : (int64_t)seconds * 1000;
        return;
    }
    time_t when = curl_getdate(v, NULL);
    if (when <= 0) return;
    int64_t wait = (int64_t)when * 1000 - (int64_t)clock_wall_ms();
    r->retry_after_ms = wait < 0 ? 0 : wait > 86400000 ? 86400000 : wait;
}

/* "resolvers";r=LEFT;t=SECONDS */
static void read_rate_limit(hub_reply *r, const char *v) {
    uint64_t n;
    const char *left = strstr(v, ";r="), *reset = strstr(v, ";t=");
    if (left != NULL && (left += 3, read_number(&left, &n)) && n < INT32_MAX)
        r->limit_left = (int64_t)n;
    if (reset != NULL && (reset += 3, read_number(&reset, &n)) && n <= 86400)
        r->limit_reset_s = (int64_t)n;
}

static void read_link(hub_reply *r, const char *v) {
    const char *next = strstr(v, "rel=\"next\"");
    if (next == NULL) return;
    const char *open = NULL;
    for (const char *at = v; at < next; at++) {
        if (*at == '<') open = at + 1;
    }
    const char *end = open != NULL ? strchr(open, '>') : NULL;
    if (end != NULL && end < next)
        keep(r->next_page, sizeof r->next_page, open, (size_t)(end - open));
}

static void reset_reply(hub_reply *r) {
    memset(r, 0, sizeof *r);
    r->length = r->retry_after_ms = r->limit_left = r->limit_reset_s = -1;
}

static void read_field(hub_reply *r, const char *name, const char *value) {
    struct {
        const char *name;
        char *out;
        size_t cap;
    } const texts[] = {
        {"Content-Type", r->type, sizeof r->type},
        {"Content-Encoding", r->encoding, sizeof r->encoding},
        {"Location", r->location, sizeof r->location},
        {"ETag", r->etag, sizeof r->etag},
        {"X-Repo-Commit", r->commit, sizeof r->commit},
        {"X-Error-Code", r->error_code, sizeof r->error_code},
        {"X-Error-Message", r->error_text, sizeof r->error_text},
        {"X-Request-Id", r->request_id, sizeof r->request_id},
        {"X-Amzn-Trace-Id", r->request_id, sizeof r->request_id},
        {"X-Amz-Cf-Id", r->request_id, sizeof r->request_id},
    };
    size_t n = strlen(value);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (str_eq_nocase(name, texts[i].name)) keep(texts[i].out, texts[i].cap, value, n);
    }
    const char *at = value;
    uint64_t number;
    if (str_eq_nocase(name, "Content-Length") && read_number(&at, &number) && *at == '\0' &&
        number <= INT64_MAX)
        r->length = (int64_t)number;
    if (str_eq_nocase(name, "Content-Range")) read_content_range(r, value);
    if (str_eq_nocase(name, "Retry-After")) read_retry_after(r, value);
    if (str_eq_nocase(name, "RateLimit")) read_rate_limit(r, value);
    if (str_eq_nocase(name, "Link")) read_link(r, value);
}

static size_t on_header(char *data, size_t size, size_t n, void *ctx) {
    hub_http *h = ctx;
    char line[4352], value[4200];
    size_t len = size * n;
    keep(line, sizeof line, data, len);
    if (str_starts(line, "HTTP/")) {
        reset_reply(h->reply);
        const char *blank = strchr(line, ' ');
        uint64_t status = 0;
        if (blank != NULL && (blank++, read_number(&blank, &status)) && status < 1000)
            h->reply->status = (long)status;
        return len;
    }
    char *colon = strchr(line, ':');
    if (colon == NULL) return len;
    *colon = '\0';
    keep(value, sizeof value, colon + 1, strlen(colon + 1));
    read_field(h->reply, line, value);
    return len;
}

/* Body. */

static void collect(hub_reply *r, const char *data, size_t n) {
    size_t room = sizeof r->text - 1 - r->text_len;
    if (n > room) n = room;
    memcpy(r->text + r->text_len, data, n);
    r->text_len += n;
    r->text[r->text_len] = '\0';
}

static size_t on_body(char *data, size_t size, size_t n, void *ctx) {
    hub_http *h = ctx;
    size_t len = size * n;
    h->n_bytes += len;
    if (!h->has_body) {
        h->has_body = true;
        int rc = h->get->accept != NULL ? h->get->accept(h->get->ctx, h->reply) : OK;
        h->is_text = rc == TAKE_TEXT;
        if (rc != OK && rc != TAKE_TEXT) h->rc = rc;
    }
    if (h->is_text) {
        collect(h->reply, data, len);
        return h->reply->text_len + 1 < sizeof h->reply->text ? len : 0;
    }
    if (h->rc == OK) h->rc = h->get->take(h->get->ctx, data, len);
    return h->rc == OK ? len : 0;
}

static int on_tick(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    (void)a, (void)b, (void)c, (void)d;
    hub_http *h = ctx;
    if (h->get->is_stopped != NULL && h->get->is_stopped(h->get->ctx)) h->rc = ERR_CANCELLED;
    uint64_t now = clock_mono_ms();
    if (h->n_bytes == 0) {
        if (now - h->begun_ms > (uint64_t)(h->limits.connect_ms + h->limits.first_byte_ms))
            h->rc = ERR_TIMEOUT;
        h->window_ms = now;
    } else if (now - h->window_ms >= (uint64_t)h->limits.stall_ms) {
        uint64_t least = (uint64_t)(h->limits.stall_bytes * h->limits.stall_ms / 1000);
        if (h->n_bytes - h->window_bytes < least) h->rc = ERR_TIMEOUT;
        h->window_ms = now;
        h->window_bytes = h->n_bytes;
    }
    return h->rc == OK ? 0 : 1;
}

/* The request. */

static struct curl_slist *add_secret_header(struct curl_slist *list, const hub_secret *token) {
    buf line = BUF_INIT;
    buf_printf(&line, "Authorization: Bearer %s", hub_secret_text(token));
    list = curl_slist_append(list, buf_cstr(&line));
    explicit_bzero(line.data, line.len);
    buf_release(&line);
    return list;
}

static void free_headers(struct curl_slist *list) {
    for (struct curl_slist *at = list; at != NULL; at = at->next)
        explicit_bzero(at->data, strlen(at->data));
    curl_slist_free_all(list);
}

static void set_up(hub_http *h, const hub_get *g, struct curl_slist *headers) {
    CURL *c = h->curl;
    char range[64];
    curl_easy_reset(c);
    curl_easy_setopt(c, CURLOPT_URL, g->url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "tandem/" TANDEM_VERSION);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)h->limits.connect_ms);
    curl_easy_setopt(c, CURLOPT_HTTP_CONTENT_DECODING, 0L);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, (long)RECEIVE_BYTES);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, h);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, h);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_tick);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, h);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    if (hub_url_is_loopback(g->url)) curl_easy_setopt(c, CURLOPT_PROXY, "");
    if (g->has_range) {
        snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)g->first,
            (unsigned long long)g->last);
        curl_easy_setopt(c, CURLOPT_RANGE, range);
    }
}

static int curl_error(const hub_http *h, CURLcode code, err *e) {
    char host[128];
    hub_url_host(h->get->url, host, sizeof host);
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
        return err_set(e, ERR_NET, "the name %s was not found: no internet, or a wrong name", host);
    case CURLE_COULDNT_RESOLVE_PROXY:
        return err_set(e, ERR_NET, "the name of the proxy was not found");
    case CURLE_COULDNT_CONNECT:
        return err_set(e, ERR_NET, "%s refused the connection or did not answer", host);
    case CURLE_OPERATION_TIMEDOUT:
        return err_set(e, ERR_TIMEOUT, "%s did not answer in %lld s", host,
            (long long)h->limits.connect_ms / 1000);
    case CURLE_PARTIAL_FILE:
        return err_set(e, ERR_NET, "%s closed the connection too early", host);
    default:
        return err_set(e, ERR_NET, "%s: %s", host, curl_easy_strerror(code));
    }
}

int hub_http_get(hub_http *h, const hub_get *g, hub_reply *out, err *e) {
    reset_reply(out);
    h->get = g;
    h->reply = out;
    h->has_body = h->is_text = false;
    h->rc = OK;
    h->n_bytes = h->window_bytes = 0;
    h->begun_ms = h->window_ms = clock_mono_ms();
    struct curl_slist *headers = curl_slist_append(NULL, "Accept-Encoding: identity");
    if (g->token != NULL) headers = add_secret_header(headers, g->token);
    set_up(h, g, headers);
    CURLcode code = curl_easy_perform(h->curl);
    free_headers(headers);
    curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, NULL);
    if (h->rc == ERR_TIMEOUT) {
        char host[128];
        hub_url_host(g->url, host, sizeof host);
        return err_set(e, ERR_TIMEOUT, h->n_bytes == 0 ? "%s sent nothing" : "%s stalled", host);
    }
    if (h->rc == ERR_CANCELLED) return err_set(e, ERR_CANCELLED, "stopped");
    if (h->rc != OK) return h->rc;
    /* A reply without a body, or with one nobody wanted, is whole as well. */
    if (!h->has_body && code == CURLE_OK && g->accept != NULL) {
        int rc = g->accept(g->ctx, out);
        if (rc != OK && rc != TAKE_TEXT) return rc;
    }
    if (code == CURLE_OK || (h->is_text && out->status != 0)) return OK;
    return curl_error(h, code, e);
}
