#include "setup/settings.h"

#include <ctype.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "setup/paths.h"

enum { SETTINGS_MAX_BYTES = 256 << 10 };

typedef struct setting_value {
    char *text; /* NULL: the built-in value */
    char *place;
    setting_origin origin;
} setting_value;

struct settings {
    size_t n;
    setting_value *values; /* one per key, in the order of settings_keys */
};

static size_t key_index(const setting_key *k) {
    size_t n = 0;
    return (size_t)(k - settings_keys(&n));
}

static const setting_key *need_key(const char *name) {
    const setting_key *k = settings_key(name);
    CHECK_MSG(k != NULL, "unknown setting %s", name);
    return k;
}

settings *settings_new(void) {
    settings *s = mem_alloc(sizeof *s);
    settings_keys(&s->n);
    s->values = mem_array(s->n, sizeof *s->values);
    return s;
}

static void value_clear(setting_value *v) {
    mem_free(v->text);
    mem_free(v->place);
    *v = (setting_value){0};
}

void settings_free(settings *s) {
    if (s == NULL) return;
    for (size_t i = 0; i < s->n; i++)
        value_clear(&s->values[i]);
    mem_free(s->values);
    mem_free(s);
}

/* ~/x becomes an absolute path, switches become on or off: one value, one spelling. */
static char *normal_form(const setting_key *k, const char *value) {
    if (k->kind == SETTING_SWITCH) {
        static const char *const yes[] = {"on", "1", "yes", "true"};
        for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
            if (str_eq_nocase(value, yes[i])) return mem_strdup("on");
        }
        return mem_strdup("off");
    }
    if (k->kind == SETTING_PATH && str_starts(value, "~/")) {
        const char *home = getenv("HOME");
        const struct passwd *pw = home == NULL || home[0] != '/' ? getpwuid(getuid()) : NULL;
        if (pw != NULL) home = pw->pw_dir;
        buf full = BUF_INIT;
        if (home != NULL && path_join(&full, home, value + 2) == OK) return buf_take(&full);
        buf_release(&full);
    }
    return mem_strdup(value);
}

static void value_put(settings *s, const setting_key *k, const char *value, setting_origin origin,
    const char *place) {
    setting_value *v = &s->values[key_index(k)];
    value_clear(v);
    if (value[0] == '\0') return;
    v->text = normal_form(k, value);
    v->place = place != NULL ? mem_strdup(place) : NULL;
    v->origin = origin;
}

static int unknown_key(const char *name, err *e) {
    const char *near = settings_nearest(name);
    if (near != NULL) {
        return err_set(e, ERR_NOT_FOUND, "there is no setting %.60s; did you mean %s?", name, near);
    }
    return err_set(e, ERR_NOT_FOUND,
        "there is no setting %.60s; `tandem config list` shows all of them", name);
}

/* Finds a key whatever the case of the name. */
static const setting_key *find_key(const char *name, err *e) {
    char upper[64];
    size_t n = strlen(name);
    if (n < sizeof upper) {
        for (size_t i = 0; i <= n; i++)
            upper[i] = (char)toupper((unsigned char)name[i]);
        const setting_key *k = settings_key(upper);
        if (k != NULL) return k;
        unknown_key(upper, e);
        return NULL;
    }
    unknown_key(name, e);
    return NULL;
}

int settings_set(settings *s, const char *name, const char *value, setting_origin origin, err *e) {
    const setting_key *k = find_key(name, e);
    if (k == NULL) return ERR_NOT_FOUND;
    int rc = settings_check(k, value, e);
    if (rc == OK) value_put(s, k, value, origin, NULL);
    return rc;
}

/* One line of the file, cut into key and value inside a scratch copy. */
typedef struct line_parts {
    char *key, *value; /* key NULL: blank or comment */
} line_parts;

static char *trim(char *p) {
    while (*p == ' ' || *p == '\t')
        p++;
    size_t n = strlen(p);
    while (n > 0 && (p[n - 1] == ' ' || p[n - 1] == '\t'))
        p[--n] = '\0';
    return p;
}

