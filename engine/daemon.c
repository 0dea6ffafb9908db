/* tandemd: the engine as a process. Reads its options, takes the socket, answers "loading" while
 * the model is read, serves until it is told to stop, then lets running replies end. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
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

#ifdef TANDEM_CUDA
#include <cuda_runtime_api.h>
#endif

#include "engine/api/api.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/thread.h"
#include "engine/base/version.h"
#include "engine/model/model.h"
#include "engine/run/canary.h"
#include "engine/run/memory.h"
#include "engine/run/run.h"
#include "engine/text/tokenizer.h"
#include "kernels/kernels.h"

/* Exit codes, the same for all programs. */
enum { EXIT_CODE_OK = 0, EXIT_CODE_USAGE = 2, EXIT_CODE_REFUSED = 20, EXIT_CODE_INTERNAL = 50 };

#define SLOTS_DEFAULT 4
#define PAGE_TOKENS 128
#define MAX_ROWS 256
#define CONTEXT_DEFAULT_MAX (1 << 20)
#define LISTEN_BACKLOG 128
#define DRAIN_S_DEFAULT 30
#define DRAIN_LOOK_MS 10
#define DRAIN_FLUSH_MS 1000
#define FULL_MODEL_LAYERS 40

typedef struct daemon_options {
    buf model_dir, socket_path, log_path, backend;
    bool is_builtin; /* no --model: the built-in demo model */
    int64_t n_slots, context, n_threads, n_pages, queue, drain_s, reserve_mib, port;
    char address[64];          /* "" : no TCP endpoint */
    double temperature, top_p; /* below 0: not given */
    bool thinks, is_strict_model, no_drafts;
    log_level level;
} daemon_options;

typedef struct daemon_state {
    daemon_options o;
    int lock_fd, listen_fd;
    bool has_socket; /* ours to remove */
    tokenizer *tokenizer;
    model *model;
    run_source source;
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

static const char usage[] =
    "Usage: tandemd [options]\n"
    "  --model DIR         model folder (default: the built-in demo model)\n"
    "  --socket PATH       Unix socket (default: $TANDEM_SOCKET or the runtime folder)\n"
    "  --listen ADDR:PORT  also serve HTTP on a loopback address, e.g. 127.0.0.1:8888\n"
    "  --slots N           streams at once, 1 to 32 (default 4)\n"
    "  --context N         window of a stream in tokens (default: the model's, at most 1048576)\n"
    "  --pages N           KV pages of 128 tokens (default: enough for all slots)\n"
    "  --backend NAME      what computes: cpu, or cuda where it is built in (default cpu)\n"
    "  --threads N         worker threads of the CPU engine (default: one per core)\n"
    "  --queue N           requests that may wait (default 64)\n"
    "  --thinking on|off   what a request that does not say gets (default off)\n"
    "  --temperature T     for requests that name none, 0 to 2 (default 1, demo model 0)\n"
    "  --top-p P           for requests that name none, 0 to 1 (default 1, thinking 0.95)\n"
    "  --no-drafts         decode without drafting\n"
    "  --strict-model      refuse other model names with 404\n"
    "  --reserve MIB       memory to keep free (default by machine size)\n"
    "  --drain SECONDS     time for running replies after SIGTERM (default 30)\n"
    "  --log FILE          append the log there (default: standard error)\n"
    "  --log-level LEVEL   error, warn, info or debug (default info)\n"
    "  --foreground        stay in the foreground (it always does)\n"
    "  --help, --version\n";

/* ---- options ---- */

enum {
    OPT_MODEL = 256,
    OPT_SOCKET,
    OPT_LISTEN,
    OPT_THINKING,
    OPT_TEMPERATURE,
    OPT_TOP_P,
    OPT_BACKEND,
    OPT_NO_DRAFTS,
    OPT_STRICT,
    OPT_LOG,
    OPT_LOG_LEVEL,
    OPT_FOREGROUND,
    OPT_HELP,
    OPT_VERSION,
    OPT_NUMBER
};

typedef struct number_option {
    const char *name;
    int64_t min, max;
    size_t offset;
} number_option;

static const number_option numbers[] = {
    {"slots", 1, RUN_MAX_SLOTS, offsetof(daemon_options, n_slots)},
    {"context", 64, CONTEXT_DEFAULT_MAX, offsetof(daemon_options, context)},
    {"pages", 1, 1 << 20, offsetof(daemon_options, n_pages)},
    {"threads", 1, 256, offsetof(daemon_options, n_threads)},
    {"queue", 1, 4096, offsetof(daemon_options, queue)},
    {"reserve", 0, 1 << 20, offsetof(daemon_options, reserve_mib)},
    {"drain", 0, 3600, offsetof(daemon_options, drain_s)},
};
enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };

