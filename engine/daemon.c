/* tandemd: the engine as a process. Reads its options, takes the socket, answers "loading" while
 * the model is read, serves until it is told to stop, then lets running replies end. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/api/api.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/thread.h"
#include "engine/base/version.h"
#include "engine/daemon_internal.h"
#include "engine/model/model.h"
#include "engine/run/canary.h"
#include "engine/run/memory.h"
#include "engine/run/run.h"
#include "engine/text/tokenizer.h"

#ifdef TANDEM_CUDA
#include "kernels/cuda_ops.h"
#endif

#define PAGE_TOKENS 128
#define CONTEXT_DEFAULT_MAX (1 << 20)
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
    tokenizer *tokenizer;
    model *model;
    engram_store *store; /* NULL: the model's own tables */
    ranks *ranks;        /* NULL: one rank */
    run_source own;      /* of this rank's model */
    run_source source;   /* of all ranks */
    run *run;
    api *api;
    char model_id[128];
    bool is_demo;
    uint64_t reserve_bytes;
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

int daemon_stop_fd(void) {
    return stop_pipe[0];
}

void daemon_ask_to_stop(void) {
    ask_to_stop(SIGTERM);
}

_Noreturn void daemon_fail_fast(const err *why) {
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
    } else if (flock(d->lock_fd, LOCK_EX | LOCK_NB) != 0) {
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

static void fill_model_options(const daemon_state *d, const model_config *c, model_options *out) {
    int64_t context = d->o.context;
    if (context == 0 || context > c->max_context) context = c->max_context;
    if (context > CONTEXT_DEFAULT_MAX) context = CONTEXT_DEFAULT_MAX;
    int64_t pages = d->o.n_pages;
    if (pages == 0) pages = d->o.n_slots * ((context + PAGE_TOKENS - 1) / PAGE_TOKENS);
    *out = (model_options){.dir = buf_cstr(&d->o.model_dir),
        .backend = d->o.backend.len > 0 ? buf_cstr(&d->o.backend) : NULL,
        .world = (int)d->o.n_ranks,
        .n_threads = (int)d->o.n_threads,
        .n_slots = (int)d->o.n_slots,
        .n_pages = (int)pages,
        .page_tokens = PAGE_TOKENS,
        .max_rows = DAEMON_MAX_ROWS,
        .max_context = context,
        .without_drafts = d->o.no_drafts};
}

/* Prices the plan against the memory that is there. */
static int check_memory(daemon_state *d, const model_options *mo, err *e) {
    model_memory_plan m;
    uint64_t available = 0;
    uint64_t total = 0;
    buf text = BUF_INIT;
    int rc = model_memory(mo, &m, e);
    if (rc != OK) return rc;
    if (memory_machine(&available, &total, NULL) != OK) return OK;
    d->reserve_bytes =
        d->o.reserve_mib >= 0 ? (uint64_t)d->o.reserve_mib << 20 : memory_reserve_default(total);
    memory_plan plan = {.weight_bytes = m.weight_bytes + m.engram_bytes,
        .cache_bytes = m.pages_bytes + m.slots_bytes,
        .work_bytes = m.scratch_bytes,
        .reserve_bytes = d->reserve_bytes};
    memory_plan_print(&plan, &text);
    LOG(LOG_INFO, "daemon", "memory plan", "plan=\"%s\" available_mib=%llu", buf_cstr(&text),
        (unsigned long long)(available >> 20));
    buf_release(&text);
    return memory_plan_check(&plan, available, e);
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
static int meet_ranks(daemon_state *d, model_options *mo, err *e) {
    if (d->o.n_ranks < 2) return OK;
    control_settings s = {.n_slots = mo->n_slots,
        .n_pages = mo->n_pages,
        .page_tokens = mo->page_tokens,
        .max_rows = mo->max_rows,
        .max_logit_rows = mo->max_logit_rows,
        .max_rollback = mo->max_rollback,
        .without_drafts = mo->without_drafts,
        .max_context = mo->max_context};
    int rc = ranks_open(&d->o, &s, &d->ranks, e);
    if (rc == OK) mo->exchange = ranks_exchange(d->ranks);
    return rc;
}

static int open_model(daemon_state *d, model_options *mo, err *e) {
    int rc = daemon_engram(&d->o, 0, mo->world, &d->store, e);
    mo->store = d->store;
    if (rc == OK) rc = model_open(mo, &d->model, e);
    if (rc != OK) return rc;
    source_from_model(d->model, &d->own);
    d->source = d->own;
    return d->ranks == NULL ? OK : ranks_join(d->ranks, d->model, &d->own, &d->source, e);
}

static int load(daemon_state *d, err *e) {
    model_config *c = mem_alloc(sizeof *c);
    model_options mo;
    uint64_t start = clock_mono_ms();
    int rc = model_config_load(buf_cstr(&d->o.model_dir), c, e);
    if (rc == OK) rc = load_tokenizer(d, c, e);
    if (rc == OK) {
        fill_model_options(d, c, &mo);
        rc = check_memory(d, &mo, e);
    }
    if (rc == OK) rc = meet_ranks(d, &mo, e);
    if (rc == OK) rc = open_model(d, &mo, e);
    mem_free(c);
    if (rc != OK) return rc;
    rc = greet(d, e);
    if (rc != OK) return rc;
    run_options ro = {.source = &d->source,
        .queue_cap = (int32_t)d->o.queue,
        .gap_ms = (int32_t)d->o.gap_ms,
        .no_drafts = d->o.no_drafts,
        .reserve_bytes = d->reserve_bytes,
        .step_limit_ms = (uint32_t)d->o.step_limit_ms};
    rc = daemon_cache_options(&d->o, d->model, &ro, e);
    if (rc == OK) rc = run_open(&ro, &d->run, e);
    if (rc == OK) rc = ranks_watch(d->ranks, d->run, e);
    if (rc != OK) return rc;
    LOG(LOG_INFO, "daemon", "model loaded", "dir=%s ms=%llu", buf_cstr(&d->o.model_dir),
        (unsigned long long)(clock_mono_ms() - start));
    return OK;
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
        .keys_path = given(&d->o.keys_path),
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
        .on_shutdown = on_shutdown};
    int fd = d->listen_fd;
    d->listen_fd = -1; /* taken, also when it fails */
    int rc = api_open(&o, fd, &d->api, e);
    if (rc == OK && d->o.address[0] != '\0') {
        rc =
            api_endpoint_confirmed(d->api, d->o.address, (int)d->o.port, given(&d->o.confirmed), e);
    }
    return rc;
}

static void write_state_file(const daemon_state *d) {
    buf path = BUF_INIT;
    buf text = BUF_INIT;
    err e = ERR_INIT;
    json_w w;
    buf_printf(&path, "%s.json", buf_cstr(&d->o.socket_path));
    json_w_begin(&w, &text);
    json_w_object(&w);
    json_w_ki64(&w, "pid", getpid());
    json_w_kstr(&w, "version", TANDEM_VERSION);
    json_w_kstr(&w, "build", version_build_id());
    json_w_kstr(&w, "model", d->model_id);
    json_w_kstr(&w, "model_dir", buf_cstr(&d->o.model_dir));
    json_w_ku64(&w, "ready_ms", clock_wall_ms());
    json_w_close(&w);
    json_w_end(&w);
    buf_putc(&text, '\n');
    if (file_write_atomic(buf_cstr(&path), text.data, text.len, 0600, &e) != OK) {
        LOG(LOG_WARN, "daemon", "state file not written", "message=\"%s\"", e.msg);
    }
    buf_release(&path);
    buf_release(&text);
}

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
    LOG(LOG_ERROR, "daemon", "the engine ends", "message=\"%s\"", why->msg);
    while (clock_mono_ms() < deadline && poll(&p, 1, DRAIN_LOOK_MS) <= 0) {
    }
    api_drain(d->api);
    *e = *why;
    return ERR_PEER;
}

