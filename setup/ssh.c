#include "setup/ssh.h"

#include <pthread.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/known_hosts.h"
#include "setup/ssh_internal.h"

#define SYSTEM_KNOWN_HOSTS "/etc/ssh/ssh_known_hosts"

const char *remote_fault_name(remote_fault f) {
    static const char *const names[] = {"fine", "bad target", "no such name", "unreachable",
        "refused", "banner timeout", "not ssh", "unknown host key", "changed host key",
        "revoked host key", "known hosts unreadable", "permission denied", "passphrase needed",
        "protocol", "jump host"};
    return names[f];
}

bool remote_key_confirmed(const char *fingerprint, const char *typed) {
    size_t n = strlen(fingerprint);
    return str_eq(typed, "accept") || (n > 6 && str_eq(typed, fingerprint + n - 6));
}

static int session_error(remote *r, const char *what, remote_fault *fault, err *e) {
    *fault = REMOTE_PROTOCOL;
    return err_set(
        e, ERR_NET, "%s with %s failed: %.300s", what, r->node, ssh_get_error(r->session));
}

static const char *known_path(const remote *r, buf *scratch) {
    if (r->known_hosts != NULL) return r->known_hosts;
    const char *home = getenv("HOME");
    const struct passwd *pw = home == NULL || home[0] != '/' ? getpwuid(getuid()) : NULL;
    if (pw != NULL) home = pw->pw_dir;
    if (home == NULL) return SYSTEM_KNOWN_HOSTS;
    buf_reset(scratch);
    (void)buf_printf(scratch, "%s/.ssh/known_hosts", home);
    return buf_cstr(scratch);
}

/* The key types the known hosts can compare come first: a server with several keys must not be taken
 * for a changed one because it shows another of them. */
static int prefer_known_types(remote *r) {
    static const char *const usual = "ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,"
                                     "ecdsa-sha2-nistp521,rsa-sha2-512,rsa-sha2-256";
    buf path = BUF_INIT, types = BUF_INIT, list = BUF_INIT;
    const char *const files[] = {known_path(r, &path), SYSTEM_KNOWN_HOSTS};
    known_query q = {.host = r->target.host, .port = r->target.port};
    /* An unreadable file is reported by the check of the key itself. */
    (void)known_hosts_types(files, 2, &q, &types);
    char *copy = mem_strdup(buf_cstr(&types)), *at = copy;
    int rc = OK;
    while (rc == OK && at != NULL && *at != '\0') {
        char *comma = strchr(at, ',');
        if (comma != NULL) *comma = '\0';
        const char *algorithm = str_eq(at, "ssh-rsa") ? "rsa-sha2-512,rsa-sha2-256" : at;
        if (strstr(usual, algorithm) != NULL) rc = buf_printf(&list, "%s,", algorithm);
        at = comma != NULL ? comma + 1 : NULL;
    }
    if (rc == OK) rc = buf_puts(&list, usual);
    if (rc == OK && ssh_options_set(r->session, SSH_OPTIONS_HOSTKEYS, buf_cstr(&list)) != 0) {
        rc = ERR_INTERNAL;
    }
    mem_free(copy);
    buf_release(&path);
    buf_release(&types);
    buf_release(&list);
    return rc;
}

static void library_init(void) {
    (void)ssh_init();
}

static int session_new(remote *r, int fd, err *e) {
    /* libssh sets up its library once by itself, but not from two threads at a time. */
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, library_init);
    r->session = ssh_new();
    long seconds = (r->connect_ms + 999) / 1000;
    bool no = false;
    int on = 1;
    bool is_set =
        r->session != NULL && ssh_options_set(r->session, SSH_OPTIONS_PROCESS_CONFIG, &no) == 0 &&
        ssh_options_set(r->session, SSH_OPTIONS_HOST, r->target.host) == 0 &&
        ssh_options_set(r->session, SSH_OPTIONS_PORT, &r->target.port) == 0 &&
        ssh_options_set(r->session, SSH_OPTIONS_KNOWNHOSTS, "/dev/null") == 0 &&
        ssh_options_set(r->session, SSH_OPTIONS_GLOBAL_KNOWNHOSTS, "/dev/null") == 0 &&
        ssh_options_set(r->session, SSH_OPTIONS_TIMEOUT, &seconds) == 0 &&
        ssh_options_set(r->session, SSH_OPTIONS_NODELAY, &on) == 0 &&
        (r->target.user[0] == '\0' ||
            ssh_options_set(r->session, SSH_OPTIONS_USER, r->target.user) == 0) &&
        prefer_known_types(r) == OK && ssh_options_set(r->session, SSH_OPTIONS_FD, &fd) == 0;
    if (is_set) return OK;
    close(fd);
    return err_set(e, ERR_INTERNAL, "the ssh library refuses the options for %s", r->node);
}

