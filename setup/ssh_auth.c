/* Logging in: agent, key files, and at first contact a password. */
#include <libssh/callbacks.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/ssh_internal.h"

enum { PASSWORD_TRIES = 3, PROMPT_ROUNDS = 8 };

typedef struct login {
    remote *r;
    const remote_options *o;
    const char *key_path;    /* the one being read */
    bool needs_passphrase;   /* a key that may be right could not be opened */
    char protected_key[200]; /* the first of these */
    bool had_key;
} login;

/* Without this libssh would ask on the terminal by itself. */
static int on_passphrase(
    const char *prompt, char *out, size_t len, int echo, int verify, void *ctx) {
    (void)prompt, (void)echo, (void)verify;
    login *l = ctx;
    const remote_ask *ask = l->o->ask;
    bool is_given = false;
    if (ask != NULL && ask->secret != NULL) {
        ssh_secret *s = ssh_secret_new();
        buf text = BUF_INIT;
        is_given = buf_printf(&text, "Passphrase of the key %s", l->key_path) == OK &&
                   ask->secret(ask->ctx, buf_cstr(&text), s) && ssh_secret_len(s) < len;
        if (is_given) str_copy(out, len, ssh_secret_text(s));
        buf_release(&text);
        ssh_secret_free(s);
    }
    if (!is_given && !l->needs_passphrase) {
        l->needs_passphrase = true;
        str_copy(l->protected_key, sizeof l->protected_key, l->key_path);
    }
    return is_given ? 0 : -1;
}

/* True when the server would take this key. Without a .pub file only the private key can tell. */
static bool may_be_taken(login *l, const char *path) {
    buf pub = BUF_INIT;
    ssh_key key = NULL;
    bool is_wanted = true;
    if (buf_printf(&pub, "%s.pub", path) == OK && file_exists(buf_cstr(&pub)) &&
        ssh_pki_import_pubkey_file(buf_cstr(&pub), &key) == SSH_OK) {
        is_wanted = ssh_userauth_try_publickey(l->r->session, NULL, key) == SSH_AUTH_SUCCESS;
    }
    ssh_key_free(key);
    buf_release(&pub);
    return is_wanted;
}

static bool try_key_file(login *l, const char *path) {
    if (!file_exists(path) || !ssh_is_connected(l->r->session)) return false;
    l->had_key = true;
    l->key_path = path;
    if (!may_be_taken(l, path)) return false;
    ssh_key key = NULL;
    bool is_in = ssh_pki_import_privkey_file(path, NULL, on_passphrase, l, &key) == SSH_OK &&
                 ssh_userauth_publickey(l->r->session, NULL, key) == SSH_AUTH_SUCCESS;
    ssh_key_free(key);
    return is_in;
}

static bool try_usual_keys(login *l) {
    static const char *const names[] = {"id_ed25519", "id_ecdsa", "id_rsa"};
    const char *home = getenv("HOME");
    const struct passwd *pw = home == NULL || home[0] != '/' ? getpwuid(getuid()) : NULL;
    if (pw != NULL) home = pw->pw_dir;
    bool is_in = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !is_in && home != NULL; i++) {
        buf path = BUF_INIT;
        if (buf_printf(&path, "%s/.ssh/%s", home, names[i]) == OK) {
            is_in = try_key_file(l, buf_cstr(&path));
        }
        buf_release(&path);
    }
    return is_in;
}

static bool ask_password(login *l, ssh_secret *s) {
    buf text = BUF_INIT;
    const char *user = l->r->target.user;
    bool is_given = buf_printf(&text, "Password of %s%s%s", user, user[0] != '\0' ? " on " : "",
                        l->r->target.host) == OK &&
                    l->o->ask->secret(l->o->ask->ctx, buf_cstr(&text), s);
    buf_release(&text);
    return is_given;
}

