/* tandem setup: the guided set-up on a screen, line by line, as a plan, or without questions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/str.h"
#include "setup/step.h"
#include "tui/cmd_setup_talk.h"

enum { ANSWER_MAX = 600 };

typedef struct running {
    const cmd_args *a;
    flow *f;
    bool is_json, is_batch;
    bool is_back;               /* the person wants the question before */
    const setup_plan *accepted; /* batch: what --plan named */
} running;

static flow_options options_of(const cmd_args *a, const flow_talk *talk, const char *program) {
    return (flow_options){.program = program,
        .head_root = cmd_value(a, "head-root"),
        .worker_root = cmd_value(a, "worker-root"),
        .talk = talk,
        .stop = cmd_stop_flag()};
}

/* --- showing --- */

/* What to do is written for the button of the screen; here there is a command to type. */
static void put_advice(const char *label, const char *text) {
    static const char *const buttons[] = {"press Again", "Press Again"};
    static const char *const typed[] = {"type tandem setup again", "Type tandem setup again"};
    buf out = BUF_INIT;
    for (const char *s = text; *s != '\0';) {
        size_t n = strlen(buttons[0]);
        int k = str_starts(s, buttons[0]) ? 0 : str_starts(s, buttons[1]) ? 1 : -1;
        if (k >= 0) {
            buf_puts(&out, typed[k]);
            s += n;
        } else {
            buf_putc(&out, *s++);
        }
    }
    setup_put_line(label, buf_cstr(&out));
    buf_release(&out);
}

static void put_message(const step_message *m) {
    setup_put_line("  what: ", m->what);
    setup_put_line("  why:  ", m->why);
    put_advice("  next: ", m->next);
}

static void put_rows(const step_view *v) {
    for (int i = 0; i < v->n_rows; i++) {
        const step_row *r = &v->rows[i];
        char label[100];
        bool is_fine = r->status == CHECK_STATUS_PASS || r->status == CHECK_STATUS_SKIP;
        snprintf(label, sizeof label, "  %-7s %-24s ", check_status_name(r->status), r->label);
        setup_put_line(label, r->fact);
        if (is_fine) continue;
        setup_put_line("            why:  ", r->reason);
        put_advice("            next: ", r->remedy);
    }
}

static void put_plan(const setup_plan *p) {
    buf text = BUF_INIT;
    if (plan_print(p, &text) == OK) cmd_put_text(buf_cstr(&text), text.len);
    buf_release(&text);
}

static void put_view_json(int i, const char *phase, const step_view *v, step_state s) {
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_kstr(&w, "step", step_info_of(i)->id);
    json_w_ki64(&w, "number", i);
    json_w_kstr(&w, "phase", phase);
    json_w_kstr(&w, "state", step_state_mark(s));
    json_w_kbool(&w, "done", v->is_done);
    json_w_kstr(&w, "summary", v->summary);
    json_w_key(&w, "rows");
    json_w_array(&w);
    for (int k = 0; k < v->n_rows; k++) {
        const step_row *r = &v->rows[k];
        json_w_object(&w);
        json_w_kstr(&w, "label", r->label);
        json_w_kstr(&w, "status", check_status_name(r->status));
        json_w_kstr(&w, "fact", r->fact);
        json_w_kstr(&w, "reason", r->reason);
        json_w_kstr(&w, "remedy", r->remedy);
        json_w_close(&w);
    }
    json_w_close(&w);
    json_w_key(&w, "plan");
    plan_json(&v->plan, &w);
    if (v->message.what[0] != '\0') {
        json_w_key(&w, "message");
        json_w_object(&w);
        json_w_kstr(&w, "what", v->message.what);
        json_w_kstr(&w, "why", v->message.why);
        json_w_kstr(&w, "next", v->message.next);
        json_w_close(&w);
    }
    cmd_put_json(&w);
    cmd_flush();
    buf_release(&out);
}

static void show(const running *r, int i, const char *phase, const step_view *v) {
    step_state s = flow_state(r->f, i);
    if (r->is_json) {
        put_view_json(i, phase, v, s);
        return;
    }
    put_rows(v);
    if (v->summary[0] != '\0') setup_put_line("  ", v->summary);
    put_message(&v->message);
    cmd_flush();
}

