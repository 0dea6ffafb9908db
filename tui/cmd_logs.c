/* tandem logs: the log of the engine, filtered, also while it grows. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/paths.h"
#include "tui/cmd_logs.h"
#include "tui/cmd_pair.h"

enum { LINES_DEFAULT = 100, LINES_MAX = 1000000, FOLLOW_MS = 200, READ_MAX_BYTES = 64 << 20 };

/* The level word of a line: the second field. Lines of other programs have none and count as info. */
static log_level line_level(const char *line) {
    const char *at = strchr(line, ' ');
    char word[8] = "";
    log_level level = LOG_INFO;
    if (at == NULL) return level;
    at += strspn(at, " ");
    size_t n = strcspn(at, " ");
    if (n < sizeof word) {
        memcpy(word, at, n);
        log_level_parse(word, &level);
    }
    return level;
}

bool log_filter_passes(const log_filter *f, const char *line) {
    /* Times are written so that they sort as texts; a line without one belongs to the one before. */
    bool has_time = line[0] >= '0' && line[0] <= '9';
    if (f->since[0] != '\0' && has_time && strncmp(line, f->since, strlen(f->since)) < 0)
        return false;
    if (f->has_level && line_level(line) > f->level) return false;
    return !f->has_regex || regexec(&f->regex, line, 0, NULL, 0) == 0;
}

void log_filter_put(const log_filter *f, const char *node, const char *line) {
    if (f->is_json) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        if (node != NULL) json_w_kstr(&w, "node", node);
        json_w_kstr(&w, "level", log_level_name(line_level(line)));
        json_w_kstr(&w, "line", line);
        cmd_put_json(&w);
        buf_release(&out);
        return;
    }
    if (node != NULL) cmd_printf("%-6s ", node);
    cmd_put_text(line, strlen(line));
    cmd_puts("\n");
}

/* "2026-11-30T14:02" as it is, or "10m", "2h", "1d": so long ago. */
static int read_since(const char *text, char out[32], err *e) {
    static const struct {
        char letter;
        int64_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    size_t n = strlen(text);
    if (n >= 10 && n < 32 && text[4] == '-' && text[7] == '-') {
        str_copy(out, 32, text);
        return OK;
    }
    for (size_t i = 0; i < 4 && n > 1 && n < 10; i++) {
        char number[16];
        int64_t count = 0;
        if (text[n - 1] != units[i].letter) continue;
        str_copy(number, n, text);
        if (parse_i64(number, &count) != OK || count < 1) break;
        clock_format_utc(clock_wall_ms() - (uint64_t)(count * units[i].seconds) * 1000, out);
        return OK;
    }
    return err_set(e, ERR_ARG,
        "--since is \"%.20s\"; it must be a time such as 2026-11-30T14:02 (UTC) or 10m, 2h, 1d",
        text);
}

int log_filter_make(const cmd_args *a, log_filter *f, err *e) {
    const char *level = cmd_value(a, "level"), *re = cmd_value(a, "grep");
    const char *since = cmd_value(a, "since"), *node = cmd_value(a, "node");
    *f = (log_filter){.args = a, .is_json = cmd_has(a, "json")};
    if (level != NULL) {
        if (log_level_parse(level, &f->level) != OK) {
            return err_set(
                e, ERR_ARG, "--level is \"%.20s\"; it must be error, warn, info or debug", level);
        }
        f->has_level = true;
    }
    if (node != NULL && !str_eq(node, "head") && !str_eq(node, "worker"))
        return err_set(e, ERR_ARG, "\"%.40s\" is no machine; name head or worker", node);
    if (since != NULL && read_since(since, f->since, e) != OK) return ERR_ARG;
    if (re == NULL) return OK;
    int rc = regcomp(&f->regex, re, REG_EXTENDED | REG_NOSUB);
    if (rc != 0) {
        char why[120];
        regerror(rc, &f->regex, why, sizeof why);
        return err_set(e, ERR_ARG, "--grep \"%.60s\" is no regular expression: %s", re, why);
    }
    f->has_regex = true;
    return OK;
}

void log_filter_release(log_filter *f) {
    if (f->has_regex) regfree(&f->regex);
    f->has_regex = false;
}

/* Takes whole lines out of text, keeps those that pass; gives how many bytes were used. */
static size_t each_line(
    const log_filter *f, const buf *text, void (*fn)(void *, const char *), void *ctx) {
    size_t at = 0;
    while (at < text->len) {
        const char *end = memchr(text->data + at, '\n', text->len - at);
        if (end == NULL) break;
        size_t n = (size_t)(end - text->data) - at;
        char *line = mem_strndup(text->data + at, n);
        if (log_filter_passes(f, line)) fn(ctx, line);
        mem_free(line);
        at += n + 1;
    }
    return at;
}

static void count_line(void *ctx, const char *line) {
    (void)line;
    (*(int64_t *)ctx)++;
}

typedef struct tail {
    const log_filter *filter;
    int64_t skip;
} tail;

static void put_tail(void *ctx, const char *line) {
    tail *t = ctx;
    if (t->skip-- <= 0) log_filter_put(t->filter, NULL, line);
}

/* Appends what is in the file from offset on. A shorter file was rotated: begin at its start. */
static void read_more(int fd, uint64_t *offset, buf *out) {
    off_t size = lseek(fd, 0, SEEK_END);
    if (size >= 0 && (uint64_t)size < *offset) *offset = 0;
    char part[16384];
    ssize_t n;
    while (out->len < READ_MAX_BYTES && (n = pread(fd, part, sizeof part, (off_t)*offset)) > 0) {
        buf_append(out, part, (size_t)n);
        *offset += (uint64_t)n;
    }
}

static void follow(const log_filter *f, int fd, uint64_t offset, buf *text) {
    struct pollfd stop = {.fd = cmd_stop_fd(), .events = POLLIN};
    tail t = {f, 0};
    do {
        read_more(fd, &offset, text);
        buf_consume(text, each_line(f, text, put_tail, &t));
    } while (cmd_finish(EXIT_OK) == EXIT_OK && poll(&stop, 1, FOLLOW_MS) == 0);
}

static int show(const log_filter *f, const char *path, int64_t n_lines, err *e) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        return err_set(
            e, ERR_NOT_FOUND, "there is no log yet; an engine started by tandem writes %s", path);
    }
    if (fd < 0) return err_errno(e, "cannot open %s", path);
    buf text = BUF_MAX(2 * READ_MAX_BYTES);
    off_t size = lseek(fd, 0, SEEK_END);
    uint64_t offset = size > READ_MAX_BYTES ? (uint64_t)(size - READ_MAX_BYTES) : 0;
    read_more(fd, &offset, &text);
    int64_t n = 0;
    each_line(f, &text, count_line, &n);
    tail t = {f, n - n_lines};
    buf_consume(&text, each_line(f, &text, put_tail, &t));
    if (cmd_has(f->args, "follow")) follow(f, fd, offset, &text);
    buf_release(&text);
    close(fd);
    return OK;
}