static int read_server_key(remote *r, err *e) {
    ssh_key key = NULL;
    char *text = NULL;
    int rc = ssh_get_server_publickey(r->session, &key) == SSH_OK &&
                     ssh_pki_export_pubkey_base64(key, &text) == SSH_OK
                 ? OK
                 : ERR_NET;
    if (rc == OK) {
        str_copy(r->key_type, sizeof r->key_type, ssh_key_type_to_char(ssh_key_type(key)));
        mem_free(r->key);
        r->key = mem_strdup(text);
        rc = known_hosts_fingerprint(r->key, r->fingerprint);
    }
    ssh_string_free_char(text);
    ssh_key_free(key);
    return rc == OK ? OK : err_set(e, ERR_NET, "the host key of %s cannot be read", r->node);
}

static bool confirmed(remote *r, const remote_ask *ask) {
    if (ask == NULL || ask->host_key == NULL) return false;
    buf picture = BUF_INIT;
    bool is_fine = known_hosts_picture(r->key_type, r->key, &picture) == OK;
    remote_host_key shown = {
        r->target.host, r->target.port, r->key_type, r->key, r->fingerprint, buf_cstr(&picture)};
    is_fine = is_fine && ask->host_key(ask->ctx, &shown);
    buf_release(&picture);
    return is_fine;
}

static int check_host_key(remote *r, const remote_ask *ask, remote_fault *fault, err *e) {
    static const remote_fault faults[] = {REMOTE_FINE, REMOTE_HOST_UNKNOWN, REMOTE_HOST_CHANGED,
        REMOTE_HOST_CHANGED, REMOTE_HOST_REVOKED, REMOTE_HOST_FILE};
    buf path = BUF_INIT;
    const char *own = known_path(r, &path);
    const char *const files[] = {own, SYSTEM_KNOWN_HOSTS};
    known_query q = {r->target.host, r->target.port, r->key_type, r->key};
    known_answer a;
    known_state state = known_hosts_look(files, 2, &q, &a, e);
    *fault = faults[state];
    int rc = OK;
    if (state == KNOWN_UNKNOWN && confirmed(r, ask)) {
        rc = known_hosts_add(own, &q, e);
        if (rc == OK) *fault = REMOTE_FINE;
        LOG(LOG_INFO, "ssh", "host key confirmed", "host=%s key=%s", r->target.host,
            r->fingerprint);
    } else if (state != KNOWN_OK) {
        rc = state == KNOWN_UNKNOWN ? ERR_AUTH : e != NULL ? e->code : ERR_AUTH;
        if (e != NULL) e->code = rc;
        LOG(LOG_ERROR, "ssh", "host key not accepted", "host=%s state=%s shown=%s stored=%s",
            r->target.host, known_hosts_state_name(state), r->fingerprint, a.old_fingerprint);
    }
    buf_release(&path);
    return rc;
}

static remote *remote_new(const remote_options *o, err *e) {
    remote *r = mem_alloc(sizeof *r);
    if (o->target == NULL || remote_target_parse(o->target, &r->target, e) != OK) {
        mem_free(r);
        return NULL;
    }
    r->target_text = mem_strdup(o->target);
    r->jump_text = o->jump != NULL && o->jump[0] != '\0' ? mem_strdup(o->jump) : NULL;
    r->key_file = o->key_file != NULL && o->key_file[0] != '\0' ? mem_strdup(o->key_file) : NULL;
    r->known_hosts = o->known_hosts != NULL ? mem_strdup(o->known_hosts) : NULL;
    r->node = mem_strdup(o->node != NULL ? o->node : r->target.host);
    r->only_key_file = o->only_key_file;
    r->connect_ms = o->connect_ms > 0 ? o->connect_ms : REMOTE_CONNECT_MS;
    return r;
}

