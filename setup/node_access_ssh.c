/* The other machine by ssh. Scripts are constants; what varies goes as quoted words or on standard
 * input, and answers are cut at a mark, so that a login file that prints something does no harm. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/node_access_internal.h"

enum { TOOL_MS = 20000, TOOL_MAX = 1 << 20, FETCH_MAX = 8 << 20, FETCH_FILE = 256 << 10 };
enum { NO_FILE = 44, NO_RIGHT = 45 };
#define MARK "=tandem-output=\n"

static const char RUN[] =
    "PATH=$PATH:/usr/sbin:/sbin; LC_ALL=C; export PATH LC_ALL; printf '" MARK "'; exec \"$@\"";
static const char READ[] = "[ -e \"$1\" ] || exit 44; [ -r \"$1\" ] || exit 45; "
                           "printf '" MARK "'; exec head -c \"$2\" -- \"$1\"";
static const char LIST[] = "[ -d \"$1\" ] || exit 44; [ -r \"$1\" ] || exit 45; "
                           "printf '" MARK "'; LC_ALL=C exec ls -1A -- \"$1\"";
static const char LINK[] = "[ -e \"$1\" ] || [ -L \"$1\" ] || exit 44; [ -L \"$1\" ] || exit 46; "
                           "printf '" MARK "'; exec readlink -- \"$1\"";
/* $1 root, $2 bytes of one file, then patterns. Records: kind, path, NUL, text, NUL. */
static const char FETCH[] =
    "root=$1; max=$2; shift 2; printf '" MARK "'; for p in \"$@\"; do for f in $root$p; do "
    "if [ -L \"$f\" ]; then printf 'L%s\\0' \"${f#\"$root\"}\"; readlink -- \"$f\" | tr -d '\\n'; "
    "printf '\\0'; fi; if [ -f \"$f\" ] && [ -r \"$f\" ]; then printf 'F%s\\0' \"${f#\"$root\"}\"; "
    "head -c \"$max\" -- \"$f\" 2>/dev/null | tr -d '\\0'; printf '\\0'; fi; done; done";
static const char WRITE[] =
    "umask 077; t=$1.new.$$; cat > \"$t\" && chmod \"$2\" \"$t\" && sync \"$t\" && mv -f \"$t\" \"$1\" "
    "&& exit 0; rm -f \"$t\"; exit 46";

/* Cuts everything up to the mark. A sink sees the data behind it only. */
typedef struct cut {
    const node_command *c;
    remote_result *out;
    buf head; /* what came before the mark was found */
    bool is_found;
} cut;

static int pass_on(cut *k, bool is_error, const char *p, size_t n, err *e) {
    if (k->c->sink != NULL) return k->c->sink(k->c->sink_ctx, is_error, p, n);
    buf *b = is_error ? &k->out->err : &k->out->out;
    size_t max = k->c->max_out > 0 ? k->c->max_out : TOOL_MAX;
    if (b->len + n > max)
        return err_set(e, ERR_LIMIT, "a command printed more than %zu bytes", max);
    return buf_append(b, p, n);
}

static int cut_sink(void *ctx, bool is_error, const void *data, size_t n) {
    cut *k = ctx;
    if (is_error || k->is_found) return pass_on(k, is_error, data, n, NULL);
    int rc = buf_append(&k->head, data, n);
    const char *at = rc == OK && k->head.len > 0
                         ? memmem(k->head.data, k->head.len, MARK, sizeof MARK - 1)
                         : NULL;
    if (at == NULL) return rc;
    k->is_found = true;
    at += sizeof MARK - 1;
    size_t left = k->head.len - (size_t)(at - k->head.data);
    return left > 0 ? pass_on(k, false, at, left, NULL) : OK;
}

/* sh -c SCRIPT sh WORDS..., one quoted word each. */
static int script_line(const char *script, const char *const *words, buf *line) {
    int rc = buf_puts(line, "exec sh -c ");
    if (rc == OK) rc = remote_quote(line, script);
    if (rc == OK) rc = buf_puts(line, " sh");
    for (size_t i = 0; words[i] != NULL && rc == OK; i++) {
        rc = buf_putc(line, ' ');
        if (rc == OK) rc = remote_quote(line, words[i]);
    }
    return rc;
}

static int run_script(
    node_access *n, const char *script, const node_command *c, remote_result *out, err *e) {
    buf line = BUF_INIT;
    cut k = {.c = c, .out = out, .head = BUF_MAX(256 << 10)};
    int rc = script_line(script, c->argv, &line);
    if (rc != OK) err_set(e, rc, "a command line for %s is too long", n->name);
    if (rc == OK) {
        remote_command rcmd = {.line = buf_cstr(&line),
            .input = c->input,
            .n_input = c->n_input,
            .timeout_ms = c->timeout_ms != 0 ? c->timeout_ms : TOOL_MS,
            .sink = cut_sink,
            .sink_ctx = &k,
            .stop = c->stop};
        if (e != NULL) *e = (err)ERR_INIT;
        rc = remote_run(n->session, &rcmd, out, e);
        if (rc != OK && e != NULL && e->msg[0] == '\0') {
            err_set(e, rc, "%s printed more than is taken", n->name);
        }
    }
    buf_release(&k.head);
    buf_release(&line);
    return rc;
}

