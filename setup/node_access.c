#include "setup/node_access.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/node_access_internal.h"

enum { LINE_MAX_BYTES = 64 << 10, TOOL_WORDS = 24, SUDO_MS = 20000 };

static node_access *access_new(const char *name, const char *root) {
    node_access *n = mem_alloc(sizeof *n);
    n->name = mem_strdup(name);
    n->root = mem_strdup(root != NULL ? root : "");
    return n;
}

node_access *node_access_local(const char *name, const char *root) {
    return access_new(name, root);
}

node_access *node_access_ssh(const char *name, remote *session, const char *root) {
    node_access *n = access_new(name, root);
    n->session = session;
    return n;
}

void node_access_close(node_access *n) {
    if (n == NULL) return;
    node_forget(n);
    node_sudo_end(n);
    remote_close(n->session);
    mem_free(n->name);
    mem_free(n->root);
    mem_free(n);
}

const char *node_access_name(const node_access *n) {
    return n->name;
}

remote *node_access_session(node_access *n) {
    return n->session;
}

bool node_access_is_fixture(const node_access *n) {
    return n->root[0] != '\0';
}

int node_path(const node_access *n, const char *path, buf *out) {
    buf_reset(out);
    return buf_printf(out, "%s%s", n->root, path);
}

int node_no_tool(const node_access *n, const char *tool, err *e) {
    int rc = err_set(e, ERR_NOT_FOUND, "%s is not installed on %s", tool, n->name);
    if (e != NULL) err_node(e, n->name);
    return rc;
}

int node_run(node_access *n, const node_command *c, remote_result *out, err *e) {
    int rc = n->session != NULL ? node_ssh_run(n, c, out, e) : node_local_run(n, c, out, e);
    if (rc == OK && out->exit_code == 127) return node_no_tool(n, c->argv[0], e);
    return rc;
}

/* The first line of what a tool printed as an error. */
static int first_line(const buf *b) {
    size_t n = 0;
    while (n < b->len && n < 200 && b->data[n] != '\n' && b->data[n] != '\r')
        n++;
    return (int)n;
}

int node_tool(node_access *n, buf *out, err *e, ...) {
    const char *words[TOOL_WORDS + 1];
    int count = 0;
    va_list ap;
    va_start(ap, e);
    for (const char *w = va_arg(ap, const char *); w != NULL; w = va_arg(ap, const char *)) {
        CHECK(count < TOOL_WORDS);
        words[count++] = w;
    }
    va_end(ap);
    words[count] = NULL;
    node_command c = {.argv = words};
    remote_result r;
    remote_result_init(&r);
    int rc = node_run(n, &c, &r, e);
    if (rc == OK && r.exit_code != 0) {
        rc = err_set(e, ERR_IO, "%s ended with code %d: %.*s", words[0], r.exit_code,
            first_line(&r.err), buf_cstr(&r.err));
    }
    if (rc == OK) {
        buf_reset(out);
        rc = buf_append(out, buf_cstr(&r.out), r.out.len);
    }
    remote_result_release(&r);
    return rc;
}

static const node_cached *cache_find(const node_access *n, const char *path, bool is_link) {
    for (size_t i = 0; i < n->n_cached; i++) {
        if (n->cached[i].is_link == is_link && str_eq(n->cached[i].path, path))
            return &n->cached[i];
    }
    return NULL;
}

static bool was_fetched(const node_access *n, const char *path) {
    for (size_t i = 0; i < n->n_patterns; i++) {
        if (fnmatch(n->patterns[i], path, FNM_PATHNAME) == 0) return true;
    }
    return false;
}

void node_cache_put(node_access *n, const char *path, bool is_link, const char *text, size_t len) {
    if (n->n_cached == n->cap_cached) {
        n->cap_cached = n->cap_cached == 0 ? 128 : n->cap_cached * 2;
        n->cached = mem_realloc(n->cached, n->cap_cached * sizeof *n->cached);
    }
    n->cached[n->n_cached++] =
        (node_cached){mem_strdup(path), is_link, mem_strndup(text, len), len};
}

void node_forget(node_access *n) {
    for (size_t i = 0; i < n->n_cached; i++) {
        mem_free(n->cached[i].path);
        mem_free(n->cached[i].text);
    }
    for (size_t i = 0; i < n->n_patterns; i++)
        mem_free(n->patterns[i]);
    mem_free(n->cached);
    mem_free(n->patterns);
    n->cached = NULL;
    n->patterns = NULL;
    n->n_cached = n->cap_cached = n->n_patterns = 0;
}

