#include "setup/known_hosts.h"

#include <ctype.h>
#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"

enum { FILE_MAX = 4 << 20, BLOB_MAX = 16 << 10, SHA1_BYTES = 20, NAME_MAX_BYTES = 300 };

/* Strict base64 with padding; returns the length or -1. */
static long base64_decode(const char *text, size_t n, unsigned char *out, size_t cap) {
    if (n == 0 || n % 4 != 0 || n / 4 * 3 > cap + 2) return -1;
    size_t len = 0;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t word = 0;
        int pad = 0;
        for (size_t j = 0; j < 4; j++) {
            char c = text[i + j];
            uint32_t v = 0;
            if (c >= 'A' && c <= 'Z')
                v = (uint32_t)(c - 'A');
            else if (c >= 'a' && c <= 'z')
                v = (uint32_t)(c - 'a') + 26;
            else if (c >= '0' && c <= '9')
                v = (uint32_t)(c - '0') + 52;
            else if (c == '+')
                v = 62;
            else if (c == '/')
                v = 63;
            else if (c == '=' && i + 4 == n && j >= 2)
                pad++;
            else
                return -1;
            if (c != '=' && pad > 0) return -1;
            word = word << 6 | v;
        }
        for (int j = 0; j < 3 - pad; j++) {
            if (len == cap) return -1;
            out[len++] = (unsigned char)(word >> (16 - 8 * j));
        }
    }
    return (long)len;
}

static size_t base64_encode(const unsigned char *data, size_t n, char *out) {
    return (size_t)EVP_EncodeBlock((unsigned char *)out, data, (int)n);
}

int known_hosts_fingerprint(const char *key, char out[64]) {
    unsigned char *blob = mem_alloc(BLOB_MAX);
    long n = base64_decode(key, strlen(key), blob, BLOB_MAX);
    int rc = n > 0 ? OK : ERR_FORMAT;
    out[0] = '\0';
    if (rc == OK) {
        uint8_t digest[SHA256_BYTES];
        char text[64];
        sha256_of(blob, (size_t)n, digest);
        size_t len = base64_encode(digest, sizeof digest, text);
        while (len > 0 && text[len - 1] == '=')
            text[--len] = '\0';
        str_copy(out, 64, "SHA256:");
        str_copy(out + 7, 57, text);
    }
    mem_free(blob);
    return rc;
}

/* The walk of OpenSSH: two bits a step, diagonal moves in a field of 17 x 9. */
static void picture_walk(const uint8_t digest[SHA256_BYTES], uint8_t field[9][17]) {
    int x = 8, y = 4;
    for (size_t i = 0; i < SHA256_BYTES; i++) {
        for (unsigned bits = digest[i], step = 0; step < 4; step++, bits >>= 2) {
            x += (bits & 1) != 0 ? 1 : -1;
            y += (bits & 2) != 0 ? 1 : -1;
            x = x < 0 ? 0 : x > 16 ? 16 : x;
            y = y < 0 ? 0 : y > 8 ? 8 : y;
            if (field[y][x] < 14) field[y][x]++;
        }
    }
    field[4][8] = 15;
    field[y][x] = 16;
}

int known_hosts_picture(const char *type, const char *key, buf *out) {
    static const char marks[] = " .o+=*BOX@%&#/^SE";
    unsigned char *blob = mem_alloc(BLOB_MAX);
    long n = base64_decode(key, strlen(key), blob, BLOB_MAX);
    uint8_t digest[SHA256_BYTES], field[9][17] = {{0}};
    if (n > 0) sha256_of(blob, (size_t)n, digest);
    mem_free(blob);
    if (n <= 0) return ERR_FORMAT;
    picture_walk(digest, field);
    char title[18] = "";
    size_t len = strlen(type) > 15 ? 15 : strlen(type);
    int left = (15 - (int)len) / 2;
    memset(title, '-', 17);
    title[left] = '[';
    memcpy(title + left + 1, type, len);
    title[(size_t)left + 1 + len] = ']';
    int rc = buf_printf(out, "+%.17s+\n", title);
    for (int y = 0; y < 9 && rc == OK; y++) {
        char row[18] = "";
        for (int x = 0; x < 17; x++)
            row[x] = marks[field[y][x]];
        rc = buf_printf(out, "|%.17s|\n", row);
    }
    return rc == OK ? buf_puts(out, "+----[SHA256]-----+\n") : rc;
}