/* Keyboard-interactive: only a single hidden question is taken for the password question. */
static int answer_questions(login *l, const ssh_secret *s) {
    int rc = ssh_userauth_kbdint(l->r->session, NULL, NULL);
    for (int round = 0; rc == SSH_AUTH_INFO && round < PROMPT_ROUNDS; round++) {
        int n = ssh_userauth_kbdint_getnprompts(l->r->session);
        char echo = 0;
        if (n > 1) return SSH_AUTH_DENIED;
        if (n == 1) {
            (void)ssh_userauth_kbdint_getprompt(l->r->session, 0, &echo);
            if (echo != 0) return SSH_AUTH_DENIED;
            if (ssh_userauth_kbdint_setanswer(l->r->session, 0, ssh_secret_text(s)) < 0) {
                return SSH_AUTH_ERROR;
            }
        }
        rc = ssh_userauth_kbdint(l->r->session, NULL, NULL);
    }
    return rc;
}

static bool try_password(login *l) {
    const remote_ask *ask = l->o->ask;
    if (!l->o->may_use_password || ask == NULL || ask->secret == NULL) return false;
    unsigned methods = (unsigned)ssh_userauth_list(l->r->session, NULL);
    int rc = SSH_AUTH_DENIED;
    for (int i = 0; i < PASSWORD_TRIES && rc != SSH_AUTH_SUCCESS; i++) {
        if (!ssh_is_connected(l->r->session)) return false;
        ssh_secret *s = ssh_secret_new();
        if (!ask_password(l, s)) {
            ssh_secret_free(s);
            return false;
        }
        if ((methods & SSH_AUTH_METHOD_PASSWORD) != 0) {
            rc = ssh_userauth_password(l->r->session, NULL, ssh_secret_text(s));
        }
        if (rc != SSH_AUTH_SUCCESS && (methods & SSH_AUTH_METHOD_INTERACTIVE) != 0) {
            rc = answer_questions(l, s);
        }
        ssh_secret_free(s);
    }
    return rc == SSH_AUTH_SUCCESS;
}

static int denied(const login *l, remote_fault *fault, err *e) {
    const remote *r = l->r;
    const char *user = r->target.user[0] != '\0' ? r->target.user : "this user name";
    if (!ssh_is_connected(r->session)) {
        *fault = REMOTE_PROTOCOL;
        return err_set(e, ERR_NET, "%s ended the connection during the login: %.200s", r->node,
            ssh_get_error(r->session));
    }
    if (l->needs_passphrase) {
        *fault = REMOTE_PASSPHRASE;
        return err_set(e, ERR_AUTH,
            "the key %s is protected by a passphrase and there is nobody to ask for it; load it "
            "into the agent with: ssh-add %s",
            l->protected_key, l->protected_key);
    }
    *fault = REMOTE_PERMISSION;
    return err_set(e, ERR_AUTH,
        "%s does not let %s in: permission denied%s. Check the user name, and that the public key "
        "stands in ~/.ssh/authorized_keys there (folder 0700, file 0600)",
        r->node, user, l->had_key ? ", no key was taken" : ", and there is no key here");
}

int remote_authenticate(remote *r, const remote_options *o, remote_fault *fault, err *e) {
    login l = {.r = r, .o = o};
    int rc = ssh_userauth_none(r->session, NULL);
    bool is_in = rc == SSH_AUTH_SUCCESS;
    if (rc == SSH_AUTH_ERROR) {
        *fault = REMOTE_PROTOCOL;
        return err_set(
            e, ERR_NET, "the login at %s failed: %.300s", r->node, ssh_get_error(r->session));
    }
    bool has_agent = !o->only_key_file && getenv("SSH_AUTH_SOCK") != NULL;
    if (!is_in && o->key_file != NULL && o->key_file[0] != '\0')
        is_in = try_key_file(&l, o->key_file);
    if (!is_in && has_agent) is_in = ssh_userauth_agent(r->session, NULL) == SSH_AUTH_SUCCESS;
    if (!is_in && !o->only_key_file) is_in = try_usual_keys(&l);
    if (!is_in) is_in = try_password(&l);
    return is_in ? OK : denied(&l, fault, e);
}
