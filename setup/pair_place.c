/* The programs of this build on both machines, and the keepers. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/pair_internal.h"

enum { PROGRAM_MAX = 512 << 20, FILES_MAX = 256, DIGESTS_MAX = 256 << 10, UNIT_UP_MS = 10000 };

/* A file that travels: from here, to there, with the mode it gets. */
typedef struct parcel {
    char *from, *to;
    unsigned mode;
    char digest[SHA256_HEX];
} parcel;

typedef struct parcels {
    parcel item[FILES_MAX];
    size_t n;
    const char *dir_there; /* WORKER_DATA/.tandem */
} parcels;

static int own_folder(buf *out, err *e) {
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return err_errno(e, "finding this program");
    self[n] = '\0';
    return path_dir(out, self);
}

static int there_folder(const pair_run *p, buf *out) {
    return buf_printf(out, "%s/.tandem", settings_get(p->o->settings, "WORKER_DATA"));
}

int pair_find_programs(pair_run *p, err *e) {
    buf dir = BUF_INIT, there = BUF_INIT;
    int rc = own_folder(&dir, e);
    if (rc == OK) rc = there_folder(p, &there);
    if (rc == OK && (dir.len > 400 || there.len > 400))
        rc = err_set(e, ERR_LIMIT, "the folder of the programs has too long a name");
    if (rc == OK) {
        snprintf(p->program[0], sizeof p->program[0], "%s/tandem-node", buf_cstr(&dir));
        snprintf(p->daemon[0], sizeof p->daemon[0], "%s/tandemd", buf_cstr(&dir));
        snprintf(p->program[1], sizeof p->program[1], "%s/bin/tandem-node", buf_cstr(&there));
        snprintf(p->daemon[1], sizeof p->daemon[1], "%s/bin/tandemd", buf_cstr(&there));
        for (int i = 0; i < 2 && rc == OK; i++) {
            const char *path = i == 0 ? p->program[0] : p->daemon[0];
            if (access(path, X_OK) != 0)
                rc = err_set(e, ERR_NOT_FOUND,
                    "%s is not there: tandem, tandemd and tandem-node belong in one folder", path);
        }
    }
    buf_release(&dir);
    buf_release(&there);
    return rc;
}

/* ---- what travels ---- */

static int add_parcel(parcels *l, const char *from, const char *place, unsigned mode, err *e) {
    buf to = BUF_INIT;
    uint8_t raw[SHA256_BYTES];
    if (l->n == FILES_MAX) return err_set(e, ERR_LIMIT, "too many files belong to the engine");
    parcel *q = &l->item[l->n];
    int rc = sha256_file(from, raw, e);
    if (rc != OK) return rc;
    sha256_hex(raw, q->digest);
    buf_printf(&to, "%s/%s", l->dir_there, place);
    q->from = mem_strdup(from);
    q->to = buf_take(&to);
    q->mode = mode;
    l->n++;
    return OK;
}

static void release_parcels(parcels *l) {
    for (size_t i = 0; i < l->n; i++) {
        mem_free(l->item[i].from);
        mem_free(l->item[i].to);
    }
    mem_free(l);
}

typedef struct folder_walk {
    parcels *list;
    const char *from, *place;
} folder_walk;

static int add_entry(void *ctx, const char *name, err *e) {
    const folder_walk *w = ctx;
    struct stat st;
    buf from = BUF_INIT, place = BUF_INIT;
    path_join(&from, w->from, name);
    path_join(&place, w->place, name);
    int rc = stat(buf_cstr(&from), &st) == 0 ? OK : err_errno(e, "%s", buf_cstr(&from));
    if (rc == OK && S_ISREG(st.st_mode))
        rc = add_parcel(w->list, buf_cstr(&from), buf_cstr(&place), 0644, e);
    if (rc == OK && S_ISDIR(st.st_mode)) {
        folder_walk below = {w->list, buf_cstr(&from), buf_cstr(&place)};
        rc = dir_each(buf_cstr(&from), add_entry, &below, e);
    }
    buf_release(&from);
    buf_release(&place);
    return rc;
}

static int add_folder(parcels *l, const char *from, const char *place, err *e) {
    folder_walk w = {l, from, place};
    return dir_exists(from) ? dir_each(from, add_entry, &w, e) : OK;
}

