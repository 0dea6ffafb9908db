#include "engine/api/api.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/api/api_internal.h"
#include "engine/api/constraint.h"
#include "engine/api/replies.h"
#include "engine/api/tls_files.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/privilege.h"
#include "engine/base/rand.h"
#include "engine/base/secret.h"
#include "engine/base/str.h"

#define KEEP_ALIVE_MS_DEFAULT 5000
#define LISTEN_BACKLOG 512

void api_new_id(const char *prefix, char out[64]) {
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint8_t bytes[24];
    size_t n = str_copy(out, 40, prefix);
    rand_secret(bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) {
        out[n + i] = letters[bytes[i] % 62];
    }
    out[n + sizeof bytes] = '\0';
}

const char *api_token_bytes(const api *a, int32_t id, size_t *len, bool *is_literal) {
    const api_pieces *p = a->options.pieces;
    *is_literal = false;
    if (id < a->n_base || p == NULL) return tokenizer_bytes(a->options.tokenizer, id, len);
    const char *piece = id - a->n_base < p->n_pieces ? p->pieces[id - a->n_base] : "";
    *is_literal = true;
    *len = strlen(piece);
    return piece;
}

static void free_parts(api *a) {
    replies_free(a->replies);
    api_metrics_release(&a->metrics);
    node_sampler_free(a->node);
    pthread_mutex_destroy(&a->endpoint_lock);
    constraint_store_free(a->constraints);
    replay_free(a->replay);
    request_log_free(a->requests);
    keys_free(a->keys);
    buf_release(&a->certificate);
    if (a->certificate_key.data != NULL) {
        explicit_bzero(a->certificate_key.data, a->certificate_key.cap);
    }
    buf_release(&a->certificate_key);
    if (a->holds_secret) secret_drop();
    mem_free(a);
}

static int read_certificate(api *a, err *e) {
    const api_options *o = &a->options;
    a->certificate = a->certificate_key = (buf)BUF_MAX(TLS_FILE_MAX_BYTES);
    if (o->certificate_path == NULL && o->certificate_key_path == NULL) return OK;
    secret_hold();
    a->holds_secret = true;
    return tls_files_read(&(tls_files){o->certificate_path, o->certificate_key_path},
        &a->certificate, &a->certificate_key, e);
}

static void fill_defaults(api_options *o) {
    if (o->keep_alive_ms <= 0) o->keep_alive_ms = KEEP_ALIVE_MS_DEFAULT;
    if (o->max_body_bytes == 0) o->max_body_bytes = API_BODY_MAX_BYTES;
    if (o->head_timeout_ms <= 0) o->head_timeout_ms = 30000;
    if (o->body_timeout_ms <= 0) o->body_timeout_ms = 60000;
    if (o->idle_timeout_ms <= 0) o->idle_timeout_ms = 75000;
    if (o->stall_timeout_ms <= 0) o->stall_timeout_ms = 120000;
}

int api_open(const api_options *options, int listen_fd, api **out, err *e) {
    api *a = mem_alloc(sizeof *a);
    *out = NULL;
    a->options = *options;
    fill_defaults(&a->options);
    a->started_ms = clock_wall_ms();
    snprintf(a->fingerprint, sizeof a->fingerprint, "fp_%.40s", options->build);
    pthread_mutex_init(&a->endpoint_lock, NULL);
    api_metrics_init(&a->metrics);
    a->node = node_sampler_new("/sys");
    a->replay = replay_new();
    a->constraints = constraint_store_new();
    a->replies = replies_new();
    int rc = request_log_open(options->request_log_path, &a->requests, e);
    if (rc == OK && options->keys_path != NULL)
        rc = keys_open(options->keys_path, options->may_keys_come, &a->keys, e);
    if (rc == OK) rc = read_certificate(a, e);
    if (rc != OK) {
        close(listen_fd);
    } else {
        a->local_daemon = server_start(a, listen_fd, true, e);
        if (a->local_daemon == NULL) rc = ERR_IO;
    }
    if (rc != OK) {
        free_parts(a);
        return rc;
    }
    if (options->run != NULL) {
        api_engine engine = {.run = options->run,
            .tokenizer = options->tokenizer,
            .max_context = options->max_context,
            .n_slots = options->n_slots};
        api_attach(a, &engine);
    }
    *out = a;
    return OK;
}

void api_attach(api *a, const api_engine *engine) {
    CHECK(!atomic_load(&a->is_loaded));
    a->options.run = engine->run;
    a->options.tokenizer = engine->tokenizer;
    a->options.max_context = engine->max_context;
    a->options.n_slots = engine->n_slots;
    a->controls = tokenizer_controls(engine->tokenizer);
    a->n_base = tokenizer_size(engine->tokenizer);
    atomic_store(&a->is_loaded, 1);
}

