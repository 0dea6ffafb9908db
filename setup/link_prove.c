#include "setup/link_prove.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/secret.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"

enum {
    HELPER_MAX = 64 << 20,
    READY_MS = 20000,
    SERVE_EXTRA_MS = 30000,
    RDMA_S = 10,
    RDMA_PORT = 12000
};

static const char *helper_path;

void link_prove_helper(const char *path) {
    helper_path = path;
}

/* One rail: the worker's side runs in a thread on a session of its own. */
typedef struct serving {
    node_access *node; /* owned by the thread while it runs */
    const char *program, *address;
    char secret_hex[SHA256_HEX + 1];
    int limit_ms;
    pthread_t thread;
    atomic_int port; /* 0 not yet, -1 failed */
    buf printed;
    int rc;
    err e;
} serving;

static int take_port(void *ctx, bool is_error, const void *data, size_t n) {
    serving *s = ctx;
    if (is_error) return OK;
    int rc = buf_append(&s->printed, data, n);
    const char *text = buf_cstr(&s->printed), *end = strchr(text, '\n');
    int64_t port = 0;
    if (rc == OK && end != NULL && str_starts(text, "listening ") && atomic_load(&s->port) == 0) {
        char *number = mem_strndup(text + 10, (size_t)(end - text) - 10);
        if (parse_i64(number, &port) == OK && port > 0 && port < 65536) {
            atomic_store(&s->port, (int)port);
        }
        mem_free(number);
    }
    return rc;
}

static void *serve(void *ctx) {
    serving *s = ctx;
    const char *argv[] = {s->program, "probe", s->address, NULL};
    node_command c = {.argv = argv,
        .input = s->secret_hex,
        .n_input = strlen(s->secret_hex),
        .timeout_ms = s->limit_ms,
        .sink = take_port,
        .sink_ctx = s};
    remote_result out;
    remote_result_init(&out);
    s->rc = node_run(s->node, &c, &out, &s->e);
    if (s->rc == OK && out.exit_code != 0) {
        s->rc = err_set(
            &s->e, ERR_NET, "the other side of the link test ended with code %d", out.exit_code);
    }
    if (atomic_load(&s->port) == 0) atomic_store(&s->port, -1);
    remote_result_release(&out);
    return NULL;
}

static node_access *second_access(node_access *n, err *e) {
    remote *session = node_access_session(n), *fresh = NULL;
    if (session == NULL) return node_access_local(node_access_name(n), NULL);
    if (remote_again(session, &fresh, e) != OK) return NULL;
    return node_access_ssh(node_access_name(n), fresh, NULL);
}

/* The helper on the worker: installed, or copied now. */
static int find_program(node_access *worker, buf *out, err *e) {
    buf text = BUF_INIT, file = BUF_INIT;
    int rc = node_tool(worker, &text, NULL, "tandem-node", "--version", NULL);
    if (rc == OK) {
        rc = buf_puts(out, "tandem-node");
    } else if (helper_path == NULL || !file_exists(helper_path)) {
        rc = err_set(e, ERR_NOT_FOUND,
            "tandem-node is not installed on %s and not beside this program",
            node_access_name(worker));
    } else if (node_access_session(worker) == NULL) {
        rc = buf_puts(out, helper_path);
    } else {
        rc = file_read(helper_path, &file, HELPER_MAX, e);
        if (rc == OK) rc = node_tool(worker, &text, e, "mktemp", "-d", "-t", "tandem.XXXXXX", NULL);
        while (rc == OK && text.len > 0 && text.data[text.len - 1] == '\n')
            buf_truncate(&text, text.len - 1);
        if (rc == OK) rc = buf_printf(out, "%s/tandem-node", buf_cstr(&text));
        if (rc == OK) rc = node_write(worker, buf_cstr(out), file.data, file.len, 0700, e);
    }
    buf_release(&text);
    buf_release(&file);
    return rc;
}

static void plain_address(const char *with_prefix, char out[24]) {
    str_copy(out, 24, with_prefix);
    out[strcspn(out, "/")] = '\0';
}

typedef struct running {
    link_probe_options o;
    link_probe_result *out;
    pthread_t thread;
    bool is_started;
    int rc;
    err e;
} running;

static void *run_rail(void *ctx) {
    running *x = ctx;
    x->rc = link_probe_run(&x->o, x->out, &x->e);
    return NULL;
}

