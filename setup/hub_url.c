/* URLs and the token: the small parts of hub_http.h that need no connection. */
#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/secret.h"
#include "engine/base/str.h"
#include "setup/hub_http.h"

enum { SECRET_MAX = 512 };

struct hub_secret {
    char text[SECRET_MAX];
};

hub_secret *hub_secret_new(const char *text) {
    hub_secret *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(s != MAP_FAILED);
    /* Not fatal when refused: a limit on locked memory is usual. The page is in no core dump. */
    (void)mlock(s, sizeof *s);
    (void)madvise(s, sizeof *s, MADV_DONTDUMP);
    secret_hold();
    size_t n = 0;
    for (; text[n] > ' ' && text[n] < 127 && n + 1 < SECRET_MAX; n++)
        s->text[n] = text[n];
    log_hide(s->text);
    return s;
}

void hub_secret_free(hub_secret *s) {
    if (s == NULL) return;
    explicit_bzero(s, sizeof *s);
    munmap(s, sizeof *s);
    secret_drop();
}

const char *hub_secret_text(const hub_secret *s) {
    return s == NULL ? "" : s->text;
}

static int read_secret(const char *path, bool must_be_private, hub_secret **out, err *e) {
    struct stat st;
    buf text = BUF_INIT;
    if (stat(path, &st) != 0) return err_errno(e, "token file %s", path);
    if (must_be_private && (st.st_mode & 077) != 0)
        return err_set(e, ERR_AUTH, "the token file %s may be read by others: chmod 600 it", path);
    int rc = file_read(path, &text, 4096, e);
    if (rc == OK && text.len > 0 && text.data[0] > ' ') *out = hub_secret_new(buf_cstr(&text));
    if (text.data != NULL) explicit_bzero(text.data, text.cap);
    buf_release(&text);
    return rc;
}

/* A download goes on for hours: its environment, which others of the user can read, does not keep the
 * token. Found once, it is kept until the process ends. */
static bool take_variable(hub_secret **out) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static hub_secret *kept; /* guarded by the lock */
    pthread_mutex_lock(&lock);
    const char *text = getenv("HF_TOKEN");
    if (text != NULL && text[0] != '\0') {
        hub_secret_free(kept);
        kept = hub_secret_new(text);
        secret_wipe_variable("HF_TOKEN");
    }
    if (kept != NULL) *out = hub_secret_new(hub_secret_text(kept));
    pthread_mutex_unlock(&lock);
    return *out != NULL;
}

int hub_secret_find(const char *file, hub_secret **out, err *e) {
    *out = NULL;
    if (file != NULL && file[0] != '\0') {
        secret_wipe_variable("HF_TOKEN"); /* not needed then, and not to be left there */
        return read_secret(file, true, out, e);
    }
    if (take_variable(out)) return OK;
    const char *path = getenv("HF_TOKEN_PATH");
    if (path != NULL && path[0] != '\0') return read_secret(path, true, out, e);
    const char *home = getenv("HF_HOME"), *user = getenv("HOME");
    buf usual = BUF_INIT;
    if (home != NULL && home[0] == '/') {
        buf_printf(&usual, "%s/token", home);
    } else if (user != NULL && user[0] == '/') {
        buf_printf(&usual, "%s/.cache/huggingface/token", user);
    }
    int rc = OK;
    if (usual.len > 0 && file_exists(buf_cstr(&usual)))
        rc = read_secret(buf_cstr(&usual), false, out, e);
    buf_release(&usual);
    return rc;
}

/* URLs. */

static bool is_web(CURLU *u) {
    char *scheme = NULL, *user = NULL;
    bool is = curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
              (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0) &&
              curl_url_get(u, CURLUPART_USER, &user, 0) != CURLUE_OK;
    curl_free(scheme);
    curl_free(user);
    return is;
}

static CURLU *parse(const char *url) {
    CURLU *u = curl_url();
    CHECK(u != NULL);
    if (curl_url_set(u, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME) == CURLUE_OK && is_web(u))
        return u;
    curl_url_cleanup(u);
    return NULL;
}

char *hub_url_join(const char *base, const char *location) {
    CURLU *u = parse(base);
    if (u == NULL) return NULL;
    char *text = NULL, *copy = NULL;
    if (curl_url_set(u, CURLUPART_URL, location, CURLU_NON_SUPPORT_SCHEME) == CURLUE_OK &&
        is_web(u) && curl_url_get(u, CURLUPART_URL, &text, 0) == CURLUE_OK)
        copy = mem_strdup(text);
    curl_free(text);
    curl_url_cleanup(u);
    return copy;
}

static bool part_equal(CURLU *a, CURLU *b, CURLUPart part, unsigned flags) {
    char *x = NULL, *y = NULL;
    bool same = curl_url_get(a, part, &x, flags) == CURLUE_OK &&
                curl_url_get(b, part, &y, flags) == CURLUE_OK && str_eq_nocase(x, y);
    curl_free(x);
    curl_free(y);
    return same;
}

bool hub_url_same_host(const char *a, const char *b) {
    CURLU *x = parse(a), *y = parse(b);
    bool same = x != NULL && y != NULL && part_equal(x, y, CURLUPART_SCHEME, 0) &&
                part_equal(x, y, CURLUPART_HOST, 0) &&
                part_equal(x, y, CURLUPART_PORT, CURLU_DEFAULT_PORT);
    curl_url_cleanup(x);
    curl_url_cleanup(y);
    return same;
}

bool hub_url_is_https(const char *url) {
    return str_starts(url, "https://");
}

void hub_url_host(const char *url, char *out, size_t cap) {
    CURLU *u = parse(url);
    char *host = NULL;
    str_copy(out, cap, "the server");
    if (u != NULL && curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK)
        str_copy(out, cap, host);
    curl_free(host);
    curl_url_cleanup(u);
}

/* Digits and dots only: "127.example.org" is no address. */
static bool is_loopback_address(const char *host) {
    return str_starts(host, "127.") && host[strspn(host, "0123456789.")] == '\0';
}

bool hub_url_is_loopback(const char *url) {
    char host[256];
    hub_url_host(url, host, sizeof host);
    return is_loopback_address(host) || str_eq(host, "localhost") || str_eq(host, "[::1]");
}
