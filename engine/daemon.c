/* tandemd: the engine as a process. Reads its options, takes the socket, answers "loading" while
 * the model is read, serves until it is told to stop, then lets running replies end. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/api/api.h"
#include "engine/api/log_tail.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/secret.h"
#include "engine/base/str.h"
#include "engine/base/thread.h"
#include "engine/base/version.h"
#include "engine/daemon_internal.h"
#include "engine/model/model.h"
#include "engine/run/canary.h"
#include "engine/run/control_wire.h"
#include "engine/run/memory.h"
#include "engine/run/run.h"
#include "engine/text/tokenizer.h"

#ifdef TANDEM_CUDA
#include "kernels/cuda_ops.h"
#endif

#define LISTEN_BACKLOG 128
#define DRAIN_LOOK_MS 10
#define DRAIN_FLUSH_MS 1000
#define FULL_MODEL_LAYERS 40
#define RANKS_LOOK_MS 100
#define FAIL_LINGER_MS 1500

typedef struct daemon_state {
    daemon_options o;
    int lock_fd, listen_fd;
    bool has_socket; /* ours to remove */
    daemon_self *self;
    tokenizer *tokenizer;
    daemon_part part;  /* rank 0's model */
    ranks *ranks;      /* NULL: one rank */
    run_source own;    /* of this rank's model */
    run_source source; /* of all ranks */
    run *run;
    api *api;
    log_tail *log; /* what clients see of the log; NULL: none */
    char model_id[128];
    bool is_demo;
} daemon_state;

/* Written to by signal handlers and by the shutdown route. */
static int stop_pipe[2] = {-1, -1};

static void ask_to_stop(int signal_number) {
    int saved = errno;
    char byte = (char)signal_number;
    ssize_t n = write(stop_pipe[1], &byte, 1);
    (void)n;
    errno = saved;
}

static void on_shutdown(void *ctx) {
    (void)ctx;
    ask_to_stop(SIGTERM);
}

/* Before on_shutdown on the same thread; read by the main thread once the pipe has spoken. */
static void on_deadline(void *ctx, int64_t seconds) {
    daemon_state *d = ctx;
    d->o.drain_s = seconds;
}

int daemon_stop_fd(void) {
    return stop_pipe[0];
}

void daemon_ask_to_stop(void) {
    ask_to_stop(SIGTERM);
}

_Noreturn void daemon_fail_fast(daemon_self *self, const err *why) {
    daemon_self_fail(self, why);
    fprintf(stderr, "tandemd: %s\n", why->msg);
    _exit(EXIT_CODE_PEER);
}

/* ---- places ---- */

/* The folder of this program, "" if the system does not say. */
static void program_dir(char *out, size_t cap) {
    ssize_t n = readlink("/proc/self/exe", out, cap - 1);
    out[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(out, '/');
    if (slash != NULL) *slash = '\0';
}

/* The built-in model: in the source tree above the program, or in share beside bin. */
static int find_demo_model(buf *out, err *e) {
    static const char *const places[] = {"../templates/demo-model", "../../templates/demo-model",
        "../share/tandem/templates/demo-model"};
    char dir[1024];
    program_dir(dir, sizeof dir);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        buf_reset(out);
        buf_printf(out, "%s/%s/config.json", dir, places[i]);
        if (!file_exists(buf_cstr(out))) continue;
        buf_truncate(out, out->len - strlen("/config.json"));
        path_real(out);
        return OK;
    }
    return err_set(e, ERR_NOT_FOUND,
        "the built-in demo model is not beside the program (%s); install it or give --model DIR",
        dir);
}