static int wait_ports(serving s[LINK_RAILS], err *e) {
    uint64_t end = clock_mono_ms() + READY_MS;
    for (int x = 0; x < LINK_RAILS; x++) {
        while (atomic_load(&s[x].port) == 0 && clock_mono_ms() < end)
            sleep_ms(5);
        if (atomic_load(&s[x].port) > 0) continue;
        return err_set(
            e, ERR_NET, "the worker's side of the link test did not start on %s", s[x].address);
    }
    return OK;
}

static int run_both(serving s[LINK_RAILS], running x[LINK_RAILS], err *e) {
    int rc = wait_ports(s, e);
    for (int k = 0; k < LINK_RAILS && rc == OK; k++) {
        x[k].o.port = atomic_load(&s[k].port);
        x[k].is_started = pthread_create(&x[k].thread, NULL, run_rail, &x[k]) == 0;
        if (!x[k].is_started) rc = err_set(e, ERR_MEMORY, "no thread for the link test");
    }
    for (int k = 0; k < LINK_RAILS; k++) {
        if (!x[k].is_started) continue;
        pthread_join(x[k].thread, NULL);
        if (rc == OK && x[k].rc != OK) rc = err_set(e, x[k].rc, "rail %c: %s", 'A' + k, x[k].e.msg);
    }
    return rc;
}

static int start_serving(node_access *worker, serving *s, err *e) {
    s->node = second_access(worker, e);
    if (s->node == NULL) return ERR_NET;
    if (pthread_create(&s->thread, NULL, serve, s) == 0) return OK;
    node_access_close(s->node);
    s->node = NULL;
    return err_set(e, ERR_MEMORY, "no thread for the link test");
}

int link_prove_tcp(node_access *head, node_access *worker, const link_plan *plan, int duration_ms,
    link_proof *out, err *e) {
    char address[LINK_NODES][LINK_RAILS][24];
    serving s[LINK_RAILS];
    running x[LINK_RAILS];
    buf program = BUF_INIT;
    memset(s, 0, sizeof s);
    memset(x, 0, sizeof x);
    memset(out, 0, sizeof *out);
    if (node_access_session(head) != NULL) {
        return err_set(e, ERR_UNSUPPORTED, "the link test runs on the head itself");
    }
    secret_hold();
    int rc = find_program(worker, &program, e);
    for (int k = 0; k < LINK_RAILS && rc == OK; k++) {
        for (int n = 0; n < LINK_NODES; n++)
            plain_address(plan->rail[n][k].now, address[n][k]);
        if (address[0][k][0] == '\0' || address[1][k][0] == '\0') {
            rc = err_set(e, ERR_NOT_FOUND, "rail %c has no addresses yet", 'A' + k);
            break;
        }
        x[k] = (running){
            .o = {.address = address[1][k], .source = address[0][k], .duration_ms = duration_ms},
            .out = &out->rail[k]};
        if (getrandom(x[k].o.secret, LINK_PROBE_SECRET, 0) != LINK_PROBE_SECRET) {
            rc = err_errno(e, "no random numbers");
            break;
        }
        s[k] = (serving){.program = buf_cstr(&program),
            .address = address[1][k],
            .limit_ms = duration_ms + SERVE_EXTRA_MS,
            .printed = BUF_MAX(4096)};
        sha256_hex(x[k].o.secret, s[k].secret_hex);
        s[k].secret_hex[SHA256_HEX - 1] = '\n';
        rc = start_serving(worker, &s[k], e);
    }
    if (rc == OK) rc = run_both(s, x, e);
    for (int k = 0; k < LINK_RAILS; k++) {
        if (s[k].node == NULL) continue;
        pthread_join(s[k].thread, NULL);
        if (rc != OK && s[k].rc != OK && e != NULL) {
            err_add(e, rc, "worker's side of rail %c: %.200s", 'A' + k, s[k].e.msg);
        }
        node_access_close(s[k].node);
        buf_release(&s[k].printed);
    }
    explicit_bzero(s, sizeof s);
    explicit_bzero(x, sizeof x);
    secret_drop();
    if (str_starts(buf_cstr(&program), "/tmp/")) {
        buf text = BUF_INIT;
        (void)node_tool(worker, &text, NULL, "rm", "-f", "--", buf_cstr(&program), NULL);
        buf_release(&text);
    }
    buf_release(&program);
    return rc;
}

