#include "tui/cmd_man.h"

#include <string.h>

#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/settings.h"
#include "tui/cmd_table.h"

/* Text that roff must not read as its own. */
static void put(buf *out, const char *text) {
    if (*text == '.' || *text == '\'') buf_puts(out, "\\&");
    for (; *text != '\0'; text++) {
        if (*text == '\\') {
            buf_puts(out, "\\e");
        } else if (*text == '-') {
            buf_puts(out, "\\-");
        } else {
            buf_putc(out, *text);
        }
    }
}

static void put_line(buf *out, const char *text) {
    put(out, text);
    buf_putc(out, '\n');
}

static void section(buf *out, const char *name) {
    buf_printf(out, ".SH %s\n", name);
}

static void item(buf *out, const char *term, const char *text) {
    buf_puts(out, ".TP\n.B ");
    put_line(out, term);
    put_line(out, text);
}

static void header(buf *out, const char *title, const char *chapter, const char *help) {
    buf_printf(out,
        ".\\\" Made from the tables of the program: tandem help --man\n.TH %s %s \"\" \"Tandem %s\" "
        "\"Tandem\"\n.SH NAME\n",
        title, chapter, TANDEM_VERSION);
    put(out, title);
    buf_puts(out, " \\- ");
    put_line(out, help);
}

static void synopsis(buf *out, const cmd_entry *c) {
    buf_puts(out, ".B tandem");
    if (c->noun[0] != '\0') buf_printf(out, " %s", c->noun);
    if (c->verb != NULL) buf_printf(out, " %s", c->verb);
    buf_putc(out, '\n');
    if (c->options != NULL) buf_puts(out, ".RI [ options ]\n");
    if (c->args[0] != '\0') put_line(out, c->args);
}

static void options(buf *out, const cmd_option *list) {
    for (const cmd_option *o = list; o != NULL && o->name != NULL; o++) {
        buf_puts(out, ".TP\n");
        if (o->letter != 0) buf_printf(out, ".BR \\-%c \", \" \\-\\-", o->letter);
        if (o->letter == 0) buf_puts(out, ".BR \\-\\-");
        put(out, o->name);
        if (o->value != NULL) buf_printf(out, " \" %s\"", o->value);
        buf_putc(out, '\n');
        put_line(out, o->help);
    }
}

static void sentence(buf *out, const char *help) {
    char first[2] = {help[0], '\0'};
    if (first[0] >= 'a' && first[0] <= 'z') first[0] = (char)(first[0] - 'a' + 'A');
    put(out, first);
    put(out, help + 1);
    buf_puts(out, ".\n");
}

static void all_commands(buf *out) {
    size_t n;
    const cmd_entry *t = cmd_table(&n);
    section(out, "COMMANDS");
    for (size_t i = 0; i < n; i++) {
        buf term = BUF_INIT;
        if (t[i].noun[0] == '\0') continue;
        buf_printf(&term, "%s%s%s%s%s", t[i].noun, t[i].verb != NULL ? " " : "",
            t[i].verb != NULL ? t[i].verb : "", t[i].args[0] != '\0' ? " " : "", t[i].args);
        buf_puts(out, ".TP\n.B ");
        put_line(out, buf_cstr(&term));
        sentence(out, t[i].help);
        buf_release(&term);
    }
}

static void slash_commands(buf *out) {
    size_t n;
    const slash_entry *t = slash_table(&n);
    section(out, "COMMANDS INSIDE THE CHAT");
    put_line(out,
        "They begin with a slash; in the full screen the command line (:) takes them without it. "
        "A line that begins with two slashes is sent with one.");
    for (size_t i = 0; i < n; i++) {
        buf term = BUF_INIT;
        buf_printf(&term, "/%s%s%s", t[i].name, t[i].args[0] != '\0' ? " " : "", t[i].args);
        buf_puts(out, ".TP\n.B ");
        put_line(out, buf_cstr(&term));
        put(out, t[i].help);
        buf_puts(out, t[i].where == SLASH_IN_SCREEN ? " (full screen).\n" : ".\n");
        buf_release(&term);
    }
}

