#ifndef TANDEM_BASE_SHA256_H
#define TANDEM_BASE_SHA256_H
/* SHA-256 and HMAC by libcrypto, which uses the machine's instructions. A sha256 is one running
 * digest and belongs to one thread at a time. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

#define SHA256_BYTES 32
#define SHA256_HEX 65 /* with the NUL */

typedef struct sha256 sha256;
/* Never NULL; freed with sha256_free. */
sha256 *sha256_new(void);
void sha256_free(sha256 *s);
void sha256_update(sha256 *s, const void *data, size_t n);
/* Gives the digest of all so far and starts again from nothing. */
void sha256_finish(sha256 *s, uint8_t out[SHA256_BYTES]);

void sha256_of(const void *data, size_t n, uint8_t out[SHA256_BYTES]);
int sha256_file(const char *path, uint8_t out[SHA256_BYTES], err *e);
void sha256_hmac(
    const void *key, size_t n_key, const void *data, size_t n, uint8_t out[SHA256_BYTES]);
/* Lower-case hexadecimal. */
void sha256_hex(const uint8_t digest[SHA256_BYTES], char out[SHA256_HEX]);
/* 64 hexadecimal digits of either case and nothing else: OK or ERR_FORMAT. */
int sha256_parse(const char *hex, uint8_t out[SHA256_BYTES]);
/* Takes the same time wherever the first difference is. */
bool sha256_equal(const uint8_t a[SHA256_BYTES], const uint8_t b[SHA256_BYTES]);

#endif