static int host_name(const char *host, int port, char out[NAME_MAX_BYTES]) {
    size_t n = strlen(host);
    if (n == 0 || n > 255) return ERR_ARG;
    buf name = BUF_INIT;
    int rc = port == 22 ? buf_puts(&name, host) : buf_printf(&name, "[%s]:%d", host, port);
    if (rc == OK) str_copy(out, NAME_MAX_BYTES, buf_cstr(&name));
    buf_release(&name);
    for (char *c = out; *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);
    return rc;
}

/* Shell-like match of one pattern, without recursion: the last star is where it goes back to. */
static bool pattern_matches(const char *p, size_t n, const char *name) {
    size_t i = 0, star = n, mark = 0, at = 0, len = strlen(name);
    while (at < len) {
        if (i < n && p[i] == '*') {
            star = i++;
            mark = at;
        } else if (i < n && (p[i] == '?' || tolower((unsigned char)p[i]) == name[at])) {
            i++;
            at++;
        } else if (star < n) {
            i = star + 1;
            at = ++mark;
        } else {
            return false;
        }
    }
    while (i < n && p[i] == '*')
        i++;
    return i == n;
}

static bool hash_matches(const char *field, size_t n, const char *name) {
    unsigned char salt[64], want[64], got[EVP_MAX_MD_SIZE];
    unsigned n_got = 0;
    const char *second = memchr(field + 3, '|', n - 3);
    if (second == NULL) return false;
    long n_salt = base64_decode(field + 3, (size_t)(second - field) - 3, salt, sizeof salt);
    long n_want = base64_decode(second + 1, n - (size_t)(second - field) - 1, want, sizeof want);
    if (n_salt != SHA1_BYTES || n_want != SHA1_BYTES) return false;
    HMAC(EVP_sha1(), salt, (int)n_salt, (const unsigned char *)name, strlen(name), got, &n_got);
    return n_got == SHA1_BYTES && memcmp(got, want, SHA1_BYTES) == 0;
}

static bool hosts_match(const char *field, size_t n, const char *name) {
    if (n > 3 && strncmp(field, "|1|", 3) == 0) return hash_matches(field, n, name);
    bool is_match = false;
    for (size_t at = 0; at < n;) {
        const char *comma = memchr(field + at, ',', n - at);
        size_t len = comma != NULL ? (size_t)(comma - field) - at : n - at;
        bool is_negated = len > 0 && field[at] == '!';
        if (pattern_matches(field + at + (is_negated ? 1 : 0), len - (is_negated ? 1 : 0), name)) {
            if (is_negated) return false;
            is_match = true;
        }
        at += len + 1;
    }
    return is_match;
}

/* One entry: fields point into the line. */
typedef struct entry {
    bool is_revoked, is_authority;
    const char *hosts, *type, *key;
    size_t n_hosts, n_type, n_key;
} entry;

static const char *field_next(const char **at, const char *end, size_t *n) {
    const char *p = *at;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    const char *start = p;
    while (p < end && *p != ' ' && *p != '\t' && *p != '\r')
        p++;
    *n = (size_t)(p - start);
    *at = p;
    return start;
}

/* A key is a row of strings, each behind its length; the first is the type of the key. What is cut
 * short or of another type is no key. */
static bool is_key_of_type(const unsigned char *blob, size_t n, const char *type, size_t n_type) {
    size_t count = 0;
    for (size_t at = 0; at < n; count++) {
        if (n - at < 4) return false;
        size_t len = (size_t)blob[at] << 24 | (size_t)blob[at + 1] << 16 |
                     (size_t)blob[at + 2] << 8 | (size_t)blob[at + 3];
        at += 4;
        if (len > n - at) return false;
        if (count == 0 && (len != n_type || memcmp(blob + at, type, len) != 0)) return false;
        at += len;
    }
    return count > 1;
}