static void files(buf *out) {
    section(out, "FILES");
    item(out, "$XDG_CONFIG_HOME/tandem/tandem.conf",
        "Settings, see tandem.conf(5). Without the variable: ~/.config.");
    item(out, "$XDG_CONFIG_HOME/tandem/keys.conf", "Other keys for the full screen, NAME = KEYS.");
    item(out, "$XDG_STATE_HOME/tandem/sessions/",
        "Sessions, one journal each; every record has its own checksum. Without the variable: ~/.local/state.");
    item(out, "$XDG_STATE_HOME/tandem/logs/engine.log", "Log of the engine that was started here.");
    item(out, "$XDG_RUNTIME_DIR/tandem/engine.sock",
        "Socket of the engine. Without the variable: /run/user/UID/tandem, else the run folder beside the sessions.");
}

static void environment(buf *out) {
    section(out, "ENVIRONMENT");
    item(out, "TANDEM_KEY",
        "Any setting of tandem.conf(5), for example TANDEM_CONTEXT. It wins over the file.");
    item(out, "TANDEM_SOCKET", "Socket of the engine, an absolute path.");
    item(out, "ACCESSIBLE", "Not empty, 0 or false: plain mode instead of the full screen.");
    item(out, "NO_COLOR", "Not empty: no colours.");
    item(out, "TERM, COLORTERM, VISUAL, EDITOR, TMUX, SSH_CONNECTION", "As everywhere.");
}

static void exit_codes(buf *out) {
    static const struct {
        const char *code, *text;
    } codes[] = {{"0", "Done."}, {"2", "Wrong usage."}, {"10", "Done with warnings."},
        {"20", "A check failed or the action was refused."},
        {"30", "Ended by the user inside the program."}, {"40", "A node cannot be reached."},
        {"41", "The engine is not running or not ready."}, {"50", "A fault of the program."},
        {"130", "Interrupted."}};
    section(out, "EXIT STATUS");
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        item(out, codes[i].code, codes[i].text);
}

static void see_also(buf *out, const char *self) {
    size_t n;
    const cmd_entry *t = cmd_table(&n);
    const char *last = "";
    section(out, "SEE ALSO");
    if (str_eq(self, "tandem.conf")) {
        buf_puts(out, ".BR tandem (1),\n.BR tandem\\-config (1),\n.BR tandemd (8)\n");
        return;
    }
    if (self[0] != '\0') {
        bool is_served = str_eq(self, "serve") || str_eq(self, "api");
        buf_puts(out, ".BR tandem (1),\n.BR tandem.conf (5)");
        buf_puts(out, is_served ? ",\n.BR tandem\\-api (7),\n.BR tandemd (8)\n" : "\n");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (t[i].noun[0] == '\0' || str_eq(t[i].noun, last)) continue;
        last = t[i].noun;
        buf_printf(out, ".BR tandem\\-%s (1),\n", t[i].noun);
    }
    buf_puts(out,
        ".BR tandem.conf (5),\n.BR tandem\\-api (7),\n.BR tandem\\-security (7),\n.BR tandemd (8)\n");
}

static void page_main(buf *out) {
    const cmd_entry *c = cmd_find("", NULL);
    header(
        out, "tandem", "1", "DeepSeek-V4.1-Flash on two DGX Sparks, or its demo model on this CPU");
    section(out, "SYNOPSIS");
    synopsis(out, c);
    buf_puts(out, ".br\n.B tandem\n.I COMMAND\n.RI [ options ]\n.RI [ arguments ]\n");
    section(out, "DESCRIPTION");
    put_line(out,
        "Tandem is a terminal program (tandem) and an engine (tandemd) that runs one model family. Without "
        "arguments the full screen opens.");
    put_line(out, c->more);
    section(out, "OPTIONS");
    options(out, c->options);
    options(out, cmd_common_options());
    all_commands(out);
    slash_commands(out);
    exit_codes(out);
    environment(out);
    files(out);
    see_also(out, "");
}

