/* Two machines from the full screen: `tandem start`, `stop` and `restart` in a process of its own,
 * which holds the pair's lock, goes on when the screen is left, and leaves its words in a log. The
 * screen shows the newest of them; whether the engine is there its socket says. */
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/paths.h"
#include "tui/app_internal.h"
#include "tui/launch_process.h"
#include "tui/width.h"

enum { LOOK_MS = 200, WORDS_MAX = 1 << 16 };

struct app_pair {
    launch_process process;
    char verb[12];
    char path[PATH_MAX]; /* of the log */
    char line[256];      /* its newest line */
    bool is_error;       /* that line is one of complaint */
    uint64_t due_ms;
};

static int find_self(char self[PATH_MAX], err *e) {
    ssize_t n = readlink("/proc/self/exe", self, PATH_MAX - 1);
    if (n <= 0) return err_errno(e, "finding this program");
    self[n] = '\0';
    return OK;
}

/* The log of one run: the words of the run before are gone. */
static int make_log(app_pair *p, err *e) {
    buf dir = BUF_INIT;
    int rc = paths_logs(&dir, e);
    if (rc == OK) rc = paths_make_private(buf_cstr(&dir), e);
    if (rc == OK) rc = buf_printf(&dir, "/screen-%s.log", p->verb);
    if (rc == OK && dir.len >= sizeof p->path) rc = err_set(e, ERR_LIMIT, "the log's path is long");
    if (rc == OK) {
        str_copy(p->path, sizeof p->path, buf_cstr(&dir));
        int fd = open(p->path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0) rc = err_errno(e, "making %s", p->path);
        if (fd >= 0) close(fd);
    }
    buf_release(&dir);
    return rc;
}

bool app_pair_run(app *a, const char *verb) {
    char self[PATH_MAX];
    err e = ERR_INIT;
    if (a->pair != NULL) {
        app_hint(a, "tandem %s is at work; its log is %s", a->pair->verb, a->pair->path);
        return false;
    }
    app_pair *p = mem_alloc(sizeof *p);
    p->process = (launch_process){.pidfd = -1};
    str_copy(p->verb, sizeof p->verb, verb);
    const char *argv[] = {self, verb, NULL};
    int rc = find_self(self, &e);
    if (rc == OK) rc = make_log(p, &e);
    if (rc == OK) rc = launch_process_start(&p->process, argv, p->path, &e);
    if (rc != OK) {
        app_hint(a, "%s", e.msg);
        mem_free(p);
        return false;
    }
    a->pair = p;
    app_hint(a, "tandem %s works on both machines; it goes on when you leave", verb);
    return true;
}

void app_pair_close(app *a) {
    if (a->pair == NULL) return;
    launch_process_release(&a->pair->process);
    mem_free(a->pair);
    a->pair = NULL;
}

bool app_pair_is_at_work(const app *a) {
    return a->pair != NULL;
}

/* The newest whole line; true when it is another one. */
static bool read_line(app_pair *p) {
    buf text = BUF_MAX(WORDS_MAX), clean = BUF_INIT;
    char before[sizeof p->line];
    width_cleaner c;
    str_copy(before, sizeof before, p->line);
    if (file_read(p->path, &text, WORDS_MAX, NULL) == OK) {
        size_t end = text.len;
        while (end > 0 && text.data[end - 1] != '\n')
            end--;
        size_t from = end > 0 ? end - 1 : 0;
        while (from > 0 && text.data[from - 1] != '\n')
            from--;
        size_t n = end > from ? end - 1 - from : 0;
        const char *line = buf_cstr(&text) + from;
        p->is_error = n > 8 && memcmp(line, "tandem: ", 8) == 0;
        if (p->is_error) {
            line += 8;
            n -= 8;
        }
        width_cleaner_reset(&c);
        width_clean(&c, line, n, &clean);
        width_clean_end(&c, &clean);
        const char *shown = buf_cstr(&clean);
        str_copy(p->line, sizeof p->line, shown + strspn(shown, " "));
    }
    buf_release(&text);
    buf_release(&clean);
    return !str_eq(before, p->line);
}

/* The process has ended: its last word counts where the engine does not answer. */
static void end(app *a) {
    app_pair *p = a->pair;
    bool is_stop = str_eq(p->verb, "stop");
    (void)read_line(p);
    str_copy(a->pair_word, sizeof a->pair_word, p->is_error && !is_stop ? p->line : "");
    if (p->line[0] != '\0') app_hint(a, "%s", p->line);
    app_pair_close(a);
    app_start_engine(a, false);
}

void app_pair_step(app *a) {
    app_pair *p = a->pair;
    if (p == NULL || a->now_ms < p->due_ms) return;
    p->due_ms = a->now_ms + LOOK_MS;
    if (launch_process_ended(&p->process)) {
        end(a);
        return;
    }
    bool is_stop = str_eq(p->verb, "stop");
    engine_state s = a->gauges.state, shown = is_stop ? ENGINE_DRAINING : ENGINE_STARTING;
    bool is_up = s == ENGINE_READY || s == ENGINE_DRAINING;
    if (!read_line(p) && s == shown) return;
    /* While the old engine of a restart still answers, it is what is seen. */
    if (is_stop ? s != ENGINE_ABSENT : !is_up)
        gauges_set_state(&a->gauges, shown, p->line, a->now_ms);
    a->is_dirty = true;
}
