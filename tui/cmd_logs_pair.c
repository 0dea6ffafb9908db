/* tandem logs of a pair: rank and keeper of each machine, merged by time, also while they grow. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/cmd_logs.h"
#include "tui/cmd_pair.h"

enum { TAIL_BYTES = 1 << 20, FOLLOW_MS = 500, SOURCES = 4, LINES_MAX = 200000 };

typedef struct source {
    int node;
    char *path;      /* on its machine; NULL: none */
    uint64_t offset; /* read so far */
    buf rest;        /* a line that has not ended yet */
    char time[32];   /* of the newest line that had one */
} source;

typedef struct line {
    char *text;
    char time[32];
    int node;
    size_t order;
} line;

typedef struct lines {
    line *item;
    size_t n, cap;
} lines;

static const char *const NODES[] = {"head", "worker"};

/* ---- reading ---- */

static uint64_t size_there(node_access *n, const char *path) {
    buf out = BUF_INIT;
    uint64_t size = 0;
    if (node_tool(n, &out, NULL, "stat", "-c", "%s", "--", path, NULL) == OK) {
        buf_truncate(&out, strcspn(buf_cstr(&out), "\n"));
        (void)parse_u64(buf_cstr(&out), &size);
    }
    buf_release(&out);
    return size;
}

/* The next bytes of a log, at most TAIL_BYTES; a shorter file was begun anew. */
static int read_more(node_access *n, source *s) {
    uint64_t size = size_there(n, s->path);
    char from[32];
    buf script = BUF_INIT;
    if (size < s->offset) s->offset = 0;
    if (size == s->offset) return OK;
    if (s->offset == 0 && size > TAIL_BYTES) s->offset = size - TAIL_BYTES;
    snprintf(from, sizeof from, "+%llu", (unsigned long long)(s->offset + 1));
    buf_printf(&script, "tail -c \"$1\" -- \"$2\" | head -c %d", TAIL_BYTES);
    const char *argv[] = {"sh", "-c", buf_cstr(&script), "sh", from, s->path, NULL};
    remote_result r;
    remote_result_init(&r);
    node_command c = {.argv = argv, .max_out = TAIL_BYTES + 4096};
    int rc = node_run(n, &c, &r, NULL);
    if (rc == OK) rc = buf_append(&s->rest, r.out.data, r.out.len);
    if (rc == OK) s->offset += r.out.len;
    remote_result_release(&r);
    buf_release(&script);
    return rc;
}

/* "2026-11-30T14:02:03.123Z" at the start of a line. */
static bool has_time(const char *text) {
    return strlen(text) > 24 && text[4] == '-' && text[10] == 'T' && text[23] == 'Z';
}

static void add_line(lines *l, source *s, char *text) {
    if (l->n == LINES_MAX) {
        mem_free(text);
        return;
    }
    if (l->n == l->cap) {
        l->cap = l->cap > 0 ? l->cap * 2 : 256;
        l->item = mem_realloc(l->item, l->cap * sizeof *l->item);
    }
    /* A line without a time stands with the one before. */
    if (has_time(text)) str_copy(s->time, 25, text);
    line *at = &l->item[l->n];
    *at = (line){.text = text, .node = s->node, .order = l->n};
    str_copy(at->time, sizeof at->time, s->time);
    l->n++;
}

static void take_lines(const log_filter *f, source *s, lines *out) {
    size_t at = 0;
    while (at < s->rest.len) {
        const char *end = memchr(s->rest.data + at, '\n', s->rest.len - at);
        if (end == NULL) break;
        char *text = mem_strndup(s->rest.data + at, (size_t)(end - s->rest.data) - at);
        at = (size_t)(end - s->rest.data) + 1;
        if (log_filter_passes(f, text)) {
            add_line(out, s, text);
        } else {
            mem_free(text);
        }
    }
    buf_consume(&s->rest, at);
}

static int by_time(const void *a, const void *b) {
    const line *x = a, *y = b;
    int order = strcmp(x->time, y->time);
    if (order != 0) return order;
    return x->order < y->order ? -1 : x->order > y->order;
}

static void put_lines(const log_filter *f, lines *l, int64_t n_lines) {
    size_t skip = n_lines >= 0 && l->n > (size_t)n_lines ? l->n - (size_t)n_lines : 0;
    if (l->n > 0) qsort(l->item, l->n, sizeof *l->item, by_time);
    for (size_t i = 0; i < l->n; i++) {
        if (i >= skip) log_filter_put(f, NODES[l->item[i].node], l->item[i].text);
        mem_free(l->item[i].text);
    }
    l->n = 0;
}

/* ---- finding ---- */

static void add_source(source *sources, int *n, int node, char *path) {
    if (path == NULL) return;
    sources[(*n)++] = (source){.node = node, .path = path};
}

/* keeper.log stands beside the rank's log. */
static char *keeper_log(const char *rank_log) {
    buf dir = BUF_INIT, path = BUF_INIT;
    path_dir(&dir, rank_log);
    path_join(&path, buf_cstr(&dir), "keeper.log");
    buf_release(&dir);
    return buf_take(&path);
}

static int find_sources(const cmd_args *a, const cmd_nodes *n, source *sources) {
    const char *only = cmd_value(a, "node");
    pair_options o = cmd_pair_options(n);
    pair_view v;
    int count = 0;
    if (pair_look(&o, &v, NULL) != OK) return 0;
    for (int i = 0; i < PAIR_NODES; i++) {
        const char *log = json_str(json_get(v.node[i].keeper, "log"));
        bool is_wanted = only == NULL || str_eq(only, NODES[i]);
        if (is_wanted && v.node[i].missing[0] != '\0')
            cmd_note("the %s is left out: %s", NODES[i], v.node[i].missing);
        if (!is_wanted || log == NULL || n->node[i] == NULL) continue;
        add_source(sources, &count, i, mem_strdup(log));
        add_source(sources, &count, i, keeper_log(log));
    }
    pair_view_release(&v);
    return count;
}

static void look(const cmd_nodes *n, const log_filter *f, source *sources, int count, lines *out) {
    for (int i = 0; i < count; i++) {
        if (read_more(n->node[sources[i].node], &sources[i]) == OK) take_lines(f, &sources[i], out);
    }
}

static void follow(const cmd_nodes *n, const log_filter *f, source *sources, int count) {
    struct pollfd stop = {.fd = cmd_stop_fd(), .events = POLLIN};
    lines l = {0};
    while (!cmd_output_failed() && poll(&stop, 1, FOLLOW_MS) == 0) {
        look(n, f, sources, count, &l);
        put_lines(f, &l, -1);
        cmd_flush();
    }
    mem_free(l.item);
}

int cmd_logs_pair(const cmd_args *a, const log_filter *f, int64_t n_lines) {
    cmd_nodes n;
    source sources[SOURCES];
    lines l = {0};
    err e = ERR_INIT;
    if (cmd_nodes_open(a, true, &n, &e) != OK) return cmd_fail(&e);
    int count = find_sources(a, &n, sources);
    look(&n, f, sources, count, &l);
    put_lines(f, &l, n_lines);
    if (count == 0) cmd_note("there is no log yet; tandem start begins one");
    if (count > 0 && cmd_has(a, "follow")) follow(&n, f, sources, count);
    bool is_all = str_eq(cmd_value(a, "node"), NODES[0]) || n.missing[1][0] == '\0';
    for (int i = 0; i < count; i++) {
        mem_free(sources[i].path);
        buf_release(&sources[i].rest);
    }
    mem_free(l.item);
    cmd_nodes_close(&n);
    return is_all ? EXIT_OK : EXIT_NODE_UNREACHABLE;
}