/* One synopsis for all verbs, then a part for each. */
static void page_noun(const char *noun, buf *out) {
    size_t n, first = 0;
    const cmd_entry *t = cmd_table(&n);
    while (first < n && !str_eq(t[first].noun, noun))
        first++;
    if (first == n) return;
    size_t end = first;
    while (end < n && str_eq(t[end].noun, noun))
        end++;
    bool has_verbs = t[first].verb != NULL;
    buf title = BUF_INIT, help = BUF_INIT;
    buf_printf(&title, "tandem-%s", noun);
    buf_printf(&help, "the %s commands of Tandem", noun);
    header(out, buf_cstr(&title), "1", has_verbs ? buf_cstr(&help) : t[first].help);
    section(out, "SYNOPSIS");
    for (size_t i = first; i < end; i++) {
        if (i > first) buf_puts(out, ".br\n");
        synopsis(out, &t[i]);
    }
    for (size_t i = first; i < end; i++) {
        section(out, has_verbs ? t[i].verb : "DESCRIPTION");
        sentence(out, t[i].help);
        if (t[i].more != NULL) put_line(out, t[i].more);
        if (!has_verbs) section(out, "OPTIONS");
        options(out, t[i].options);
    }
    if (has_verbs) section(out, "OPTIONS OF ALL");
    options(out, cmd_common_options());
    if (str_eq(noun, "node")) {
        section(out, "NOTES");
        put_line(out,
            "This page is about the commands that begin with `tandem node`. The program tandem-node, "
            "which lies beside tandem, is its helper on each machine (it receives files, looks after a "
            "rank, measures); nobody has to call it.");
    }
    see_also(out, noun);
    buf_release(&title);
    buf_release(&help);
}

static void put_key(buf *out, const setting_key *k) {
    buf term = BUF_INIT;
    buf_printf(&term, "%s%s%s", k->name, k->builtin[0] != '\0' ? "=" : "", k->builtin);
    buf_puts(out, ".TP\n.B ");
    put_line(out, buf_cstr(&term));
    sentence(out, k->help);
    buf_release(&term);
    buf range = BUF_INIT;
    switch (k->kind) {
    case SETTING_INT:
    case SETTING_NUMBER:
        buf_printf(&range, "From %.15g to %.15g.", k->min, k->max);
        break;
    case SETTING_WORD:
        buf_printf(&range, "One of: %s.", k->choices);
        break;
    case SETTING_SWITCH:
        buf_puts(&range, "on or off.");
        break;
    case SETTING_PATH:
        buf_puts(&range, "An absolute path.");
        break;
    default:
        break;
    }
    if (range.len > 0) put_line(out, buf_cstr(&range));
    buf_release(&range);
}

static void page_settings(buf *out) {
    size_t n;
    const setting_key *keys = settings_keys(&n);
    header(out, "tandem.conf", "5", "settings of Tandem");
    section(out, "DESCRIPTION");
    put_line(out,
        "One KEY=VALUE a line; # begins a comment; a value with outer blanks or a # stands in quotes. The file "
        "is parsed and never run by a shell: $, ` and export are refused, and so are unknown or repeated "
        "keys, each with its line. The file must not be writable by others. Command line options win over "
        "environment variables (TANDEM_KEY), these over the file, the file over built-in values; "
        "`tandem config list -v` shows where each value comes from, `tandem config set` changes one line. "
        "Secrets are never values here, only paths of files that hold them.");
    section(out, "SETTINGS");
    for (size_t i = 0; i < n; i++)
        put_key(out, &keys[i]);
    see_also(out, "tandem.conf");
}

void man_page(const char *noun, buf *out) {
    if (noun[0] == '\0') {
        page_main(out);
    } else if (str_eq(noun, "tandem.conf")) {
        page_settings(out);
    } else {
        page_noun(noun, out);
    }
}
