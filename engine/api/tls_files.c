#include "engine/api/tls_files.h"

#include <openssl/pem.h>
#include <openssl/x509.h>

#include "engine/base/file.h"

static int no_password(char *out, int cap, int is_writing, void *ctx) {
    (void)out;
    (void)cap;
    (void)is_writing;
    (void)ctx;
    return -1;
}

static int check_pair(const tls_files *f, X509 *certificate, EVP_PKEY *key, err *e) {
    if (certificate == NULL) {
        return err_set(e, ERR_FORMAT, "%s holds no certificate in PEM form", f->certificate);
    }
    if (key == NULL) {
        return err_set(
            e, ERR_FORMAT, "%s holds no private key in PEM form without a password", f->key);
    }
    if (X509_check_private_key(certificate, key) != 1) {
        return err_set(e, ERR_MISMATCH, "the key %s does not belong to %s", f->key, f->certificate);
    }
    if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
        return err_set(e, ERR_FORMAT, "the certificate %s has expired", f->certificate);
    }
    return OK;
}

int tls_files_read(const tls_files *f, buf *certificate, buf *key, err *e) {
    if (f->certificate == NULL || f->key == NULL) {
        return err_set(e, ERR_ARG, "TLS needs both a certificate and its key file");
    }
    int rc = file_read(f->certificate, certificate, TLS_FILE_MAX_BYTES, e);
    if (rc == OK) rc = file_read(f->key, key, TLS_FILE_MAX_BYTES, e);
    if (rc != OK) return rc;
    BIO *certificate_bio = BIO_new_mem_buf(certificate->data, (int)certificate->len);
    BIO *key_bio = BIO_new_mem_buf(key->data, (int)key->len);
    X509 *x = certificate_bio != NULL ? PEM_read_bio_X509(certificate_bio, NULL, NULL, NULL) : NULL;
    EVP_PKEY *k =
        key_bio != NULL ? PEM_read_bio_PrivateKey(key_bio, NULL, no_password, NULL) : NULL;
    rc = check_pair(f, x, k, e);
    X509_free(x);
    EVP_PKEY_free(k);
    BIO_free(certificate_bio);
    BIO_free(key_bio);
    return rc;
}