/* The built-in model, where this build has it. */
static int add_demo(parcels *l, const char *bin, err *e) {
    static const char *const places[] = {"../templates/demo-model", "../../templates/demo-model",
        "../share/tandem/templates/demo-model"};
    buf from = BUF_INIT;
    int rc = OK;
    bool is_found = false;
    for (size_t i = 0; i < sizeof places / sizeof *places && !is_found; i++) {
        path_join(&from, bin, places[i]);
        is_found = dir_exists(buf_cstr(&from));
    }
    if (is_found)
        rc = add_folder(l, buf_cstr(&from), "share/tandem/templates/demo-model", e);
    else
        rc = err_set(e, ERR_NOT_FOUND,
            "the built-in model is not beside this program, and neither "
            "PROFILE nor MODEL_DIR is set");
    buf_release(&from);
    return rc;
}

static int collect(pair_run *p, parcels *l, err *e) {
    buf bin = BUF_INIT, lib = BUF_INIT;
    int rc = own_folder(&bin, e);
    path_join(&lib, buf_cstr(&bin), "../lib");
    if (rc == OK) rc = add_parcel(l, p->program[0], "bin/tandem-node", 0755, e);
    if (rc == OK) rc = add_parcel(l, p->daemon[0], "bin/tandemd", 0755, e);
    /* Only a bundle has its libraries beside it; a build folder's lib holds archives. */
    bool is_bundle = str_eq(path_base(buf_cstr(&bin)), "bin");
    if (rc == OK && is_bundle) rc = add_folder(l, buf_cstr(&lib), "lib", e);
    if (rc == OK && pair_is_demo(p->o->settings)) rc = add_demo(l, buf_cstr(&bin), e);
    buf_release(&bin);
    buf_release(&lib);
    return rc;
}

/* Digests of the files that are there, as sha256sum prints them. */
static void digests_there(pair_run *p, const parcels *l, buf *out) {
    const char **argv = mem_array(l->n + 3, sizeof *argv);
    remote_result r;
    size_t n = 0;
    argv[n++] = "sha256sum";
    argv[n++] = "--";
    for (size_t i = 0; i < l->n; i++)
        argv[n++] = l->item[i].to;
    remote_result_init(&r);
    node_command c = {.argv = argv, .timeout_ms = 120000, .max_out = DIGESTS_MAX};
    /* Files that are missing only cost a line on the other stream. */
    if (node_run(p->o->node[1], &c, &r, NULL) == OK) buf_append(out, r.out.data, r.out.len);
    remote_result_release(&r);
    mem_free(argv);
}

static bool is_there(const parcel *q, const buf *digests) {
    buf line = BUF_INIT;
    buf_printf(&line, "%s  %s\n", q->digest, q->to);
    bool is = strstr(buf_cstr(digests), buf_cstr(&line)) != NULL;
    buf_release(&line);
    return is;
}

static int send_one(pair_run *p, const parcel *q, err *e) {
    buf data = BUF_MAX(PROGRAM_MAX), dir = BUF_INIT, out = BUF_INIT;
    int rc = file_read(q->from, &data, PROGRAM_MAX, e);
    if (rc == OK) rc = path_dir(&dir, q->to);
    if (rc == OK) rc = node_tool(p->o->node[1], &out, e, "mkdir", "-p", "--", buf_cstr(&dir), NULL);
    if (rc == OK) rc = node_write(p->o->node[1], q->to, data.data, data.len, q->mode, e);
    buf_release(&data);
    buf_release(&dir);
    buf_release(&out);
    return err_add(e, rc, "copying %s to the worker", path_base(q->from));
}