static int take_number(daemon_options *o, const number_option *n, const char *text, err *e) {
    int64_t value = 0;
    if (parse_i64(text, &value) != OK || value < n->min || value > n->max) {
        return err_set(e, ERR_ARG, "--%s is '%s'; it must be a whole number from %lld to %lld",
            n->name, text, (long long)n->min, (long long)n->max);
    }
    memcpy((char *)o + n->offset, &value, sizeof value);
    return OK;
}

static int take_listen(daemon_options *o, const char *text, err *e) {
    const char *colon = strrchr(text, ':');
    const char *port = colon != NULL ? colon + 1 : text;
    if (parse_i64(port, &o->port) != OK || o->port < 0 || o->port > 65535) {
        return err_set(
            e, ERR_ARG, "--listen is '%s'; it must be ADDRESS:PORT, such as 127.0.0.1:8888", text);
    }
    str_copy(o->address, sizeof o->address, "127.0.0.1");
    if (colon != NULL && colon > text) {
        size_t n = (size_t)(colon - text);
        str_copy(o->address, n + 1 < sizeof o->address ? n + 1 : sizeof o->address, text);
    }
    return OK;
}

static int take_switch(const char *name, const char *text, bool *out, err *e) {
    *out = strcmp(text, "on") == 0;
    if (*out || strcmp(text, "off") == 0) return OK;
    return err_set(e, ERR_ARG, "--%s is '%s'; it must be on or off", name, text);
}

static int take_real(const char *name, const char *text, double max, double *out, err *e) {
    if (parse_double(text, out) == OK && *out >= 0.0 && *out <= max) return OK;
    return err_set(e, ERR_ARG, "--%s is '%s'; it must be a number from 0 to %g", name, text, max);
}

static int take_option(daemon_options *o, int opt, const char *text, err *e) {
    if (opt >= OPT_NUMBER) return take_number(o, &numbers[opt - OPT_NUMBER], text, e);
    switch (opt) {
    case OPT_MODEL:
        buf_reset(&o->model_dir);
        return buf_puts(&o->model_dir, text);
    case OPT_SOCKET:
        buf_reset(&o->socket_path);
        return buf_puts(&o->socket_path, text);
    case OPT_LOG:
        buf_reset(&o->log_path);
        return buf_puts(&o->log_path, text);
    case OPT_LISTEN:
        return take_listen(o, text, e);
    case OPT_THINKING:
        return take_switch("thinking", text, &o->thinks, e);
    case OPT_TEMPERATURE:
        return take_real("temperature", text, 2.0, &o->temperature, e);
    case OPT_TOP_P:
        return take_real("top-p", text, 1.0, &o->top_p, e);
    case OPT_BACKEND:
        buf_reset(&o->backend);
        return buf_puts(&o->backend, text);
    case OPT_LOG_LEVEL:
        if (log_level_parse(text, &o->level) == OK) return OK;
        return err_set(
            e, ERR_ARG, "--log-level is '%s'; it must be error, warn, info or debug", text);
    case OPT_NO_DRAFTS:
        o->no_drafts = true;
        return OK;
    case OPT_STRICT:
        o->is_strict_model = true;
        return OK;
    default:
        return OK;
    }
}

