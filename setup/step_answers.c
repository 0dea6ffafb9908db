/* Answers to the questions of the steps, and the settings they become. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/step_internal.h"

enum { ANSWERS_MAX = 1 << 20 };

/* Answers that are no settings. */
static const char *const ONLY_ANSWERS[] = {
    "ACCEPT_HOST_KEY", "ACCEPT_WARNINGS", "API_KEY_LABEL", "CONFIRM_ADDRESS", "INSTALL_UNITS"};

static bool is_only_answer(const char *key) {
    for (size_t i = 0; i < sizeof ONLY_ANSWERS / sizeof ONLY_ANSWERS[0]; i++) {
        if (str_eq(key, ONLY_ANSWERS[i])) return true;
    }
    return false;
}

static const char *kept_value(const flow *f, const char *key) {
    for (size_t i = 0; i < f->n_answers; i++) {
        if (str_eq(f->answers[i].key, key)) return f->answers[i].value;
    }
    return NULL;
}

static void keep(flow *f, const char *key, const char *value) {
    for (size_t i = 0; i < f->n_answers; i++) {
        if (!str_eq(f->answers[i].key, key)) continue;
        mem_free(f->answers[i].value);
        f->answers[i].value = mem_strdup(value);
        return;
    }
    f->answers = mem_realloc(f->answers, (f->n_answers + 1) * sizeof *f->answers);
    f->answers[f->n_answers++] = (flow_kept){mem_strdup(key), mem_strdup(value)};
}

void flow_answers_close(flow *f) {
    for (size_t i = 0; i < f->n_answers; i++) {
        mem_free(f->answers[i].key);
        mem_free(f->answers[i].value);
    }
    mem_free(f->answers);
    f->answers = NULL;
    f->n_answers = 0;
}

/* Words that people type to get out of a question. */
static bool is_steering(const char *value) {
    static const char *const words[] = {"quit", "exit", "q", "back", "b", "help", "?", "yes", "no"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (str_eq_nocase(value, words[i])) return true;
    }
    return false;
}

int flow_answer_check(const char *key, const char *value, err *e) {
    if (strpbrk(value, "\n\r") != NULL) return err_set(e, ERR_FORMAT, "an answer is one line");
    if (str_eq(key, "INSTALL_UNITS") && !str_eq(value, "on") && !str_eq(value, "off"))
        return err_set(e, ERR_ARG, "INSTALL_UNITS must be on or off");
    if (is_only_answer(key)) return OK;
    const setting_key *k = settings_key(key);
    if (k != NULL && k->kind == SETTING_SSH && is_steering(value))
        return err_set(e, ERR_ARG,
            "\"%s\" is taken as a word to this program, not as the name of a machine; if one has this "
            "name, write user@%s",
            value, value);
    if (k == NULL) {
        const char *near = settings_nearest(key);
        return err_set(e, ERR_ARG, "\"%.40s\" is no answer that set-up knows%s%s", key,
            near != NULL ? "; did you mean " : "", near != NULL ? near : "");
    }
    return value[0] == '\0' ? OK : settings_check(k, value, e);
}

static int take(flow *f, const char *key, const char *value, err *e) {
    int rc = flow_answer_check(key, value, e);
    if (rc == OK && !is_only_answer(key))
        rc = settings_set(f->s, key, value, SETTING_COMMAND_LINE, e);
    if (rc == OK) keep(f, key, value);
    return rc;
}

static int save(flow *f, err *e) {
    buf text = BUF_INIT;
    int rc = buf_puts(&text, "# Answers given to tandem setup so far.\n");
    for (size_t i = 0; i < f->n_answers && rc == OK; i++) {
        if (f->answers[i].value[0] != '\0')
            rc = buf_printf(&text, "%s=%s\n", f->answers[i].key, f->answers[i].value);
    }
    if (rc == OK && f->lock_fd >= 0)
        rc = file_write_atomic(f->answers_path, buf_cstr(&text), text.len, 0600, e);
    buf_release(&text);
    return rc;
}

static bool names_key(const char *names, const char *key) {
    size_t n = strlen(key);
    for (const char *s = names; (s = strstr(s, key)) != NULL; s += n) {
        bool is_start = s == names || s[-1] == ' ';
        if (is_start && (s[n] == ' ' || s[n] == '\0')) return true;
    }
    return false;
}

/* What was proven with the answer as it was is proven no more. */
static void make_stale(flow *f, const char *key) {
    for (int i = 0; i < STEP_COUNT; i++) {
        bool is_settled = f->state[i] == STEP_IS_OK || f->state[i] == STEP_IS_WARNED;
        if (!is_settled || !names_key(STEP_RUNS[i].inputs, key)) continue;
        f->state[i] = STEP_IS_STALE;
        snprintf(f->reason[i], sizeof f->reason[i], "%s changed since", key);
    }
}

int flow_answer_set(flow *f, const char *key, const char *value, err *e) {
    char *before = mem_strdup(flow_answer(f, key));
    int rc = take(f, key, value, e);
    if (rc == OK && !str_eq(before, value)) make_stale(f, key);
    mem_free(before);
    return rc == OK ? save(f, e) : rc;
}

