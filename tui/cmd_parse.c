/* Parser and help of the command table. */
#include "tui/cmd_table.h"

#include <ctype.h>
#include <string.h>

#include "engine/base/str.h"
#include "engine/base/version.h"

/* Nearest names. */

static const char *noun_at(size_t i, void *ctx) {
    (void)ctx;
    size_t n;
    return cmd_table(&n)[i].noun;
}

static const char *slash_at(size_t i, void *ctx) {
    (void)ctx;
    size_t n;
    return slash_table(&n)[i].name;
}

/* Finding. */

/* Spellings that mean the same noun. */
static const char *noun_alias(const char *noun) {
    return str_eq(noun, "session") ? "sessions" : noun;
}

const cmd_entry *cmd_find(const char *noun, const char *verb) {
    size_t n;
    const cmd_entry *table = cmd_table(&n);
    noun = noun_alias(noun);
    for (size_t i = 0; i < n; i++) {
        if (str_eq(table[i].noun, noun) && str_eq(table[i].verb, verb)) return &table[i];
    }
    return NULL;
}

static bool noun_has_verbs(const char *noun) {
    size_t n;
    const cmd_entry *table = cmd_table(&n);
    for (size_t i = 0; i < n; i++) {
        if (str_eq(table[i].noun, noun) && table[i].verb != NULL) return true;
    }
    return false;
}

static void put_verbs(buf *out, const char *noun) {
    size_t n;
    const cmd_entry *table = cmd_table(&n);
    bool is_first = true;
    for (size_t i = 0; i < n; i++) {
        if (!str_eq(table[i].noun, noun) || table[i].verb == NULL) continue;
        buf_printf(out, "%s%s", is_first ? "" : ", ", table[i].verb);
        is_first = false;
    }
}

/* Picks the entry from the words and says how many of them it took. */
static int pick_entry(const char *const *words, int n_words, cmd_args *a, int *n_taken, err *e) {
    *n_taken = 0;
    a->entry = cmd_find("", NULL);
    if (n_words == 0) return OK;
    const char *noun = noun_alias(words[0]);
    if (noun_has_verbs(noun)) {
        a->entry = n_words > 1 ? cmd_find(noun, words[1]) : NULL;
        *n_taken = 2;
        if (a->entry != NULL) return OK;
        buf verbs = BUF_INIT;
        put_verbs(&verbs, noun);
        err_set(e, ERR_ARG, "%s%s%s; there is: %s", noun,
            n_words > 1 ? " has no " : " needs a verb", n_words > 1 ? words[1] : "",
            buf_cstr(&verbs));
        buf_release(&verbs);
        return ERR_ARG;
    }
    a->entry = noun[0] != '\0' ? cmd_find(noun, NULL) : NULL;
    *n_taken = 1;
    if (a->entry != NULL) return OK;
    size_t n;
    cmd_table(&n);
    const char *near = str_nearest(noun, noun_at, n, NULL);
    if (near != NULL && near[0] != '\0') {
        return err_set(e, ERR_ARG, "there is no command \"%.40s\"; did you mean %s?", noun, near);
    }
    return err_set(e, ERR_ARG, "there is no command \"%.40s\"; `tandem help` lists all", noun);
}

/* Options. */

static const cmd_option *find_option(
    const cmd_option *list, const char *name, size_t n, char letter) {
    for (const cmd_option *o = list; o != NULL && o->name != NULL; o++) {
        if (letter != 0 ? o->letter == letter
                        : strlen(o->name) == n && strncmp(o->name, name, n) == 0) {
            return o;
        }
    }
    return NULL;
}

static const cmd_option *entry_option(
    const cmd_entry *entry, const char *name, size_t n, char letter) {
    const cmd_option *o = find_option(entry->options, name, n, letter);
    return o != NULL ? o : find_option(cmd_common_options(), name, n, letter);
}

/* Whether the word after this one belongs to it. Options of a noun have one form for all its verbs;
 * before the noun is known any command's option counts. */
