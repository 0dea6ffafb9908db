#include "setup/redact.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SECRET_MIN = 8 };

/* One pass over a text: at is where the next piece is looked for. */
typedef struct scan {
    const redact_names *names;
    const char *text, *end, *at;
    buf *out;
    redact_counts *counts;
} scan;

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '-';
}

static bool is_secret_char(char c) {
    return is_word(c) || c == '.' || c == '+' || c == '/' || c == '=' || c == '~';
}

/* Whether a word begins here: nothing that belongs to a word stands before. */
static bool at_word_start(const scan *s) {
    return s->at == s->text || !is_word(s->at[-1]);
}

static bool has_prefix(const scan *s, const char *prefix) {
    size_t n = strlen(prefix);
    return (size_t)(s->end - s->at) >= n && strncasecmp(s->at, prefix, n) == 0;
}

static size_t run_length(const scan *s, size_t from, bool (*fn)(char)) {
    size_t n = from;
    while (s->at + n < s->end && fn(s->at[n]))
        n++;
    return n - from;
}

/* Replaces n bytes by word. */
static int replace(scan *s, size_t n, const char *word, int *count) {
    if (count != NULL) (*count)++;
    s->at += n;
    return buf_puts(s->out, word);
}

/* hf_..., sk-..., tdm-..., ghp_... and the like: prefix and at least SECRET_MIN more. HF_ENDPOINT and
 * HF_TOKEN_FILE are names of settings: the prefixes are written small. */
static size_t token_length(const scan *s) {
    static const char *const prefixes[] = {
        "hf_", "sk-", "sk_", "tdm-", "tdm_", "ghp_", "github_pat_", "glpat-", "xoxb-"};
    if (!at_word_start(s)) return 0;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (!has_prefix(s, prefixes[i]) || isupper((unsigned char)*s->at)) continue;
        size_t n = strlen(prefixes[i]), more = run_length(s, n, is_word);
        if (more >= SECRET_MIN) return n + more;
    }
    return 0;
}

/* "Bearer X": gives the length of the word and blank, and of the secret behind it. */
static size_t bearer_length(const scan *s, size_t *secret) {
    static const char *const words[] = {"bearer ", "basic "};
    if (!at_word_start(s)) return 0;
    for (size_t i = 0; i < 2; i++) {
        if (!has_prefix(s, words[i])) continue;
        size_t n = strlen(words[i]);
        *secret = run_length(s, n, is_secret_char);
        if (*secret >= SECRET_MIN) return n;
    }
    return 0;
}

typedef struct named_value {
    const char *key;
    bool is_text; /* prompts and replies, not a secret */
} named_value;

static const named_value VALUES[] = {
    {"password", false},
    {"passwd", false},
    {"passphrase", false},
    {"secret", false},
    {"token", false},
    {"api_key", false},
    {"apikey", false},
    {"x-api-key", false},
    {"authorization", false},
    {"hf_token", false},
    {"content", true},
    {"prompt", true},
    {"reasoning_content", true},
    {"reasoning", true},
    {"arguments", true},
};

/* A key=VALUE, key: VALUE or "key":"VALUE" pair. Gives how many bytes stay, and how many are the value. */
static size_t value_at(const scan *s, const named_value **which, size_t *value) {
    if (!at_word_start(s)) return 0;
    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++) {
        size_t n = strlen(VALUES[i].key);
        if (!has_prefix(s, VALUES[i].key) || (s->at + n < s->end && is_word(s->at[n]))) continue;
        bool in_json = s->at > s->text && s->at[-1] == '"' && s->at + n < s->end && s->at[n] == '"';
        if (VALUES[i].is_text && !in_json) continue;
        if (in_json) n++;
        while (s->at + n < s->end && (s->at[n] == ' ' || s->at[n] == '\t'))
            n++;
        if (s->at + n >= s->end || (s->at[n] != ':' && s->at[n] != '=')) continue;
        n++;
        while (s->at + n < s->end && (s->at[n] == ' ' || s->at[n] == '\t'))
            n++;
        *which = &VALUES[i];
        if (s->at + n < s->end && s->at[n] == '"') {
            size_t k = n + 1;
            while (s->at + k < s->end && s->at[k] != '"' && s->at[k] != '\n')
                k += s->at[k] == '\\' ? 2 : 1;
            if (s->at + k > s->end) k = (size_t)(s->end - s->at);
            *value = k - n - 1;
            return n + 1;
        }
        *value = run_length(s, n, is_secret_char);
        return n;
    }
    return 0;
}

/* aa:bb:cc:dd:ee:ff */
static bool is_mac(const scan *s) {
    if (s->end - s->at < 17 || !at_word_start(s)) return false;
    for (int i = 0; i < 17; i++) {
        if (i % 3 == 2 ? s->at[i] != ':' : !isxdigit((unsigned char)s->at[i])) return false;
    }
    return s->at + 17 == s->end || (!is_word(s->at[17]) && s->at[17] != ':');
}