static void fill_long_options(struct option out[]) {
    static const struct option plain[] = {{"model", required_argument, NULL, OPT_MODEL},
        {"socket", required_argument, NULL, OPT_SOCKET},
        {"listen", required_argument, NULL, OPT_LISTEN},
        {"thinking", required_argument, NULL, OPT_THINKING},
        {"temperature", required_argument, NULL, OPT_TEMPERATURE},
        {"top-p", required_argument, NULL, OPT_TOP_P},
        {"backend", required_argument, NULL, OPT_BACKEND},
        {"no-drafts", no_argument, NULL, OPT_NO_DRAFTS},
        {"strict-model", no_argument, NULL, OPT_STRICT}, {"log", required_argument, NULL, OPT_LOG},
        {"log-level", required_argument, NULL, OPT_LOG_LEVEL},
        {"foreground", no_argument, NULL, OPT_FOREGROUND}, {"help", no_argument, NULL, OPT_HELP},
        {"version", no_argument, NULL, OPT_VERSION}};
    size_t n = sizeof plain / sizeof plain[0];
    memcpy(out, plain, sizeof plain);
    for (int i = 0; i < N_NUMBERS; i++) {
        out[n++] = (struct option){numbers[i].name, required_argument, NULL, OPT_NUMBER + i};
    }
    out[n] = (struct option){0};
}