/* The command line that looks at this plan again, or with words carries it out: with the same answers
 * and trees, quoted where a shell needs it. */
static void put_again(const cmd_args *a, const char *words, buf *out) {
    static const char *const options[] = {"answers", "head-root", "worker-root"};
    buf_printf(out, "tandem setup %s", words);
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        const char *value = cmd_value(a, options[i]);
        if (value == NULL) continue;
        const char *argv[] = {value, NULL};
        const node_command k = {.argv = argv};
        buf_printf(out, " --%s ", options[i]);
        node_command_text(&k, false, out);
    }
}

/* --- asking --- */

/* The words that leave a question. */
static int leave(running *r, setup_word w, err *e) {
    r->is_back = w == SETUP_BACK;
    return err_set(e, ERR_CANCELLED, "%s",
        w == SETUP_ENDED ? "the input ended; your answers are kept" : "your answers are kept");
}

static int ask_field(running *r, const step_field *x, err *e) {
    char answer[ANSWER_MAX], prompt[ANSWER_MAX + 200], now[ANSWER_MAX];
    for (int tries = 0; tries < 5; tries++) {
        err why = ERR_INIT;
        str_copy(now, sizeof now, flow_answer(r->f, x->key));
        snprintf(prompt, sizeof prompt, "%s%s%s%s [%s]: ", x->label, x->choices != NULL ? " (" : "",
            x->choices != NULL ? x->choices : "", x->choices != NULL ? ")" : "", now);
        setup_word w = setup_ask(prompt, answer, sizeof answer);
        if (w == SETUP_WHY) {
            setup_put_line("  ", x->why);
            tries--;
            continue;
        }
        if (w != SETUP_ANSWER) return leave(r, w, e);
        const char *value = answer[0] != '\0' ? answer : now;
        if (value[0] == '\0' && x->is_required) {
            cmd_note("an answer is needed; quit leaves");
        } else if (flow_answer_set(r->f, x->key, value, &why) == OK) {
            return OK;
        } else {
            cmd_note("%s", why.msg);
        }
    }
    return err_set(e, ERR_ARG, "%s has no usable answer", x->key);
}

/* One after the other; back goes to the one before, from the first one out of the step. */
static int ask_fields(running *r, int i, err *e) {
    const step_field *x = step_info_of(i)->fields;
    int n = 0, at = 0;
    while (x != NULL && x[n].key != NULL)
        n++;
    while (at < n) {
        int rc = ask_field(r, &x[at], e);
        bool goes_back = rc == ERR_CANCELLED && r->is_back && at > 0;
        if (rc != OK && !goes_back) return rc;
        r->is_back = false;
        at += goes_back ? -1 : 1;
    }
    return OK;
}

/* --- one step --- */

static int refuse_unknown(const running *r, const step_view *v, err *e) {
    buf again = BUF_INIT;
    int rc = OK;
    put_again(r->a, "--dry-run", &again);
    for (size_t k = 0; k < v->plan.n && rc == OK; k++) {
        if (!plan_holds(r->accepted, &v->plan.actions[k]))
            rc = err_set(e, ERR_MISMATCH,
                "the plan did not show this yet: %.200s; look at the rest with `%s`, then give its "
                "id to --plan",
                v->plan.actions[k].what, buf_cstr(&again));
    }
    buf_release(&again);
    return rc;
}

static int agree(running *r, int i, const step_view *v, err *e) {
    if (v->plan.n == 0) return OK;
    if (r->is_batch) return refuse_unknown(r, v, e);
    cmd_puts("  This will be changed:\n");
    put_plan(&v->plan);
    char question[120];
    snprintf(question, sizeof question, "%s? [yes/no/back/quit] ", step_info_of(i)->button);
    setup_word w = setup_agree(question, step_info_of(i)->about);
    if (w == SETUP_ANSWER) return OK;
    r->is_back = w == SETUP_BACK;
    return err_set(e, ERR_CANCELLED, "nothing was changed; tandem setup goes on here");
}

