/* What rank 0 and the other ranks do alike when they start: reading the start's secret, meeting,
 * opening the exchange and trying it. */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/privilege.h"
#include "engine/base/secret.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "engine/daemon_internal.h"
#include "engine/dist/probe.h"

#ifdef TANDEM_CUDA
#include "engine/dist/exchange_peer.h"
#endif

enum { START_LINE_MAX = 128, START_WAIT_MS = 10000, EXCHANGE_WAIT_MS = 60000 };

int daemon_world(const daemon_options *o) {
    if (o->role == DAEMON_RANK) return (int)(o->n_ranks > 1 ? o->n_ranks : 2);
    return (int)o->n_ranks;
}

static int read_line(char *line, size_t cap, err *e) {
    uint64_t deadline = clock_mono_ms() + START_WAIT_MS;
    for (size_t n = 0; n + 1 < cap;) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        uint64_t now = clock_mono_ms();
        if (now >= deadline || poll(&p, 1, (int)(deadline - now)) == 0) break;
        ssize_t got = read(STDIN_FILENO, line + n, 1);
        if (got == 1 && line[n] != '\n') {
            line[++n] = '\0';
            continue;
        }
        line[n] = '\0';
        return OK;
    }
    return err_set(e, ERR_AUTH, "the start's secret did not come on standard input");
}

/* 64 hexadecimal digits, a space, 16. */
static bool parse_start(char *line, meet_options *m) {
    static const char digits[] = "0123456789abcdef";
    uint64_t value = 0;
    if (strlen(line) != 64 + 1 + 16 || line[64] != ' ') return false;
    line[64] = '\0';
    log_hide(line);
    for (const char *c = line + 65; *c != '\0'; c++) {
        const char *at = strchr(digits, *c);
        if (at == NULL) return false;
        value = value << 4 | (uint64_t)(at - digits);
    }
    m->identity.start_id = value;
    return sha256_parse(line, m->secret) == OK;
}

static int read_start(meet_options *m, err *e) {
    char line[START_LINE_MAX] = "";
    int rc = read_line(line, sizeof line, e);
    if (rc != OK) return rc;
    bool is_good = parse_start(line, m);
    explicit_bzero(line, sizeof line);
    if (is_good) return OK;
    return err_set(e, ERR_AUTH,
        "standard input must give the start's secret (64 hexadecimal digits), a space and the "
        "start id (16)");
}

int daemon_meet(const daemon_options *o, daemon_self *self, meet_fds *fds, err *e) {
    bool is_root = o->role != DAEMON_RANK;
    meet_options m = {.rank = is_root ? 0 : (int)o->rank,
        .world = daemon_world(o),
        .host = o->meet_address,
        .port = (int)o->meet_port,
        .listen_fd = is_root ? (int)o->meet_fd : -1,
        .n_channels = MEET_MAX_CHANNELS,
        .timeout_ms = (int)(o->meet_s * 1000),
        .stop_fd = daemon_stop_fd()};
    secret_hold();
    bool is_here = m.host == NULL || m.host[0] == '\0' || str_starts(m.host, "127.");
    int rc = is_here ? OK : privilege_refuse_root("a rank of two machines", e);
    if (rc == OK) rc = read_start(&m, e);
    if (rc == OK) daemon_self_start_id(self, m.identity.start_id);
    daemon_self_phase(self, RANK_MEETING);
    if (rc == OK && !o->probes) rc = daemon_model_digest(o, &m.identity.model, e);
    str_copy(m.identity.build, sizeof m.identity.build, version_build_id());
    if (rc == OK) rc = meet_all(&m, fds, e);
    explicit_bzero(m.secret, sizeof m.secret);
    secret_drop();
    return rc;
}

#ifdef TANDEM_CUDA
static int parse_kind(const buf *text, exchange_kind *out, err *e) {
    static const char *const names[] = {"auto", "peer", "nccl"};
    *out = EXCHANGE_AUTO;
    if (text->len == 0) return OK;
    for (int i = 0; i < 3; i++) {
        if (strcmp(buf_cstr(text), names[i]) != 0) continue;
        *out = (exchange_kind)i;
        return OK;
    }
    return err_set(e, ERR_ARG, "--exchange is '%s'; it must be auto, peer or nccl", buf_cstr(text));
}

/* The exchange of the GPUs with the tcp one as its control. */
static int open_gpu_exchange(const daemon_options *o, exchange *tcp, exchange **out, err *e) {
    exchange_kind kind;
    int rc = parse_kind(&o->exchange_kind, &kind, e);
    if (rc == OK) rc = exchange_gpu_open(tcp, kind, out, e);
    if (rc != OK) {
        *out = tcp;
        return rc;
    }
    LOG(LOG_INFO, "ranks", "exchange of the GPUs", "kind=%s", exchange_gpu_name(*out));
    return OK;
}
#endif

/* The tcp exchange, or on GPUs the one of the GPUs. */
static int pick_exchange(const daemon_options *o, exchange *tcp, exchange **out, err *e) {
    *out = tcp;
#ifdef TANDEM_CUDA
    if (o->backend.len > 0 && strcmp(buf_cstr(&o->backend), "cuda") == 0)
        return open_gpu_exchange(o, tcp, out, e);
#else
    (void)o;
    (void)e;
#endif
    return OK;
}

int daemon_exchange(
    const daemon_options *o, daemon_self *self, meet_fds *fds, exchange **out, err *e) {
    exchange_tcp_options x = {.rank = o->role == DAEMON_RANK ? (int)o->rank : 0,
        .world = daemon_world(o),
        .timeout_ms = EXCHANGE_WAIT_MS};
    exchange *tcp = NULL;
    double best_us = -1.0;
    int rc = exchange_tcp_adopt(&x, fds->fd[MEET_EXCHANGE], &tcp, e);
    for (int i = 0; i < MEET_MAX_WORLD; i++) {
        fds->fd[MEET_EXCHANGE][i] = -1; /* taken, also on error */
    }
    if (rc != OK) return rc;
    *out = tcp;
    rc = exchange_probe(tcp, &best_us, e);
    if (rc == OK) rc = pick_exchange(o, tcp, out, e);
    if (rc != OK) return rc;
    daemon_self_exchange(self, *out, best_us);
    LOG(LOG_INFO, "ranks", "exchange tried", "round_trip_us=%.1f", best_us);
    return OK;
}
