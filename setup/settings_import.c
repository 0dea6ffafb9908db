#include "setup/settings_import.h"

#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/settings.h"

enum { IMPORT_MAX_BYTES = 256 << 10, IMPORT_MAX_LINES = 4000 };

/* The names of the known recipes. key NULL: known and not needed, for the reason in note. */
typedef struct alias {
    const char *name, *key, *note;
} alias;

static const char FOUND[] = "found by the program itself at each start";
static const char BUILT[] = "decided by the engine";

static const alias ALIASES[] = {
    {"HEAD_IP", "HEAD_IP_A", NULL},
    {"WORKER_IP", "WORKER_IP_A", NULL},
    {"FABRIC_PEER", "WORKER_IP_A", NULL},
    {"HEAD_CX7_IF", "HEAD_IF_A", NULL},
    {"WORKER_CX7_IF", "WORKER_IF_A", NULL},
    {"IFACE", "HEAD_IF_A", NULL},
    {"HEAD_CX7_IB", "HEAD_HCA_A", NULL},
    {"WORKER_CX7_IB", "WORKER_HCA_A", NULL},
    {"HCA", "HEAD_HCA_A", NULL},
    {"NCCL_IB_HCA", NULL, FOUND},
    {"NCCL_IB_GID_INDEX", NULL, FOUND},
    {"HEAD_GID", NULL, FOUND},
    {"WORKER_GID", NULL, FOUND},
    {"NCCL_SOCKET_IFNAME", NULL, FOUND},
    {"WORKER", "WORKER_SSH", NULL},
    {"MODEL_HOST", "HEAD_DATA", NULL},
    {"HEAD_MODEL", "HEAD_DATA", NULL},
    {"HF_CACHE", "HEAD_DATA", NULL},
    {"WORKER_MODEL_DIR", "WORKER_DATA", NULL},
    {"ENGRAM_DIR", NULL, "the Engram tables lie under the data folder"},
    {"HF_MODEL_REPO", NULL, "repositories and commits come from the profile (PROFILE)"},
    {"HF_ENGRAM_REPO", NULL, "repositories and commits come from the profile (PROFILE)"},
    {"EXPECTED_SHARDS", NULL, "repositories and commits come from the profile (PROFILE)"},
    {"SNAPSHOT_SHA", NULL, "repositories and commits come from the profile (PROFILE)"},
    {"HF_TOKEN_PATH", "HF_TOKEN_FILE", NULL},
    {"HF_TOKEN", NULL, "a secret: put it into a file of mode 0600 and name it in HF_TOKEN_FILE"},
    {"VLLM_API_KEY", NULL, "a secret: make a key with `tandem api key new`"},
    {"TF_API_KEY_FILE", NULL, "another form: make keys with `tandem api key new`"},
    {"HF_MAX_WORKERS", "DL_CONNECTIONS", NULL},
    {"PORT", "API_PORT", NULL},
    {"SERVED_MODEL_NAME", "MODEL_NAME", NULL},
    {"MAX_MODEL_LEN", "CONTEXT", NULL},
    {"MAX_NUM_SEQS", "PARALLEL", NULL},
    {"TF_DSV41_THINKING", "THINKING", NULL},
    {"TF_DSV41_DEFAULT_EFFORT", "DEFAULT_EFFORT", NULL},
    {"TF_DSV41_FLOOR_GIB", "MEM_FLOOR_GIB", NULL},
    {"TENSORFOLD_MEMORY_RESERVE_GIB", "MEM_FLOOR_GIB", NULL},
    {"TF_DSV41_FLOOR_HARD_GIB", NULL, "one floor is enough here: MEM_FLOOR_GIB"},
    {"DSV41_MEM_GUARD", "MEM_GUARD", NULL},
    {"MEMGUARD_MIN_AVAIL_MB", NULL, "the guard's limit is built in; MEM_GUARD switches it"},
    {"DROP_CACHES", "EVICT_CACHE", NULL},
    {"DSV41_DROP_PAGE_CACHE", "EVICT_CACHE", NULL},
    {"TF_RDMA_DEVICES", NULL, FOUND},
    {"UCX_NET_DEVICES", NULL, FOUND},
    {"GLOO_SOCKET_IFNAME", NULL, FOUND},
    {"NCCL_DEBUG", NULL, BUILT},
    {"NCCL_IB_SUBNET_AWARE_ROUTING", NULL, BUILT},
    {"NCCL_IB_MERGE_NICS", NULL, BUILT},
    {"OMPI_MCA_btl_tcp_if_include", NULL, FOUND},
    {"NCCL_BUFFSIZE", NULL, BUILT},
    {"NCCL_LL128_BUFFSIZE", NULL, BUILT},
    {"NCCL_PROTO", NULL, BUILT},
    {"NCCL_MAX_NCHANNELS", NULL, BUILT},
    {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", NULL, BUILT},
    {"TF_DS_RANK_CACHE", NULL, "prepared files lie under the data folder"},
};

static const alias *find_alias(const char *name) {
    for (size_t i = 0; i < sizeof ALIASES / sizeof ALIASES[0]; i++) {
        if (str_eq(ALIASES[i].name, name)) return &ALIASES[i];
    }
    return NULL;
}

static void say(import_line *l, import_state state, const char *key, const char *note) {
    l->state = state;
    l->key = key;
    str_copy(l->note, sizeof l->note, note);
}

/* WORKER_USER and WORKER_HOST make one value here. */
typedef struct worker_parts {
    char user[80], host[200];
    int line;
} worker_parts;

static char *trim(char *p) {
    p += strspn(p, " \t");
    size_t n = strlen(p);
    while (n > 0 && strchr(" \t\r", p[n - 1]) != NULL)
        p[--n] = '\0';
    return p;
}

/* Takes quotes and a comment off. False when only a shell could say what the value is. */
static bool plain_value(char *raw, char **out) {
    char *v = trim(raw);
    if (v[0] == '"' || v[0] == '\'') {
        char *end = strchr(v + 1, v[0]);
        if (end == NULL) return false;
        *end = '\0';
        char *rest = trim(end + 1);
        *out = v + 1;
        return (rest[0] == '\0' || rest[0] == '#') && strpbrk(v + 1, "$`") == NULL;
    }
    for (char *c = v; *c != '\0'; c++) {
        if (*c == '#' && (c == v || c[-1] == ' ' || c[-1] == '\t')) *c = '\0';
        if (*c == '\0') break;
    }
    *out = trim(v);
    return strpbrk(*out, "$`\"'()|&;<>") == NULL;
}

static void take_value(import_line *l, const char *key, const char *value) {
    err why = ERR_INIT;
    if (value[0] == '\0') {
        say(l, IMPORT_IGNORED, NULL, "it is empty");
    } else if (settings_check(settings_key(key), value, &why) != OK) {
        say(l, IMPORT_UNMAPPED, NULL, why.msg);
    } else {
        say(l, IMPORT_UNDERSTOOD, key, "");
        str_copy(l->value, sizeof l->value, value);
    }
}

static bool is_secret(const char *name) {
    return strstr(name, "TOKEN") != NULL || strstr(name, "PASSWORD") != NULL ||
           strstr(name, "SECRET") != NULL ||
           (strstr(name, "KEY") != NULL && !str_ends(name, "_FILE"));
}

static void classify(import_line *l, char *raw, worker_parts *worker) {
    char *value = NULL;
    const alias *a = find_alias(l->name);
    const setting_key *own = settings_key(l->name);
    if (a != NULL && a->key == NULL) {
        say(l, IMPORT_IGNORED, NULL, a->note);
    } else if (a == NULL && own == NULL && is_secret(l->name)) {
        say(l, IMPORT_UNMAPPED, NULL, "unknown; it may be a secret, so its value is not shown");
    } else if (!plain_value(raw, &value)) {
        say(l, IMPORT_UNMAPPED, NULL, "only a shell could compute this value; set it by hand");
    } else if (str_eq(l->name, "WORKER_USER") || str_eq(l->name, "WORKER_HOST")) {
        bool is_user = str_eq(l->name, "WORKER_USER");
        str_copy(is_user ? worker->user : worker->host, is_user ? 80 : 200, value);
        worker->line = l->line;
        say(l, IMPORT_IGNORED, NULL, "joined into WORKER_SSH");
    } else if (str_eq(l->name, "WEIGHT_SYNC")) {
        take_value(l, "SYNC_MODE", str_eq(value, "rsync") ? "rsync" : "stream");
        if (!str_eq(value, "rsync"))
            str_copy(l->note, sizeof l->note, "files are copied, never shared");
    } else if (str_eq(l->name, "SKIP_SYNC") && !str_eq(value, "1")) {
        say(l, IMPORT_IGNORED, NULL, "files are copied unless it is 1");
    } else if (str_eq(l->name, "SKIP_SYNC")) {
        take_value(l, "SYNC_MODE", "none");
    } else if (a != NULL || own != NULL) {
        take_value(l, a != NULL ? a->key : own->name, value);
    } else {
        const char *near = settings_nearest(l->name);
        say(l, IMPORT_UNMAPPED, NULL, "there is no such setting here");
        if (near != NULL) {
            str_copy(l->note, sizeof l->note, "there is no such setting here; near is ");
            size_t n = strlen(l->note);
            str_copy(l->note + n, sizeof l->note - n, near);
        }
    }
}

static import_line *add_line(import_report *r, int number) {
    r->lines = mem_realloc(r->lines, (r->n + 1) * sizeof *r->lines);
    import_line *l = &r->lines[r->n++];
    memset(l, 0, sizeof *l);
    l->line = number;
    return l;
}

/* A recipe for both halves of the port lists their devices in one line: "half A,half B". */
static bool take_twins(import_report *r, const char *raw, int number) {
    const alias *a = find_alias(r->lines[r->n - 1].name);
    char key_b[40], *text = mem_strdup(raw), *value = NULL;
    bool is_device =
        a != NULL && a->key != NULL && (str_ends(a->key, "_HCA_A") || str_ends(a->key, "_IF_A"));
    char *comma = is_device && plain_value(text, &value) ? strchr(value, ',') : NULL;
    bool is_twins = comma != NULL && strchr(comma + 1, ',') == NULL;
    if (is_twins) {
        *comma = '\0';
        str_copy(key_b, sizeof key_b, a->key);
        key_b[strlen(key_b) - 1] = 'B';
        take_value(&r->lines[r->n - 1], a->key, trim(value));
        import_line *second = add_line(r, number);
        str_copy(second->name, sizeof second->name, a->name);
        take_value(second, settings_key(key_b)->name, trim(comma + 1));
    }
    mem_free(text);
    return is_twins;
}

static void one_line(import_report *r, char *line, int number, worker_parts *worker) {
    char *p = trim(line);
    if (p[0] == '\0' || p[0] == '#') return;
    import_line *l = add_line(r, number);
    if (str_starts(p, "export ") || str_starts(p, "export\t")) p = trim(p + 7);
    char *equals = strchr(p, '=');
    if (equals == NULL) {
        str_copy(l->name, sizeof l->name, "(no KEY=VALUE)");
        say(l, IMPORT_UNMAPPED, NULL, "shell code is not run");
        return;
    }
    *equals = '\0';
    str_copy(l->name, sizeof l->name, trim(p));
    if (!take_twins(r, equals + 1, number)) classify(l, equals + 1, worker);
}

static void put_worker(import_line *l, const worker_parts *w, const char *host, const char *names) {
    buf value = BUF_INIT;
    (void)buf_printf(&value, "%s%s%s", w->user, w->user[0] != '\0' ? "@" : "", host);
    str_copy(l->name, sizeof l->name, names);
    take_value(l, "WORKER_SSH", buf_cstr(&value));
    buf_release(&value);
}

/* A user and a host on lines of their own; without a WORKER_HOST the user goes with the last line
 * that names the worker, or with its address. */
static void join_worker(import_report *r, const worker_parts *w) {
    import_line *host = NULL;
    const char *address = NULL;
    if (w->host[0] != '\0') {
        put_worker(add_line(r, w->line), w, w->host, "WORKER_USER, WORKER_HOST");
        return;
    }
    for (size_t i = 0; i < r->n && w->user[0] != '\0'; i++) {
        import_line *l = &r->lines[i];
        if (l->key != NULL && str_eq(l->key, "WORKER_SSH")) host = l;
        if (l->key != NULL && str_eq(l->name, "WORKER_IP")) address = l->value;
        if (str_eq(l->name, "WORKER_USER"))
            say(l, IMPORT_UNMAPPED, NULL, "no line without a user names the worker to go with it");
    }
    if (host != NULL ? strchr(host->value, '@') != NULL : address == NULL) return;
    for (size_t i = 0; i < r->n; i++) {
        if (str_eq(r->lines[i].name, "WORKER_USER"))
            say(&r->lines[i], IMPORT_IGNORED, NULL, "joined into WORKER_SSH");
    }
    buf name = BUF_INIT, value = BUF_INIT;
    (void)buf_printf(&name, "WORKER_USER, %s", host != NULL ? host->name : "WORKER_IP");
    (void)buf_puts(&value, host != NULL ? host->value : address);
    put_worker(host != NULL ? host : add_line(r, w->line), w, buf_cstr(&value), buf_cstr(&name));
    buf_release(&name);
    buf_release(&value);
}

/* Two lines for one key: the last one wins, as in a shell. */
static void drop_repeats(import_report *r) {
    for (size_t i = 0; i < r->n; i++) {
        for (size_t k = i + 1; k < r->n && r->lines[i].key != NULL; k++) {
            if (!str_eq(r->lines[i].key, r->lines[k].key)) continue;
            say(&r->lines[i], IMPORT_IGNORED, NULL, "a later line sets the same");
        }
    }
}

int settings_import(const char *text, size_t len, const char *path, import_report *out, err *e) {
    *out = (import_report){0};
    worker_parts worker = {"", "", 0};
    if (memchr(text, '\0', len) != NULL || !utf8_valid(text, len)) {
        return err_set(e, ERR_FORMAT, "%s is not a UTF-8 text file", path);
    }
    int number = 1;
    size_t mark = len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; /* of some editors */
    for (size_t at = mark; at < len; number++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end != NULL ? (size_t)(end - text) - at : len - at;
        char *line = mem_strndup(text + at, n);
        if (number <= IMPORT_MAX_LINES) one_line(out, line, number, &worker);
        mem_free(line);
        at += n + 1;
    }
    if (number > IMPORT_MAX_LINES + 1) {
        import_report_release(out);
        return err_set(e, ERR_LIMIT, "%s has more than %d lines", path, IMPORT_MAX_LINES);
    }
    join_worker(out, &worker);
    drop_repeats(out);
    return OK;
}

int settings_import_file(const char *path, import_report *out, err *e) {
    buf text = BUF_INIT;
    *out = (import_report){0};
    int rc = file_read(path, &text, IMPORT_MAX_BYTES, e);
    if (rc == OK) rc = settings_import(buf_cstr(&text), text.len, path, out, e);
    buf_release(&text);
    return rc;
}

void import_report_release(import_report *r) {
    mem_free(r->lines);
    *r = (import_report){0};
}