/* Takes one pair of quotes off, or cuts a trailing " # comment". Quotes inside are refused. */
static int unquote(char **value, err *e) {
    char *v = *value;
    size_t n = strlen(v);
    if (n > 0 && (v[0] == '"' || v[0] == '\'')) {
        char *end = strchr(v + 1, v[0]);
        if (end == NULL) return err_set(e, ERR_FORMAT, "a quote is not closed");
        char *rest = trim(end + 1);
        if (*rest != '\0' && *rest != '#') {
            return err_set(e, ERR_FORMAT, "text stands after the closing quote");
        }
        *end = '\0';
        *value = v + 1;
        return OK;
    }
    for (size_t i = 0; i < n; i++) {
        if (v[i] == '#' && i > 0 && (v[i - 1] == ' ' || v[i - 1] == '\t')) {
            v[i] = '\0';
            break;
        }
    }
    *value = trim(v);
    if (strpbrk(*value, "\"'") != NULL)
        return err_set(e, ERR_FORMAT, "a quote stands inside the value");
    return OK;
}

static int line_split(char *line, line_parts *p, err *e) {
    *p = (line_parts){0};
    char *text = trim(line);
    if (*text == '\0' || *text == '#') return OK;
    char *equals = strchr(text, '=');
    if (equals == NULL) {
        return err_set(e, ERR_FORMAT, "\"%.40s\" is no KEY=VALUE line", text);
    }
    *equals = '\0';
    char *key = trim(text);
    if (str_starts(key, "export ")) {
        return err_set(e, ERR_FORMAT, "\"export\" is shell syntax; write only KEY=VALUE");
    }
    for (const char *c = key; *c != '\0'; c++) {
        if (!(*c >= 'A' && *c <= 'Z') && !(*c >= '0' && *c <= '9') && *c != '_') {
            return err_set(
                e, ERR_FORMAT, "\"%.40s\" is no key; keys are capitals, digits and _", key);
        }
    }
    p->key = key;
    p->value = trim(equals + 1);
    return unquote(&p->value, e);
}

/* Walks the lines of a file and gives each known, checked pair to fn with its line number. */
typedef int (*pair_fn)(void *ctx, const setting_key *k, const char *value, int line);

static int one_line(char *line, int number, bool *seen, pair_fn fn, void *ctx, err *e) {
    line_parts p;
    int rc = line_split(line, &p, e);
    if (rc != OK || p.key == NULL) return rc;
    const setting_key *k = settings_key(p.key);
    if (k == NULL) return unknown_key(p.key, e);
    if (seen[key_index(k)]) {
        return err_set(e, ERR_FORMAT, "%s stands here a second time", p.key);
    }
    seen[key_index(k)] = true;
    rc = settings_check(k, p.value, e);
    return rc == OK ? fn(ctx, k, p.value, number) : rc;
}

static int each_pair(
    const char *text, size_t len, const char *path, pair_fn fn, void *ctx, err *e) {
    if (memchr(text, '\0', len) != NULL || !utf8_valid(text, len)) {
        return err_set(e, ERR_FORMAT, "%s is not a UTF-8 text file", path);
    }
    size_t n_keys = 0;
    settings_keys(&n_keys);
    bool *seen = mem_array(n_keys, sizeof *seen);
    int rc = OK, number = 1;
    for (size_t at = 0; at < len && rc == OK; number++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end != NULL ? (size_t)(end - text) - at : len - at;
        char *line = mem_strndup(text + at, n);
        if (n > 0 && line[n - 1] == '\r') line[n - 1] = '\0';
        err why = ERR_INIT;
        rc = one_line(line, number, seen, fn, ctx, &why);
        if (rc != OK) err_set(e, rc = ERR_FORMAT, "%s line %d: %s", path, number, why.msg);
        mem_free(line);
        at += n + 1;
    }
    mem_free(seen);
    return rc;
}

typedef struct load_ctx {
    settings *s;
    const char *path;
} load_ctx;

static int count_pair(void *ctx, const setting_key *k, const char *value, int line) {
    (void)ctx, (void)k, (void)value, (void)line;
    return OK;
}

static int take_pair(void *ctx, const setting_key *k, const char *value, int line) {
    const load_ctx *c = ctx;
    buf place = BUF_INIT;
    int rc = buf_printf(&place, "%s:%d", c->path, line);
    if (rc == OK) value_put(c->s, k, value, SETTING_FILE, buf_cstr(&place));
    buf_release(&place);
    return rc;
}

int settings_load_text(settings *s, const char *text, size_t len, const char *path, err *e) {
    /* Twice, so that a bad line leaves the object as it was. */
    int rc = each_pair(text, len, path, count_pair, NULL, e);
    load_ctx c = {s, path};
    return rc == OK ? each_pair(text, len, path, take_pair, &c, e) : rc;
}

