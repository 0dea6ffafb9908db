/* The thread that runs the flow, and what it and the screen hand to each other. */
#include "tui/wizard.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/width.h"

enum { RATE_MS = 1000 }; /* between two samples of the plot */

static void wake(wizard *w) {
    ssize_t n = write(w->wake[1], "w", 1);
    (void)n; /* a full pipe wakes as well */
}

/* --- called on the flow's thread --- */

static void add_line(void *ctx, const char *text) {
    wizard *w = ctx;
    buf clean = BUF_INIT;
    width_cleaner c;
    /* What tools and the other machine print is not to be trusted with a terminal. */
    width_cleaner_reset(&c);
    if (width_clean(&c, text, strlen(text), &clean) == OK) (void)width_clean_end(&c, &clean);
    pthread_mutex_lock(&w->lock);
    str_copy(w->lines[w->n_lines % WIZARD_LINES], WIZARD_LINE_BYTES, buf_cstr(&clean));
    w->n_lines++;
    pthread_mutex_unlock(&w->lock);
    buf_release(&clean);
    wake(w);
}

static void take_progress(void *ctx, const flow_progress *p) {
    wizard *w = ctx;
    pthread_mutex_lock(&w->lock);
    w->progress = *p;
    uint64_t now = clock_mono_ms();
    bool is_due = now >= w->rate_due_ms;
    if (is_due && w->n_rates == WIZARD_RATES) {
        memmove(w->rates, w->rates + 1, sizeof w->rates - sizeof w->rates[0]);
        w->n_rates--;
    }
    if (is_due) {
        w->rates[w->n_rates++] = (float)p->rate;
        w->rate_due_ms = now + RATE_MS;
    }
    w->has_progress = true;
    pthread_mutex_unlock(&w->lock);
    wake(w);
}

static void take_row(void *ctx, const step_row *r) {
    char line[WIZARD_LINE_BYTES];
    snprintf(line, sizeof line, "%-7s %.360s", check_status_name(r->status), r->fact);
    add_line(ctx, line);
}

/* Waits for the person; false when refused or closing. */
static bool ask(wizard *w, const char *question, bool is_secret, char *out, size_t cap) {
    pthread_mutex_lock(&w->lock);
    str_copy(w->question, sizeof w->question, question);
    w->is_secret = is_secret;
    w->is_answered = w->is_refused = false;
    pthread_mutex_unlock(&w->lock);
    wake(w);
    pthread_mutex_lock(&w->lock);
    while (!w->is_answered && !w->is_closing && !atomic_load(&w->stop))
        pthread_cond_wait(&w->turn, &w->lock);
    bool is_given = w->is_answered && !w->is_refused;
    if (is_given) str_copy(out, cap, w->answer);
    explicit_bzero(w->answer, sizeof w->answer);
    explicit_bzero(w->question, sizeof w->question);
    pthread_mutex_unlock(&w->lock);
    wake(w);
    return is_given;
}

static bool ask_host_key(void *ctx, const remote_host_key *key) {
    char question[WIZARD_QUESTION_BYTES], answer[SSH_SECRET_MAX] = "";
    snprintf(question, sizeof question,
        "%s port %d is not known yet. It shows the %s key\n%s\n%s"
        "Read it on that machine's own screen and compare:\n"
        "  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n"
        "Type the last 6 characters of the fingerprint, or accept:",
        key->host, key->port, key->type, key->fingerprint, key->picture);
    return ask(ctx, question, false, answer, sizeof answer) &&
           remote_key_confirmed(key->fingerprint, answer);
}

static bool ask_secret(void *ctx, const char *prompt, ssh_secret *out) {
    char question[400], answer[SSH_SECRET_MAX] = "";
    snprintf(question, sizeof question, "%.390s:", prompt);
    bool is_given = ask(ctx, question, true, answer, sizeof answer) &&
                    ssh_secret_set(out, answer, strlen(answer)) == OK;
    explicit_bzero(answer, sizeof answer);
    return is_given;
}

static bool ask_typed(void *ctx, const char *prompt, char *out, size_t cap) {
    return ask(ctx, prompt, false, out, cap);
}

/* On the alternate screen, so that the terminal's scrollback does not keep it. */
static bool show_once(void *ctx, const char *what, const char *text) {
    char question[WIZARD_QUESTION_BYTES], answer[SSH_SECRET_MAX] = "";
    snprintf(question, sizeof question, "%s\n\n%s\n\nKeep it now; Enter goes on.", what, text);
    bool is_seen = ask(ctx, question, false, answer, sizeof answer);
    explicit_bzero(question, sizeof question);
    return is_seen;
}

static void run_phase(wizard *w) {
    err e = ERR_INIT;
    switch (w->phase) {
    case WIZARD_INSPECT:
        (void)flow_inspect(w->f, w->i_phase_step, &w->view, &e);
        break;
    case WIZARD_APPLY:
        (void)flow_apply(w->f, w->i_phase_step, &w->view, &e);
        break;
    default:
        (void)flow_accept(w->f, w->i_phase_step, &w->view, &e);
        break;
    }
}

