/* The settings file tandem.conf: KEY=VALUE lines, parsed and never sourced by a shell. A settings
 * object holds the value of every known key and where it came from. Order of precedence: command
 * line, environment (TANDEM_KEY), file, built-in. Owned and used by one thread; plain reads of an
 * object nobody changes may come from any thread.
 *
 * Refused, with file and line: unknown keys (the nearest name is given), repeated keys, shell syntax
 * ($, backquote, quotes that do not pair, export), control characters, values out of range, path
 * traversal, text that is not UTF-8. Secrets are never values here, only paths to secret files. */
#ifndef SETUP_SETTINGS_H
#define SETUP_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

typedef enum setting_kind {
    SETTING_TEXT,
    SETTING_WORD,   /* one of choices */
    SETTING_SWITCH, /* on or off (1, 0, yes, no, true, false are read too) */
    SETTING_INT,    /* min to max */
    SETTING_NUMBER, /* min to max */
    SETTING_PATH,   /* absolute (a leading ~/ is allowed), no ".." part, no ':'; *_DATA: no blank */
    SETTING_ADDRESS, /* IPv4 or IPv6 literal */
    SETTING_URL,     /* https, or http on a loopback address */
    SETTING_NAME,    /* letters, digits, . _ - only */
    SETTING_SSH      /* [user@]host[:port] */
} setting_kind;

typedef enum setting_origin {
    SETTING_BUILTIN,
    SETTING_FILE,
    SETTING_ENVIRONMENT,
    SETTING_COMMAND_LINE
} setting_origin;

/* One key: constant data. */
typedef struct setting_key {
    const char *name;
    setting_kind kind;
    const char *builtin; /* "" = not set */
    double min, max;     /* of INT and NUMBER */
    const char *choices; /* of WORD: separated by blanks */
    bool is_node_own;    /* differs between the nodes by nature: not part of the shared digest */
    const char *help;    /* one line, no full stop */
} setting_key;

const setting_key *settings_keys(size_t *n);
const setting_key *settings_key(const char *name); /* exact, upper case; NULL if unknown */
const char *settings_nearest(const char *name);    /* nearest known name or NULL */

typedef struct settings settings;

/* All keys at their built-in values. */
settings *settings_new(void);
void settings_free(settings *s);

/* Reads a file over the built-in values. A missing file is not an error. ERR_FORMAT: the first bad
 * line, with its number; nothing of the file is taken then. ERR_AUTH when others may write it. */
int settings_load_file(settings *s, const char *path, err *e);
/* The same for text in memory; path is used in messages. */
int settings_load_text(settings *s, const char *text, size_t len, const char *path, err *e);
/* Takes TANDEM_KEY variables. An unknown TANDEM_ variable is ignored (other programs' names). */
int settings_load_environment(settings *s, err *e);
/* Built-in, usual file, environment: what every command starts with. */
int settings_load(settings *s, err *e);

/* Checks and sets one value. Lower case names are read as upper case. An empty value unsets. */
int settings_set(settings *s, const char *name, const char *value, setting_origin origin, err *e);
int settings_check(const setting_key *k, const char *value, err *e);

/* Value as text, "" when not set; CHECKs that the key exists. Valid until the value changes. */
const char *settings_get(const settings *s, const char *name);
setting_origin settings_origin(const settings *s, const char *name);
const char *settings_origin_name(setting_origin o);
/* Where the value was set: "PATH:LINE", the variable's name, or "". */
const char *settings_place(const settings *s, const char *name);
bool settings_is_set(const settings *s, const char *name);
int64_t settings_int(const settings *s, const char *name);   /* INT keys; CHECKed */
double settings_number(const settings *s, const char *name); /* INT and NUMBER keys */
bool settings_is_on(const settings *s, const char *name);    /* SWITCH keys */

/* MASTER_PORT (the ranks) and the port above it (the keepers) must differ from API_PORT. ERR_ARG. */
int settings_check_ports(const settings *s, err *e);

/* Rewrites the file with one key changed (value NULL or "": the key's line is removed). Comments,
 * order and all other lines stay byte for byte. Atomic, mode 0600, makes the folder. The file must
 * parse before and after. */
int settings_file_set(const char *path, const char *name, const char *value, err *e);

/* A settings file that sets nothing: every key with its help and built-in value as a comment. */
void settings_sample(buf *out);

/* The frozen form: every key that is set, sorted, one KEY=VALUE a line. shared leaves out the keys
 * that are a node's own, so both nodes can compare its SHA-256. */
void settings_frozen(const settings *s, bool shared, buf *out);
void settings_digest(const settings *s, char hex[65]);
/* Keeps the frozen form of a start as DIR/NAME.conf (0600) with its digest in a comment; hex gets the
 * shared digest that both nodes must have. */
int settings_freeze(const settings *s, const char *dir, const char *name, char hex[65], err *e);

#endif