static bool takes_value(const char *word, const char *noun) {
    size_t n;
    const cmd_entry *table = cmd_table(&n);
    bool is_long = word[1] == '-';
    const char *name = is_long ? word + 2 : "";
    if (strchr(name, '=') != NULL || (!is_long && word[2] != '\0')) return false;
    for (size_t i = 0; i < n; i++) {
        if (noun != NULL && !str_eq(table[i].noun, noun_alias(noun))) continue;
        const cmd_option *o = is_long ? entry_option(&table[i], name, strlen(name), 0)
                                      : entry_option(&table[i], "", 0, word[1]);
        if (o != NULL && o->value != NULL) return true;
    }
    return false;
}

static bool is_option(const char *word) {
    return word[0] == '-' && word[1] != '\0';
}

static int option_add(cmd_args *a, const cmd_option *o, const char *value, err *e) {
    if (a->n_given >= CMD_MAX_OPTIONS) return err_set(e, ERR_ARG, "too many options");
    a->given[a->n_given].option = o;
    a->given[a->n_given++].value = value;
    return OK;
}

static int unknown_option(const cmd_args *a, const char *word, err *e) {
    return err_set(e, ERR_ARG, "tandem%s%s%s%s has no option %.60s; see: tandem help%s%s",
        a->entry->noun[0] != '\0' ? " " : "", a->entry->noun, a->entry->verb != NULL ? " " : "",
        a->entry->verb != NULL ? a->entry->verb : "", word, a->entry->noun[0] != '\0' ? " " : "",
        a->entry->noun);
}

/* One option word; *used is 1 or 2 words. */
static int take_option(cmd_args *a, char **argv, int n_left, int *used, err *e) {
    const char *word = argv[0];
    const char *equals = word[1] == '-' ? strchr(word, '=') : NULL;
    const cmd_option *o;
    *used = 1;
    if (word[1] == '-') {
        size_t n = equals != NULL ? (size_t)(equals - word) - 2 : strlen(word) - 2;
        o = entry_option(a->entry, word + 2, n, 0);
    } else {
        o = entry_option(a->entry, "", 0, word[1]);
    }
    if (o == NULL) return unknown_option(a, word, e);
    if (o->value == NULL) {
        bool has_rest = equals != NULL || (word[1] != '-' && word[2] != '\0');
        if (has_rest) return err_set(e, ERR_ARG, "--%s takes no value (in %.40s)", o->name, word);
        return option_add(a, o, NULL, e);
    }
    const char *value = equals != NULL                      ? equals + 1
                        : word[1] != '-' && word[2] != '\0' ? word + 2
                                                            : NULL;
    if (value == NULL) {
        if (n_left < 2) return err_set(e, ERR_ARG, "--%s needs a value: %s", o->name, o->value);
        value = argv[1];
        *used = 2;
    }
    return option_add(a, o, value, e);
}

/* Moves the positional words to the front, in order; options to the back. Returns how many words
 * there are. Everything behind "--" is a word. */
static int sort_words(int argc, char **argv, int *n_options) {
    int n_words = 0;
    bool is_plain = false;
    for (int i = 0; i < argc; i++) {
        char *word = argv[i];
        if (is_plain || !is_option(word)) {
            for (int j = i; j > n_words; j--)
                argv[j] = argv[j - 1];
            argv[n_words++] = word;
        } else if (str_eq(word, "--")) {
            is_plain = true;
        } else if (takes_value(word, n_words > 0 ? argv[0] : NULL) && i + 1 < argc) {
            i++;
        }
    }
    *n_options = argc - n_words;
    return n_words;
}

static int check_count(const cmd_args *a, err *e) {
    const cmd_entry *c = a->entry;
    if (a->n_args >= c->min_args && (c->max_args < 0 || a->n_args <= c->max_args)) return OK;
    if (a->n_args < c->min_args) {
        return err_set(e, ERR_ARG, "missing argument; usage: tandem %s%s%s %s", c->noun,
            c->verb != NULL ? " " : "", c->verb != NULL ? c->verb : "", c->args);
    }
    return err_set(e, ERR_ARG, "\"%.60s\" is too much; see: tandem help %s",
        a->args[c->max_args < 0 ? 0 : c->max_args], c->noun);
}