static bool entry_parse(const char *line, const char *end, entry *out) {
    *out = (entry){0};
    size_t n = 0;
    const char *first = field_next(&line, end, &n);
    if (n == 0 || first[0] == '#') return false;
    if (first[0] == '@') {
        out->is_revoked = n == 8 && strncmp(first, "@revoked", n) == 0;
        out->is_authority = n == 15 && strncmp(first, "@cert-authority", n) == 0;
        if (!out->is_revoked && !out->is_authority) return false;
        first = field_next(&line, end, &n);
    }
    out->hosts = first;
    out->n_hosts = n;
    out->type = field_next(&line, end, &out->n_type);
    out->key = field_next(&line, end, &out->n_key);
    if (out->n_hosts == 0 || out->n_type == 0 || out->n_key < 16) return false;
    unsigned char *blob = mem_alloc(BLOB_MAX);
    long n_blob = base64_decode(out->key, out->n_key, blob, BLOB_MAX);
    bool is_key = n_blob > 0 && is_key_of_type(blob, (size_t)n_blob, out->type, out->n_type);
    mem_free(blob);
    return is_key;
}

typedef int (*entry_fn)(void *ctx, const entry *x, const char *path, int line);

static int each_entry(const char *const *files, size_t n, entry_fn fn, void *ctx, err *e) {
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        if (stat(files[i], &st) != 0 && errno == ENOENT) continue;
        buf text = BUF_INIT;
        int rc = file_read(files[i], &text, FILE_MAX, e);
        const char *p = buf_cstr(&text), *all = p + text.len;
        for (int line = 1; rc == OK && p < all; line++) {
            const char *end = memchr(p, '\n', (size_t)(all - p));
            if (end == NULL) end = all;
            entry x;
            if (entry_parse(p, end, &x)) rc = fn(ctx, &x, files[i], line);
            p = end + 1;
        }
        buf_release(&text);
        if (rc != OK) return rc;
    }
    return OK;
}

typedef struct look {
    const known_query *q;
    char name[NAME_MAX_BYTES];
    known_answer *a;
} look;

static void answer_set(look *l, known_state state, const entry *x, const char *path, int line) {
    known_answer *a = l->a;
    a->state = state;
    a->line = line;
    str_copy(a->path, sizeof a->path, path);
    char *type = mem_strndup(x->type, x->n_type), *key = mem_strndup(x->key, x->n_key);
    str_copy(a->old_type, sizeof a->old_type, type);
    known_hosts_fingerprint(key, a->old_fingerprint);
    mem_free(type);
    mem_free(key);
}

static bool same(const char *p, size_t n, const char *text) {
    return strlen(text) == n && memcmp(p, text, n) == 0;
}

/* A revoked key wins over everything, then a match, then a change, then another type. */
static int look_entry(void *ctx, const entry *x, const char *path, int line) {
    look *l = ctx;
    if (l->a->state == KNOWN_REVOKED || !hosts_match(x->hosts, x->n_hosts, l->name)) return OK;
    bool is_type = same(x->type, x->n_type, l->q->type);
    bool is_key = is_type && same(x->key, x->n_key, l->q->key);
    if (x->is_revoked) {
        if (is_key) answer_set(l, KNOWN_REVOKED, x, path, line);
    } else if (x->is_authority || l->a->state == KNOWN_OK) {
        return OK;
    } else if (is_key) {
        answer_set(l, KNOWN_OK, x, path, line);
    } else if (is_type) {
        answer_set(l, KNOWN_CHANGED, x, path, line);
    } else if (l->a->state == KNOWN_UNKNOWN) {
        answer_set(l, KNOWN_OTHER_TYPE, x, path, line);
    }
    return OK;
}

static void explain(const known_query *q, const known_answer *a, err *e) {
    char now[64];
    known_hosts_fingerprint(q->key, now);
    buf removal = BUF_INIT;
    known_hosts_removal(a->path, q->host, q->port, &removal);
    switch (a->state) {
    case KNOWN_UNKNOWN:
        err_set(
            e, ERR_NOT_FOUND, "%s is not known yet: it shows the %s key %s", q->host, q->type, now);
        break;
    case KNOWN_CHANGED:
    case KNOWN_OTHER_TYPE:
        err_set(e, ERR_AUTH,
            "the identity of %s is not the stored one: it shows the %s key %s, stored is the %s key "
            "%s (%s line %d). If the machine was reinstalled, remove the old entry with: %s. If "
            "not, stop: another machine answers at this address",
            q->host, q->type, now, a->old_type, a->old_fingerprint, a->path, a->line,
            buf_cstr(&removal));
        break;
    case KNOWN_REVOKED:
        err_set(e, ERR_AUTH, "the key %s of %s is marked as revoked in %s line %d; do not connect",
            now, q->host, a->path, a->line);
        break;
    case KNOWN_OK:
    case KNOWN_ERROR:
        break;
    }
    buf_release(&removal);
}