/* RDMA: ib_write_bw on the worker as server, then here. */
typedef struct writing {
    node_access *node;
    const char *dev, *peer; /* peer NULL: the server */
    int port;
    pthread_t thread;
    double gbps;
    int rc;
    err e;
} writing;

static void *write_bw(void *ctx) {
    writing *w = ctx;
    buf port = BUF_INIT, seconds = BUF_INIT;
    (void)buf_printf(&port, "%d", w->port);
    (void)buf_printf(&seconds, "%d", RDMA_S);
    const char *argv[] = {"ib_write_bw", "-d", w->dev, "-s", "65536", "-D", buf_cstr(&seconds),
        "-p", buf_cstr(&port), "--report_gbits", "-F", w->peer, NULL};
    node_command c = {.argv = argv, .timeout_ms = (RDMA_S + 20) * 1000};
    remote_result out;
    remote_result_init(&out);
    w->rc = node_run(w->node, &c, &out, &w->e);
    if (w->rc == OK && out.exit_code != 0) {
        w->rc = err_set(&w->e, ERR_IO, "ib_write_bw ended with code %d: %.200s", out.exit_code,
            buf_cstr(out.err.len > 0 ? &out.err : &out.out));
    }
    if (w->rc == OK && w->peer != NULL) w->rc = link_parse_write_bw(buf_cstr(&out.out), &w->gbps);
    remote_result_release(&out);
    buf_release(&port);
    buf_release(&seconds);
    return NULL;
}

static bool has_write_bw(node_access *n) {
    const char *argv[] = {"ib_write_bw", "--version", NULL};
    node_command c = {.argv = argv};
    remote_result out;
    remote_result_init(&out);
    int rc = node_run(n, &c, &out, NULL);
    remote_result_release(&out);
    return rc == OK;
}

/* Both rails at once to the machine i_server. */
static int write_one_way(node_access *const node[LINK_NODES], const link_plan *plan, int i_server,
    double gbps[LINK_RAILS], err *e) {
    writing w[LINK_NODES * LINK_RAILS];
    char peer[LINK_RAILS][24];
    int started = 0, rc = OK;
    memset(w, 0, sizeof w);
    /* Servers first; the clients give them a second to listen. */
    for (int k = 0; k < LINK_NODES * LINK_RAILS && rc == OK; k++) {
        int rail = k % LINK_RAILS, n = k < LINK_RAILS ? i_server : 1 - i_server;
        plain_address(plan->rail[i_server][rail].now, peer[rail]);
        if (k == LINK_RAILS) sleep_ms(1000);
        w[k] = (writing){.node = second_access(node[n], e),
            .dev = plan->rail[n][rail].rdma,
            .peer = n == i_server ? NULL : peer[rail],
            .port = RDMA_PORT + rail};
        if (w[k].node == NULL) {
            rc = ERR_NET;
        } else if (pthread_create(&w[k].thread, NULL, write_bw, &w[k]) != 0) {
            node_access_close(w[k].node);
            rc = err_set(e, ERR_MEMORY, "no thread for the RDMA test");
        } else {
            started++;
        }
    }
    for (int k = 0; k < started; k++) {
        pthread_join(w[k].thread, NULL);
        if (rc == OK && w[k].rc != OK) rc = err_set(e, w[k].rc, "%s", w[k].e.msg);
        if (w[k].peer != NULL) gbps[k % LINK_RAILS] = w[k].gbps;
        node_access_close(w[k].node);
    }
    return rc;
}

int link_prove_rdma(node_access *head, node_access *worker, const link_plan *plan,
    double gbps[LINK_RAILS], err *e) {
    node_access *const node[LINK_NODES] = {head, worker};
    double back[LINK_RAILS] = {0};
    if (!has_write_bw(head) || !has_write_bw(worker)) {
        return err_set(
            e, ERR_NOT_FOUND, "ib_write_bw (package perftest) is not installed on both machines");
    }
    int rc = write_one_way(node, plan, 1, gbps, e);
    if (rc == OK) rc = write_one_way(node, plan, 0, back, e);
    /* The slower way is what the pair has. */
    for (int k = 0; k < LINK_RAILS && rc == OK; k++) {
        if (back[k] < gbps[k]) gbps[k] = back[k];
    }
    return rc;
}
