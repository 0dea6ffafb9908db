/* The options of tandemd. */
#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#ifdef TANDEM_CUDA
#include <cuda_runtime_api.h>
#endif

#include "engine/base/str.h"
#include "engine/base/version.h"
#include "engine/daemon_internal.h"
#include "kernels/kernels.h"

#define CONTEXT_DEFAULT_MAX (1 << 20)

static const char usage[] =
    "Usage: tandemd [rank|pair] [options]\n"
    "  without a word      the engine: rank 0, which serves\n"
    "  rank                another rank: connects to rank 0 and does as it says\n"
    "  pair                both ranks on this machine, started again when one is lost\n"
    "  --model DIR         model folder (default: the built-in demo model)\n"
    "  --pack PLACE        weights from a prepared file (tandem prepare), or the folder of them\n"
    "  --socket PATH       Unix socket (default: $TANDEM_SOCKET or the runtime folder)\n"
    "  --listen ADDR:PORT  also serve HTTP on a loopback address, e.g. 127.0.0.1:8888\n"
    "  --keys FILE         API keys of that endpoint (tandem api key new), mode 0600\n"
    "  --usual-keys FILE   the same, but the file may come later: it counts once it is there\n"
    "  --announce          a line on standard error with the endpoint's address once it serves\n"
    "  --confirm-remote ADDR  the address again, when other machines shall reach it\n"
    "  --tls-certificate FILE, --tls-key FILE  HTTPS with these PEM files\n"
    "  --cors ORIGINS      web pages that may use it, separated by commas, * for all\n"
    "  --open-metrics      /metrics without a key\n"
    "  --request-log FILE  a JSON line for each request; --log-prompts: with its body\n"
    "  --request-timeout S a reply that takes longer is cut (default: none)\n"
    "  --keep-alive S      comment lines in quiet streams, 1 to 60 (default 5)\n"
    "  --json-keepalive    line breaks before whole answers that take long\n"
    "  --loop-guard        end replies that go round in circles, if not asked otherwise\n"
    "  --answer-room       thinking leaves room for the answer within max_tokens\n"
    "  --slots N           streams at once, 1 to 32 (default 4)\n"
    "  --context N         window of a stream in tokens (default: the model's, at most 1048576)\n"
    "  --pages N           KV pages of 128 tokens (default: enough for all slots)\n"
    "  --backend NAME      what computes: cpu, or cuda where it is built in (default cpu)\n"
    "  --exchange KIND     between ranks on GPUs: auto, peer (one host) or nccl (default auto)\n"
    "  --threads N         worker threads of the CPU engine (default: one per core)\n"
    "  --queue N           requests that may wait (default 64)\n"
    "  --gap MS            longest pause of a running reply while prompts are read (default 150)\n"
    "  --thinking on|off   what a request that does not say gets (default off)\n"
    "  --temperature T     for requests that name none, 0 to 2 (default 1, demo model 0)\n"
    "  --top-p P           for requests that name none, 0 to 1 (default 1, thinking 0.95)\n"
    "  --no-drafts         decode without drafting\n"
    "  --no-cache          keep no prefixes of earlier requests\n"
    "  --cache-ram MIB     memory for saved states of the prefix cache (default 256)\n"
    "  --cache-dir DIR     keep prefixes on disk there, also over restarts (default: none)\n"
    "  --cache-disk MIB    at most so much there, 0: none (default 1024)\n"
    "  --cache-age HOURS   what was not used for so long goes, 0: never (default 168)\n"
    "  --cache-per-key on|off  prefixes are not shared between API keys (default off)\n"
    "  --strict-model      refuse other model names with 404\n"
    "  --reserve MIB       memory to keep free (default by machine size)\n"
    "  --drain SECONDS     time for running replies after SIGTERM (default 30)\n"
    "  --log FILE          append the log there (default: standard error)\n"
    "  --log-level LEVEL   error, warn, info or debug (default info)\n"
    "  --ranks N           processes the model is split over, 1 to 16 (default 1, pair 2)\n"
    "  --rank R            which one this is, with the word rank (default 1)\n"
    "  --meet ADDR:PORT    where rank 0 waits for the others (default 127.0.0.1:8899)\n"
    "  --meet-timeout S    how long the ranks wait for each other (default 600)\n"
    "  --engram DIR        packed Engram tables (default: beside the model, if there are any)\n"
    "  --engram-cache MIB  memory for Engram rows that were read (default 64)\n"
    "  --step-limit MS     a step that takes longer makes the engine not ready (default 60000)\n"
    "  --restarts N        pair: how often it starts again within 6 hours (default 3)\n"
    "  --check-ranks N     compare all that the ranks hold every N steps, for finding faults\n"
    "  --status FILE       where the start and a failure are written (default: PATH.json beside\n"
    "                      the socket; other ranks: none)\n"
    "With several ranks each process reads one line from standard input: the start's secret,\n"
    "64 hexadecimal digits, a space and the start id, 16 digits.\n"
    "  --plan              print what memory a start would take, load nothing, end\n"
    "  --probe             with --ranks: measure the exchange between the ranks, without a model\n"
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
    OPT_MEET,
    OPT_ENGRAM,
    OPT_NO_CACHE,
    OPT_CACHE_DIR,
    OPT_CACHE_PER_KEY,
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
    {"gap", 20, 5000, offsetof(daemon_options, gap_ms)},
    {"reserve", 0, 1 << 20, offsetof(daemon_options, reserve_mib)},
    {"drain", 0, 3600, offsetof(daemon_options, drain_s)},
    {"ranks", 1, MEET_MAX_WORLD, offsetof(daemon_options, n_ranks)},
    {"rank", 1, MEET_MAX_WORLD - 1, offsetof(daemon_options, rank)},
    {"meet-timeout", 1, 86400, offsetof(daemon_options, meet_s)},
    {"meet-fd", 0, 1 << 20, offsetof(daemon_options, meet_fd)},
    {"engram-cache", 0, 1 << 20, offsetof(daemon_options, engram_cache_mib)},
    {"step-limit", 1, 3600000, offsetof(daemon_options, step_limit_ms)},
    {"cache-ram", 1, 1 << 20, offsetof(daemon_options, cache_ram_mib)},
    {"cache-disk", 0, 1 << 30, offsetof(daemon_options, cache_disk_mib)},
    {"cache-age", 0, 1 << 20, offsetof(daemon_options, cache_age_hours)},
    {"restarts", 0, 1000, offsetof(daemon_options, n_restarts)},
    {"check-ranks", 0, 1 << 30, offsetof(daemon_options, check_every)},
    {"request-timeout", 0, 86400, offsetof(daemon_options, request_timeout_s)},
    {"keep-alive", 1, 60, offsetof(daemon_options, keep_alive_s)},
};
enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };

