/* The engine's own exchange on both machines, without a model: `tandemd --probe` as rank 0 here and as
 * rank 1 on the worker, with the environment of a start and NCCL's words about the way it took. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/secret.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "setup/link_prove.h"

#define DRIVER_FILE "/proc/driver/nvidia/version"

enum { SIDE_WORDS = 20, SIDE_LIMIT_MS = 120000, SECRET_LINE = 64 + 1 + 16 + 1 };

typedef struct side {
    node_access *node;
    const char *words[SIDE_WORDS];
    int n_words;
    char interface[80], devices[160], meet[80];
    const char *secret; /* SECRET_LINE bytes */
    pthread_t thread;
    remote_result out;
    int rc;
    err e;
} side;

static void add(side *s, const char *word) {
    CHECK(s->n_words < SIDE_WORDS - 1);
    s->words[s->n_words++] = word;
}

/* The engine is built for CUDA and the machine has the driver. */
static bool has_cuda(node_access *n, const char *engine) {
    buf out = BUF_INIT;
    bool is = node_exists(n, DRIVER_FILE) &&
              node_tool(n, &out, NULL, engine, "--version", NULL) == OK &&
              strstr(buf_cstr(&out), "engine: CUDA") != NULL;
    buf_release(&out);
    return is;
}

/* The same variables as at a start (setup.md 2.5), but with what NCCL says about its way. */
static void fill(side *s, const link_collective_options *o, int i, bool is_cuda) {
    const link_rail *rail = o->plan->rail[i];
    char address[24];
    str_copy(address, sizeof address, o->plan->rail[0][0].now);
    address[strcspn(address, "/")] = '\0';
    s->node = o->node[i];
    snprintf(s->interface, sizeof s->interface, "NCCL_SOCKET_IFNAME=%s", rail[0].netdev);
    snprintf(s->devices, sizeof s->devices, "NCCL_IB_HCA=%s%s%s", rail[0].rdma,
        rail[1].rdma[0] != '\0' ? "," : "", rail[1].rdma);
    snprintf(s->meet, sizeof s->meet, "%s:%d", address, o->port);
    add(s, "env");
    add(s, "NCCL_DEBUG=INFO");
    add(s, s->interface);
    if (rail[0].rdma[0] != '\0') add(s, s->devices);
    if (rail[1].rdma[0] != '\0') add(s, "NCCL_IB_SUBNET_AWARE_ROUTING=1");
    add(s, o->engine[i]);
    if (i == 1) add(s, "rank");
    add(s, "--probe");
    add(s, "--ranks");
    add(s, "2");
    if (i == 1) {
        add(s, "--rank");
        add(s, "1");
    }
    add(s, "--meet");
    add(s, s->meet);
    add(s, "--meet-timeout");
    add(s, "30");
    if (is_cuda) {
        add(s, "--backend");
        add(s, "cuda");
    }
}

static void *run_side(void *ctx) {
    side *s = ctx;
    node_command c = {.argv = s->words,
        .input = s->secret,
        .n_input = SECRET_LINE,
        .timeout_ms = SIDE_LIMIT_MS,
        .max_out = 1 << 20};
    s->rc = node_run(s->node, &c, &s->out, &s->e);
    if (s->rc == OK && s->out.exit_code != 0) {
        const char *words = buf_cstr(&s->out.err);
        const char *last = strstr(words, "tandemd: ");
        if (last != NULL) words = last + 9;
        s->rc = err_set(&s->e, ERR_PEER, "the %s said: %.*s", node_access_name(s->node),
            (int)strcspn(words, "\n"), words);
    }
    return NULL;
}

/* "probe: gather over KIND RATE GB/s ..." among the words of NCCL. */
static int take_line(const char *text, link_collective_result *out, err *e) {
    const char *at = strstr(text, "probe: gather over ");
    char rate[32];
    if (at == NULL || sscanf(at, "probe: gather over %15s %31s GB/s", out->kind, rate) != 2 ||
        parse_double(rate, &out->gbytes_per_s) != OK)
        return err_set(e, ERR_FORMAT, "the engine's probe said nothing that can be read");
    out->way = link_judge_nccl_log(text, out->reason);
    return OK;
}

static void make_secret(char line[SECRET_LINE + 1]) {
    uint8_t secret[SHA256_BYTES];
    char hex[SHA256_HEX];
    uint64_t id = 0;
    rand_secret(secret, sizeof secret);
    rand_secret(&id, sizeof id);
    sha256_hex(secret, hex);
    snprintf(line, SECRET_LINE + 1, "%s %016llx\n", hex, (unsigned long long)id);
    explicit_bzero(secret, sizeof secret);
    explicit_bzero(hex, sizeof hex);
}

int link_prove_collective(const link_collective_options *o, link_collective_result *out, err *e) {
    char secret[SECRET_LINE + 1];
    side s[2] = {{.rc = OK}, {.rc = OK}};
    memset(out, 0, sizeof *out);
    if (o->plan->rail[0][0].now[0] == '\0')
        return err_set(e, ERR_NOT_FOUND, "rail A has no addresses yet");
    bool is_cuda = has_cuda(o->node[0], o->engine[0]) && has_cuda(o->node[1], o->engine[1]);
    secret_hold();
    make_secret(secret);
    for (int i = 0; i < 2; i++) {
        fill(&s[i], o, i, is_cuda);
        s[i].secret = secret;
        remote_result_init(&s[i].out);
    }
    int rc = OK;
    if (pthread_create(&s[1].thread, NULL, run_side, &s[1]) != 0) {
        rc = err_set(e, ERR_MEMORY, "no thread for the worker's side");
    } else {
        run_side(&s[0]);
        pthread_join(s[1].thread, NULL);
    }
    explicit_bzero(secret, sizeof secret);
    secret_drop();
    for (int i = 0; i < 2 && rc == OK; i++) {
        if (s[i].rc != OK) rc = err_set(e, s[i].rc, "%s", s[i].e.msg);
    }
    if (rc == OK) rc = take_line(buf_cstr(&s[0].out.out), out, e);
    remote_result_release(&s[0].out);
    remote_result_release(&s[1].out);
    return rc;
}