static int serve(daemon_state *d, err *e) {
    int rc = open_socket(d, e);
    if (rc == OK) rc = start_api(d, e);
    if (rc == OK) rc = load(d, e);
    if (rc != OK) return rc;
    api_engine engine = {.run = d->run,
        .tokenizer = d->tokenizer,
        .max_context = d->source.info.max_context,
        .n_slots = d->source.info.n_slots,
        .ranks = d->ranks != NULL ? ranks_describe : NULL,
        .ranks_ctx = d->ranks};
    api_attach(d->api, &engine);
    write_state_file(d);
    LOG(LOG_INFO, "daemon", "ready", "socket=%s model=%s slots=%d context=%lld",
        buf_cstr(&d->o.socket_path), d->model_id, engine.n_slots, (long long)engine.max_context);
    err why = ERR_INIT;
    if (wait_for_end(d, &why) != OK) return end_failed(d, &why, e);
    LOG(LOG_INFO, "daemon", "stopping", "drain_s=%lld", (long long)d->o.drain_s);
    drain(d);
    return OK;
}

static void clean_up(daemon_state *d, const err *why) {
    buf path = BUF_INIT;
    api_close(d->api);
    err ignored = ERR_INIT;
    (void)ranks_watch(d->ranks, NULL, &ignored);
    run_close(d->run);
    ranks_close(d->ranks, why);
    model_close(d->model);
    engram_store_close(d->store);
    tokenizer_close(d->tokenizer);
    if (d->has_socket) {
        unlink(buf_cstr(&d->o.socket_path));
        buf_printf(&path, "%s.json", buf_cstr(&d->o.socket_path));
        unlink(buf_cstr(&path));
        buf_release(&path);
    }
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

static int open_log(const daemon_options *o, err *e) {
    int fd = STDERR_FILENO;
    if (o->log_path.len > 0) {
        fd = open(buf_cstr(&o->log_path), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fd < 0) return err_errno(e, "opening the log %s", buf_cstr(&o->log_path));
    }
    log_open(&(log_options){.fd = fd, .level = o->level, .rank = log_rank(o)});
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
    return rc == ERR_INTERNAL ? EXIT_CODE_INTERNAL : EXIT_CODE_REFUSED;
}

static int start(daemon_state *d, int argc, char **argv, err *e) {
    int rc = set_signals(e);
    if (rc == OK) rc = open_log(&d->o, e);
    if (rc == OK && d->o.role == DAEMON_PAIR) return daemon_pair(&d->o, argc, argv, e);
    if (rc == OK) rc = prepare(d, e);
    if (rc == OK && d->o.role == DAEMON_RANK) return daemon_rank(&d->o, e);
    return rc == OK ? serve(d, e) : rc;
}

int main(int argc, char **argv) {
    daemon_state d = {.lock_fd = -1, .listen_fd = -1};
    err e = ERR_INIT;
    bool is_done = false;
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