int node_ssh_run(node_access *n, const node_command *c, remote_result *out, err *e) {
    if (n->root[0] == '\0') return run_script(n, RUN, c, out, e);
    /* A stored tree: its own tools, which find their files by NODE_ROOT, as on this machine. */
    size_t count = 0;
    while (c->argv[count] != NULL)
        count++;
    const char **argv = mem_array(count + 3, sizeof *argv);
    buf tool = BUF_INIT, root = BUF_INIT;
    memcpy(argv + 2, c->argv, (count + 1) * sizeof *argv);
    int rc = buf_printf(&root, "NODE_ROOT=%s", n->root);
    if (rc == OK && c->argv[0][0] != '/') {
        rc = buf_printf(&tool, "%s/tools/%s", n->root, c->argv[0]);
        argv[2] = buf_cstr(&tool);
    }
    argv[0] = "/usr/bin/env";
    argv[1] = buf_cstr(&root);
    node_command full = *c;
    full.argv = argv;
    if (rc == OK) rc = run_script(n, RUN, &full, out, e);
    buf_release(&tool);
    buf_release(&root);
    mem_free(argv);
    return rc;
}

static int code_error(const node_access *n, const char *path, const remote_result *r, err *e) {
    if (r->exit_code == NO_FILE) {
        return err_set(e, ERR_NOT_FOUND, "%s does not exist on %s", path, n->name);
    }
    if (r->exit_code == NO_RIGHT) {
        return err_set(e, ERR_AUTH, "%s may not be read on %s", path, n->name);
    }
    return err_set(e, ERR_IO, "%s on %s: %.200s", path, n->name, buf_cstr(&r->err));
}

/* One constant script about one path; its output replaces out. */
static int about_path(
    node_access *n, const char *script, const char *path, size_t max, buf *out, err *e) {
    buf full = BUF_INIT, limit = BUF_INIT;
    remote_result r;
    remote_result_init(&r);
    int rc = node_path(n, path, &full);
    if (rc == OK) rc = buf_printf(&limit, "%zu", max + 1);
    const char *words[] = {buf_cstr(&full), buf_cstr(&limit), NULL};
    node_command c = {.argv = words, .max_out = max + 1};
    if (rc == OK) rc = run_script(n, script, &c, &r, e);
    if (rc == OK && r.exit_code != 0) rc = code_error(n, path, &r, e);
    if (rc == OK && r.out.len > max) {
        rc = err_set(e, ERR_LIMIT, "%s on %s has more than %zu bytes", path, n->name, max);
    }
    if (rc == OK) rc = buf_append(out, buf_cstr(&r.out), r.out.len);
    buf_release(&full);
    buf_release(&limit);
    remote_result_release(&r);
    return rc;
}

int node_ssh_read(node_access *n, const char *path, size_t max, buf *out, err *e) {
    return about_path(n, READ, path, max, out, e);
}

int node_ssh_list(node_access *n, const char *path, buf *out, err *e) {
    return about_path(n, LIST, path, TOOL_MAX, out, e);
}

int node_ssh_link(node_access *n, const char *path, buf *out, err *e) {
    int rc = about_path(n, LINK, path, TOOL_MAX, out, e);
    if (rc == OK && out->len > 0 && out->data[out->len - 1] == '\n')
        buf_truncate(out, out->len - 1);
    return rc;
}

static int fetch_take(node_access *n, const buf *b, err *e) {
    const char *p = buf_cstr(b), *end = p + b->len;
    while (p < end) {
        char kind = *p++;
        const char *path_end = memchr(p, '\0', (size_t)(end - p));
        const char *text = path_end != NULL ? path_end + 1 : end;
        const char *text_end = text < end ? memchr(text, '\0', (size_t)(end - text)) : NULL;
        if (text_end == NULL || (kind != 'F' && kind != 'L')) {
            return err_set(e, ERR_FORMAT, "the answer of %s about its files is cut", n->name);
        }
        node_cache_put(n, p, kind == 'L', text, (size_t)(text_end - text));
        p = text_end + 1;
    }
    return OK;
}

int node_ssh_fetch(node_access *n, const char *patterns, err *e) {
    enum { MOST = 64 };
    const char *words[MOST + 3];
    char *copy = mem_strdup(patterns), *save = NULL;
    buf max = BUF_INIT;
    size_t k = 2;
    int rc = buf_printf(&max, "%d", FETCH_FILE);
    words[0] = n->root;
    words[1] = buf_cstr(&max);
    for (char *p = strtok_r(copy, " ", &save); p != NULL && k < MOST + 2;
         p = strtok_r(NULL, " ", &save))
        words[k++] = p;
    words[k] = NULL;
    remote_result r;
    remote_result_init(&r);
    node_command c = {.argv = words, .max_out = FETCH_MAX};
    if (rc == OK) rc = run_script(n, FETCH, &c, &r, e);
    if (rc == OK) rc = fetch_take(n, &r.out, e);
    remote_result_release(&r);
    buf_release(&max);
    mem_free(copy);
    return rc;
}

int node_ssh_write(
    node_access *n, const char *path, const void *data, size_t len, unsigned mode, err *e) {
    buf full = BUF_INIT, bits = BUF_INIT;
    remote_result r;
    remote_result_init(&r);
    int rc = node_path(n, path, &full);
    if (rc == OK) rc = buf_printf(&bits, "%04o", mode);
    const char *words[] = {buf_cstr(&full), buf_cstr(&bits), NULL};
    node_command c = {.argv = words, .input = data, .n_input = len, .timeout_ms = 600000};
    if (rc == OK) rc = run_script(n, WRITE, &c, &r, e);
    if (rc == OK && r.exit_code != 0) rc = code_error(n, path, &r, e);
    buf_release(&full);
    buf_release(&bits);
    remote_result_release(&r);
    return rc;
}