/* Which parts this build holds; the lines are read by tandem --version as well. */
static void print_version(void) {
    printf("tandemd %s (%s)\n", TANDEM_VERSION, version_build_id());
    printf("engine: %s\n", kernels_find("cuda") != NULL ? "CUDA" : "CPU");
#ifdef CUDART_VERSION
    printf("CUDA: %d.%d\n", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
#else
    puts("CUDA: absent");
#endif
#ifdef NCCL_MAJOR
    printf("NCCL: %d.%d.%d\n", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
#else
    puts("NCCL: absent");
#endif
}

/* *is_done: the program has said what was asked for and ends well. */
static int read_options(int argc, char **argv, daemon_options *o, bool *is_done, err *e) {
    struct option options[32];
    int opt;
    int rc = OK;
    fill_long_options(options);
    opterr = 0;
    *is_done = false;
    while (rc == OK && (opt = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        if (opt == '?' || opt == ':') {
            return err_set(e, ERR_ARG,
                opt == '?' ? "there is no option '%s'; see tandemd --help"
                           : "the option '%s' needs a value; see tandemd --help",
                argv[optind - 1]);
        }
        if (opt == OPT_HELP || opt == OPT_VERSION) {
            *is_done = true;
            if (opt == OPT_HELP) {
                fputs(usage, stdout);
            } else {
                print_version();
            }
            return OK;
        }
        rc = take_option(o, opt, optarg, e);
    }
    if (rc == OK && optind < argc) {
        return err_set(e, ERR_ARG, "'%s' is no option; see tandemd --help", argv[optind]);
    }
    return rc;
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
        .world = 1,
        .n_threads = (int)d->o.n_threads,
        .n_slots = (int)d->o.n_slots,
        .n_pages = (int)pages,
        .page_tokens = PAGE_TOKENS,
        .max_rows = MAX_ROWS,
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
    if (rc == OK) rc = model_open(&mo, &d->model, e);
    mem_free(c);
    if (rc != OK) return rc;
    source_from_model(d->model, &d->source);
    rc = greet(d, e);
    if (rc != OK) return rc;
    run_options ro = {.source = &d->source,
        .queue_cap = (int32_t)d->o.queue,
        .no_drafts = d->o.no_drafts,
        .reserve_bytes = d->reserve_bytes};
    rc = run_open(&ro, &d->run, e);
    if (rc != OK) return rc;
    LOG(LOG_INFO, "daemon", "model loaded", "dir=%s ms=%llu", buf_cstr(&d->o.model_dir),
        (unsigned long long)(clock_mono_ms() - start));
    return OK;
}

/* ---- serving ---- */

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
        .on_shutdown = on_shutdown};
    int fd = d->listen_fd;
    d->listen_fd = -1; /* taken, also when it fails */
    int rc = api_open(&o, fd, &d->api, e);
    if (rc == OK && d->o.address[0] != '\0') {
        rc = api_endpoint(d->api, true, d->o.address, (int)d->o.port, e);
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

static void wait_for_stop(void) {
    struct pollfd p = {.fd = stop_pipe[0], .events = POLLIN};
    char byte;
    while (poll(&p, 1, -1) <= 0) {
    }
    ssize_t n = read(stop_pipe[0], &byte, 1);
    (void)n;
}

static int serve(daemon_state *d, err *e) {
    int rc = open_socket(d, e);
    if (rc == OK) rc = start_api(d, e);
    if (rc == OK) rc = load(d, e);
    if (rc != OK) return rc;
    api_engine engine = {.run = d->run,
        .tokenizer = d->tokenizer,
        .max_context = d->source.info.max_context,
        .n_slots = d->source.info.n_slots};
    api_attach(d->api, &engine);
    write_state_file(d);
    LOG(LOG_INFO, "daemon", "ready", "socket=%s model=%s slots=%d context=%lld",
        buf_cstr(&d->o.socket_path), d->model_id, engine.n_slots, (long long)engine.max_context);
    wait_for_stop();
    LOG(LOG_INFO, "daemon", "stopping", "drain_s=%lld", (long long)d->o.drain_s);
    drain(d);
    return OK;
}

static void clean_up(daemon_state *d) {
    buf path = BUF_INIT;
    api_close(d->api);
    run_close(d->run);
    model_close(d->model);
    tokenizer_close(d->tokenizer);
    if (d->has_socket) {
        unlink(buf_cstr(&d->o.socket_path));
        buf_printf(&path, "%s.json", buf_cstr(&d->o.socket_path));
        unlink(buf_cstr(&path));
        buf_release(&path);
    }
    if (d->listen_fd >= 0) close(d->listen_fd);
    if (d->lock_fd >= 0) close(d->lock_fd); /* the lock file stays: removing it would race */
    buf_release(&d->o.model_dir);
    buf_release(&d->o.socket_path);
    buf_release(&d->o.log_path);
    buf_release(&d->o.backend);
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

static int open_log(const daemon_options *o, err *e) {
    int fd = STDERR_FILENO;
    if (o->log_path.len > 0) {
        fd = open(buf_cstr(&o->log_path), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fd < 0) return err_errno(e, "opening the log %s", buf_cstr(&o->log_path));
    }
    log_open(&(log_options){.fd = fd, .level = o->level, .rank = -1});
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

static int exit_code(int rc) {
    if (rc == OK) return EXIT_CODE_OK;
    return rc == ERR_INTERNAL ? EXIT_CODE_INTERNAL : EXIT_CODE_REFUSED;
}

int main(int argc, char **argv) {
    daemon_state d = {.lock_fd = -1,
        .listen_fd = -1,
        .o = {.n_slots = SLOTS_DEFAULT,
            .queue = 64,
            .drain_s = DRAIN_S_DEFAULT,
            .reserve_mib = -1,
            .temperature = -1.0,
            .top_p = -1.0,
            .level = LOG_INFO}};
    err e = ERR_INIT;
    bool is_done = false;
    int rc = read_options(argc, argv, &d.o, &is_done, &e);
    int code = rc == OK ? EXIT_CODE_OK : EXIT_CODE_USAGE;
    if (rc == OK && !is_done) {
        rc = set_signals(&e);
        if (rc == OK) rc = open_log(&d.o, &e);
        if (rc == OK) rc = prepare(&d, &e);
        if (rc == OK) rc = serve(&d, &e);
        code = exit_code(rc);
    }
    if (rc != OK) fprintf(stderr, "tandemd: %s\n", e.msg);
    clean_up(&d);
    return code;
}