static int send_changed(pair_run *p, const parcels *l, err *e) {
    buf digests = BUF_MAX(DIGESTS_MAX);
    int rc = OK;
    size_t n_sent = 0;
    digests_there(p, l, &digests);
    for (size_t i = 0; i < l->n && rc == OK; i++) {
        if (is_there(&l->item[i], &digests)) continue;
        rc = send_one(p, &l->item[i], e);
        n_sent++;
    }
    if (rc == OK && n_sent > 0) {
        buf_reset(&digests);
        digests_there(p, l, &digests);
        for (size_t i = 0; i < l->n && rc == OK; i++) {
            if (!is_there(&l->item[i], &digests))
                rc = err_set(e, ERR_MISMATCH, "%s did not arrive whole on the worker",
                    path_base(l->item[i].from));
        }
    }
    buf_release(&digests);
    if (rc == OK && n_sent > 0)
        pair_say(p, PAIR_NOTE, PAIR_WORKER, "%zu of %zu files of the engine were copied to %s",
            n_sent, l->n, l->dir_there);
    return rc;
}

/* The engine must run there and be the same build as here. */
static int check_build(pair_run *p, err *e) {
    buf out[PAIR_NODES] = {BUF_INIT, BUF_INIT};
    int rc = OK;
    for (int i = 0; i < PAIR_NODES && rc == OK; i++) {
        rc = node_tool(p->o->node[i], &out[i], e, p->daemon[i], "--version", NULL);
        rc = err_add(e, rc,
            "the engine does not run on the %s (make a bundle, it brings its libraries along)",
            pair_node_name(i));
    }
    if (rc == OK && !str_eq(buf_cstr(&out[0]), buf_cstr(&out[1])))
        rc = err_set(e, ERR_MISMATCH, "the engines of head and worker say different versions");
    buf_release(&out[0]);
    buf_release(&out[1]);
    return rc;
}

int pair_place(pair_run *p, err *e) {
    buf there = BUF_INIT;
    int rc = pair_find_programs(p, e);
    if (rc == OK) rc = there_folder(p, &there);
    if (rc == OK) {
        parcels *l = mem_alloc(sizeof *l);
        l->dir_there = buf_cstr(&there);
        rc = collect(p, l, e);
        if (rc == OK) rc = send_changed(p, l, e);
        release_parcels(l);
    }
    if (rc == OK) rc = check_build(p, e);
    buf_release(&there);
    return rc;
}

/* ---- the keepers ---- */

static int parse_answer(const remote_result *r, int node, json **out, err *e) {
    json_limits limits = {.max_bytes = 256 << 10, .max_depth = 16};
    size_t n = r->out.len;
    while (n > 0 && r->out.data[n - 1] == '\n')
        n--;
    if (r->exit_code != 0 || n == 0) {
        const char *said = buf_cstr(&r->err);
        size_t len = strcspn(said, "\n");
        const char *begin = str_starts(said, "tandem-node: ") ? said + 13 : said;
        return err_set(e, ERR_IO, "the keeper of the %s cannot be asked: %.*s",
            pair_node_name(node), (int)(len - (size_t)(begin - said)), begin);
    }
    json *v = NULL;
    int rc = json_parse(r->out.data, n, &limits, &v, e);
    if (rc != OK) return err_add(e, rc, "the answer of the keeper of the %s", pair_node_name(node));
    int64_t code = ERR_INTERNAL;
    const char *message = json_str(json_get(v, "message"));
    bool is_refused = json_is_bool(json_get(v, "ok")) && !json_is_true(json_get(v, "ok"));
    if (is_refused) {
        (void)json_i64(json_get(v, "code"), &code);
        rc = err_set(e, code < 0 ? (int)code : ERR_INTERNAL, "the keeper of the %s refuses: %s",
            pair_node_name(node), message != NULL ? message : "without a word");
        json_free(v);
        return rc;
    }
    *out = v;
    return OK;
}

int pair_keeper_ask(
    const pair_run *p, int node, const char *verb, const buf *input, json **out, err *e) {
    const char *argv[] = {p->program[node], "keeper", verb, NULL};
    remote_result r;
    json *v = NULL;
    node_command c = {.argv = argv,
        .input = input != NULL ? input->data : NULL,
        .n_input = input != NULL ? input->len : 0,
        .timeout_ms = PAIR_CALL_MS};
    if (p->o->node[node] == NULL)
        return err_set(e, ERR_NET, "the %s cannot be reached: %s", pair_node_name(node),
            p->o->missing != NULL ? p->o->missing : "");
    remote_result_init(&r);
    int rc = node_run(p->o->node[node], &c, &r, e);
    if (rc == OK) rc = parse_answer(&r, node, &v, e);
    remote_result_release(&r);
    if (rc == OK && out != NULL) {
        *out = v;
    } else {
        json_free(v);
    }
    return rc;
}