void remote_close(remote *r) {
    if (r == NULL) return;
    if (r->session != NULL) {
        ssh_disconnect(r->session);
        ssh_free(r->session);
    }
    remote_jump_close(r->jump);
    mem_free(r->target_text);
    mem_free(r->jump_text);
    mem_free(r->key_file);
    mem_free(r->known_hosts);
    mem_free(r->node);
    mem_free(r->key);
    mem_free(r);
}

/* The connected socket: direct, or through the jump host. Negative: the error code. */
static int reach(remote *r, const remote_options *o, remote_fault *fault, err *e) {
    if (r->jump_text == NULL)
        return remote_tcp_connect(&r->target, r->connect_ms, r->node, fault, e);
    remote_options through = *o;
    through.target = r->jump_text;
    through.jump = NULL;
    through.node = "the jump host";
    remote *jump = NULL;
    int fd = -1, rc = remote_open(&through, &jump, fault, e);
    if (rc == OK) {
        *fault = REMOTE_JUMP;
        rc = remote_jump_open(jump, &r->target, &r->jump, &fd, e);
    }
    if (rc != OK) return err_add(e, rc, "on the way to %s", r->node);
    rc = remote_wait_greeting(fd, clock_mono_ms() + (uint64_t)r->connect_ms, r->node, fault, e);
    if (rc == OK) return fd;
    close(fd);
    return rc;
}

static int open_keyed(remote *r, const remote_options *o, remote_fault *fault, err *e) {
    int fd = reach(r, o, fault, e);
    if (fd < 0) return fd;
    int rc = session_new(r, fd, e);
    if (rc != OK) {
        *fault = REMOTE_PROTOCOL;
        return rc;
    }
    if (ssh_connect(r->session) != SSH_OK) return session_error(r, "the key exchange", fault, e);
    *fault = REMOTE_PROTOCOL;
    return read_server_key(r, e);
}

int remote_open(const remote_options *o, remote **out, remote_fault *fault, err *e) {
    remote_fault ignored, *f = fault != NULL ? fault : &ignored;
    err own = ERR_INIT;
    if (e == NULL) e = &own;
    *out = NULL;
    *f = REMOTE_BAD_TARGET;
    remote *r = remote_new(o, e);
    if (r == NULL) return ERR_ARG;
    int rc = open_keyed(r, o, f, e);
    if (rc == OK) rc = check_host_key(r, o->ask, f, e);
    if (rc == OK) rc = remote_authenticate(r, o, f, e);
    if (rc != OK) {
        err_node(e, r->node);
        remote_close(r);
        return rc;
    }
    *f = REMOTE_FINE;
    r->last_traffic_ms = clock_mono_ms();
    *out = r;
    return OK;
}

int remote_again(const remote *r, remote **out, err *e) {
    remote_options o = {.target = r->target_text,
        .jump = r->jump_text,
        .key_file = r->key_file,
        .known_hosts = r->known_hosts,
        .node = r->node,
        .only_key_file = r->only_key_file,
        .connect_ms = r->connect_ms};
    int rc = remote_open(&o, out, NULL, e);
    if (rc == OK && !str_eq((*out)->key, r->key)) {
        remote_close(*out);
        *out = NULL;
        rc = err_set(e, ERR_AUTH,
            "%s showed another host key for the second session; another machine answers", r->node);
    }
    return rc;
}

int remote_host_key_of(const remote_options *o, char type[40], buf *key, err *e) {
    remote_fault fault;
    remote *r = remote_new(o, e);
    if (r == NULL) return ERR_ARG;
    int rc = open_keyed(r, o, &fault, e);
    if (rc == OK) {
        str_copy(type, 40, r->key_type);
        buf_reset(key);
        rc = buf_puts(key, r->key);
    }
    remote_close(r);
    return rc;
}

const char *remote_user(const remote *r) {
    return r->target.user;
}

const char *remote_host(const remote *r) {
    return r->target.host;
}

const char *remote_fingerprint(const remote *r) {
    return r->fingerprint;
}

void remote_fingerprint_of(const char *key, char out[64]) {
    (void)known_hosts_fingerprint(key, out);
}
