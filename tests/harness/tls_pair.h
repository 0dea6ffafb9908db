/* Certificates for tests, made where they are needed. One thread. */
#ifndef TESTS_HARNESS_TLS_PAIR_H
#define TESTS_HARNESS_TLS_PAIR_H

#include <stdbool.h>

/* Writes a self-signed certificate for 127.0.0.1 and localhost and its key as PEM files. days: how
 * long it holds from now, below 0: it is over. password NULL: the key is not encrypted. Ends the
 * program if it cannot. */
void tls_pair_write(const char *certificate, const char *key, int days, const char *password);

#endif
