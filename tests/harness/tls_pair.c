#include "tests/harness/tls_pair.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>

static void need(bool is_good, const char *what) {
    if (is_good) return;
    fprintf(stderr, "tls_pair: %s\n", what);
    exit(1);
}

static void add_extension(X509 *x, int nid, const char *value) {
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, NULL, nid, value);
    need(e != NULL && X509_add_ext(x, e, -1) == 1, value);
    X509_EXTENSION_free(e);
}

static X509 *make_certificate(EVP_PKEY *key, int days) {
    X509 *x = X509_new();
    need(x != NULL, "X509_new");
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -30L * 86400);
    X509_gmtime_adj(X509_getm_notAfter(x), days * 86400L);
    X509_NAME *name = X509_get_subject_name(x);
    X509_NAME_add_entry_by_txt(
        name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost", -1, -1, 0);
    X509_set_issuer_name(x, name);
    X509_set_pubkey(x, key);
    add_extension(x, NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost");
    add_extension(x, NID_basic_constraints, "critical,CA:TRUE");
    need(X509_sign(x, key, EVP_sha256()) > 0, "X509_sign");
    return x;
}

void tls_pair_write(const char *certificate, const char *key, int days, const char *password) {
    EVP_PKEY *k = EVP_EC_gen("P-256");
    need(k != NULL, "EVP_EC_gen");
    X509 *x = make_certificate(k, days);
    FILE *f = fopen(certificate, "w");
    need(f != NULL && PEM_write_X509(f, x) == 1 && fclose(f) == 0, certificate);
    f = fopen(key, "w");
    const EVP_CIPHER *cipher = password != NULL ? EVP_aes_128_cbc() : NULL;
    need(f != NULL &&
             PEM_write_PrivateKey(f, k, cipher, NULL, 0, NULL, (void *)(size_t)password) == 1 &&
             fclose(f) == 0,
        key);
    X509_free(x);
    EVP_PKEY_free(k);
}