static int no_file(const node_access *n, const char *path, err *e) {
    return err_set(e, ERR_NOT_FOUND, "%s does not exist on %s", path, n->name);
}

int node_read(node_access *n, const char *path, size_t max, buf *out, err *e) {
    buf_reset(out);
    if (n->session == NULL) return node_local_read(n, path, max, out, e);
    const node_cached *c = cache_find(n, path, false);
    if (c != NULL) {
        return c->len <= max ? buf_append(out, c->text, c->len)
                             : err_set(e, ERR_LIMIT, "%s has more than %zu bytes", path, max);
    }
    if (was_fetched(n, path)) return no_file(n, path, e);
    return node_ssh_read(n, path, max, out, e);
}

int node_read_line(node_access *n, const char *path, buf *out, err *e) {
    int rc = node_read(n, path, LINE_MAX_BYTES, out, e);
    while (rc == OK && out->len > 0 && isspace((unsigned char)out->data[out->len - 1]))
        buf_truncate(out, out->len - 1);
    return rc;
}

int node_list(node_access *n, const char *path, buf *out, err *e) {
    buf_reset(out);
    return n->session != NULL ? node_ssh_list(n, path, out, e) : node_local_list(n, path, out, e);
}

int node_link(node_access *n, const char *path, buf *out, err *e) {
    buf_reset(out);
    if (n->session == NULL) return node_local_link(n, path, out, e);
    const node_cached *c = cache_find(n, path, true);
    if (c != NULL) return buf_append(out, c->text, c->len);
    if (was_fetched(n, path)) return no_file(n, path, e);
    return node_ssh_link(n, path, out, e);
}

bool node_exists(node_access *n, const char *path) {
    remote_result r;
    remote_result_init(&r);
    buf full = BUF_INIT;
    const char *argv[] = {"/usr/bin/test", "-e", NULL, NULL};
    node_command c = {.argv = argv};
    bool is_there = false;
    if (n->session == NULL) {
        buf text = BUF_INIT;
        int rc = node_local_link(n, path, &text, NULL);
        is_there = rc == OK || rc == ERR_ARG;
        buf_release(&text);
    } else if (node_path(n, path, &full) == OK) {
        argv[2] = buf_cstr(&full);
        is_there = node_ssh_run(n, &c, &r, NULL) == OK && r.exit_code == 0;
    }
    buf_release(&full);
    remote_result_release(&r);
    return is_there;
}

int node_fetch(node_access *n, const char *patterns, err *e) {
    if (n->session == NULL) return OK;
    int rc = node_ssh_fetch(n, patterns, e);
    char *copy = mem_strdup(patterns), *save = NULL;
    for (char *p = strtok_r(copy, " ", &save); p != NULL && rc == OK;
         p = strtok_r(NULL, " ", &save)) {
        n->patterns = mem_realloc(n->patterns, (n->n_patterns + 1) * sizeof *n->patterns);
        n->patterns[n->n_patterns++] = mem_strdup(p);
    }
    mem_free(copy);
    return rc;
}

int node_write(
    node_access *n, const char *path, const void *data, size_t len, unsigned mode, err *e) {
    return n->session != NULL ? node_ssh_write(n, path, data, len, mode, e)
                              : node_local_write(n, path, data, len, mode, e);
}

/* Privileges. */

int node_command_text(const node_command *c, bool as_root, buf *out) {
    int rc = as_root ? buf_puts(out, "sudo ") : OK;
    for (size_t i = 0; c->argv[i] != NULL && rc == OK; i++) {
        if (i > 0) rc = buf_putc(out, ' ');
        if (rc == OK) rc = remote_quote(out, c->argv[i]);
    }
    return rc;
}

void node_sudo_begin(node_access *n, const node_sudo *sudo) {
    node_sudo_end(n);
    n->sudo = sudo;
}

void node_sudo_end(node_access *n) {
    ssh_secret_free(n->password);
    n->password = NULL;
    n->sudo = NULL;
    n->root_state = 0;
}

