#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/api/keys_internal.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"

#define KEY_FILE_MODE 0600
#define BARE_KEY_MIN 16
#define KEY_RANDOM_BYTES 32
#define KEY_DIGITS 43

static bool is_label(const char *s) {
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c <= 0x20 || c >= 0x7f || c == '#' || c == '"' || c == '\\') return false;
    }
    return n > 0 && n < KEYS_LABEL_MAX;
}

static int read_limit(char *word, key_limits *out, err *e) {
    static const char *const names[] = {"requests", "tokens", "seconds", "context"};
    int64_t *const places[] = {&out->requests, &out->tokens, &out->seconds, &out->context};
    char *equals = strchr(word, '=');
    if (equals != NULL) *equals = '\0';
    for (int i = 0; i < 4 && equals != NULL; i++) {
        if (strcmp(word, names[i]) != 0) continue;
        if (parse_i64(equals + 1, places[i]) == OK && *places[i] > 0) return OK;
        return err_set(e, ERR_FORMAT, "the limit %s must be a whole number above 0", word);
    }
    return err_set(e, ERR_FORMAT, "limits are requests=, tokens=, seconds= and context=");
}

/* The next word of *at, cut off in place; NULL at the end. */
static char *next_word(char **at) {
    char *start = *at + strspn(*at, " \t\r");
    if (*start == '\0' || *start == '#') return NULL;
    size_t n = strcspn(start, " \t\r");
    *at = start + n;
    if (**at != '\0') *(*at)++ = '\0';
    return start;
}

static int read_bare(const char *key, key_line *out, err *e) {
    char hex[SHA256_HEX];
    size_t n = strlen(key);
    if (n < BARE_KEY_MIN) {
        return err_set(e, ERR_FORMAT, "a bare key needs at least %d characters", BARE_KEY_MIN);
    }
    sha256_of(key, n, out->digest);
    sha256_hex(out->digest, hex);
    snprintf(out->label, sizeof out->label, "bare-%.8s", hex);
    return OK;
}

int keys_read_line(const char *text, key_line *out, bool *is_key, err *e) {
    char line[1024];
    int rc = OK;
    *out = (key_line){0};
    *is_key = false;
    if (str_copy(line, sizeof line, text) >= sizeof line) {
        return err_set(e, ERR_FORMAT, "the line is too long");
    }
    char *at = line;
    char *first = next_word(&at);
    if (first == NULL) return OK;
    *is_key = true;
    char *second = next_word(&at);
    if (second == NULL) {
        rc = read_bare(first, out, e);
    } else if (!str_starts(second, "sha256:") || sha256_parse(second + 7, out->digest) != OK) {
        rc = err_set(e, ERR_FORMAT, "after the label comes sha256: and 64 hexadecimal digits");
    } else if (!is_label(first)) {
        rc = err_set(e, ERR_FORMAT, "the label is not usable");
    } else {
        str_copy(out->label, sizeof out->label, first);
    }
    for (char *word = next_word(&at); word != NULL && rc == OK; word = next_word(&at)) {
        rc = read_limit(word, &out->limits, e);
    }
    explicit_bzero(line, sizeof line);
    return rc;
}

static int check_mode(const char *path, err *e) {
    struct stat st;
    if (stat(path, &st) != 0) return err_errno(e, "reading the key file %s", path);
    if (!S_ISREG(st.st_mode)) return err_set(e, ERR_FORMAT, "%s is not a regular file", path);
    if ((st.st_mode & 077) != 0) {
        return err_set(
            e, ERR_AUTH, "others can read the key file %s; run: chmod 600 %s", path, path);
    }
    return OK;
}

int keys_read_file(const char *path, key_line *lines, int *n, err *e) {
    buf text = BUF_INIT;
    int i_line = 0;
    *n = 0;
    int rc = check_mode(path, e);
    if (rc == OK) rc = file_read(path, &text, KEYS_FILE_MAX, e);
    char *line = text.data;
    while (rc == OK && line != NULL && line < text.data + text.len) {
        bool is_key = false;
        char *end = strchr(line, '\n');
        if (end != NULL) *end = '\0';
        i_line++;
        if (*n == KEYS_MAX) {
            rc = err_set(e, ERR_LIMIT, "%s holds more than %d keys", path, KEYS_MAX);
            break;
        }
        rc = keys_read_line(line, &lines[*n], &is_key, e);
        if (rc != OK) rc = err_add(e, rc, "%s, line %d", path, i_line);
        *n += is_key;
        line = end != NULL ? end + 1 : NULL;
    }
    if (text.data != NULL) explicit_bzero(text.data, text.cap);
    buf_release(&text);
    return rc;
}