static bool accepts_warnings(running *r, int i, const step_view *v) {
    err e = ERR_INIT;
    bool is_yes = str_eq_nocase(flow_answer(r->f, "ACCEPT_WARNINGS"), "yes");
    if (!r->is_batch) {
        setup_word w = setup_agree("There are warnings. Go on with them? [yes/no/back/quit] ",
            "A warning does not stop the pair, but each line above says what it may cost.");
        is_yes = w == SETUP_ANSWER;
        r->is_back = w == SETUP_BACK;
    }
    return is_yes && flow_accept(r->f, i, v, &e) == OK;
}

/* OK: proven or accepted. */
static int judge(running *r, int i, const step_view *v, int *code, err *e) {
    step_state s = flow_state(r->f, i);
    if (s == STEP_IS_OK || s == STEP_IS_WARNED) return OK;
    if (v->worst != CHECK_STATUS_FAIL && !v->is_done) {
        *code = EXIT_REFUSED;
        return err_set(e, ERR_ARG, "step %d, %s, is not done: %.300s", i, step_info_of(i)->title,
            v->summary[0] != '\0' ? v->summary : "an answer is missing");
    }
    *code = v->worst == CHECK_STATUS_FAIL ? EXIT_REFUSED : EXIT_WARNINGS;
    if (v->worst != CHECK_STATUS_FAIL && v->is_done && accepts_warnings(r, i, v)) return OK;
    if (v->worst == CHECK_STATUS_FAIL)
        return err_set(
            e, ERR_IO, "step %d, %s: %.400s", i, step_info_of(i)->title, v->message.what);
    return err_set(e, ERR_IO, "step %d, %s, has warnings that were not accepted%s", i,
        step_info_of(i)->title, r->is_batch ? " (ACCEPT_WARNINGS=yes accepts them)" : "");
}

/* What was shown with its reason and advice is not said a second time at the end. */
static int say_once(const running *r, int i, const step_view *v, int rc, err *e) {
    char begin[100];
    str_copy(begin, sizeof begin, v->message.what);
    if (r->is_json || begin[0] == '\0' || strstr(e->msg, begin) == NULL) return rc;
    return err_set(e, rc, "step %d, %s, is not done", i, step_info_of(i)->title);
}

static int run_step(running *r, int i, int *code, err *e) {
    step_view v;
    step_view_init(&v);
    if (!r->is_json) {
        cmd_printf("Step %d of %d: %s\n", i, STEP_LAST, step_info_of(i)->title);
        setup_put_line("  ", step_info_of(i)->about);
    }
    int rc = r->is_batch ? OK : ask_fields(r, i, e);
    bool is_asked = rc == OK;
    if (rc == OK) rc = flow_inspect(r->f, i, &v, e);
    if (is_asked) show(r, i, "inspect", &v);
    bool must_apply = rc == OK && v.worst != CHECK_STATUS_FAIL && v.plan.n > 0;
    if (must_apply) rc = agree(r, i, &v, e);
    if (must_apply && rc == OK) {
        rc = flow_apply(r->f, i, &v, e);
        show(r, i, "prove", &v);
    }
    if (rc == OK) rc = judge(r, i, &v, code, e);
    if (rc != OK && *code == EXIT_OK)
        *code = rc == ERR_CANCELLED ? EXIT_ENDED_BY_USER : EXIT_REFUSED;
    if (rc != OK) rc = say_once(r, i, &v, rc, e);
    step_view_release(&v);
    return rc;
}

static bool is_settled(const flow *f, int i) {
    step_state s = flow_state(f, i);
    return s == STEP_IS_OK || s == STEP_IS_WARNED;
}

/* The nearest step before i that asks something; -1: none. */
static int asking_before(int i) {
    while (--i >= 0) {
        if (step_info_of(i)->fields != NULL) return i;
    }
    return -1;
}

static int run_steps(running *r, err *e) {
    bool is_wanted = false; /* also when it is settled: the person went back to it */
    for (int i = 0; i < STEP_COUNT; i++) {
        int code = EXIT_OK;
        if (is_settled(r->f, i) && !is_wanted) continue;
        int rc = run_step(r, i, &code, e);
        is_wanted = rc != OK && r->is_back;
        if (is_wanted) {
            int before = asking_before(i);
            r->is_back = false;
            if (before < 0) cmd_note("nothing was asked before this");
            i = (before < 0 ? i : before) - 1;
            continue;
        }
        if (rc == ERR_NET) return EXIT_NODE_UNREACHABLE;
        if (rc != OK) return code;
    }
    return EXIT_OK;
}