static bool runs_fine(node_access *n, const char *const *argv, const char *input) {
    remote_result r;
    remote_result_init(&r);
    node_command c = {.argv = argv,
        .input = input,
        .n_input = input != NULL ? strlen(input) : 0,
        .timeout_ms = SUDO_MS};
    bool is_fine = node_run(n, &c, &r, NULL) == OK && r.exit_code == 0;
    remote_result_release(&r);
    return is_fine;
}

static bool is_root(node_access *n) {
    buf id = BUF_INIT;
    bool is = node_tool(n, &id, NULL, "id", "-u", NULL) == OK && str_starts(buf_cstr(&id), "0\n");
    buf_release(&id);
    return is;
}

static bool password_works(node_access *n) {
    const char *argv[] = {"sudo", "-k", "-S", "-p", "", "true", NULL};
    char line[SSH_SECRET_MAX + 1] = ""; /* a secret is shorter, so the line break always fits */
    size_t len = ssh_secret_len(n->password);
    memcpy(line, ssh_secret_text(n->password), len);
    line[len] = '\n';
    bool is_fine = runs_fine(n, argv, line);
    explicit_bzero(line, sizeof line);
    return is_fine;
}

static int find_root(node_access *n, err *e) {
    static const char *const quiet[] = {"sudo", "-n", "true", NULL};
    if (n->root_state != 0) return OK;
    if (is_root(n)) {
        n->root_state = 1;
    } else if (runs_fine(n, quiet, NULL)) {
        n->root_state = 2;
    } else if (n->sudo != NULL && n->sudo->password != NULL) {
        n->password = ssh_secret_new();
        if (n->sudo->password(n->sudo->ctx, n->name, n->password) && password_works(n)) {
            n->root_state = 3;
            return OK;
        }
        ssh_secret_free(n->password);
        n->password = NULL;
    }
    if (n->root_state != 0) return OK;
    return err_set(e, ERR_AUTH,
        "%s does not give this user the rights of root (sudo is not there, not allowed, or the "
        "password was wrong); run the commands shown yourself, then check again",
        n->name);
}

/* sudo reads the password as the first line of standard input, the command gets the rest. -k makes
 * sure that it is read, so that it never reaches the command. */
static int run_with_password(node_access *n, node_command *c, remote_result *out, err *e) {
    size_t len = ssh_secret_len(n->password);
    char *all = mem_try_alloc(len + 1 + c->n_input);
    if (all == NULL) return err_set(e, ERR_MEMORY, "no memory for the input of sudo");
    memcpy(all, ssh_secret_text(n->password), len);
    all[len] = '\n';
    if (c->n_input > 0) memcpy(all + len + 1, c->input, c->n_input);
    c->input = all;
    c->n_input += len + 1;
    int rc = node_run(n, c, out, e);
    explicit_bzero(all, len + 1);
    mem_free(all);
    return rc;
}

int node_run_root(
    node_access *n, const node_command *c, const char *why, remote_result *out, err *e) {
    static const char *const quiet[] = {"sudo", "-n", "--"};
    static const char *const asked[] = {"sudo", "-k", "-S", "-p", "", "--"};
    int rc = find_root(n, e);
    if (rc != OK) return rc;
    buf text = BUF_INIT;
    bool is_allowed = node_command_text(c, n->root_state != 1, &text) == OK;
    if (is_allowed && n->sudo != NULL && n->sudo->confirm != NULL) {
        is_allowed = n->sudo->confirm(n->sudo->ctx, n->name, buf_cstr(&text), why);
    }
    if (!is_allowed)
        rc = err_set(e, ERR_CANCELLED, "not run on %s: %.200s", n->name, buf_cstr(&text));
    buf_release(&text);
    if (rc != OK) return rc;
    if (n->root_state == 1) return node_run(n, c, out, e);
    const char *const *before = n->root_state == 2 ? quiet : asked;
    size_t n_before = n->root_state == 2 ? 3 : 6, n_words = 0;
    while (c->argv[n_words] != NULL)
        n_words++;
    const char **argv = mem_array(n_before + n_words + 1, sizeof *argv);
    memcpy(argv, before, n_before * sizeof *argv);
    memcpy(argv + n_before, c->argv, n_words * sizeof *argv);
    node_command full = *c;
    full.argv = argv;
    rc = n->root_state == 2 ? node_run(n, &full, out, e) : run_with_password(n, &full, out, e);
    mem_free(argv);
    return rc;
}