static int run_systemctl(pair_run *p, int node, const char *verb) {
    /* The runtime folder is not always named in an ssh session. */
    static const char script[] =
        "export XDG_RUNTIME_DIR=\"${XDG_RUNTIME_DIR:-/run/user/$(id -u)}\"; exec systemctl --user "
        "\"$1\" tandem-keeper.service";
    const char *argv[] = {"sh", "-c", script, "sh", verb, NULL};
    remote_result r;
    remote_result_init(&r);
    node_command c = {.argv = argv, .timeout_ms = PAIR_CALL_MS};
    int code = node_run(p->o->node[node], &c, &r, NULL) == OK ? r.exit_code : -1;
    remote_result_release(&r);
    return code;
}

static bool keeper_answers(pair_run *p, int node) {
    json *v = NULL;
    bool is = pair_keeper_ask(p, node, "status", NULL, &v, NULL) == OK &&
              json_is_true(json_get(v, "running")) && json_is_true(json_get(v, "stays"));
    json_free(v);
    return is;
}

/* The unit where it is installed, else a process of its own. */
static bool start_unit(pair_run *p, int node) {
    if (run_systemctl(p, node, "is-enabled") != 0) return false;
    bool is_up = run_systemctl(p, node, "start") == 0;
    uint64_t end = clock_mono_ms() + UNIT_UP_MS;
    while (is_up && !keeper_answers(p, node)) {
        if (clock_mono_ms() >= end) is_up = false;
        sleep_ms(50);
    }
    if (!is_up)
        pair_say(p, PAIR_WARN, node,
            "the unit tandem-keeper of the %s does not start (systemctl --user status "
            "tandem-keeper); its keeper is started without it",
            pair_node_name(node));
    return is_up;
}

/* A keeper of an older build, or one on its way out, makes place. */
static void replace_old(pair_run *p, int node) {
    json *v = NULL;
    if (pair_keeper_ask(p, node, "status", NULL, &v, NULL) != OK) return;
    const char *build = json_str(json_get(v, "build"));
    keeper_state s = keeper_state_of(json_str(json_get(v, "state")));
    bool is_over = s == KEEPER_IDLE || s == KEEPER_FAILED || s == KEEPER_STOPPED;
    bool is_running = json_is_true(json_get(v, "running"));
    bool is_old = is_running && build != NULL && !str_eq(build, version_build_id());
    bool is_leaving = is_running && is_over && !json_is_true(json_get(v, "stays"));
    json_free(v);
    if (is_old)
        pair_say(p, PAIR_NOTE, node, "the keeper of the %s is of another build and is replaced",
            pair_node_name(node));
    if (is_old || is_leaving) (void)pair_keeper_ask(p, node, "quit", NULL, NULL, NULL);
}

int pair_keeper_up(pair_run *p, int node, err *e) {
    const char *argv[] = {p->program[node], "keep", "--detach", NULL};
    remote_result r;
    replace_old(p, node);
    /* One that has a start in hand is asked as it is. */
    if (start_unit(p, node)) return OK;
    remote_result_init(&r);
    node_command c = {.argv = argv, .timeout_ms = 30000};
    int rc = node_run(p->o->node[node], &c, &r, e);
    if (rc == OK && r.exit_code != 0) {
        const char *said = buf_cstr(&r.err);
        rc = err_set(e, ERR_IO, "the keeper of the %s does not start: %.*s", pair_node_name(node),
            (int)strcspn(said, "\n"), said);
    }
    remote_result_release(&r);
    return rc;
}

int pair_keeper_order(pair_run *p, int node, err *e) {
    buf text = BUF_MAX(KEEPER_ORDER_MAX);
    (void)buf_reserve(&text, KEEPER_ORDER_MAX); /* growing would leave copies of the secret */
    int rc = keeper_order_print(&p->order[node], &text);
    if (rc == OK) rc = pair_keeper_ask(p, node, "start", &text, NULL, e);
    if (text.data != NULL) explicit_bzero(text.data, text.cap);
    buf_release(&text);
    return rc;
}
