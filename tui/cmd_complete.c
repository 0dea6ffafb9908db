/* tandem completion: scripts made from the command table. */
#include <string.h>

#include "engine/base/str.h"
#include "setup/settings.h"
#include "tui/cmd_complete.h"
#include "tui/cmd_internal.h"

/* Words of an argument that the table knows; lookups of sessions call the program. */
static void words_of(cmd_complete kind, buf *out) {
    const char *words = cmd_complete_words(kind);
    size_t n;
    if (words != NULL) buf_puts(out, words);
    if (kind == COMPLETE_SETTING) {
        const setting_key *keys = settings_keys(&n);
        for (size_t i = 0; i < n; i++)
            buf_printf(out, "%s%s", i > 0 ? " " : "", keys[i].name);
    }
    if (kind == COMPLETE_COMMAND) {
        const cmd_entry *t = cmd_table(&n);
        const char *last = "";
        for (size_t i = 0; i < n; i++) {
            if (t[i].noun[0] == '\0' || str_eq(t[i].noun, last)) continue;
            buf_printf(out, "%s%s", out->len > 0 ? " " : "", t[i].noun);
            last = t[i].noun;
        }
    }
}

static void options_of(const cmd_option *list, buf *out) {
    for (const cmd_option *o = list; o != NULL && o->name != NULL; o++) {
        buf_printf(out, "%s--%s", out->len > 0 ? " " : "", o->name);
    }
}

static void all_options(const cmd_entry *c, buf *out) {
    options_of(c->options, out);
    options_of(cmd_common_options(), out);
}

static void verbs_of(const char *noun, buf *out) {
    size_t n;
    const cmd_entry *t = cmd_table(&n);
    for (size_t i = 0; i < n; i++) {
        if (str_eq(t[i].noun, noun) && t[i].verb != NULL) {
            buf_printf(out, "%s%s", out->len > 0 ? " " : "", t[i].verb);
        }
    }
}

#define SESSION_NAMES "$(tandem sessions list 2>/dev/null | cut -d' ' -f1)"

/* The bash form of a completion: sets COMPREPLY from $cur. */
static void bash_complete(cmd_complete kind, buf *out) {
    buf words = BUF_INIT;
    words_of(kind, &words);
    if (words.len > 0) {
        buf_printf(out, "COMPREPLY=($(compgen -W \"%s\" -- \"$cur\"))", buf_cstr(&words));
    } else if (kind == COMPLETE_SESSION) {
        buf_puts(out, "COMPREPLY=($(compgen -W \"" SESSION_NAMES "\" -- \"$cur\"))");
    } else if (kind == COMPLETE_FILE) {
        buf_puts(out, "COMPREPLY=($(compgen -f -- \"$cur\"))");
    } else if (kind == COMPLETE_DIR) {
        buf_puts(out, "COMPREPLY=($(compgen -d -- \"$cur\"))");
    } else {
        buf_puts(out, ":");
    }
    buf_release(&words);
}

/* Values of options: the same name means the same everywhere, so one case serves all commands. */
static void bash_values(buf *out) {
    size_t n;
    const cmd_entry *t = cmd_table(&n);
    buf seen = BUF_INIT;
    buf_puts(&seen, " ");
    for (size_t i = 0; i <= n; i++) {
        const cmd_option *o = i < n ? t[i].options : cmd_common_options();
        for (; o != NULL && o->name != NULL; o++) {
            buf mark = BUF_INIT;
            buf_printf(&mark, " %s ", o->name);
            bool is_new = strstr(buf_cstr(&seen), buf_cstr(&mark)) == NULL;
            if (o->value != NULL && is_new) {
                buf_printf(&seen, "%s ", o->name);
                buf_printf(out, "    --%s) ", o->name);
                bash_complete(o->complete, out);
                buf_puts(out, "; return ;;\n");
            }
            buf_release(&mark);
        }
    }
    buf_release(&seen);
}

static void bash_script(buf *out) {
    size_t n;
    const cmd_entry *t = cmd_table(&n);
    buf nouns = BUF_INIT;
    words_of(COMPLETE_COMMAND, &nouns);
    buf_puts(out, "# bash completion of tandem; made by: tandem completion bash\n_tandem() {\n"
                  "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                  "  local noun= verb= w i\n  COMPREPLY=()\n  case $prev in\n");
    bash_values(out);
    buf_puts(out, "  esac\n  for ((i = 1; i < COMP_CWORD; i++)); do\n    w=${COMP_WORDS[i]}\n"
                  "    case $w in -*) continue ;; esac\n"
                  "    if [ -z \"$noun\" ]; then noun=$w; elif [ -z \"$verb\" ]; then verb=$w; fi\n"
                  "  done\n  case \"$noun $verb\" in\n");
    for (size_t i = 0; i < n; i++) {
        buf options = BUF_INIT;
        all_options(&t[i], &options);
        buf_printf(out,
            "    \"%s %s\"%s)\n      case $cur in -*) COMPREPLY=($(compgen -W \"%s\" -- "
            "\"$cur\")); return ;; esac\n      ",
            t[i].noun, t[i].verb != NULL ? t[i].verb : "",
            t[i].verb != NULL || t[i].noun[0] == '\0' ? "" : "*", buf_cstr(&options));
        if (t[i].noun[0] == '\0') {
            buf_printf(out, "COMPREPLY=($(compgen -W \"%s\" -- \"$cur\"))", buf_cstr(&nouns));
        } else {
            bash_complete(t[i].complete, out);
        }
        buf_puts(out, " ;;\n");
        buf_release(&options);
    }
    buf_puts(out, "    *)\n      case $noun in\n");
    const char *last = "";
    for (size_t i = 0; i < n; i++) {
        if (t[i].verb == NULL || str_eq(t[i].noun, last)) continue;
        buf verbs = BUF_INIT;
        last = t[i].noun;
        verbs_of(last, &verbs);
        buf_printf(out, "        %s) COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")) ;;\n", last,
            buf_cstr(&verbs));
        buf_release(&verbs);
    }
    buf_puts(out, "      esac ;;\n  esac\n}\ncomplete -o filenames -F _tandem tandem\n");
    buf_release(&nouns);
}