/* Options of the endpoint: a text each, or nothing but their name. */
typedef struct plain_option {
    const char *name;
    size_t offset;
} plain_option;

static const plain_option texts[] = {
    {"keys", offsetof(daemon_options, keys_path)},
    {"usual-keys", offsetof(daemon_options, usual_keys_path)},
    {"cors", offsetof(daemon_options, cors_origins)},
    {"tls-certificate", offsetof(daemon_options, certificate_path)},
    {"tls-key", offsetof(daemon_options, certificate_key_path)},
    {"request-log", offsetof(daemon_options, request_log_path)},
    {"status", offsetof(daemon_options, status_path)},
    {"confirm-remote", offsetof(daemon_options, confirmed)},
    {"pack", offsetof(daemon_options, pack_path)},
    {"exchange", offsetof(daemon_options, exchange_kind)},
};
enum { N_TEXTS = sizeof texts / sizeof texts[0], OPT_TEXT = OPT_NUMBER + N_NUMBERS };

static const plain_option flags[] = {
    {"log-prompts", offsetof(daemon_options, logs_prompts)},
    {"announce", offsetof(daemon_options, announces)},
    {"open-metrics", offsetof(daemon_options, opens_metrics)},
    {"json-keepalive", offsetof(daemon_options, keeps_json_alive)},
    {"loop-guard", offsetof(daemon_options, guards_loops)},
    {"answer-room", offsetof(daemon_options, keeps_room)},
    {"plan", offsetof(daemon_options, shows_plan)},
    {"probe", offsetof(daemon_options, probes)},
};
enum { N_FLAGS = sizeof flags / sizeof flags[0], OPT_FLAG = OPT_TEXT + N_TEXTS };

static int take_plain(daemon_options *o, int opt, const char *text) {
    if (opt >= OPT_FLAG) {
        *(bool *)((char *)o + flags[opt - OPT_FLAG].offset) = true;
        return OK;
    }
    buf *b = (buf *)(void *)((char *)o + texts[opt - OPT_TEXT].offset);
    buf_reset(b);
    return buf_puts(b, text);
}