int cmd_parse(int argc, char **argv, cmd_args *a, err *e) {
    int n_options = 0, n_taken = 0;
    *a = (cmd_args){.program = argc > 0 ? argv[0] : "tandem"};
    char **words = argv + (argc > 0 ? 1 : 0);
    int n_words = sort_words(argc > 0 ? argc - 1 : 0, words, &n_options);
    int rc = pick_entry((const char *const *)words, n_words, a, &n_taken, e);
    if (rc != OK) return rc;
    for (int i = 0; i < n_options;) {
        int used = 1;
        char **at = words + n_words + i;
        if (!str_eq(*at, "--")) rc = take_option(a, at, n_options - i, &used, e);
        if (rc != OK) return rc;
        i += used;
    }
    a->args = (const char *const *)words + n_taken;
    a->n_args = n_words - n_taken;
    return cmd_has(a, "help") ? OK : check_count(a, e);
}

bool cmd_has(const cmd_args *a, const char *option) {
    for (int i = 0; i < a->n_given; i++) {
        if (str_eq(a->given[i].option->name, option)) return true;
    }
    return false;
}

const char *cmd_value(const cmd_args *a, const char *option) {
    for (int i = a->n_given - 1; i >= 0; i--) {
        if (str_eq(a->given[i].option->name, option)) return a->given[i].value;
    }
    return NULL;
}

/* Slash commands. */

const slash_entry *slash_find(const char *line, bool is_palette, const char **args, err *e) {
    size_t n, n_starts = 0;
    const slash_entry *table = slash_table(&n), *start = NULL;
    const char *word = line;
    if (*word == '/' || *word == ':') word++;
    (void)is_palette;
    size_t len = strcspn(word, " \t\n");
    char name[32];
    if (len == 0 || len >= sizeof name) {
        err_set(e, ERR_ARG, "that is no command; /help lists them");
        return NULL;
    }
    memcpy(name, word, len);
    name[len] = '\0';
    *args = word + len + strspn(word + len, " \t\n");
    for (size_t i = 0; i < n; i++) {
        if (str_eq(table[i].name, name)) return &table[i];
        if (str_starts(table[i].name, name)) {
            start = &table[i];
            n_starts++;
        }
    }
    if (n_starts == 1) return start;
    if (n_starts > 1) {
        buf list = BUF_INIT;
        for (size_t i = 0; i < n; i++) {
            if (str_starts(table[i].name, name)) buf_printf(&list, " /%s", table[i].name);
        }
        err_set(e, ERR_ARG, "/%s could be%s", name, buf_cstr(&list));
        buf_release(&list);
        return NULL;
    }
    const char *near = str_nearest(name, slash_at, n, NULL);
    if (near != NULL) {
        err_set(e, ERR_ARG, "there is no command /%s; did you mean /%s?", name, near);
    } else {
        err_set(e, ERR_ARG, "there is no command /%s; /help lists them", name);
    }
    return NULL;
}

/* Help. */

static void put_name(buf *out, const cmd_entry *c) {
    buf_puts(out, "tandem");
    if (c->noun[0] != '\0') buf_printf(out, " %s", c->noun);
    if (c->verb != NULL) buf_printf(out, " %s", c->verb);
}

enum { HELP_COLUMNS = 80 };

/* The words of text from column on; further lines begin at indent. */
static void put_words(buf *out, const char *text, size_t column, size_t indent) {
    bool is_first = true;
    while (*text != '\0') {
        size_t n = strcspn(text, " ");
        bool is_full = !is_first && column + 1 + n > HELP_COLUMNS;
        if (is_full) buf_printf(out, "\n%*s", (int)indent, "");
        if (!is_full && !is_first) buf_putc(out, ' ');
        column = is_full ? indent : column + !is_first;
        buf_append(out, text, n);
        column += n;
        text += n + strspn(text + n, " ");
        is_first = false;
    }
    buf_putc(out, '\n');
}

