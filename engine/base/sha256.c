#include "engine/base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"

struct sha256 {
    EVP_MD_CTX *ctx;
};

sha256 *sha256_new(void) {
    sha256 *s = mem_alloc(sizeof *s);
    s->ctx = EVP_MD_CTX_new();
    CHECK(s->ctx != NULL && EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) == 1);
    return s;
}

void sha256_free(sha256 *s) {
    if (s == NULL) return;
    EVP_MD_CTX_free(s->ctx);
    mem_free(s);
}

void sha256_update(sha256 *s, const void *data, size_t n) {
    CHECK(EVP_DigestUpdate(s->ctx, data, n) == 1);
}

void sha256_finish(sha256 *s, uint8_t out[SHA256_BYTES]) {
    CHECK(EVP_DigestFinal_ex(s->ctx, out, NULL) == 1);
    CHECK(EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) == 1);
}

void sha256_of(const void *data, size_t n, uint8_t out[SHA256_BYTES]) {
    CHECK(EVP_Digest(data, n, out, NULL, EVP_sha256(), NULL) == 1);
}

int sha256_file(const char *path, uint8_t out[SHA256_BYTES], err *e) {
    enum { CHUNK = 1 << 18 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_errno(e, "cannot open %s", path);
    sha256 *s = sha256_new();
    char *chunk = mem_alloc(CHUNK);
    int rc = OK;
    for (;;) {
        ssize_t got = read(fd, chunk, CHUNK);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) rc = err_errno(e, "cannot read %s", path);
        if (got <= 0) break;
        sha256_update(s, chunk, (size_t)got);
    }
    sha256_finish(s, out);
    mem_free(chunk);
    sha256_free(s);
    (void)close(fd);
    return rc;
}

void sha256_hmac(
    const void *key, size_t n_key, const void *data, size_t n, uint8_t out[SHA256_BYTES]) {
    CHECK(n_key <= INT_MAX);
    CHECK(HMAC(EVP_sha256(), key, (int)n_key, data, n, out, NULL) != NULL);
}

void sha256_hex(const uint8_t digest[SHA256_BYTES], char out[SHA256_HEX]) {
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < SHA256_BYTES; i++) {
        out[2 * i] = hex[digest[i] >> 4];
        out[2 * i + 1] = hex[digest[i] & 15];
    }
    out[SHA256_HEX - 1] = '\0';
}

static int digit_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

int sha256_parse(const char *hex, uint8_t out[SHA256_BYTES]) {
    uint8_t digest[SHA256_BYTES];
    if (strlen(hex) != SHA256_HEX - 1) return ERR_FORMAT;
    for (size_t i = 0; i < SHA256_BYTES; i++) {
        int high = digit_value(hex[2 * i]);
        int low = digit_value(hex[2 * i + 1]);
        if (high < 0 || low < 0) return ERR_FORMAT;
        digest[i] = (uint8_t)(high << 4 | low);
    }
    memcpy(out, digest, sizeof digest);
    return OK;
}

bool sha256_equal(const uint8_t a[SHA256_BYTES], const uint8_t b[SHA256_BYTES]) {
    return CRYPTO_memcmp(a, b, SHA256_BYTES) == 0;
}
