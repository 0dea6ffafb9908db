/* Checks of single values, one function per kind, and of values against each other. */
#include "setup/settings.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "engine/base/str.h"

enum { SETTING_MAX_BYTES = 1024 };

static int bad(const setting_key *k, const char *value, const char *want, err *e) {
    return err_set(e, ERR_ARG, "%s is \"%.80s\"; it must be %s", k->name, value, want);
}

static int check_number(const setting_key *k, const char *value, err *e) {
    double v = 0;
    int64_t i = 0;
    bool is_int = k->kind == SETTING_INT;
    bool fits = is_int ? parse_i64(value, &i) == OK : parse_double(value, &v) == OK;
    if (is_int) v = (double)i;
    if (fits && v >= k->min && v <= k->max) return OK;
    return err_set(e, ERR_ARG, "%s is \"%.80s\"; it must be %s from %.15g to %.15g", k->name, value,
        is_int ? "a whole number" : "a number", k->min, k->max);
}

static int check_word(const setting_key *k, const char *value, err *e) {
    size_t n = strlen(value);
    for (const char *p = k->choices; n > 0 && *p != '\0';) {
        size_t word = strcspn(p, " ");
        if (word == n && strncmp(p, value, n) == 0) return OK;
        p += word + (p[word] == ' ' ? 1 : 0);
    }
    return err_set(
        e, ERR_ARG, "%s is \"%.80s\"; it must be one of: %s", k->name, value, k->choices);
}

static bool is_switch(const char *value) {
    static const char *const words[] = {"on", "off", "1", "0", "yes", "no", "true", "false"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (str_eq_nocase(value, words[i])) return true;
    }
    return false;
}

static int check_path(const setting_key *k, const char *value, err *e) {
    if (value[0] != '/' && !str_starts(value, "~/")) {
        return bad(k, value, "an absolute path", e);
    }
    if (strchr(value, ':') != NULL) return bad(k, value, "a path without ':'", e);
    if (str_ends(k->name, "_DATA") && strchr(value, ' ') != NULL) {
        return bad(k, value, "a path without blanks", e);
    }
    for (const char *p = value; (p = strstr(p, "..")) != NULL; p += 2) {
        if (p[-1] == '/' && (p[2] == '/' || p[2] == '\0')) {
            return bad(k, value, "a path without a \"..\" part", e);
        }
    }
    return OK;
}

static bool is_address(const char *value) {
    unsigned char raw[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, value, raw) == 1 || inet_pton(AF_INET6, value, raw) == 1;
}

static bool is_name(const char *value, size_t n) {
    if (n == 0 || value[0] == '-' || value[0] == '.') return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)value[i];
        if (!isalnum(c) && strchr("._-", c) == NULL) return false;
    }
    return true;
}

static int check_url(const setting_key *k, const char *value, err *e) {
    bool is_loopback = false;
    if (str_starts(value, "http://")) {
        const char *host = value + 7;
        size_t n = strcspn(host, ":/");
        is_loopback = (n == 9 && strncmp(host, "127.0.0.1", n) == 0) ||
                      (n == 9 && strncmp(host, "localhost", n) == 0) || str_starts(host, "[::1]");
    }
    bool has_space = strpbrk(value, " \t\"'\\<>") != NULL;
    if (!has_space && (is_loopback || (str_starts(value, "https://") && value[8] != '\0')))
        return OK;
    return bad(k, value, "an https address (http only on this machine)", e);
}

/* Labels of letters, digits and inner dashes with single dots between them, or an IPv6 address in
 * brackets. Digits and dots alone must be an IPv4 address: 10.0.0.256 is a mistyped one, no name. */
static bool is_host(const char *value, size_t n) {
    char host[256];
    unsigned char raw[sizeof(struct in6_addr)];
    if (n == 0 || n >= sizeof host) return false;
    memcpy(host, value, n);
    host[n] = '\0';
    if (host[0] == '[') {
        bool is_closed = host[n - 1] == ']';
        host[n - 1] = '\0';
        return is_closed && inet_pton(AF_INET6, host + 1, raw) == 1;
    }
    if (strspn(host, "0123456789.") == n) return inet_pton(AF_INET, host, raw) == 1;
    for (size_t at = 0; at < n;) {
        size_t len = strcspn(host + at, ".");
        bool is_label = len > 0 && len <= 63 && host[at] != '-' && host[at + len - 1] != '-';
        for (size_t i = 0; i < len; i++) {
            unsigned char c = (unsigned char)host[at + i];
            is_label = is_label && (isalnum(c) || c == '-' || c == '_');
        }
        if (!is_label) return false;
        at += len + 1;
    }
    return host[n - 1] != '.';
}

/* [user@]host[:port]; a leading dash would become an option of ssh. */
static int check_ssh(const setting_key *k, const char *value, err *e) {
    const char *host = strchr(value, '@');
    bool is_fine = true;
    if (host != NULL) {
        is_fine = is_name(value, (size_t)(host - value));
        host++;
    } else {
        host = value;
    }
    const char *from = host[0] == '[' ? strchr(host, ']') : host;
    const char *colon = from != NULL ? strrchr(from, ':') : NULL;
    size_t n = colon != NULL ? (size_t)(colon - host) : strlen(host);
    is_fine = is_fine && is_host(host, n);
    if (colon != NULL) {
        int64_t port = 0;
        is_fine = is_fine && parse_i64(colon + 1, &port) == OK && port >= 1 && port <= 65535;
    }
    return is_fine ? OK : bad(k, value, "user@host or user@host:port", e);
}

static int check_text(const setting_key *k, const char *value, err *e) {
    size_t n = strlen(value);
    if (n > SETTING_MAX_BYTES) {
        return err_set(e, ERR_LIMIT, "%s has %zu bytes; at most %d are allowed", k->name, n,
            SETTING_MAX_BYTES);
    }
    if (!utf8_valid(value, n)) return bad(k, "(bytes)", "UTF-8 text", e);
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)value[i] < 0x20 || value[i] == 0x7f) {
            return bad(k, "(control character)", "one line of text", e);
        }
    }
    if (strpbrk(value, "$`") != NULL) {
        return bad(
            k, value, "plain text: the file is not run by a shell, so $ and ` mean nothing", e);
    }
    return OK;
}

int settings_check(const setting_key *k, const char *value, err *e) {
    int rc = check_text(k, value, e);
    if (rc != OK || value[0] == '\0') return rc;
    switch (k->kind) {
    case SETTING_WORD:
        return check_word(k, value, e);
    case SETTING_SWITCH:
        return is_switch(value) ? OK : bad(k, value, "on or off", e);
    case SETTING_INT:
    case SETTING_NUMBER:
        return check_number(k, value, e);
    case SETTING_PATH:
        return check_path(k, value, e);
    case SETTING_ADDRESS:
        return is_address(value) ? OK : bad(k, value, "an IP address", e);
    case SETTING_URL:
        return check_url(k, value, e);
    case SETTING_NAME:
        return is_name(value, strlen(value)) ? OK : bad(k, value, "letters, digits, . _ or -", e);
    case SETTING_SSH:
        return check_ssh(k, value, e);
    case SETTING_TEXT:
        break;
    }
    return OK;
}

int settings_check_ports(const settings *s, err *e) {
    int64_t master = settings_int(s, "MASTER_PORT"), api = settings_int(s, "API_PORT");
    if (api != master && api != master + 1) return OK;
    return err_set(e, ERR_ARG,
        "API_PORT is %lld, and MASTER_PORT %lld takes this port and the next for the two machines; "
        "set another API_PORT or MASTER_PORT",
        (long long)api, (long long)master);
}