/* A listening socket on a loopback address; fills *port with the real one. */
static int listen_tcp(const char *address, int *port, int *out, err *e) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
    socklen_t n = sizeof sa;
    int one = 1;
    if (inet_pton(AF_INET, address, &sa.sin_addr) != 1) {
        return err_set(e, ERR_ARG, "'%s' is not an IPv4 address; use 127.0.0.1", address);
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return err_errno(e, "opening a TCP socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&sa, sizeof sa) != 0 || listen(fd, LISTEN_BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &n) != 0) {
        int rc = errno == EADDRINUSE
                     ? err_set(e, ERR_BUSY,
                           "port %d on %s is taken by another program; choose another port"
                           " or stop that program",
                           *port, address)
                     : err_errno(e, "listening on %s:%d", address, *port);
        close(fd);
        return rc;
    }
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    *port = ntohs(sa.sin_port);
    *out = fd;
    return OK;
}

/* Others than this machine reach the address only with keys, and only on purpose. */
static int check_address(const api *a, const char *address, const char *confirmed, err *e) {
    struct in_addr in;
    if (inet_pton(AF_INET, address, &in) != 1) {
        return err_set(e, ERR_ARG, "'%s' is not an IPv4 address; use 127.0.0.1", address);
    }
    if (ntohl(in.s_addr) >> 24 == 127) return OK;
    if (a->keys == NULL || !keys_count(a->keys)) {
        return err_set(e, ERR_AUTH,
            "%s is not a loopback address; only 127.0.0.1 is served without a key file", address);
    }
    if (confirmed == NULL || strcmp(confirmed, address) != 0) {
        return err_set(e, ERR_AUTH,
            "other machines will reach %s; confirm by giving the same address again", address);
    }
    return privilege_refuse_root("an endpoint for other machines", e);
}

static int endpoint_on_locked(api *a, const char *address, int port, err *e) {
    int fd = -1;
    if (a->endpoint_daemon != NULL) {
        bool is_same = strcmp(address, a->endpoint_address) == 0 && port == a->endpoint_port;
        if (is_same) return OK;
        return err_set(e, ERR_BUSY, "the endpoint is on at %s:%d; switch it off first",
            a->endpoint_address, a->endpoint_port);
    }
    int rc = listen_tcp(address, &port, &fd, e);
    if (rc != OK) return rc;
    a->endpoint_daemon = server_start(a, fd, false, e);
    if (a->endpoint_daemon == NULL) return ERR_IO;
    str_copy(a->endpoint_address, sizeof a->endpoint_address, address);
    a->endpoint_port = port;
    LOG(LOG_INFO, "api", "endpoint on", "address=%s port=%d", address, port);
    return OK;
}

static void endpoint_off(api *a) {
    pthread_mutex_lock(&a->endpoint_lock);
    void *old = a->endpoint_daemon;
    a->endpoint_daemon = NULL;
    pthread_mutex_unlock(&a->endpoint_lock);
    if (old == NULL) return;
    /* Waits for its connections to end, so it must be outside the lock. */
    server_quiesce(old);
    server_stop(old);
    LOG(LOG_INFO, "api", "endpoint off", "address=%s", a->endpoint_address);
}

int api_endpoint_confirmed(api *a, const char *address, int port, const char *confirmed, err *e) {
    int rc = check_address(a, address, confirmed, e);
    if (rc != OK) return rc;
    pthread_mutex_lock(&a->endpoint_lock);
    rc = endpoint_on_locked(a, address, port, e);
    pthread_mutex_unlock(&a->endpoint_lock);
    return rc;
}

int api_endpoint(api *a, bool is_on, const char *address, int port, err *e) {
    if (is_on) return api_endpoint_confirmed(a, address, port, NULL, e);
    endpoint_off(a);
    return OK;
}

int api_endpoint_port(api *a) {
    pthread_mutex_lock(&a->endpoint_lock);
    int port = a->endpoint_daemon != NULL ? a->endpoint_port : 0;
    pthread_mutex_unlock(&a->endpoint_lock);
    return port;
}

void api_drain(api *a) {
    server_quiesce(a->local_daemon);
    pthread_mutex_lock(&a->endpoint_lock);
    if (a->endpoint_daemon != NULL) {
        server_quiesce(a->endpoint_daemon);
    }
    pthread_mutex_unlock(&a->endpoint_lock);
}

int api_busy(api *a) {
    return atomic_load(&a->n_busy);
}

void api_close(api *a) {
    if (a == NULL) return;
    atomic_store(&a->is_closing, 1);
    server_stop(a->endpoint_daemon);
    server_stop(a->local_daemon);
    replies_free(a->replies); /* its threads use everything else */
    a->replies = NULL;
    free_parts(a);
}