static int check_owner(const char *path, err *e) {
    struct stat st;
    if (stat(path, &st) != 0) return err_errno(e, "cannot look at %s", path);
    if ((st.st_mode & 0022) != 0) {
        return err_set(e, ERR_AUTH, "%s can be written by others; run: chmod 600 %s", path, path);
    }
    if (st.st_uid != getuid() && st.st_uid != 0) {
        return err_set(e, ERR_AUTH, "%s belongs to another user; it is not read", path);
    }
    return OK;
}

int settings_load_file(settings *s, const char *path, err *e) {
    if (!file_exists(path)) return OK;
    int rc = check_owner(path, e);
    if (rc != OK) return rc;
    buf text = BUF_INIT;
    rc = file_read(path, &text, SETTINGS_MAX_BYTES, e);
    if (rc == OK) rc = settings_load_text(s, text.data != NULL ? text.data : "", text.len, path, e);
    buf_release(&text);
    return rc;
}

int settings_load_environment(settings *s, err *e) {
    size_t n = 0;
    const setting_key *keys = settings_keys(&n);
    for (size_t i = 0; i < n; i++) {
        buf name = BUF_INIT;
        int rc = buf_printf(&name, "TANDEM_%s", keys[i].name);
        const char *value = rc == OK ? getenv(buf_cstr(&name)) : NULL;
        if (value != NULL && value[0] != '\0') {
            rc = settings_check(&keys[i], value, e);
            if (rc == OK)
                value_put(s, &keys[i], value, SETTING_ENVIRONMENT, buf_cstr(&name));
            else
                err_add(e, rc, "environment variable TANDEM_%s", keys[i].name);
        }
        buf_release(&name);
        if (rc != OK) return rc;
    }
    return OK;
}

int settings_load(settings *s, err *e) {
    buf path = BUF_INIT;
    int rc = paths_settings_file(&path, e);
    if (rc == OK) rc = settings_load_file(s, buf_cstr(&path), e);
    if (rc == OK) rc = settings_load_environment(s, e);
    buf_release(&path);
    return rc;
}

const char *settings_get(const settings *s, const char *name) {
    const setting_key *k = need_key(name);
    const char *text = s->values[key_index(k)].text;
    return text != NULL ? text : k->builtin;
}

setting_origin settings_origin(const settings *s, const char *name) {
    return s->values[key_index(need_key(name))].origin;
}

const char *settings_origin_name(setting_origin o) {
    static const char *const names[] = {"built-in", "file", "environment", "command line"};
    return names[o];
}

const char *settings_place(const settings *s, const char *name) {
    const char *place = s->values[key_index(need_key(name))].place;
    return place != NULL ? place : "";
}

bool settings_is_set(const settings *s, const char *name) {
    return settings_get(s, name)[0] != '\0';
}

int64_t settings_int(const settings *s, const char *name) {
    int64_t v = 0;
    CHECK(need_key(name)->kind == SETTING_INT);
    CHECK_MSG(parse_i64(settings_get(s, name), &v) == OK, "setting %s is not set", name);
    return v;
}

double settings_number(const settings *s, const char *name) {
    double v = 0;
    CHECK_MSG(parse_double(settings_get(s, name), &v) == OK, "setting %s is not set", name);
    return v;
}

bool settings_is_on(const settings *s, const char *name) {
    CHECK(need_key(name)->kind == SETTING_SWITCH);
    return str_eq(settings_get(s, name), "on");
}

/* True when this line of the file sets the key. */
static bool line_sets(const char *line, size_t n, const char *name) {
    size_t i = 0, len = strlen(name);
    while (i < n && (line[i] == ' ' || line[i] == '\t'))
        i++;
    if (n - i < len || strncmp(line + i, name, len) != 0) return false;
    for (i += len; i < n && (line[i] == ' ' || line[i] == '\t'); i++)
        continue;
    return i < n && line[i] == '=';
}

/* A value that the reader would change (outer blanks, a '#') is written in quotes. */
static int put_pair(buf *out, const char *name, const char *value, err *e) {
    bool has_double = strchr(value, '"') != NULL, has_single = strchr(value, '\'') != NULL;
    size_t n = strlen(value);
    bool needs = has_double || has_single || strchr(value, '#') != NULL || value[0] == ' ' ||
                 value[n - 1] == ' ';
    if (has_double && has_single) {
        return err_set(
            e, ERR_ARG, "%s holds both kinds of quotes, which the file cannot keep", name);
    }
    const char *quote = !needs ? "" : has_double ? "'" : "\"";
    return buf_printf(out, "%s=%s%s%s\n", name, quote, value, quote);
}