/* --- the ways to run it --- */

static int load_answers(const cmd_args *a, flow *f, err *e) {
    const char *path = cmd_value(a, "answers");
    return path != NULL ? flow_answers_load(f, path, e) : OK;
}

typedef struct whole_plan {
    setup_plan plan;
    char id[PLAN_ID_BYTES];
    int i_unanswered; /* the step that cannot go on without an answer; -1: none */
} whole_plan;

static int unanswered_step(flow *f) {
    for (int i = 0; i < STEP_COUNT; i++) {
        step_state s = flow_state(f, i);
        bool is_next = s != STEP_IS_WAITING && s != STEP_IS_OK && s != STEP_IS_WARNED;
        if (is_next && flow_unanswered(f, i) != NULL) return i;
    }
    return -1;
}

/* The whole plan without a change. */
static int make_plan(const cmd_args *a, const char *program, whole_plan *w, err *e) {
    flow *f = NULL;
    const flow_options o = options_of(a, NULL, program);
    plan_init(&w->plan);
    int rc = flow_look(&o, &f, e);
    if (rc == OK) rc = load_answers(a, f, e);
    if (rc == OK) rc = flow_plan_all(f, &w->plan, e);
    if (rc == OK) w->i_unanswered = unanswered_step(f);
    plan_id(&w->plan, w->id);
    flow_free(f);
    return rc;
}

static void put_end(const cmd_args *a, const whole_plan *w) {
    buf again = BUF_INIT;
    char words[40];
    cmd_printf("\nplan %s; nothing was changed. ", w->id);
    if (w->i_unanswered >= 0) {
        cmd_printf("It ends at step %d, which needs an answer: write KEY=VALUE to a file, one a "
                   "line, and look again with:\n  tandem setup --dry-run --answers FILE\n",
            w->i_unanswered);
        return;
    }
    snprintf(words, sizeof words, "--yes --plan %s", w->id);
    put_again(a, words, &again);
    cmd_puts("It is carried out with:\n  ");
    cmd_put_text(buf_cstr(&again), again.len);
    cmd_puts("\n");
    buf_release(&again);
}

static int dry_run(const cmd_args *a, const char *program) {
    whole_plan p = {.i_unanswered = -1};
    err e = ERR_INIT;
    int rc = make_plan(a, program, &p, &e);
    if (rc == OK && cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_kstr(&w, "plan_id", p.id);
        json_w_key(&w, "plan");
        plan_json(&p.plan, &w);
        cmd_put_json(&w);
        buf_release(&out);
    } else if (rc == OK) {
        put_plan(&p.plan);
        put_end(a, &p);
    }
    plan_release(&p.plan);
    return rc == OK ? cmd_finish(EXIT_OK) : cmd_fail(&e);
}

static int batch(const cmd_args *a, const char *program) {
    running r = {.a = a, .is_json = cmd_has(a, "json"), .is_batch = true};
    whole_plan p = {.i_unanswered = -1};
    const char *wanted = cmd_value(a, "plan");
    err e = ERR_INIT;
    int code = EXIT_INTERNAL;
    if (wanted == NULL) {
        err_set(
            &e, ERR_ARG, "--yes needs --plan ID: tandem setup --dry-run shows the plan and its id");
        return cmd_fail_usage(&e);
    }
    int rc = make_plan(a, program, &p, &e);
    r.accepted = &p.plan;
    if (rc == OK && !str_eq(p.id, wanted)) {
        buf again = BUF_INIT;
        put_again(a, "--dry-run", &again);
        rc = err_set(&e, ERR_MISMATCH,
            "the plan is not the one that was shown: it is %s now, not %.40s; look at it with: %s",
            p.id, wanted, buf_cstr(&again));
        buf_release(&again);
    }
    const flow_options o = options_of(a, setup_talk(r.is_json, false), program);
    if (rc == OK) rc = flow_new(&o, &r.f, &e);
    if (rc == OK) rc = load_answers(a, r.f, &e);
    if (rc == OK) code = run_steps(&r, &e);
    if (rc != OK) {
        code = cmd_fail(&e);
    } else if (code != EXIT_OK) {
        cmd_note("%s", e.msg);
    }
    plan_release(&p.plan);
    flow_free(r.f);
    return cmd_finish(code);
}