static int load(flow *f, const char *path, bool may_be_missing, err *e) {
    buf text = BUF_INIT;
    err why = ERR_INIT;
    int rc = file_read(path, &text, ANSWERS_MAX, &why), line = 0;
    if (rc == ERR_NOT_FOUND && may_be_missing) {
        buf_release(&text);
        return OK;
    }
    if (rc != OK && e != NULL) *e = why;
    for (char *s = text.data; rc == OK && s != NULL && *s != '\0';) {
        size_t n = strcspn(s, "\n");
        bool is_last = s[n] == '\0';
        s[n] = '\0';
        line++;
        if (n > 0 && s[n - 1] == '\r') s[n - 1] = '\0';
        char *equals = strchr(s, '=');
        if (*s != '#' && *s != '\0') {
            if (equals == NULL) {
                rc = err_set(e, ERR_FORMAT, "%s:%d: expected KEY=VALUE", path, line);
                break;
            }
            *equals = '\0';
            rc = take(f, s, equals + 1, e);
            rc = err_add(e, rc, "%s:%d", path, line);
        }
        s += n + (is_last ? 0 : 1);
    }
    buf_release(&text);
    return rc;
}

int flow_answers_open(flow *f, err *e) {
    return load(f, f->answers_path, true, e);
}

int flow_answers_load(flow *f, const char *path, err *e) {
    int rc = load(f, path, false, e);
    return rc == OK ? save(f, e) : rc;
}

/* What is proposed when nothing is set. */
static const char *proposed(flow *f, const char *key) {
    const char *home = getenv("HOME");
    if (str_eq(key, "INSTALL_UNITS")) return "on";
    if (str_eq(key, "WATCH")) return "on";
    if (str_eq(key, "PROFILE")) return "1017-libertai-2.9bpw";
    if (str_eq(key, "HEAD_DATA") && home != NULL && home[0] == '/') {
        snprintf(f->answer, sizeof f->answer, "%s/tandem-data", home);
        return f->answer;
    }
    if (str_eq(key, "WORKER_DATA") && f->worker_home[0] == '/') {
        snprintf(f->answer, sizeof f->answer, "%s/tandem-data", f->worker_home);
        return f->answer;
    }
    return "";
}

const char *flow_answer(flow *f, const char *key) {
    const char *kept = kept_value(f, key);
    if (kept != NULL && kept[0] != '\0') return kept;
    if (settings_key(key) == NULL) return proposed(f, key);
    bool is_chosen = settings_origin(f->s, key) != SETTING_BUILTIN;
    const char *value = settings_get(f->s, key);
    const char *idea = is_chosen ? "" : proposed(f, key);
    return idea[0] != '\0' ? idea : value;
}

/* --- settings --- */

static bool must_write(flow *f, const char *key) {
    if (settings_key(key) == NULL) return false;
    const char *value = flow_answer(f, key);
    return value[0] != '\0' && !str_eq(value, settings_get(f->on_disk, key));
}

void flow_plan_settings(flow *f, int i, setup_plan *p) {
    char what[160], command[800], undo[400];
    for (const step_field *x = step_info_of(i)->fields; x != NULL && x->key != NULL; x++) {
        if (!must_write(f, x->key)) continue;
        const char *before = settings_get(f->on_disk, x->key);
        bool was_set = settings_origin(f->on_disk, x->key) == SETTING_FILE;
        snprintf(what, sizeof what, "keep the %s in the settings file", x->label);
        snprintf(
            command, sizeof command, "tandem config set %s %s", x->key, flow_answer(f, x->key));
        snprintf(undo, sizeof undo, was_set ? "tandem config set %s %s" : "tandem config unset %s",
            x->key, before);
        const plan_action a = {.step = (char *)step_info_of(i)->id,
            .node = (char *)"head",
            .what = what,
            .command = command,
            .undo = undo};
        plan_add(p, &a);
    }
}

int flow_setting_write(flow *f, const char *step, const char *key, const char *value, err *e) {
    bool was_set = settings_origin(f->on_disk, key) == SETTING_FILE;
    char what[200], before[600];
    str_copy(before, sizeof before, settings_get(f->on_disk, key));
    if (was_set && str_eq(before, value)) return OK;
    snprintf(what, sizeof what, "%s in the settings file", key);
    undo_entry x = {.kind = UNDO_SETTING,
        .step = (char *)step,
        .what = what,
        .path = f->settings_path,
        .text = (char *)key,
        .before = was_set ? before : NULL};
    undo_digest(value, strlen(value), x.digest);
    int rc = flow_undo_add(f, &x, e);
    flow_say(f, "head: tandem config set %s %s", key, value);
    if (rc == OK) rc = settings_file_set(f->settings_path, key, value, e);
    if (rc == OK) rc = settings_set(f->s, key, value, SETTING_FILE, e);
    if (rc == OK) rc = settings_set(f->on_disk, key, value, SETTING_FILE, e);
    /* From now on the file has the word, so that a later change of it counts. */
    if (rc == OK) keep(f, key, "");
    return rc == OK ? save(f, e) : rc;
}

int flow_apply_settings(flow *f, int i, err *e) {
    int rc = OK;
    char value[600];
    for (const step_field *x = step_info_of(i)->fields; rc == OK && x != NULL && x->key != NULL;
         x++) {
        if (!must_write(f, x->key)) continue;
        str_copy(value, sizeof value, flow_answer(f, x->key));
        rc = flow_setting_write(f, step_info_of(i)->id, x->key, value, e);
    }
    return rc;
}