/* Empties a file of the request log; a running engine goes on writing at its end. */
static int wipe_file(const char *path, uint64_t *bytes, err *e) {
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) return OK;
    if (fd < 0) return err_errno(e, "cannot open %s", path);
    off_t size = lseek(fd, 0, SEEK_END);
    int rc = ftruncate(fd, 0) == 0 ? OK : err_errno(e, "cannot empty %s", path);
    if (rc == OK && size > 0) *bytes += (uint64_t)size;
    close(fd);
    return rc;
}

static int wipe(const cmd_args *a) {
    static const char *const names[] = {"requests.jsonl", "requests.jsonl.1"};
    buf dir = BUF_INIT, path = BUF_INIT;
    err e = ERR_INIT;
    uint64_t bytes = 0;
    int rc = paths_logs(&dir, &e);
    for (size_t i = 0; i < 2 && rc == OK; i++) {
        rc = path_join(&path, buf_cstr(&dir), names[i]);
        if (rc == OK) rc = wipe_file(buf_cstr(&path), &bytes, &e);
    }
    if (rc == OK && cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_ku64(&w, "wiped_bytes", bytes);
        cmd_put_json(&w);
        buf_release(&out);
    } else if (rc == OK) {
        cmd_printf("the log of requests is empty (%llu bytes wiped)\n", (unsigned long long)bytes);
    }
    buf_release(&dir);
    buf_release(&path);
    return rc == OK ? cmd_finish(EXIT_OK) : cmd_fail(&e);
}

int cmd_logs(const cmd_args *a) {
    if (cmd_has(a, "wipe")) return wipe(a);
    log_filter f;
    buf path = BUF_INIT;
    err e = ERR_INIT;
    int64_t n_lines = 0;
    int code = EXIT_OK;
    if (log_filter_make(a, &f, &e) != OK ||
        cmd_int_option(a, "lines", (cmd_range){0, LINES_MAX, LINES_DEFAULT}, &n_lines, &e) != OK) {
        code = cmd_fail_usage(&e);
    } else if (cmd_pair_applies(a)) {
        code = cmd_logs_pair(a, &f, n_lines);
    } else if (str_eq(cmd_value(a, "node"), "worker")) {
        err_set(&e, ERR_NET, CMD_NO_WORKER);
        cmd_fail(&e);
        code = EXIT_NODE_UNREACHABLE;
    } else if (paths_engine_log(&path, &e) != OK || show(&f, buf_cstr(&path), n_lines, &e) != OK) {
        code = cmd_fail(&e);
    }
    log_filter_release(&f);
    buf_release(&path);
    return cmd_finish(code);
}