static int take_number(daemon_options *o, const number_option *n, const char *text, err *e) {
    int64_t value = 0;
    if (parse_i64(text, &value) != OK || value < n->min || value > n->max) {
        return err_set(e, ERR_ARG, "--%s is '%s'; it must be a whole number from %lld to %lld",
            n->name, text, (long long)n->min, (long long)n->max);
    }
    memcpy((char *)o + n->offset, &value, sizeof value);
    return OK;
}

typedef struct place_option {
    const char *name, *example;
    char *address;
    size_t cap;
    int64_t *port;
} place_option;

static int take_place(const place_option *p, const char *text, err *e) {
    const char *colon = strrchr(text, ':');
    const char *port = colon != NULL ? colon + 1 : text;
    if (parse_i64(port, p->port) != OK || *p->port < 0 || *p->port > 65535) {
        return err_set(e, ERR_ARG, "--%s is '%s'; it must be ADDRESS:PORT, such as %s", p->name,
            text, p->example);
    }
    str_copy(p->address, p->cap, "127.0.0.1");
    if (colon != NULL && colon > text) {
        size_t n = (size_t)(colon - text);
        str_copy(p->address, n + 1 < p->cap ? n + 1 : p->cap, text);
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
    if (opt >= OPT_TEXT) return take_plain(o, opt, text);
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
        return take_place(
            &(place_option){"listen", "127.0.0.1:8888", o->address, sizeof o->address, &o->port},
            text, e);
    case OPT_MEET:
        return take_place(&(place_option){"meet", "192.168.177.11:8899", o->meet_address,
                              sizeof o->meet_address, &o->meet_port},
            text, e);
    case OPT_ENGRAM:
        buf_reset(&o->engram_dir);
        return buf_puts(&o->engram_dir, text);
    case OPT_CACHE_DIR:
        buf_reset(&o->cache_dir);
        return buf_puts(&o->cache_dir, text);
    case OPT_CACHE_PER_KEY:
        return take_switch("cache-per-key", text, &o->is_cache_per_key, e);
    case OPT_NO_CACHE:
        o->no_cache = true;
        return OK;
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
        {"meet", required_argument, NULL, OPT_MEET},
        {"engram", required_argument, NULL, OPT_ENGRAM},
        {"no-cache", no_argument, NULL, OPT_NO_CACHE},
        {"cache-dir", required_argument, NULL, OPT_CACHE_DIR},
        {"cache-per-key", required_argument, NULL, OPT_CACHE_PER_KEY},
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
    for (int i = 0; i < N_TEXTS; i++) {
        out[n++] = (struct option){texts[i].name, required_argument, NULL, OPT_TEXT + i};
    }
    for (int i = 0; i < N_FLAGS; i++) {
        out[n++] = (struct option){flags[i].name, no_argument, NULL, OPT_FLAG + i};
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
int daemon_read_options(int argc, char **argv, daemon_options *o, bool *is_done, err *e) {
    struct option options[64];
    int opt;
    int rc = OK;
    fill_long_options(options);
    opterr = 0;
    if (argc > 1 && (strcmp(argv[1], "rank") == 0 || strcmp(argv[1], "pair") == 0)) {
        o->role = argv[1][0] == 'r' ? DAEMON_RANK : DAEMON_PAIR;
        optind = 2;
    }
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

void daemon_options_init(daemon_options *o) {
    *o = (daemon_options){.n_slots = 4,
        .queue = 64,
        .drain_s = 30,
        .reserve_mib = -1,
        .temperature = -1.0,
        .top_p = -1.0,
        .level = LOG_INFO,
        .rank = 1,
        .n_ranks = 1,
        .meet_port = 8899,
        .meet_s = 600,
        .meet_fd = -1,
        .engram_cache_mib = 64,
        .cache_disk_mib = 1024,
        .cache_age_hours = 168,
        .cache_ram_mib = 256,
        .n_restarts = 3};
}

void daemon_options_release(daemon_options *o) {
    buf_release(&o->model_dir);
    buf_release(&o->socket_path);
    buf_release(&o->log_path);
    buf_release(&o->backend);
    buf_release(&o->engram_dir);
    buf_release(&o->cache_dir);
    for (int i = 0; i < N_TEXTS; i++) {
        buf_release((buf *)(void *)((char *)o + texts[i].offset));
    }
}
