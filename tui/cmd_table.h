/* The one table of everything a user can ask for in words: commands of the shell, and slash commands
 * of the chat. It feeds the parser, help, the completion scripts, the manual pages, the palette and
 * plain mode; a test compares them. The tables are constant data: any thread may read them. */
#ifndef TUI_CMD_TABLE_H
#define TUI_CMD_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

/* Exit codes, one set for all commands. */
enum {
    EXIT_OK = 0,
    EXIT_USAGE = 2,
    EXIT_WARNINGS = 10,
    EXIT_REFUSED = 20,
    EXIT_ENDED_BY_USER = 30,
    EXIT_NODE_UNREACHABLE = 40,
    EXIT_NOT_READY = 41,
    EXIT_INTERNAL = 50,
    EXIT_INTERRUPTED = 130
};

/* What completes an argument or an option's value. */
typedef enum cmd_complete {
    COMPLETE_NONE,
    COMPLETE_FILE,
    COMPLETE_DIR,
    COMPLETE_SESSION,
    COMPLETE_SETTING,
    COMPLETE_COMMAND,
    COMPLETE_EFFORT,
    COMPLETE_FORMAT,
    COMPLETE_SCREEN,
    COMPLETE_PROTOCOL,
    COMPLETE_COLOR,
    COMPLETE_MOUSE,
    COMPLETE_CHUNK,
    COMPLETE_LEVEL,
    COMPLETE_SHELL,
    COMPLETE_ENGINE,
    COMPLETE_SET_KEY,
    COMPLETE_NODE,
    COMPLETE_COUNT
} cmd_complete;

typedef struct cmd_option {
    const char *name;  /* without the dashes */
    char letter;       /* 0 = none */
    const char *value; /* name of its value in help, NULL for a switch */
    const char *help;
    cmd_complete complete;
} cmd_option;

struct cmd_args;

typedef struct cmd_entry {
    const char *noun;                     /* "" is plain `tandem` */
    const char *verb;                     /* NULL: the noun alone */
    const char *args;                     /* as shown in help, "" for none */
    int min_args, max_args;               /* max -1 = any number */
    const char *help;                     /* one line, no full stop */
    const char *more;                     /* a paragraph for help and the manual, or NULL */
    const cmd_option *options;            /* ends with name NULL; may be NULL */
    cmd_complete complete;                /* of the positional arguments */
    int (*run)(const struct cmd_args *a); /* returns an exit code */
} cmd_entry;

/* Slash commands: /NAME in the chat, `:NAME` on the command line of the full screen. */
typedef enum slash_id {
    SLASH_HELP,
    SLASH_NEW,
    SLASH_SESSIONS,
    SLASH_OPEN,
    SLASH_RENAME,
    SLASH_DELETE,
    SLASH_EXPORT,
    SLASH_AGAIN,
    SLASH_EDIT,
    SLASH_CONTINUE,
    SLASH_UNDO,
    SLASH_REDO,
    SLASH_BRANCHES,
    SLASH_BRANCH,
    SLASH_FORK,
    SLASH_SYSTEM,
    SLASH_SET,
    SLASH_UNSET,
    SLASH_THINK,
    SLASH_RAW,
    SLASH_FOLD,
    SLASH_COPY,
    SLASH_SAVE,
    SLASH_CONTEXT,
    SLASH_STATS,
    SLASH_STATUS,
    SLASH_MODEL,
    SLASH_ENGINE,
    SLASH_CACHE,
    SLASH_KEYS,
    SLASH_QUIT,
    SLASH_COUNT
} slash_id;

enum { SLASH_IN_PLAIN = 1, SLASH_IN_SCREEN = 2 };

typedef struct slash_entry {
    slash_id id;
    const char *name; /* without the slash */
    const char *args;
    const char *help;
    cmd_complete complete;
    int where; /* SLASH_IN_... bits */
} slash_entry;

const cmd_entry *cmd_table(size_t *n);
const slash_entry *slash_table(size_t *n);
/* The fixed words of a kind, separated by blanks; NULL for kinds that are looked up. */
const char *cmd_complete_words(cmd_complete kind);
/* Options every command takes (--json is not one of them). Ends with name NULL. */
const cmd_option *cmd_common_options(void);

/* The entry of a noun and a verb (verb may be NULL), or NULL. */
const cmd_entry *cmd_find(const char *noun, const char *verb);
/* Splits a line that begins with '/' (or, with is_palette, a bare one) into entry and argument text.
 * NULL and a sentence with the nearest names when the word is unknown; a start that only one
 * command has is enough. */
const slash_entry *slash_find(const char *line, bool is_palette, const char **args, err *e);
/* Parsed command line. All strings are borrowed from argv. */
#define CMD_MAX_OPTIONS 32
typedef struct cmd_args {
    const cmd_entry *entry;
    struct {
        const cmd_option *option;
        const char *value;
    } given[CMD_MAX_OPTIONS];
    int n_given;
    const char *const *args; /* positional */
    int n_args;
    const char *program; /* argv[0] */
} cmd_args;

/* Parses argv into a. Takes options anywhere, --name=value and --name value, and "--". The array of
 * positionals is made inside argv (it is reordered). ERR_ARG with a sentence for the user. */
int cmd_parse(int argc, char **argv, cmd_args *a, err *e);
bool cmd_has(const cmd_args *a, const char *option);
/* The last value given, or NULL. */
const char *cmd_value(const cmd_args *a, const char *option);

/* Help: all commands when noun is NULL, else of one noun (and verb). */
void cmd_help(buf *out, const char *noun, const char *verb);
void slash_help(buf *out, const char *word, int where);

#endif
