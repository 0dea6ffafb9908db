/* tandem doctor: from what is wrong to why and what to do; --terminal: what this terminal can do. */
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/doctor.h"
#include "setup/paths.h"
#include "tui/cmd_pair.h"
#include "tui/line.h"
#include "tui/term.h"
#include "tui/width.h"

/* ---- the terminal ---- */

static const char *or_none(const char *text) {
    return text != NULL && text[0] != '\0' ? text : "(not set)";
}

static void put_terminal_json(const err *why, const struct winsize *size) {
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_kstr(&w, "term", getenv("TERM"));
    json_w_kstr(&w, "colorterm", getenv("COLORTERM"));
    json_w_kstr(&w, "charset", nl_langinfo(CODESET));
    json_w_kstr(&w, "editor", line_editor_name());
    json_w_ki64(&w, "rows", size->ws_row);
    json_w_ki64(&w, "columns", size->ws_col);
    json_w_kbool(&w, "full_screen", why->code == OK);
    json_w_kstr(&w, "reason", why->code == OK ? NULL : why->msg);
    cmd_put_json(&w);
    buf_release(&out);
}

/* Each line ends with a bar in column 24 when the terminal agrees with our widths. */
static void put_widths(void) {
    static const char *const samples[] = {"ASCII", "\xc3\xa4\xc3\xb6\xc3\xbc e\xcc\x81",
        "\xe6\xbc\xa2\xe5\xad\x97", "\xf0\x9f\x98\x80", "\xe2\x94\x82\xe2\x96\x88\xe2\x96\x91"};
    cmd_puts("widths: the bars stand under each other when the terminal agrees\n");
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        int n = width_text(samples[i], strlen(samples[i]));
        cmd_printf("  %s%*s|\n", samples[i], 20 - n, "");
    }
}

static int show_terminal(const cmd_args *a) {
    err why = ERR_INIT;
    struct winsize size = {0};
    (void)setlocale(LC_ALL, "");
    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    int rc = term_check(&why);
    if (cmd_has(a, "json")) {
        put_terminal_json(&why, &size);
    } else {
        cmd_printf("TERM       %s\nCOLORTERM  %s\ncharset    %s\nsize       %d columns, %d rows\n",
            or_none(getenv("TERM")), or_none(getenv("COLORTERM")), nl_langinfo(CODESET),
            size.ws_col, size.ws_row);
        cmd_printf("editor     %s\nfull screen: %s\n", line_editor_name(),
            rc == OK ? "possible" : why.msg);
        if (str_eq(nl_langinfo(CODESET), "UTF-8")) put_widths();
        if (isatty(STDOUT_FILENO) != 0)
            cmd_puts("colours: \033[31mred\033[0m \033[32mgreen\033[0m \033[1mbold\033[0m "
                     "\033[38;5;208m256\033[0m \033[38;2;90;160;250m24 bit\033[0m\n");
    }
    return cmd_finish(rc == OK ? EXIT_OK : EXIT_WARNINGS);
}

/* ---- the pair ---- */

static void on_check(void *ctx, const check_row *row, const check_result *r) {
    json_w *w = ctx;
    if (w != NULL) {
        check_write_json(w, row, r);
        return;
    }
    if (r->status != CHECK_STATUS_FAIL && r->status != CHECK_STATUS_WARN) return;
    cmd_printf("%-5s %-11s %-6s ", check_status_name(r->status), r->id, r->node);
    cmd_put_text(r->fact, strlen(r->fact));
    cmd_puts("\n");
    cmd_flush();
}

static void put_cause(const doctor_cause *c, int number) {
    cmd_printf("%2d. %s (%s)\n", number, c->cause, doctor_certainty_name(c->certainty));
    cmd_puts("    seen: ");
    cmd_put_text(c->evidence, strlen(c->evidence));
    cmd_printf("\n    do:   %s\n", c->remedy);
}

