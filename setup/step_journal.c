/* What was proven, when, with which inputs: one JSON line each. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/step_internal.h"

enum { JOURNAL_MAX = 64 << 20, HASH_TEXT = 17 };

/* One word of a step's inputs: a setting, the boot of the head, or the build of the program. */
static const char *input_value(flow *f, const char *name) {
    if (str_eq(name, "boot")) return f->boot;
    if (str_eq(name, "build")) return version_build_id();
    return settings_key(name) != NULL ? settings_get(f->s, name) : flow_answer(f, name);
}

static void each_input(const char *names, size_t *at, char out[40]) {
    while (names[*at] == ' ')
        (*at)++;
    size_t n = strcspn(names + *at, " ");
    snprintf(out, 40, "%.*s", (int)n, names + *at);
    *at += n;
}

static void hash_of(const char *value, char out[HASH_TEXT]) {
    uint8_t raw[SHA256_BYTES];
    char hex[SHA256_HEX];
    sha256_of(value, strlen(value), raw);
    sha256_hex(raw, hex);
    str_copy(out, HASH_TEXT, hex);
}

static void write_inputs(flow *f, int i, json_w *w) {
    char name[40], hash[HASH_TEXT];
    json_w_key(w, "inputs");
    json_w_object(w);
    for (size_t at = 0;;) {
        each_input(STEP_RUNS[i].inputs, &at, name);
        if (name[0] == '\0') break;
        hash_of(input_value(f, name), hash);
        json_w_kstr(w, name, hash);
    }
    json_w_close(w);
}

int flow_journal_add(flow *f, int i, const char *word, const char *evidence, err *e) {
    buf line = BUF_INIT;
    json_w w;
    json_w_begin(&w, &line);
    json_w_object(&w);
    json_w_ki64(&w, "v", 1);
    json_w_ku64(&w, "time_ms", clock_wall_ms());
    json_w_kstr(&w, "step", step_info_of(i)->id);
    json_w_kstr(&w, "result", word);
    write_inputs(f, i, &w);
    json_w_kstr(&w, "evidence", evidence);
    json_w_kstr(&w, "build", version_build_id());
    json_w_close(&w);
    int rc = json_w_end(&w);
    if (rc == OK) rc = buf_putc(&line, '\n');
    if (f->lock_fd < 0) { /* only looking: nothing is written */
        buf_release(&line);
        return OK;
    }
    int fd = open(f->journal_path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) rc = err_errno(e, "opening %s", f->journal_path);
    char last = '\n';
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    if (end > 0 && pread(fd, &last, 1, end - 1) != 1) last = '\n';
    if (rc == OK && last != '\n') rc = fd_write_full(fd, "\n", 1, e);
    if (rc == OK) rc = fd_write_full(fd, line.data, line.len, e);
    if (rc == OK && fsync(fd) != 0) rc = err_errno(e, "writing %s", f->journal_path);
    if (fd >= 0) close(fd);
    buf_release(&line);
    return rc;
}

/* The name of the first input that is not what it was, "" when all are. */
static void changed_input(flow *f, int i, const json *inputs, char out[40]) {
    char hash[HASH_TEXT];
    for (size_t at = 0;;) {
        each_input(STEP_RUNS[i].inputs, &at, out);
        if (out[0] == '\0') return;
        hash_of(input_value(f, out), hash);
        if (!str_eq(json_str(json_get(inputs, out)), hash)) return;
    }
}

static void take_line(flow *f, const json *v) {
    const char *id = json_str(json_get(v, "step")), *word = json_str(json_get(v, "result"));
    char changed[40];
    int i = id != NULL ? step_find(id) : -1;
    if (i < 0 || word == NULL) return;
    f->reason[i][0] = '\0';
    if (str_eq(word, "failed")) f->state[i] = STEP_IS_FAILED;
    if (str_eq(word, "begun")) f->state[i] = STEP_IS_OPEN;
    if (!str_eq(word, "proven") && !str_eq(word, "accepted")) return;
    f->is_new = false;
    f->state[i] = str_eq(word, "proven") ? STEP_IS_OK : STEP_IS_WARNED;
    changed_input(f, i, json_get(v, "inputs"), changed);
    if (changed[0] == '\0') return;
    f->state[i] = STEP_IS_STALE;
    snprintf(f->reason[i], sizeof f->reason[i], "%s",
        str_eq(changed, "boot")    ? "the head was restarted since"
        : str_eq(changed, "build") ? "this program was replaced since"
                                   : "");
    if (f->reason[i][0] == '\0')
        snprintf(f->reason[i], sizeof f->reason[i], "%s changed since", changed);
}

int flow_journal_load(flow *f, err *e) {
    buf text = BUF_MAX(JOURNAL_MAX);
    err why = ERR_INIT;
    int rc = file_read(f->journal_path, &text, JOURNAL_MAX, &why);
    f->is_new = true;
    for (int i = 0; i < STEP_COUNT; i++)
        f->state[i] = STEP_IS_OPEN;
    if (rc == ERR_NOT_FOUND) rc = OK;
    if (rc != OK && e != NULL) *e = why;
    for (const char *s = buf_cstr(&text); rc == OK && *s != '\0';) {
        size_t n = strcspn(s, "\n");
        json *v = NULL;
        /* A last line that was cut off by a crash counts for nothing. */
        if (s[n] == '\n' && json_parse(s, n, NULL, &v, NULL) == OK) take_line(f, v);
        json_free(v);
        s += n + (s[n] == '\n');
    }
    buf_release(&text);
    return rc;
}
