/* From the settings to what each keeper is told. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/secret.h"
#include "engine/base/str.h"
#include "setup/engine_args.h"
#include "setup/pair_internal.h"
#include "setup/paths.h"

#define DRIVER_FILE "/proc/driver/nvidia/version"

enum { GUARD_MIB = 2048, GUARD_S = 6, PEER_S = 60, GATE_S = 600, RESTARTS = 3 };

bool pair_is_configured(const settings *s) {
    return settings_is_set(s, "WORKER_SSH") && settings_is_set(s, "HEAD_IP_A") &&
           settings_is_set(s, "WORKER_IP_A") && settings_is_set(s, "WORKER_DATA");
}

bool pair_is_demo(const settings *s) {
    return !settings_is_set(s, "PROFILE") && !settings_is_set(s, "MODEL_DIR");
}

int pair_model_dir(const pair_options *o, int node, buf *out, err *e) {
    const settings *s = o->settings;
    const char *dir = settings_get(s, "MODEL_DIR"), *head = settings_get(s, "HEAD_DATA");
    const char *there = settings_get(s, "WORKER_DATA");
    size_t n = strlen(head);
    if (pair_is_demo(s)) return OK;
    if (dir[0] == '\0') {
        const char *root = node == PAIR_HEAD ? head : there;
        if (root[0] == '\0')
            return err_set(e, ERR_ARG, "%s is not set; `tandem setup` asks for it",
                node == PAIR_HEAD ? "HEAD_DATA" : "WORKER_DATA");
        return buf_printf(out, "%s/models/%s", root, settings_get(s, "PROFILE"));
    }
    /* A folder of the head's data root has its place below the worker's; any other is the same. */
    bool is_below = n > 0 && strncmp(dir, head, n) == 0 && dir[n] == '/';
    if (node == PAIR_WORKER && is_below) return buf_printf(out, "%s%s", there, dir + n);
    return buf_puts(out, dir);
}