static void put_wrapped(buf *out, const char *text) {
    put_words(out, text, 0, 0);
}

/* "  left      words": two columns, the right one wrapped; a long left one has a line of its own. */
static void put_row(buf *out, const char *left, size_t width, const char *words) {
    size_t at = width + 3;
    buf_printf(out, "  %-*s ", (int)width, left);
    if (strlen(left) > width) buf_printf(out, "\n%*s", (int)at, "");
    put_words(out, words, at, at);
}

static void put_options(buf *out, const cmd_option *list) {
    for (const cmd_option *o = list; o != NULL && o->name != NULL; o++) {
        buf left = BUF_INIT;
        if (o->letter != 0) {
            buf_printf(&left, "-%c, ", o->letter);
        } else {
            buf_puts(&left, "    ");
        }
        buf_printf(&left, "--%s%s%s", o->name, o->value != NULL ? " " : "",
            o->value != NULL ? o->value : "");
        put_row(out, buf_cstr(&left), 26, o->help);
        buf_release(&left);
    }
}

static void help_entry(buf *out, const cmd_entry *c) {
    buf_puts(out, "usage: ");
    put_name(out, c);
    if (c->options != NULL) buf_puts(out, " [options]");
    if (c->args[0] != '\0') buf_printf(out, " %s", c->args);
    buf_puts(out, "\n\n");
    put_wrapped(out, c->help);
    if (c->more != NULL) {
        buf_putc(out, '\n');
        put_wrapped(out, c->more);
    }
    buf_puts(out, "\noptions:\n");
    put_options(out, c->options);
    put_options(out, cmd_common_options());
}

static void help_all(buf *out) {
    size_t n;
    const cmd_entry *table = cmd_table(&n);
    buf_printf(out, "Tandem %s: DeepSeek-V4.1-Flash on two DGX Sparks, or a demo on this CPU\n\n",
        TANDEM_VERSION);
    for (size_t i = 0; i < n; i++) {
        buf left = BUF_INIT;
        put_name(&left, &table[i]);
        if (table[i].args[0] != '\0') buf_printf(&left, " %s", table[i].args);
        put_row(out, buf_cstr(&left), 30, table[i].help);
        buf_release(&left);
    }
    buf_puts(out, "\noptions of `tandem` alone:\n");
    put_options(out, cmd_find("", NULL)->options);
    buf_puts(out,
        "\n`tandem help NOUN` or `tandem NOUN --help` shows the options. Manual: man tandem\n");
}

void cmd_help(buf *out, const char *noun, const char *verb) {
    size_t n, n_shown = 0;
    const cmd_entry *table = cmd_table(&n);
    if (noun == NULL) {
        help_all(out);
        return;
    }
    noun = noun_alias(noun);
    for (size_t i = 0; i < n; i++) {
        if (!str_eq(table[i].noun, noun)) continue;
        if (verb != NULL && !str_eq(table[i].verb, verb)) continue;
        if (n_shown++ > 0) buf_putc(out, '\n');
        help_entry(out, &table[i]);
    }
}

void slash_help(buf *out, const char *word, int where) {
    size_t n;
    const slash_entry *table = slash_table(&n);
    for (size_t i = 0; i < n; i++) {
        const slash_entry *s = &table[i];
        if ((s->where & where) == 0) continue;
        if (word != NULL && word[0] != '\0' && strstr(s->name, word) == NULL &&
            strstr(s->help, word) == NULL) {
            continue;
        }
        buf left = BUF_INIT;
        buf_printf(&left, "/%s%s%s", s->name, s->args[0] != '\0' ? " " : "", s->args);
        buf_printf(out, "%-24s ", buf_cstr(&left));
        if (left.len > 24) buf_printf(out, "\n%25s", "");
        put_words(out, s->help, 25, 25);
        buf_release(&left);
    }
}