static int default_socket(buf *out) {
    const char *given = getenv("TANDEM_SOCKET");
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    const char *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    char system_dir[64];
    struct stat st;
    if (given != NULL && given[0] != '\0') return buf_puts(out, given);
    if (runtime != NULL && runtime[0] == '/')
        return buf_printf(out, "%s/tandem/engine.sock", runtime);
    snprintf(system_dir, sizeof system_dir, "/run/user/%u", (unsigned)getuid());
    if (stat(system_dir, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == getuid()) {
        return buf_printf(out, "%s/tandem/engine.sock", system_dir);
    }
    if (state != NULL && state[0] == '/')
        return buf_printf(out, "%s/tandem/run/engine.sock", state);
    return buf_printf(out, "%s/.local/state/tandem/run/engine.sock", home != NULL ? home : "/tmp");
}

/* The folder of the socket: made private if it is missing, never widened. */
static int make_socket_dir(const char *socket_path, err *e) {
    buf dir = BUF_INIT;
    path_dir(&dir, socket_path);
    int rc = dir_make_all(buf_cstr(&dir), 0700, e);
    buf_release(&dir);
    return err_add(e, rc, "the folder of the socket can not be made; choose another --socket");
}

/* ---- the socket: one daemon each ---- */

static int take_lock(daemon_state *d, err *e) {
    buf path = BUF_INIT;
    char text[32] = "";
    buf_printf(&path, "%s.lock", buf_cstr(&d->o.socket_path));
    d->lock_fd = open(buf_cstr(&path), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int rc = OK;
    if (d->lock_fd < 0) {
        rc = err_errno(e, "opening the lock %s", buf_cstr(&path));
    } else if (fd_lock(d->lock_fd) != OK) {
        ssize_t n = pread(d->lock_fd, text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        rc = err_set(e, ERR_BUSY,
            "another tandemd (process %s) serves %s; stop it with: tandem stop,"
            " or choose another --socket",
            text, buf_cstr(&d->o.socket_path));
    } else {
        int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
        if (ftruncate(d->lock_fd, 0) != 0 || pwrite(d->lock_fd, text, (size_t)n, 0) != n) {
            rc = err_errno(e, "writing the lock %s", buf_cstr(&path));
        }
    }
    buf_release(&path);
    return rc;
}

/* Removes what an earlier daemon left behind. The lock is ours, so no daemon lives there; another
 * program might. */
static int clear_old_socket(const char *path, const struct sockaddr_un *sa, err *e) {
    struct stat st;
    if (lstat(path, &st) != 0) return errno == ENOENT ? OK : err_errno(e, "looking at %s", path);
    if (!S_ISSOCK(st.st_mode)) {
        return err_set(e, ERR_EXISTS,
            "%s exists and is no socket; remove it or choose another --socket", path);
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_alive = fd >= 0 && connect(fd, (const struct sockaddr *)sa, sizeof *sa) == 0;
    if (fd >= 0) close(fd);
    if (is_alive) {
        return err_set(e, ERR_BUSY, "another program answers on %s; choose another --socket", path);
    }
    return unlink(path) == 0 ? OK : err_errno(e, "removing the old socket %s", path);
}

static int open_socket(daemon_state *d, err *e) {
    const char *path = buf_cstr(&d->o.socket_path);
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof sa.sun_path) {
        return err_set(e, ERR_LIMIT,
            "the socket path has %zu characters, %zu fit; choose a shorter"
            " --socket",
            strlen(path), sizeof sa.sun_path - 1);
    }
    str_copy(sa.sun_path, sizeof sa.sun_path, path);
    int rc = make_socket_dir(path, e);
    if (rc == OK) rc = take_lock(d, e);
    if (rc == OK) rc = clear_old_socket(path, &sa, e);
    if (rc != OK) return rc;
    d->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    mode_t old = umask(0177);
    bool is_bound = d->listen_fd >= 0 && bind(d->listen_fd, (struct sockaddr *)&sa, sizeof sa) == 0;
    umask(old);
    d->has_socket = is_bound;
    if (!is_bound || listen(d->listen_fd, LISTEN_BACKLOG) != 0) {
        return err_errno(e, "listening on %s", path);
    }
    return OK;
}

/* ---- the model ---- */

static void name_model(daemon_state *d, const model_config *c) {
    bool is_full = c->n_layers == FULL_MODEL_LAYERS && c->n_vocab > 100000;
    d->is_demo = !is_full;
    str_copy(d->model_id, sizeof d->model_id, is_full ? "DeepSeek-V4.1-Flash-1017" : "tandem-demo");
}

static int load_tokenizer(daemon_state *d, const model_config *c, err *e) {
    buf path = BUF_INIT;
    path_join(&path, buf_cstr(&d->o.model_dir), "tokenizer.json");
    int rc = tokenizer_open(buf_cstr(&path), &d->tokenizer, e);
    if (rc == OK) rc = model_config_check_vocab(c, tokenizer_size(d->tokenizer), e);
    if (rc == OK && tokenizer_controls(d->tokenizer).eos < 0) {
        rc = err_set(e, ERR_MISMATCH,
            "%s has no end token of DeepSeek's chat format; it belongs to"
            " another model",
            buf_cstr(&path));
    }
    buf_release(&path);
    return rc;
}

/* The first reply, before ready: "Hello" as a user would send it. */
static int greet(daemon_state *d, err *e) {
    control_ids c = tokenizer_controls(d->tokenizer);
    const int32_t heads[] = {c.bos, c.user};
    const int32_t tails[] = {c.assistant, c.think_close};
    text_span span = {.text = "Hello", .len = 5};
    token_list prompt = {0};
    for (int i = 0; i < 2; i++) {
        if (heads[i] >= 0) token_list_push(&prompt, heads[i]);
    }
    int rc = tokenizer_encode(d->tokenizer, span, &prompt, e);
    for (int i = 0; i < 2; i++) {
        if (tails[i] >= 0) token_list_push(&prompt, tails[i]);
    }
    if (rc == OK) rc = run_canary(&d->source, prompt.ids, (int32_t)prompt.len, e);
    token_list_release(&prompt);
    return rc;
}

/* Meets the other ranks, before anybody loads. */
static int meet_ranks(daemon_state *d, const control_settings *s, err *e) {
    if (d->o.n_ranks < 2) return OK;
    return ranks_open(&d->o, d->self, s, &d->ranks, e);
}

static int open_model(daemon_state *d, const control_settings *s, err *e) {
    exchange *x = d->ranks != NULL ? ranks_exchange(d->ranks) : NULL;
    if (d->ranks != NULL) d->part.await_models = ranks_await_models;
    d->part.await_ctx = d->ranks;
    int rc = daemon_open_model(&d->part, s, x, e);
    if (rc != OK) return rc;
    source_from_model(d->part.model, &d->own);
    d->source = d->own;
    return d->ranks == NULL ? OK : ranks_join(d->ranks, d->part.model, &d->own, &d->source, e);
}

static int open_run(daemon_state *d, err *e) {
    run_options ro = {.source = &d->source,
        .queue_cap = (int32_t)d->o.queue,
        .no_drafts = d->o.no_drafts,
        .gap_ms = (int32_t)d->o.gap_ms,
        .reserve_bytes = d->part.reserve_bytes,
        .step_limit_ms = (uint32_t)d->o.step_limit_ms};
    int rc = daemon_cache_options(&d->o, d->part.model, &ro, e);
    if (rc == OK) rc = run_open(&ro, &d->run, e);
    return rc == OK ? ranks_watch(d->ranks, d->run, e) : rc;
}

static int load(daemon_state *d, err *e) {
    model_config *c = mem_alloc(sizeof *c);
    control_settings settings;
    int rc = model_config_load(buf_cstr(&d->o.model_dir), c, e);
    if (rc == OK) rc = load_tokenizer(d, c, e);
    if (rc == OK) {
        daemon_settings(&d->o, c, &settings);
        daemon_self_settings(d->self, call_hash(0, &settings, sizeof settings));
        rc = daemon_check_memory(&d->part, &settings, e);
    }
    mem_free(c);
    if (rc == OK) rc = meet_ranks(d, &settings, e);
    if (rc == OK) rc = open_model(d, &settings, e);
    daemon_self_phase(d->self, RANK_CANARY);
    if (rc == OK) rc = greet(d, e);
    return rc == OK ? open_run(d, e) : rc;
}

/* ---- what the API asks ---- */

static int describe_ranks(void *ctx, api_rank *out, int cap) {
    daemon_state *d = ctx;
    out[0] = (api_rank){.state = "loading", .age_s = 0.0};
    daemon_self_fill(d->self, &out[0].f);
    out[0].f.exchange_ms = ranks_exchange_ms(d->ranks);
    if (out[0].f.phase == RANK_READY) out[0].state = "up";
    if (out[0].f.phase == RANK_LEAVING) out[0].state = "leaving";
    if (out[0].f.phase == RANK_FAILED) out[0].state = "failed";
    return ranks_describe(d->ranks, out, cap);
}

static void describe_start(void *ctx, api_start *out) {
    daemon_self_start(((daemon_state *)ctx)->self, out);
}

static void describe_engram(void *ctx, engram_store_stats *out) {
    daemon_self_engram(((daemon_state *)ctx)->self, out);
}

/* ---- serving ---- */

/* NULL for what was not given. */
static const char *given(const buf *text) {
    return text->len > 0 ? buf_cstr(text) : NULL;
}

static int start_api(daemon_state *d, err *e) {
    api_options o = {.model_id = d->model_id,
        .model_dir = buf_cstr(&d->o.model_dir),
        .build = version_build_id(),
        .is_demo = d->is_demo,
        .thinks_by_default = d->o.thinks,
        .default_temperature =
            (float)(d->o.temperature < 0.0 && d->is_demo ? 0.0 : d->o.temperature),
        .default_top_p = (float)d->o.top_p,
        .is_strict_model = d->o.is_strict_model,
        .keys_path = given(d->o.keys_path.len > 0 ? &d->o.keys_path : &d->o.usual_keys_path),
        .may_keys_come = d->o.keys_path.len == 0,
        .cors_origins = given(&d->o.cors_origins),
        .certificate_path = given(&d->o.certificate_path),
        .certificate_key_path = given(&d->o.certificate_key_path),
        .request_log_path = given(&d->o.request_log_path),
        .logs_prompts = d->o.logs_prompts,
        .opens_metrics = d->o.opens_metrics,
        .keeps_json_alive = d->o.keeps_json_alive,
        .guards_loops = d->o.guards_loops,
        .keeps_room = d->o.keeps_room,
        .is_cache_per_key = d->o.is_cache_per_key,
        .request_timeout_ms = (int32_t)(d->o.request_timeout_s * 1000),
        .keep_alive_ms = (int32_t)(d->o.keep_alive_s * 1000),
        .ranks = describe_ranks,
        .start = describe_start,
        .engram = describe_engram,
        .ranks_ctx = d,
        .log = d->log,
        .on_shutdown = on_shutdown,
        .on_deadline = on_deadline,
        .on_shutdown_ctx = d};
    int fd = d->listen_fd;
    d->listen_fd = -1; /* taken, also when it fails */
    int rc = api_open(&o, fd, &d->api, e);
    if (rc == OK && d->o.address[0] != '\0') {
        rc =
            api_endpoint_confirmed(d->api, d->o.address, (int)d->o.port, given(&d->o.confirmed), e);
    }
    return rc;
}

/* ---- ending ---- */

static void count_live(void *ctx, const run_progress *p) {
    int *n = ctx;
    (void)p;
    *n += 1;
}

/* Replies that run, and answers on their way to a client. */
static int count_open(daemon_state *d) {
    int n = 0;
    run_each(d->run, count_live, &n);
    return n + api_busy(d->api);
}

/* Waits until no reply runs; a second request to stop, or the limit, ends the waiting. */
static void drain(daemon_state *d) {
    uint64_t deadline = clock_mono_ms() + (uint64_t)d->o.drain_s * 1000u;
    struct pollfd p = {.fd = stop_pipe[0], .events = POLLIN};
    run_drain(d->run);
    api_drain(d->api);
    while (count_open(d) > 0 && clock_mono_ms() < deadline) {
        if (poll(&p, 1, DRAIN_LOOK_MS) > 0) break;
    }
    run_abort_all(d->run);
    /* What was cut off still gets its error event. */
    deadline = clock_mono_ms() + DRAIN_FLUSH_MS;
    while (count_open(d) > 0 && clock_mono_ms() < deadline) {
        sleep_ms(DRAIN_LOOK_MS);
    }
}

/* Until the process is asked to stop (OK) or the engine has failed for good (why). One rank that
 * failed alone goes on answering what it can: nothing would start it again. */
static int wait_for_end(daemon_state *d, err *why) {
    struct pollfd p = {.fd = stop_pipe[0], .events = POLLIN};
    run_stats s;
    char byte;
    while (poll(&p, 1, d->ranks == NULL ? -1 : RANKS_LOOK_MS) <= 0) {
        if (ranks_have_failed(d->ranks, why)) return why->code;
        if (ranks_want_stop(d->ranks)) return OK;
        if (d->ranks == NULL) continue;
        run_stats_get(d->run, &s);
        if (s.state != RUN_STATE_FAILED) continue;
        *why = s.failure;
        return why->code;
    }
    ssize_t n = read(stop_pipe[0], &byte, 1);
    (void)n;
    return OK;
}

/* Everything in flight has its error; give the answers and /ready time to be seen, then end so that
 * whoever started the ranks can start them again. */
static int end_failed(daemon_state *d, const err *why, err *e) {
    uint64_t deadline = clock_mono_ms() + FAIL_LINGER_MS;
    struct pollfd p = {.fd = stop_pipe[0], .events = POLLIN};
    run_fail(d->run, why);
    daemon_self_fail(d->self, why);
    LOG(LOG_ERROR, "daemon", "the engine ends", "message=\"%s\"", why->msg);
    while (clock_mono_ms() < deadline && poll(&p, 1, DRAIN_LOOK_MS) <= 0) {
    }
    api_drain(d->api);
    *e = *why;
    return ERR_PEER;
}

/* For who started it with a port to be picked. */
static void announce(daemon_state *d) {
    int port = api_endpoint_port(d->api);
    if (!d->o.announces || port == 0) return;
    fprintf(stderr, "tandem: serving http%s://%s:%d/v1 until Ctrl-C\n",
        d->o.certificate_path.len > 0 ? "s" : "", d->o.address, port);
}

static int serve(daemon_state *d, err *e) {
    char status[512];
    int rc = open_socket(d, e);
    snprintf(status, sizeof status, "%s.json", buf_cstr(&d->o.socket_path));
    if (rc == OK) daemon_self_file(d->self, status); /* the socket is ours, and so is this */
    if (rc == OK) rc = start_api(d, e);
    if (rc == OK) rc = load(d, e);
    if (rc != OK) return rc;
    api_engine engine = {.run = d->run,
        .tokenizer = d->tokenizer,
        .max_context = d->source.info.max_context,
        .n_slots = d->source.info.n_slots};
    api_attach(d->api, &engine);
    daemon_self_phase(d->self, RANK_READY);
    LOG(LOG_INFO, "daemon", "ready", "socket=%s model=%s slots=%d context=%lld",
        buf_cstr(&d->o.socket_path), d->model_id, engine.n_slots, (long long)engine.max_context);
    announce(d);
    err why = ERR_INIT;
    if (wait_for_end(d, &why) != OK) return end_failed(d, &why, e);
    LOG(LOG_INFO, "daemon", "stopping", "drain_s=%lld", (long long)d->o.drain_s);
    daemon_self_phase(d->self, RANK_LEAVING);
    drain(d);
    return OK;
}

static void clean_up(daemon_state *d, const err *why) {
    if (why != NULL) daemon_self_fail(d->self, why);
    api_close(d->api);
    err ignored = ERR_INIT;
    (void)ranks_watch(d->ranks, NULL, &ignored);
    run_close(d->run);
    ranks_leave(d->ranks, why);
    daemon_close_model(&d->part); /* its recorded steps use the exchange */
    ranks_close(d->ranks);
    tokenizer_close(d->tokenizer);
    if (d->has_socket) unlink(buf_cstr(&d->o.socket_path));
    if (why == NULL) daemon_self_stopped(d->self);
    daemon_self_free(d->self);
    if (d->listen_fd >= 0) close(d->listen_fd);
    if (d->lock_fd >= 0) close(d->lock_fd); /* the lock file stays: removing it would race */
    daemon_options_release(&d->o);
}

static int set_signals(err *e) {
    struct sigaction stop = {.sa_handler = ask_to_stop};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    if (pipe2(stop_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return err_errno(e, "making a pipe");
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGHUP, &ignore, NULL);
    return OK;
}

static int log_rank(const daemon_options *o) {
    if (o->role == DAEMON_RANK) return (int)o->rank;
    return o->role == DAEMON_SERVE && o->n_ranks > 1 ? 0 : -1;
}

static int open_log(const daemon_options *o, log_tail *tail, err *e) {
    int fd = STDERR_FILENO;
    if (o->log_path.len > 0) {
        fd = open(buf_cstr(&o->log_path), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fd < 0) return err_errno(e, "opening the log %s", buf_cstr(&o->log_path));
    }
    log_open(&(log_options){.fd = fd,
        .level = o->level,
        .rank = log_rank(o),
        .sink = tail != NULL ? log_tail_take : NULL,
        .sink_ctx = tail});
    return OK;
}

/* What the model folder holds decides the served name, before the socket opens. */
static int prepare(daemon_state *d, err *e) {
    model_config *c = mem_alloc(sizeof *c);
    int rc = OK;
    if (d->o.model_dir.len == 0) rc = find_demo_model(&d->o.model_dir, e);
    if (rc == OK) rc = model_config_load(buf_cstr(&d->o.model_dir), c, e);
    if (rc == OK) name_model(d, c);
    if (rc == OK && d->o.socket_path.len == 0) rc = default_socket(&d->o.socket_path);
    mem_free(c);
    return rc;
}

int daemon_exit_code(int rc) {
    if (rc == OK) return EXIT_CODE_OK;
    if (rc == ERR_PEER || rc == ERR_TIMEOUT || rc == ERR_NET) return EXIT_CODE_PEER;
    if (rc == ERR_CANCELLED) return EXIT_CODE_STOPPED;
    return rc == ERR_INTERNAL ? EXIT_CODE_INTERNAL : EXIT_CODE_REFUSED;
}

/* --plan: what a start would take. */
static int show_plan(daemon_state *d, err *e) {
    buf text = BUF_INIT;
    int rc = daemon_plan_text(&d->part, &text, e);
    if (rc == OK) fputs(buf_cstr(&text), stdout);
    buf_release(&text);
    return rc;
}

static int start(daemon_state *d, int argc, char **argv, err *e) {
    int rc = set_signals(e);
    bool is_server = d->o.role == DAEMON_SERVE && !d->o.shows_plan;
    if (is_server) d->log = log_tail_new(); /* for as long as the process */
    if (rc == OK) rc = open_log(&d->o, d->log, e);
    if (rc == OK && d->o.role == DAEMON_PAIR) return daemon_pair(&d->o, argc, argv, e);
    int rank = d->o.role == DAEMON_RANK ? (int)d->o.rank : 0;
    if (rc == OK && d->o.probes) {
        d->self = daemon_self_new(&d->o, rank, "");
        return daemon_probe(&d->o, d->self, e);
    }
    if (rc == OK) rc = prepare(d, e);
    if (rc != OK) return rc;
    if (d->o.shows_plan) log_open(&(log_options){.fd = -1, .level = LOG_ERROR, .rank = -1});
    d->self = daemon_self_new(&d->o, rank, d->model_id);
    d->part = (daemon_part){.options = &d->o, .self = d->self, .rank = rank};
    if (d->o.shows_plan) return show_plan(d, e);
    return rank > 0 ? daemon_rank(&d->o, d->self, e) : serve(d, e);
}

int main(int argc, char **argv) {
    daemon_state d = {.lock_fd = -1, .listen_fd = -1};
    err e = ERR_INIT;
    bool is_done = false;
    secret_wipe_variable("HF_TOKEN");
    daemon_calm_memory();
#ifdef TANDEM_CUDA
    kernels_add(kernels_cuda());
#endif
    daemon_options_init(&d.o);
    int rc = daemon_read_options(argc, argv, &d.o, &is_done, &e);
    int code = rc == OK ? EXIT_CODE_OK : EXIT_CODE_USAGE;
    if (rc == OK && !is_done) {
        rc = start(&d, argc, argv, &e);
        code = daemon_exit_code(rc);
    }
    if (rc != OK) fprintf(stderr, "tandemd: %s\n", e.msg);
    clean_up(&d, rc != OK ? &e : NULL);
    return code;
}
