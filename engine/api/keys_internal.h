/* The key file as both sides read it. */
#ifndef TANDEM_API_KEYS_INTERNAL_H
#define TANDEM_API_KEYS_INTERNAL_H

#include "engine/api/keys.h"
#include "engine/base/buf.h"
#include "engine/base/sha256.h"

#define KEYS_FILE_MAX ((size_t)256 << 10)

typedef struct key_line {
    char label[KEYS_LABEL_MAX];
    uint8_t digest[SHA256_BYTES];
    key_limits limits;
} key_line;

/* Reads a whole file into lines (KEYS_MAX). Refuses a file that others can read. */
int keys_read_file(const char *path, key_line *lines, int *n, err *e);
/* Reads one line; *is_key is false for blanks and comments. */
int keys_read_line(const char *text, key_line *out, bool *is_key, err *e);

#endif
