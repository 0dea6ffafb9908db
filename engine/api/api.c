#include "engine/api/api.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/api/api_internal.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"

#define KEEP_ALIVE_MS_DEFAULT 5000
#define LISTEN_BACKLOG 128

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

int api_open(const api_options *options, int listen_fd, api **out, err *e) {
    api *a = mem_alloc(sizeof *a);
    a->options = *options;
    if (a->options.keep_alive_ms <= 0) a->options.keep_alive_ms = KEEP_ALIVE_MS_DEFAULT;
    if (a->options.max_body_bytes == 0) a->options.max_body_bytes = API_BODY_MAX_BYTES;
    a->started_ms = clock_wall_ms();
    snprintf(a->fingerprint, sizeof a->fingerprint, "fp_%.40s", options->build);
    pthread_mutex_init(&a->endpoint_lock, NULL);
    api_metrics_init(&a->metrics);
    a->local_daemon = server_start(a, listen_fd, true, e);
    if (a->local_daemon == NULL) {
        api_metrics_release(&a->metrics);
        pthread_mutex_destroy(&a->endpoint_lock);
        mem_free(a);
        *out = NULL;
        return ERR_IO;
    }
    if (options->run != NULL) {
        api_engine engine = {
            options->run, options->tokenizer, options->max_context, options->n_slots};
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
    if (ntohl(sa.sin_addr.s_addr) >> 24 != 127) {
        return err_set(e, ERR_AUTH,
            "%s is not a loopback address; only 127.0.0.1 is served without"
            " a key file",
            address);
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

int api_endpoint(api *a, bool is_on, const char *address, int port, err *e) {
    int rc = OK;
    void *old = NULL;
    pthread_mutex_lock(&a->endpoint_lock);
    if (is_on) {
        rc = endpoint_on_locked(a, address, port, e);
    } else {
        old = a->endpoint_daemon;
        a->endpoint_daemon = NULL;
    }
    pthread_mutex_unlock(&a->endpoint_lock);
    if (old != NULL) {
        /* Waits for its connections to end, so it must be outside the lock. */
        server_quiesce(old);
        server_stop(old);
        LOG(LOG_INFO, "api", "endpoint off", "address=%s", a->endpoint_address);
    }
    return rc;
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
    api_metrics_release(&a->metrics);
    pthread_mutex_destroy(&a->endpoint_lock);
    mem_free(a);
}