/* 32 random bytes as one number of base 62, which has 43 digits: nothing of them is lost. */
void key_make(char *out, size_t cap) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint8_t bytes[KEY_RANDOM_BYTES];
    size_t n = str_copy(out, cap, KEY_TEXT_PREFIX);
    rand_secret(bytes, sizeof bytes);
    for (size_t i = 0; i < KEY_DIGITS && n + 1 < cap; i++) {
        unsigned rest = 0;
        for (size_t k = 0; k < sizeof bytes; k++) {
            unsigned value = rest << 8 | bytes[k];
            bytes[k] = (uint8_t)(value / 62);
            rest = value % 62;
        }
        out[n++] = digits[rest];
    }
    out[n] = '\0';
    explicit_bzero(bytes, sizeof bytes);
}

static int find_label(const char *path, const char *label, bool *has, err *e) {
    key_line *lines = mem_array(KEYS_MAX, sizeof *lines);
    int n = 0;
    int rc = file_exists(path) ? keys_read_file(path, lines, &n, e) : OK;
    *has = false;
    for (int i = 0; i < n; i++) {
        *has |= strcmp(lines[i].label, label) == 0;
    }
    mem_free(lines);
    return rc;
}

int keys_add(
    const char *path, const char *label, const char *key, const key_limits *limits, err *e) {
    static const char *const names[] = {"requests", "tokens", "seconds", "context"};
    const int64_t values[] = {limits->requests, limits->tokens, limits->seconds, limits->context};
    buf text = BUF_INIT;
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX];
    bool has = false;
    if (!is_label(label)) {
        return err_set(e, ERR_ARG,
            "'%s' is no label; use 1 to %d printable characters without blanks", label,
            KEYS_LABEL_MAX - 1);
    }
    int rc = find_label(path, label, &has, e);
    if (rc == OK && has) rc = err_set(e, ERR_EXISTS, "there is a key '%s' already", label);
    if (rc == OK && file_exists(path)) rc = file_read(path, &text, KEYS_FILE_MAX, e);
    if (rc != OK) goto out;
    if (text.len > 0 && text.data[text.len - 1] != '\n') buf_putc(&text, '\n');
    sha256_of(key, strlen(key), digest);
    sha256_hex(digest, hex);
    buf_printf(&text, "%s sha256:%s", label, hex);
    for (int i = 0; i < 4; i++) {
        if (values[i] > 0) buf_printf(&text, " %s=%lld", names[i], (long long)values[i]);
    }
    buf_putc(&text, '\n');
    rc = file_write_atomic(path, text.data, text.len, KEY_FILE_MODE, e);
out:
    buf_release(&text);
    return rc;
}

int keys_remove(const char *path, const char *label, err *e) {
    buf text = BUF_INIT;
    buf rest = BUF_INIT;
    bool has = false;
    int rc = file_read(path, &text, KEYS_FILE_MAX, e);
    char *line = text.data;
    while (rc == OK && line != NULL && line < text.data + text.len) {
        key_line k;
        bool is_key = false;
        char *end = strchr(line, '\n');
        if (end != NULL) *end = '\0';
        bool is_it =
            keys_read_line(line, &k, &is_key, NULL) == OK && is_key && strcmp(k.label, label) == 0;
        has |= is_it;
        if (!is_it) buf_printf(&rest, "%s\n", line);
        line = end != NULL ? end + 1 : NULL;
    }
    if (rc == OK && !has) rc = err_set(e, ERR_NOT_FOUND, "there is no key '%s'", label);
    if (rc == OK) {
        rc = file_write_atomic(path, buf_cstr(&rest), rest.len, KEY_FILE_MODE, e);
    }
    buf_release(&text);
    buf_release(&rest);
    return rc;
}

int keys_each(const char *path, void (*fn)(void *ctx, const char *label, const key_limits *limits),
    void *ctx, err *e) {
    key_line *lines = mem_array(KEYS_MAX, sizeof *lines);
    int n = 0;
    int rc = keys_read_file(path, lines, &n, e);
    for (int i = 0; i < n && rc == OK; i++) {
        fn(ctx, lines[i].label, &lines[i].limits);
    }
    mem_free(lines);
    return rc;
}
