/* What the receiver is told, as text. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"
#include "setup/stream_internal.h"

enum { LINE_MAX_BYTES = 2048, IDLE_MS = 20000, TEXT_BYTES = 256 << 10 };
#define RESERVE_BYTES ((uint64_t)5000000000)

void stream_setup_init(stream_setup *s) {
    memset(s, 0, sizeof *s);
    rand_secret(s->secret, sizeof s->secret);
    s->frame_bytes = STREAM_FRAME_BYTES;
    s->reserve_bytes = RESERVE_BYTES;
    s->idle_ms = IDLE_MS;
}

int stream_setup_print(const stream_setup *s, const manifest *m, buf *out, err *e) {
    (void)buf_reserve(out, TEXT_BYTES); /* growing would leave copies of the secret */
    int rc = buf_puts(out, "tandem-stream 1\nsecret ");
    for (size_t i = 0; rc == OK && i < sizeof s->secret; i++)
        rc = buf_printf(out, "%02x", s->secret[i]);
    if (rc == OK) rc = buf_printf(out, "\nroot %s\n", s->root);
    for (int i = 0; rc == OK && i < s->n_listen; i++)
        rc = buf_printf(out, "listen %s\n", s->listen[i]);
    for (int i = 0; rc == OK && i < s->n_peer; i++)
        rc = buf_printf(out, "peer %s\n", s->peer[i]);
    if (rc == OK)
        rc = buf_printf(out, "frame %u\nreserve %llu\nidle_ms %lld\nmanifest\n", s->frame_bytes,
            (unsigned long long)s->reserve_bytes, (long long)s->idle_ms);
    if (rc == OK) rc = manifest_print(m, out, e);
    return rc;
}

static int parse_secret(stream_setup *s, const char *hex, err *e) {
    static const char digits[] = "0123456789abcdef";
    if (strlen(hex) != 2 * STREAM_SECRET_BYTES) return err_set(e, ERR_FORMAT, "no valid secret");
    for (size_t i = 0; i < STREAM_SECRET_BYTES; i++) {
        const char *a = strchr(digits, hex[2 * i]), *b = strchr(digits, hex[2 * i + 1]);
        if (a == NULL || b == NULL) return err_set(e, ERR_FORMAT, "no valid secret");
        s->secret[i] = (uint8_t)((a - digits) << 4 | (b - digits));
    }
    return OK;
}

static int add_address(char list[][STREAM_ADDRESS_MAX], int *n, const char *text, err *e) {
    if (*n == STREAM_MAX_RAILS || strlen(text) >= STREAM_ADDRESS_MAX)
        return err_set(e, ERR_FORMAT, "too many addresses, or one is too long");
    str_copy(list[(*n)++], STREAM_ADDRESS_MAX, text);
    return OK;
}

static int parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *out, err *e) {
    uint64_t v = 0;
    if (parse_u64(text, &v) != OK || v < min || v > max)
        return err_set(e, ERR_FORMAT, "the number %.20s is not in its range", text);
    *out = v;
    return OK;
}

static int parse_line(stream_setup *s, const char *line, err *e) {
    const char *value = strchr(line, ' ');
    size_t n = value != NULL ? (size_t)(value++ - line) : strlen(line);
    uint64_t v = 0;
    int rc = ERR_FORMAT;
    if (value == NULL) return err_set(e, ERR_FORMAT, "a line without a value");
    if (n == 6 && memcmp(line, "secret", n) == 0) return parse_secret(s, value, e);
    if (n == 6 && memcmp(line, "listen", n) == 0)
        return add_address(s->listen, &s->n_listen, value, e);
    if (n == 4 && memcmp(line, "peer", n) == 0) return add_address(s->peer, &s->n_peer, value, e);
    if (n == 4 && memcmp(line, "root", n) == 0) {
        if (value[0] != '/' || strlen(value) >= sizeof s->root)
            return err_set(e, ERR_FORMAT, "the folder must be absolute");
        str_copy(s->root, sizeof s->root, value);
        return OK;
    }
    if (n == 5 && memcmp(line, "frame", n) == 0) {
        rc = parse_number(value, 4096, STREAM_FRAME_MAX, &v, e);
        if (rc == OK && v % 4096 != 0) rc = err_set(e, ERR_FORMAT, "frames must be whole pages");
        s->frame_bytes = (uint32_t)v;
    } else if (n == 7 && memcmp(line, "reserve", n) == 0) {
        rc = parse_number(value, 0, (uint64_t)1 << 50, &s->reserve_bytes, e);
    } else if (n == 7 && memcmp(line, "idle_ms", n) == 0) {
        rc = parse_number(value, 100, 3600000, &v, e);
        s->idle_ms = (int64_t)v;
    } else {
        return err_set(e, ERR_FORMAT, "an unknown line");
    }
    return rc;
}

static int check(const stream_setup *s, err *e) {
    uint8_t any = 0;
    for (size_t i = 0; i < sizeof s->secret; i++)
        any |= s->secret[i];
    if (s->root[0] == '\0' || s->n_listen == 0 || s->n_peer == 0 || any == 0)
        return err_set(e, ERR_FORMAT, "secret, folder or addresses are missing");
    return OK;
}

int stream_setup_parse(stream_setup *s, manifest *m, const char *text, size_t len, err *e) {
    char line[LINE_MAX_BYTES];
    bool is_first = true;
    memset(s, 0, sizeof *s);
    manifest_init(m);
    s->frame_bytes = STREAM_FRAME_BYTES;
    s->reserve_bytes = RESERVE_BYTES;
    s->idle_ms = IDLE_MS;
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end != NULL ? (size_t)(end - text) - at : len - at;
        if (n >= sizeof line || memchr(text + at, '\0', n) != NULL)
            return err_set(e, ERR_FORMAT, "a line is too long");
        memcpy(line, text + at, n);
        line[n] = '\0';
        at += n + 1;
        if (is_first != str_eq(line, "tandem-stream 1"))
            return err_set(e, ERR_FORMAT, "this is no copy of version 1");
        if (str_eq(line, "manifest")) {
            int rc = check(s, e);
            return rc == OK && at < len ? manifest_parse(m, text + at, len - at, e)
                   : rc == OK           ? err_set(e, ERR_FORMAT, "the manifest is missing")
                                        : rc;
        }
        int rc = is_first ? OK : parse_line(s, line, e);
        explicit_bzero(line, n);
        if (rc != OK) return rc;
        is_first = false;
    }
    return err_set(e, ERR_FORMAT, "the manifest is missing");
}