static void put_report(const doctor_report *r) {
    cmd_printf(
        "checks: %d passed, %d with warnings, %d failed, %d could not be measured, %d do not "
        "apply\n\n",
        r->n_pass, r->n_warn, r->n_fail, r->n_unknown, r->n_skip);
    cmd_puts("symptom: ");
    const char *symptom = r->symptom[0] != '\0' ? r->symptom : "none is seen";
    cmd_put_text(symptom, strlen(symptom));
    cmd_puts("\n");
    if (r->n_causes > 0)
        cmd_puts(
            r->symptom[0] != '\0' ? "causes, most certain first:\n" : "what may become a fault:\n");
    for (int i = 0; i < r->n_causes; i++)
        put_cause(&r->causes[i], i + 1);
    if (r->n_causes == 0 && r->symptom[0] != '\0')
        cmd_puts(
            "no known cause fits; tandem logs shows both ranks, tandem support packs it all\n");
}

static void put_report_json(const doctor_report *r, json_w *w) {
    json_w_kstr(w, "symptom", r->symptom[0] != '\0' ? r->symptom : NULL);
    json_w_key(w, "causes");
    json_w_array(w);
    for (int i = 0; i < r->n_causes; i++) {
        json_w_object(w);
        json_w_kstr(w, "id", r->causes[i].id);
        json_w_kstr(w, "cause", r->causes[i].cause);
        json_w_kstr(w, "certainty", doctor_certainty_name(r->causes[i].certainty));
        json_w_kstr(w, "evidence", r->causes[i].evidence);
        json_w_kstr(w, "remedy", r->causes[i].remedy);
        json_w_close(w);
    }
    json_w_close(w);
    json_w_ki64(w, "passed", r->n_pass);
    json_w_ki64(w, "warnings", r->n_warn);
    json_w_ki64(w, "failed", r->n_fail);
    json_w_ki64(w, "unknown", r->n_unknown);
    json_w_ki64(w, "skipped", r->n_skip);
}

static int code_of(const doctor_report *r, const cmd_nodes *n) {
    if (n->missing[1][0] != '\0') return EXIT_NODE_UNREACHABLE;
    if (r->n_fail > 0 || r->symptom[0] != '\0') return EXIT_REFUSED;
    return r->n_warn > 0 || r->n_unknown > 0 ? EXIT_WARNINGS : EXIT_OK;
}

static int examine(const cmd_args *a, const cmd_nodes *n) {
    buf baseline = BUF_INIT, out = BUF_INIT;
    json_w w;
    err e = ERR_INIT;
    doctor_report r;
    bool is_json = cmd_has(a, "json");
    if (paths_state(&baseline, NULL) == OK) buf_puts(&baseline, "/baselines.json");
    check_options c = {.node = {n->node[0], n->node[1]},
        .missing = {NULL, n->missing[1][0] != '\0' ? n->missing[1] : NULL},
        .settings = n->settings,
        .baseline = buf_cstr(&baseline)};
    doctor_options o = {.pair = cmd_pair_options(n), .check = &c};
    cmd_begin_json(&w, &out);
    json_w_key(&w, "checks");
    json_w_array(&w);
    int rc = doctor_run(&o, on_check, is_json ? &w : NULL, &r, &e);
    json_w_close(&w);
    if (rc == OK && is_json) {
        put_report_json(&r, &w);
        cmd_put_json(&w);
    } else if (rc == OK) {
        put_report(&r);
    }
    buf_release(&baseline);
    buf_release(&out);
    return rc == OK ? code_of(&r, n) : cmd_fail(&e);
}

int cmd_doctor(const cmd_args *a) {
    cmd_nodes n;
    err e = ERR_INIT;
    if (cmd_has(a, "terminal")) return show_terminal(a);
    if (cmd_nodes_open(a, true, &n, &e) != OK) return cmd_fail(&e);
    int code = examine(a, &n);
    cmd_nodes_close(&n);
    return cmd_finish(code);
}