static int line_by_line(const cmd_args *a, const char *program) {
    running r = {.a = a, .is_json = cmd_has(a, "json")};
    err e = ERR_INIT;
    const flow_options o = options_of(a, setup_talk(r.is_json, true), program);
    int code = EXIT_INTERNAL, rc = flow_new(&o, &r.f, &e);
    if (rc == OK) rc = load_answers(a, r.f, &e);
    if (rc == OK && !r.is_json)
        cmd_puts(
            "At each question: ? says why it is asked, back goes to the one before, quit leaves; "
            "what is done is kept.\n");
    if (rc == OK && !r.is_json && !flow_is_new(r.f))
        cmd_printf("Going on at step %d, %s.\n", flow_first_open(r.f),
            step_info_of(flow_first_open(r.f))->title);
    if (rc == OK) code = run_steps(&r, &e);
    if (rc != OK) {
        code = cmd_fail(&e);
    } else if (code != EXIT_OK) {
        cmd_note("%s", e.msg);
        cmd_note("what is done is kept; tandem setup goes on there");
    } else if (!r.is_json) {
        cmd_puts("Everything is set up. Chat with: tandem chat\n");
    }
    flow_free(r.f);
    return cmd_finish(code);
}

/* Looks at every step that can be looked at and changes nothing. */
static int check_all(const cmd_args *a, const char *program) {
    running r = {.a = a, .is_json = cmd_has(a, "json")};
    err e = ERR_INIT;
    check_status worst = CHECK_STATUS_PASS;
    const flow_options o = options_of(a, NULL, program);
    int rc = flow_look(&o, &r.f, &e);
    if (rc == OK) rc = load_answers(a, r.f, &e);
    for (int i = 0; i < STEP_COUNT && rc == OK; i++) {
        step_view v;
        err why = ERR_INIT;
        step_view_init(&v);
        step_state before = flow_state(r.f, i);
        if (before == STEP_IS_WAITING) {
            str_copy(v.summary, sizeof v.summary, flow_state_reason(r.f, i));
        } else if (flow_inspect(r.f, i, &v, &why) != OK) {
            v.worst = CHECK_STATUS_FAIL;
        }
        worst = check_worse(worst, v.worst);
        if (!r.is_json)
            cmd_printf("%s %2d %-13s %s\n", step_state_mark(flow_state(r.f, i)), i,
                step_info_of(i)->title, v.summary);
        if (r.is_json) put_view_json(i, "inspect", &v, flow_state(r.f, i));
        if (!r.is_json) put_message(&v.message);
        step_view_release(&v);
    }
    flow_free(r.f);
    if (rc != OK) return cmd_fail(&e);
    return cmd_finish(worst == CHECK_STATUS_FAIL   ? EXIT_REFUSED
                      : worst == CHECK_STATUS_PASS ? EXIT_OK
                                                   : EXIT_WARNINGS);
}

int cmd_setup(const cmd_args *a) {
    buf program = BUF_INIT;
    err e = ERR_INIT;
    if (setup_program(&program, &e) != OK) return cmd_fail(&e);
    const char *accessible = getenv("ACCESSIBLE");
    bool is_spoken = accessible != NULL && accessible[0] != '\0' && !str_eq(accessible, "0");
    bool is_screen = isatty(0) != 0 && isatty(1) != 0 && !cmd_has(a, "plain") && !is_spoken &&
                     !cmd_has(a, "json");
    int code;
    cmd_stop_fd();
    if (cmd_has(a, "dry-run")) {
        code = dry_run(a, buf_cstr(&program));
    } else if (cmd_has(a, "yes") || cmd_has(a, "plan")) {
        code = batch(a, buf_cstr(&program));
    } else if (cmd_has(a, "check")) {
        code = check_all(a, buf_cstr(&program));
    } else if (is_screen) {
        code = cmd_setup_screen(a);
    } else {
        code = line_by_line(a, buf_cstr(&program));
    }
    buf_release(&program);
    return code;
}