/* zsh reads bash completions; one script less to keep right. */
static void zsh_script(buf *out) {
    buf_puts(out, "#compdef tandem\n# zsh completion of tandem; made by: tandem completion zsh\n"
                  "autoload -U +X bashcompinit && bashcompinit\n");
    bash_script(out);
}

static void fish_quote(const char *text, buf *out) {
    buf_putc(out, '\'');
    for (; *text != '\0'; text++) {
        if (*text == '\'' || *text == '\\') buf_putc(out, '\\');
        buf_putc(out, *text);
    }
    buf_putc(out, '\'');
}

static void fish_arguments(cmd_complete kind, buf *out) {
    buf words = BUF_INIT;
    words_of(kind, &words);
    if (words.len > 0) {
        buf_puts(out, " -x -a ");
        fish_quote(buf_cstr(&words), out);
    } else if (kind == COMPLETE_SESSION) {
        buf_puts(
            out, " -x -a '(tandem sessions list 2>/dev/null | string replace -r \" .*\" \"\")'");
    } else if (kind == COMPLETE_DIR) {
        buf_puts(out, " -x -a '(__fish_complete_directories)'");
    } else if (kind == COMPLETE_FILE) {
        buf_puts(out, " -r");
    } else {
        buf_puts(out, " -x");
    }
    buf_release(&words);
}

static void fish_options(const cmd_option *list, const char *condition, buf *out) {
    for (const cmd_option *o = list; o != NULL && o->name != NULL; o++) {
        buf_printf(out, "complete -c tandem%s -l %s", condition, o->name);
        if (o->letter != 0) buf_printf(out, " -s %c", o->letter);
        if (o->value != NULL) fish_arguments(o->complete, out);
        buf_puts(out, " -d ");
        fish_quote(o->help, out);
        buf_putc(out, '\n');
    }
}

static void fish_script(buf *out) {
    size_t n;
    const cmd_entry *t = cmd_table(&n);
    const char *last = "";
    buf_puts(out,
        "# fish completion of tandem; made by: tandem completion fish\ncomplete -c tandem -f\n");
    fish_options(cmd_common_options(), "", out);
    for (size_t i = 0; i < n; i++) {
        buf condition = BUF_INIT;
        bool is_plain = t[i].noun[0] == '\0';
        if (!is_plain && !str_eq(t[i].noun, last)) {
            buf_printf(out, "complete -c tandem -n __fish_use_subcommand -a %s", t[i].noun);
            if (t[i].verb == NULL) {
                buf_puts(out, " -d ");
                fish_quote(t[i].help, out);
            }
            buf_putc(out, '\n');
            last = t[i].noun;
        }
        if (t[i].verb != NULL) {
            buf_printf(out, "complete -c tandem -n '__fish_seen_subcommand_from %s' -a %s -d ",
                t[i].noun, t[i].verb);
            fish_quote(t[i].help, out);
            buf_putc(out, '\n');
        }
        buf_printf(&condition, " -n '%s%s%s%s'",
            is_plain ? "__fish_use_subcommand" : "__fish_seen_subcommand_from ",
            is_plain ? "" : t[i].noun,
            t[i].verb != NULL ? "; and __fish_seen_subcommand_from " : "",
            t[i].verb != NULL ? t[i].verb : "");
        fish_options(t[i].options, buf_cstr(&condition), out);
        if (!is_plain && t[i].complete != COMPLETE_NONE) {
            buf_printf(out, "complete -c tandem%s", buf_cstr(&condition));
            fish_arguments(t[i].complete, out);
            buf_putc(out, '\n');
        }
        buf_release(&condition);
    }
}

int completion_script(const char *shell, buf *out) {
    if (str_eq(shell, "bash")) {
        bash_script(out);
    } else if (str_eq(shell, "zsh")) {
        zsh_script(out);
    } else if (str_eq(shell, "fish")) {
        fish_script(out);
    } else {
        return ERR_ARG;
    }
    return OK;
}

int cmd_completion(const cmd_args *a) {
    buf out = BUF_INIT;
    if (completion_script(a->args[0], &out) != OK) {
        cmd_note("there is a script for bash, zsh and fish, not for \"%s\"", a->args[0]);
        return EXIT_USAGE;
    }
    cmd_put(buf_cstr(&out), out.len);
    buf_release(&out);
    return cmd_finish(EXIT_OK);
}