static int rewrite(const buf *old, const char *name, const char *value, buf *out, err *e) {
    bool is_done = value == NULL || value[0] == '\0';
    int rc = OK;
    for (size_t at = 0; at < old->len && rc == OK;) {
        const char *line = old->data + at;
        const char *end = memchr(line, '\n', old->len - at);
        size_t n = end != NULL ? (size_t)(end - line) + 1 : old->len - at;
        at += n;
        if (!line_sets(line, n, name)) {
            rc = buf_append(out, line, n);
        } else if (!is_done) {
            rc = put_pair(out, name, value, e);
            is_done = true;
        }
    }
    if (rc == OK && out->len > 0 && out->data[out->len - 1] != '\n') rc = buf_putc(out, '\n');
    if (rc == OK && !is_done) rc = put_pair(out, name, value, e);
    return rc;
}

int settings_file_set(const char *path, const char *name, const char *value, err *e) {
    const setting_key *k = find_key(name, e);
    if (k == NULL) return ERR_NOT_FOUND;
    int rc = value != NULL ? settings_check(k, value, e) : OK;
    buf old = BUF_INIT, text = BUF_INIT, dir = BUF_INIT;
    settings *check = settings_new();
    if (rc == OK && file_exists(path)) {
        rc = check_owner(path, e);
        if (rc == OK) rc = file_read(path, &old, SETTINGS_MAX_BYTES, e);
        if (rc == OK) rc = each_pair(buf_cstr(&old), old.len, path, count_pair, NULL, e);
    }
    if (rc == OK) rc = rewrite(&old, k->name, value, &text, e);
    if (rc == OK) rc = settings_load_text(check, buf_cstr(&text), text.len, path, e);
    if (rc == OK) rc = path_dir(&dir, path);
    if (rc == OK) rc = dir_make_all(buf_cstr(&dir), 0700, e);
    if (rc == OK) rc = file_write_atomic(path, buf_cstr(&text), text.len, 0600, e);
    settings_free(check);
    buf_release(&old);
    buf_release(&text);
    buf_release(&dir);
    return rc;
}

void settings_sample(buf *out) {
    size_t n = 0;
    const setting_key *keys = settings_keys(&n);
    int rc = buf_puts(out,
        "# Settings of Tandem: KEY=VALUE lines, see tandem.conf(5). Parsed, never run by "
        "a shell.\n# Place: $XDG_CONFIG_HOME/tandem/tandem.conf, not writable by others. "
        "Take the # away to set a value.\n");
    for (size_t i = 0; i < n && rc == OK; i++) {
        rc = buf_printf(out, "\n# %s\n#%s=%s\n", keys[i].help, keys[i].name, keys[i].builtin);
    }
    CHECK(rc == OK);
}

static int by_name(const void *a, const void *b) {
    const setting_key *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

void settings_frozen(const settings *s, bool shared, buf *out) {
    size_t n = 0;
    const setting_key *keys = settings_keys(&n);
    const setting_key **sorted = mem_array(n, sizeof *sorted);
    for (size_t i = 0; i < n; i++)
        sorted[i] = &keys[i];
    qsort(sorted, n, sizeof *sorted, by_name);
    for (size_t i = 0; i < n; i++) {
        const char *value = settings_get(s, sorted[i]->name);
        if (value[0] == '\0' || (shared && sorted[i]->is_node_own)) continue;
        int rc = buf_printf(out, "%s=%s\n", sorted[i]->name, value);
        CHECK(rc == OK);
    }
    mem_free(sorted);
}

void settings_digest(const settings *s, char hex[65]) {
    buf text = BUF_INIT;
    settings_frozen(s, true, &text);
    uint8_t digest[SHA256_BYTES];
    sha256_of(buf_cstr(&text), text.len, digest);
    sha256_hex(digest, hex);
    buf_release(&text);
}

int settings_freeze(const settings *s, const char *dir, const char *name, char hex[65], err *e) {
    buf text = BUF_INIT, path = BUF_INIT;
    settings_digest(s, hex);
    int rc = buf_printf(
        &text, "# Settings of the start %s; SHA-256 of what both nodes share:\n# %s\n", name, hex);
    if (rc == OK) settings_frozen(s, false, &text);
    if (rc == OK) rc = buf_printf(&path, "%s/%s.conf", dir, name);
    if (rc == OK) rc = paths_make_private(dir, e);
    if (rc == OK) rc = file_write_atomic(buf_cstr(&path), buf_cstr(&text), text.len, 0600, e);
    buf_release(&text);
    buf_release(&path);
    return err_add(e, rc, "keeping the settings of the start");
}