known_state known_hosts_look(
    const char *const *files, size_t n, const known_query *q, known_answer *a, err *e) {
    look l = {.q = q, .a = a};
    *a = (known_answer){.state = KNOWN_UNKNOWN};
    int rc = host_name(q->host, q->port, l.name);
    if (rc != OK) err_set(e, rc, "\"%.60s\" is no host name", q->host);
    if (rc == OK) rc = each_entry(files, n, look_entry, &l, e);
    if (rc != OK) a->state = KNOWN_ERROR;
    if (rc == OK && a->state != KNOWN_OK) explain(q, a, e);
    return a->state;
}

typedef struct types {
    char name[NAME_MAX_BYTES];
    buf *out;
} types;

static int types_entry(void *ctx, const entry *x, const char *path, int line) {
    (void)path, (void)line;
    types *t = ctx;
    if (x->is_revoked || x->is_authority || !hosts_match(x->hosts, x->n_hosts, t->name)) return OK;
    char *type = mem_strndup(x->type, x->n_type);
    int rc = OK;
    /* A type is never part of another type's name, so plain search is enough. */
    if (strstr(buf_cstr(t->out), type) == NULL) {
        rc = buf_printf(t->out, "%s%s", t->out->len > 0 ? "," : "", type);
    }
    mem_free(type);
    return rc;
}

int known_hosts_types(const char *const *files, size_t n, const known_query *q, buf *out) {
    types t = {.out = out};
    int rc = host_name(q->host, q->port, t.name);
    return rc == OK ? each_entry(files, n, types_entry, &t, NULL) : rc;
}

static int hashed_line(const known_query *q, buf *out, err *e) {
    char name[NAME_MAX_BYTES], salt_text[40], hash_text[40];
    unsigned char salt[SHA1_BYTES], hash[EVP_MAX_MD_SIZE];
    unsigned n_hash = 0;
    if (host_name(q->host, q->port, name) != OK) {
        return err_set(e, ERR_ARG, "\"%.60s\" is no host name", q->host);
    }
    if (RAND_bytes(salt, sizeof salt) != 1) {
        return err_set(e, ERR_INTERNAL, "no random numbers for the entry of %s", q->host);
    }
    HMAC(EVP_sha1(), salt, sizeof salt, (unsigned char *)name, strlen(name), hash, &n_hash);
    base64_encode(salt, sizeof salt, salt_text);
    base64_encode(hash, SHA1_BYTES, hash_text);
    return buf_printf(out, "|1|%s|%s %s %s\n", salt_text, hash_text, q->type, q->key);
}

int known_hosts_add(const char *path, const known_query *q, err *e) {
    buf text = BUF_INIT, dir = BUF_INIT;
    struct stat st;
    int rc = path_dir(&dir, path);
    if (rc == OK) rc = dir_make_all(buf_cstr(&dir), 0700, e);
    if (rc == OK && stat(path, &st) == 0) rc = file_read(path, &text, FILE_MAX, e);
    if (rc == OK && text.len > 0 && text.data[text.len - 1] != '\n') rc = buf_putc(&text, '\n');
    if (rc == OK) rc = hashed_line(q, &text, e);
    if (rc == OK) rc = file_write_atomic(path, buf_cstr(&text), text.len, 0600, e);
    buf_release(&text);
    buf_release(&dir);
    return err_add(e, rc, "keeping the key of %s", q->host);
}

int known_hosts_removal(const char *path, const char *host, int port, buf *out) {
    const char *at = path[0] != '\0' ? path : "~/.ssh/known_hosts";
    return port == 22 ? buf_printf(out, "ssh-keygen -f %s -R %s", at, host)
                      : buf_printf(out, "ssh-keygen -f %s -R '[%s]:%d'", at, host, port);
}

const char *known_hosts_state_name(known_state s) {
    static const char *const names[] = {
        "known", "unknown", "changed", "other_type", "revoked", "error"};
    return names[s];
}