static int add_word(keeper_order *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int add_word(keeper_order *o, const char *fmt, ...) {
    buf text = BUF_INIT;
    va_list ap;
    if (o->n_words >= KEEPER_WORDS_MAX - 1) return ERR_LIMIT;
    va_start(ap, fmt);
    int rc = buf_vprintf(&text, fmt, ap);
    va_end(ap);
    if (rc == OK) o->words[o->n_words++] = buf_take(&text);
    buf_release(&text);
    return rc;
}

static int add_pair(keeper_order *o, const char *option, const char *value) {
    int rc = add_word(o, "%s", option);
    return rc == OK ? add_word(o, "%s", value) : rc;
}

/* ---- the engine's words ---- */

typedef struct word_sink {
    keeper_order *order;
    int rc;
} word_sink;

static void take_word(void *ctx, const char *option, const char *value) {
    word_sink *w = ctx;
    if (w->rc == OK) w->rc = add_word(w->order, "%s", option);
    if (w->rc == OK && value != NULL) w->rc = add_word(w->order, "%s", value);
}

/* What every engine started here is told; rank 1 hears it from rank 0. */
static int add_settings(keeper_order *o, const settings *s) {
    word_sink w = {o, OK};
    engine_args_sink out = {take_word, &w};
    engine_args_put(s, &out);
    engine_args_put_endpoint(s, &out);
    return w.rc;
}

/* The engine is built for it and the head has a driver: without one the model runs on the CPU, as the
 * checks say (V2). */
static bool has_cuda(pair_run *p) {
    buf out = BUF_INIT;
    if (!node_exists(p->o->node[0], DRIVER_FILE)) return false;
    bool is = node_tool(p->o->node[0], &out, NULL, p->daemon[0], "--version", NULL) == OK &&
              strstr(buf_cstr(&out), "engine: CUDA") != NULL;
    buf_release(&out);
    return is;
}

/* This rank's pack when it is there; whether it fits is the engine's to check. */
static int add_pack(pair_run *p, int node, bool is_cuda) {
    const settings *s = p->o->settings;
    const char *data = settings_get(s, node == PAIR_HEAD ? "HEAD_DATA" : "WORKER_DATA");
    buf file = BUF_INIT;
    int rc = OK;
    if (!settings_is_set(s, "PROFILE") || data[0] == '\0') return OK;
    buf_printf(&file, "%s/prepared/%s/%s/rank-%d-of-2.pack", data, settings_get(s, "PROFILE"),
        is_cuda ? "gpu-1" : "cpu-1", node);
    if (node_exists(p->o->node[node], buf_cstr(&file)))
        rc = add_pair(&p->order[node], "--pack", buf_cstr(&file));
    buf_release(&file);
    return rc;
}

static int add_model(pair_run *p, int node, err *e) {
    keeper_order *o = &p->order[node];
    buf dir = BUF_INIT, config = BUF_INIT;
    int rc = pair_model_dir(p->o, node, &dir, e);
    if (rc == OK && dir.len > 0) {
        path_join(&config, buf_cstr(&dir), "config.json");
        if (!node_exists(p->o->node[node], buf_cstr(&config)))
            rc = err_set(e, ERR_NOT_FOUND, "there is no model in %s on the %s; %s", buf_cstr(&dir),
                pair_node_name(node),
                node == PAIR_HEAD ? "load it with tandem download" : "copy it with tandem copy");
        if (rc == OK) rc = add_pair(o, "--model", buf_cstr(&dir));
        if (rc == OK) {
            o->evict_dir = settings_is_on(p->o->settings, "EVICT_CACHE") ? buf_take(&dir) : NULL;
        }
    }
    buf_release(&dir);
    buf_release(&config);
    return rc;
}

static int add_extra(keeper_order *o, const char *const *extra) {
    int rc = OK;
    for (; extra != NULL && *extra != NULL && rc == OK; extra++)
        rc = add_word(o, "%s", *extra);
    return rc;
}

static int fill_words(pair_run *p, int node, err *e) {
    const settings *s = p->o->settings;
    keeper_order *o = &p->order[node];
    const char *meet = settings_get(s, "HEAD_IP_A");
    int rc = add_word(o, "%s", p->daemon[node]);
    if (rc == OK && node == PAIR_WORKER) rc = add_word(o, "rank");
    if (rc == OK) rc = add_pair(o, "--ranks", "2");
    if (rc == OK && node == PAIR_WORKER) rc = add_pair(o, "--rank", "1");
    if (rc == OK) rc = add_word(o, "--meet");
    if (rc == OK) rc = add_word(o, "%s:%lld", meet, (long long)settings_int(s, "MASTER_PORT"));
    if (rc == OK) rc = add_pair(o, "--status", "{status}");
    if (rc == OK && node == PAIR_HEAD) rc = add_pair(o, "--socket", p->socket);
    if (rc == OK && node == PAIR_HEAD) rc = add_settings(o, s);
    bool is_cuda = has_cuda(p);
    if (rc == OK && is_cuda) rc = add_pair(o, "--backend", "cuda");
    if (rc == OK) rc = add_extra(o, p->o->extra);
    if (rc != OK) return err_set(e, rc, "too many words for rank %d", node);
    rc = add_model(p, node, e);
    if (rc == OK && add_pack(p, node, is_cuda) != OK)
        rc = err_set(e, ERR_LIMIT, "too many words for rank %d", node);
    return rc;
}

/* ---- the environment of NCCL (setup.md 2.5) ---- */

static void add_env(keeper_order *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add_env(keeper_order *o, const char *fmt, ...) {
    buf text = BUF_INIT;
    va_list ap;
    if (o->n_env >= KEEPER_ENV_MAX) return;
    va_start(ap, fmt);
    if (buf_vprintf(&text, fmt, ap) == OK) o->env[o->n_env++] = buf_take(&text);
    va_end(ap);
    buf_release(&text);
}

static void fill_env(pair_run *p, int node) {
    const settings *s = p->o->settings;
    bool is_head = node == PAIR_HEAD;
    keeper_order *o = &p->order[node];
    const char *device = settings_get(s, is_head ? "HEAD_IF_A" : "WORKER_IF_A");
    const char *a = settings_get(s, is_head ? "HEAD_HCA_A" : "WORKER_HCA_A");
    const char *b = settings_get(s, is_head ? "HEAD_HCA_B" : "WORKER_HCA_B");
    add_env(o, "NCCL_DEBUG=WARN");
    if (device[0] != '\0') add_env(o, "NCCL_SOCKET_IFNAME=%s", device);
    /* The order pairs half A with half A. The GID index stays unset: NCCL finds it per device. */
    if (a[0] != '\0') add_env(o, "NCCL_IB_HCA=%s%s%s", a, b[0] != '\0' ? "," : "", b);
    if (b[0] != '\0') add_env(o, "NCCL_IB_SUBNET_AWARE_ROUTING=1");
}

static void fill_times(pair_run *p, keeper_order *o) {
    const settings *s = p->o->settings;
    /* A stored tree has no memory that could be waited for. */
    bool is_real = settings_is_set(s, "PROFILE") && p->o->checked[PAIR_HEAD] == NULL;
    o->peer_s = PEER_S;
    o->gate_s = GATE_S;
    o->restarts = RESTARTS;
    o->hang_s = settings_int(s, "HANG_SECONDS");
    o->ready_s = settings_int(s, "READY_TIMEOUT");
    o->stop_s = settings_int(s, "STOP_TIMEOUT");
    o->log_keep = settings_int(s, "LOG_KEEP");
    /* A small model on a small machine needs neither the gate nor the guard of a Spark. */
    o->gate_mib = is_real ? (int64_t)(settings_number(s, "MEM_GATE_GIB") * 1024.0) : 0;
    o->guard_mib = is_real && settings_is_on(s, "MEM_GUARD") ? GUARD_MIB : 0;
    o->guard_s = GUARD_S;
}

static int fill_order(pair_run *p, int node, const uint8_t secret[SHA256_BYTES], err *e) {
    const settings *s = p->o->settings;
    keeper_order *o = &p->order[node];
    keeper_order_init(o);
    o->rank = node;
    memcpy(o->secret, secret, SHA256_BYTES);
    o->start_id = p->start_number;
    str_copy(o->settings, sizeof o->settings, p->settings);
    o->link_host = mem_strdup(settings_get(s, "HEAD_IP_A"));
    o->link_port = (int)settings_int(s, "MASTER_PORT") + 1;
    if (node == PAIR_HEAD && settings_is_set(s, "LOG_DIR"))
        o->log_dir = mem_strdup(settings_get(s, "LOG_DIR"));
    fill_times(p, o);
    fill_env(p, node);
    return fill_words(p, node, e);
}

int pair_orders(pair_run *p, err *e) {
    uint8_t secret[SHA256_BYTES];
    if (!p->holds_secret) secret_hold();
    p->holds_secret = true;
    rand_secret(secret, sizeof secret);
    int rc = fill_order(p, PAIR_HEAD, secret, e);
    if (rc == OK) rc = fill_order(p, PAIR_WORKER, secret, e);
    explicit_bzero(secret, sizeof secret);
    return rc;
}

void pair_run_release(pair_run *p) {
    for (int i = 0; i < PAIR_NODES; i++)
        keeper_order_release(&p->order[i]);
    if (p->holds_secret) secret_drop();
    p->holds_secret = false;
    pair_lock_drop(p);
}
