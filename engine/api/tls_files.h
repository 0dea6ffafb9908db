/* The certificate and the key of the endpoint, read and checked before anything listens, so that a
 * wrong file is named at the start and not by the first client. */
#ifndef TANDEM_API_TLS_FILES_H
#define TANDEM_API_TLS_FILES_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#define TLS_FILE_MAX_BYTES ((size_t)1 << 20)

typedef struct tls_files {
    const char *certificate, *key; /* paths of PEM files */
} tls_files;

/* Fills both texts. Both files must be there, hold PEM, and belong together; the certificate must
 * not be over. A key that is encrypted is refused: nobody is there to type. */
int tls_files_read(const tls_files *f, buf *certificate, buf *key, err *e);

#endif