/* Length of an IPv4 address that is reachable from outside; 0 for private, loopback and special ones. */
static size_t public_ip_length(const scan *s) {
    unsigned part[4];
    size_t n = 0;
    if (!at_word_start(s) || (s->at > s->text && s->at[-1] == '.')) return 0;
    for (int i = 0; i < 4; i++) {
        unsigned v = 0;
        size_t digits = 0;
        while (s->at + n < s->end && isdigit((unsigned char)s->at[n]) && digits < 3) {
            v = v * 10 + (unsigned)(s->at[n] - '0');
            n++;
            digits++;
        }
        if (digits == 0 || v > 255) return 0;
        part[i] = v;
        if (i < 3 && (s->at + n >= s->end || s->at[n++] != '.')) return 0;
    }
    if (s->at + n < s->end && (is_word(s->at[n]) || (s->at[n] == '.' && s->at + n + 1 < s->end &&
                                                        isdigit((unsigned char)s->at[n + 1]))))
        return 0;
    bool is_private = part[0] == 10 || part[0] == 127 || part[0] == 0 || part[0] >= 224 ||
                      (part[0] == 172 && part[1] >= 16 && part[1] < 32) ||
                      (part[0] == 192 && part[1] == 168) || (part[0] == 169 && part[1] == 254);
    return is_private ? 0 : n;
}

/* Length of an IPv6 address of the public range 2000::/3; 0 for others. */
static size_t public_ip6_length(const scan *s) {
    char text[INET6_ADDRSTRLEN];
    unsigned char raw[sizeof(struct in6_addr)];
    size_t n = 0;
    if (!at_word_start(s) || (s->at > s->text && s->at[-1] == ':')) return 0;
    while (s->at + n < s->end && n < sizeof text - 1 &&
           (isxdigit((unsigned char)s->at[n]) || s->at[n] == ':'))
        n++;
    if (s->at + n < s->end && is_word(s->at[n])) return 0;
    while (n > 2 && s->at[n - 1] == ':' && s->at[n - 2] != ':')
        n--;
    memcpy(text, s->at, n);
    text[n] = '\0';
    return inet_pton(AF_INET6, text, raw) == 1 && (raw[0] >> 5) == 1 ? n : 0;
}

/* The name that stands here, as a whole word; NULL: none. */
static const char *name_at(const scan *s, size_t *n) {
    for (int i = 0; i < s->names->n_names; i++) {
        const char *word = s->names->name[i].word;
        size_t len = word != NULL ? strlen(word) : 0;
        if (len == 0 || !at_word_start(s) || !has_prefix(s, word)) continue;
        if (s->at + len < s->end && is_word(s->at[len])) continue;
        *n = len;
        return s->names->name[i].shown;
    }
    return NULL;
}

static bool is_home(const scan *s, size_t *n) {
    if (s->names->home == NULL) return false;
    *n = strlen(s->names->home);
    if (*n < 2 || (size_t)(s->end - s->at) < *n || memcmp(s->at, s->names->home, *n) != 0)
        return false;
    return s->at + *n == s->end || !is_word(s->at[*n]);
}

/* Looks at one place; moves on by what it took or by one byte. */
static int step(scan *s) {
    redact_counts *c = s->counts;
    const named_value *which = NULL;
    size_t n = 0, value = 0;
    const char *shown;
    if ((n = value_at(s, &which, &value)) > 0 && value > 0) {
        /* "Authorization: Bearer X" keeps its word; the secret is found at the next place. */
        scan behind = *s;
        behind.at += n;
        size_t secret = 0;
        if (bearer_length(&behind, &secret) == 0) {
            int rc = buf_append(s->out, s->at, n);
            s->at += n;
            if (rc != OK) return rc;
            return replace(s, value, which->is_text ? "<text>" : "<secret>",
                which->is_text ? &c->texts : &c->secrets);
        }
    }
    if ((n = bearer_length(s, &value)) > 0) {
        int rc = buf_append(s->out, s->at, n);
        s->at += n;
        return rc != OK ? rc : replace(s, value, "<secret>", &c->secrets);
    }
    if ((n = token_length(s)) > 0) return replace(s, n, "<secret>", &c->secrets);
    if (is_mac(s)) {
        int rc = buf_append(s->out, s->at, 9);
        return rc != OK ? rc : replace(s, 17, "xx:xx:xx", &c->addresses);
    }
    if ((n = public_ip_length(s)) > 0) return replace(s, n, "<address>", &c->addresses);
    if ((n = public_ip6_length(s)) > 0) return replace(s, n, "<address>", &c->addresses);
    if (is_home(s, &n)) return replace(s, n, "~", &c->names);
    if ((shown = name_at(s, &n)) != NULL) return replace(s, n, shown, &c->names);
    return buf_append(s->out, s->at++, 1);
}

int redact_text(
    const redact_names *names, const char *text, size_t len, buf *out, redact_counts *counts) {
    redact_counts unused = {0};
    scan s = {names, text, text + len, text, out, counts != NULL ? counts : &unused};
    while (s.at < s.end) {
        int rc = step(&s);
        if (rc != OK) return rc;
    }
    return OK;
}