static void *run(void *ctx) {
    wizard *w = ctx;
    pthread_mutex_lock(&w->lock);
    while (!w->is_closing) {
        if (!w->is_busy) {
            pthread_cond_wait(&w->turn, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        run_phase(w);
        pthread_mutex_lock(&w->lock);
        w->is_busy = false;
        w->has_progress = false;
        w->has_view = true;
        wake(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* --- the screen's side --- */

static const flow_talk *talk_of(wizard *w) {
    static flow_talk talk; /* one screen a process */
    talk = (flow_talk){
        w, add_line, take_progress, take_row, ask_host_key, ask_secret, ask_typed, show_once};
    return &talk;
}

wizard *wizard_new(const char *head_root, const char *worker_root) {
    wizard *w = mem_alloc(sizeof *w);
    ssize_t n = readlink("/proc/self/exe", w->program, sizeof w->program - 1);
    if (n > 0) w->program[n] = '\0';
    if (head_root != NULL) str_copy(w->head_root, sizeof w->head_root, head_root);
    if (worker_root != NULL) str_copy(w->worker_root, sizeof w->worker_root, worker_root);
    w->wake[0] = w->wake[1] = -1;
    if (pipe2(w->wake, O_CLOEXEC | O_NONBLOCK) != 0) err_errno(&w->problem, "a pipe");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->turn, NULL);
    step_view_init(&w->view);
    return w;
}

void wizard_free(wizard *w) {
    if (w == NULL) return;
    atomic_store(&w->leave, true);
    atomic_store(&w->stop, true);
    pthread_mutex_lock(&w->lock);
    w->is_closing = true;
    pthread_cond_broadcast(&w->turn);
    pthread_mutex_unlock(&w->lock);
    if (w->is_thread_up) pthread_join(w->thread, NULL);
    flow_free(w->f);
    step_view_release(&w->view);
    if (w->wake[0] >= 0) close(w->wake[0]);
    if (w->wake[1] >= 0) close(w->wake[1]);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->turn);
    explicit_bzero(w->typed, sizeof w->typed);
    explicit_bzero(w->answer, sizeof w->answer);
    mem_free(w);
}

int wizard_fd(const wizard *w) {
    return w->wake[0];
}

bool wizard_is_busy(wizard *w) {
    pthread_mutex_lock(&w->lock);
    bool is = w->is_busy;
    pthread_mutex_unlock(&w->lock);
    return is;
}

bool wizard_has_question(wizard *w) {
    pthread_mutex_lock(&w->lock);
    bool has = w->question[0] != '\0' && !w->is_answered;
    pthread_mutex_unlock(&w->lock);
    return has;
}

static void take_states(wizard *w) {
    for (int i = 0; i < STEP_COUNT; i++)
        w->states[i] = flow_state(w->f, i);
}

static void focus_best(wizard *w) {
    static const wizard_button order[] = {BUTTON_APPLY, BUTTON_GO_ON, BUTTON_NEXT, BUTTON_AGAIN};
    for (int k = 0; k < w->n_fields; k++) {
        if (w->fields[k][0] == '\0') {
            w->focus = k;
            return;
        }
    }
    for (size_t o = 0; o < sizeof order / sizeof order[0]; o++) {
        for (int i = 0; i < w->n_buttons; i++) {
            if (w->buttons[i] == order[o]) {
                w->focus = w->n_fields + i;
                return;
            }
        }
    }
}

bool wizard_pump(wizard *w) {
    char bytes[256];
    bool is_new = false;
    while (read(w->wake[0], bytes, sizeof bytes) > 0)
        is_new = true;
    if (!is_new || w->f == NULL) return is_new;
    if (!wizard_is_busy(w)) {
        take_states(w);
        wizard_buttons(w);
        focus_best(w);
    } else {
        wizard_buttons(w);
    }
    return true;
}

void wizard_start(wizard *w, wizard_phase phase) {
    if (w->f == NULL || wizard_is_busy(w)) return;
    atomic_store(&w->stop, false);
    atomic_store(&w->leave, false);
    w->top = 0;
    pthread_mutex_lock(&w->lock);
    w->phase = phase;
    w->i_phase_step = w->i_step;
    w->n_lines = 0;
    w->has_progress = false;
    w->n_rates = 0;
    w->is_busy = true;
    pthread_cond_broadcast(&w->turn);
    pthread_mutex_unlock(&w->lock);
    wizard_buttons(w);
    w->focus = w->n_fields;
}

void wizard_stop(wizard *w, bool goes_on) {
    atomic_store(&w->leave, goes_on);
    atomic_store(&w->stop, true);
    pthread_mutex_lock(&w->lock);
    pthread_cond_broadcast(&w->turn);
    pthread_mutex_unlock(&w->lock);
}

void wizard_answer(wizard *w, const char *text, bool is_refused) {
    pthread_mutex_lock(&w->lock);
    str_copy(w->answer, sizeof w->answer, text);
    w->is_answered = true;
    w->is_refused = is_refused;
    pthread_cond_broadcast(&w->turn);
    pthread_mutex_unlock(&w->lock);
    explicit_bzero(w->typed, sizeof w->typed);
}

/* Every required field has a usable value, so that looking makes sense. */
static bool can_inspect(wizard *w) {
    const step_field *x = step_info_of(w->i_step)->fields;
    for (int k = 0; k < w->n_fields; k++) {
        if (x[k].is_required && w->fields[k][0] == '\0') return false;
    }
    return true;
}

void wizard_go(wizard *w, int i_step) {
    const step_field *x = step_info_of(i_step)->fields;
    w->i_step = i_step;
    w->n_fields = 0;
    w->top = 0;
    w->has_view = false;
    step_view_release(&w->view);
    for (int k = 0; x != NULL && x[k].key != NULL && k < WIZARD_FIELDS; k++) {
        str_copy(w->fields[k], sizeof w->fields[k], flow_answer(w->f, x[k].key));
        w->field_error[k][0] = '\0';
        w->n_fields = k + 1;
    }
    wizard_buttons(w);
    focus_best(w);
    bool is_waiting = flow_state(w->f, i_step) == STEP_IS_WAITING;
    if (is_waiting || can_inspect(w) || i_step == STEP_FIND) wizard_start(w, WIZARD_INSPECT);
}

bool wizard_take_fields(wizard *w) {
    const step_field *x = step_info_of(w->i_step)->fields;
    bool is_fine = true;
    for (int k = 0; k < w->n_fields; k++) {
        err e = ERR_INIT;
        w->field_error[k][0] = '\0';
        if (w->fields[k][0] == '\0' && x[k].is_required) {
            str_copy(w->field_error[k], sizeof w->field_error[k], "an answer is needed");
            is_fine = false;
        } else if (flow_answer_set(w->f, x[k].key, w->fields[k], &e) != OK) {
            str_copy(w->field_error[k], sizeof w->field_error[k], e.msg);
            is_fine = false;
        }
    }
    return is_fine;
}

void wizard_enter(wizard *w) {
    if (w->f != NULL) return;
    w->problem = (err)ERR_INIT;
    w->options = (flow_options){.program = w->program,
        .head_root = w->head_root[0] != '\0' ? w->head_root : NULL,
        .worker_root = w->worker_root[0] != '\0' ? w->worker_root : NULL,
        .talk = talk_of(w),
        .stop = &w->stop,
        .leave = &w->leave};
    if (flow_new(&w->options, &w->f, &w->problem) != OK) return;
    if (!w->is_thread_up && pthread_create(&w->thread, NULL, run, w) != 0) {
        err_set(&w->problem, ERR_MEMORY, "no thread could be started");
        flow_free(w->f);
        w->f = NULL;
        return;
    }
    w->is_thread_up = true;
    take_states(w);
    wizard_go(w, flow_first_open(w->f));
}

/* --- buttons --- */

static bool is_settled(const wizard *w) {
    step_state s = w->states[w->i_step];
    return s == STEP_IS_OK || s == STEP_IS_WARNED;
}

static void add_button(wizard *w, wizard_button b) {
    w->buttons[w->n_buttons++] = b;
}

static bool is_job_step(int i) {
    return i == STEP_DOWNLOAD || i == STEP_COPY || i == STEP_PREPARE;
}

void wizard_buttons(wizard *w) {
    w->n_buttons = 0;
    if (wizard_is_busy(w)) {
        add_button(w, BUTTON_STOP);
        if (w->phase == WIZARD_APPLY && is_job_step(w->i_step)) add_button(w, BUTTON_LEAVE);
        return;
    }
    const step_view *v = &w->view;
    bool is_failed = v->worst == CHECK_STATUS_FAIL ||
                     (v->message.what[0] != '\0' && v->n_rows == 0 && v->plan.n == 0);
    bool is_doubtful = v->worst == CHECK_STATUS_WARN || v->worst == CHECK_STATUS_UNKNOWN;
    if (w->i_step > 0) add_button(w, BUTTON_BACK);
    add_button(w, BUTTON_AGAIN);
    if (v->plan.n > 0 && !is_failed) add_button(w, BUTTON_APPLY);
    if (v->plan.n == 0 && v->is_done && is_doubtful && !is_settled(w)) add_button(w, BUTTON_GO_ON);
    if (v->plan.n > 0) add_button(w, BUTTON_COMMANDS);
    if (is_settled(w)) add_button(w, BUTTON_NEXT);
    if (w->focus >= w->n_fields + w->n_buttons) w->focus = w->n_fields + w->n_buttons - 1;
}

const char *wizard_button_name(const wizard *w, wizard_button b) {
    static const char *const names[N_BUTTONS] = {
        "Back", "Again", "", "Go on with warnings", "Commands", "Next", "Stop", "Leave it running"};
    if (b == BUTTON_APPLY) return step_info_of(w->i_step)->button;
    if (b == BUTTON_NEXT && w->i_step == STEP_SUMMARY) return "Chat";
    return names[b];
}
