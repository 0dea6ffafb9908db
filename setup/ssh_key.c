/* A key of our own, and its public half on the other machine. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/ssh_internal.h"

enum { PUBLIC_MAX = 8 << 10 };

static bool is_comment(const char *text) {
    for (const char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x21 || (unsigned char)*c > 0x7e) return false;
    }
    return text[0] != '\0';
}

static int write_public(ssh_key key, const char *path, const char *comment, err *e) {
    char *text = NULL;
    buf line = BUF_INIT, pub = BUF_INIT;
    int rc = ssh_pki_export_pubkey_base64(key, &text) == SSH_OK ? OK : ERR_INTERNAL;
    if (rc == OK) rc = buf_printf(&line, "ssh-ed25519 %s %s\n", text, comment);
    if (rc == OK) rc = buf_printf(&pub, "%s.pub", path);
    if (rc == OK) rc = file_write_atomic(buf_cstr(&pub), buf_cstr(&line), line.len, 0644, e);
    ssh_string_free_char(text);
    buf_release(&line);
    buf_release(&pub);
    return rc;
}

int remote_key_make(const char *path, const char *comment, err *e) {
    if (file_exists(path)) return OK;
    if (!is_comment(comment)) return err_set(e, ERR_ARG, "a key's comment is one plain word");
    buf dir = BUF_INIT, part = BUF_INIT;
    ssh_key key = NULL;
    int rc = path_dir(&dir, path);
    if (rc == OK) rc = dir_make_all(buf_cstr(&dir), 0700, e);
    if (rc == OK) rc = buf_printf(&part, "%s.new", path);
    if (rc == OK) rc = file_remove(buf_cstr(&part), e);
    mode_t before = umask(0077);
    if (rc == OK &&
        (ssh_pki_generate(SSH_KEYTYPE_ED25519, 0, &key) != SSH_OK ||
            ssh_pki_export_privkey_file(key, NULL, NULL, NULL, buf_cstr(&part)) != SSH_OK)) {
        rc = err_set(e, ERR_IO, "the ssh key %s cannot be made", path);
    }
    umask(before);
    /* The public half first: a private key without it would never be installed anywhere. */
    if (rc == OK) rc = write_public(key, path, comment, e);
    if (rc == OK && rename(buf_cstr(&part), path) != 0) {
        rc = err_errno(e, "the ssh key %s cannot be kept", path);
    }
    if (rc != OK && part.len > 0) (void)unlink(buf_cstr(&part));
    ssh_key_free(key);
    buf_release(&dir);
    buf_release(&part);
    return rc;
}

/* Only the address characters that sshd's from= understands. */
static bool is_from(const char *from) {
    return strspn(from, "0123456789abcdefABCDEF.:,/") == strlen(from);
}

/* The line comes on standard input; the file's other lines stay as they are. */
static const char INSTALL[] =
    "umask 077; IFS= read -r line || exit 45; set -f; key=${line#*ssh-ed25519 }; key=${key%% *}; "
    "d=$HOME/.ssh; f=$d/authorized_keys; mkdir -p \"$d\" && chmod 700 \"$d\" || exit 46; "
    "if [ -f \"$f\" ] && grep -qF \"$key\" \"$f\"; then chmod 600 \"$f\"; exit 44; fi; "
    "if [ -s \"$f\" ] && [ -n \"$(tail -c 1 \"$f\")\" ]; then echo >> \"$f\"; fi; "
    "printf '%s\\n' \"$line\" >> \"$f\" && chmod 600 \"$f\" || exit 46";

int remote_key_install(remote *r, const char *path, const char *from, bool *was_there, err *e) {
    buf pub = BUF_INIT, text = BUF_INIT, line = BUF_INIT, command = BUF_INIT;
    remote_result out;
    remote_result_init(&out);
    int rc =
        from == NULL || is_from(from) ? OK : err_set(e, ERR_ARG, "\"%.60s\" is no address", from);
    if (rc == OK) rc = buf_printf(&pub, "%s.pub", path);
    if (rc == OK) rc = file_read(buf_cstr(&pub), &text, PUBLIC_MAX, e);
    if (rc == OK && !str_starts(buf_cstr(&text), "ssh-ed25519 ")) {
        rc = err_set(e, ERR_FORMAT, "%s is no ed25519 public key", buf_cstr(&pub));
    }
    if (rc == OK && from != NULL && from[0] != '\0') rc = buf_printf(&line, "from=\"%s\" ", from);
    if (rc == OK) rc = buf_puts(&line, buf_cstr(&text));
    if (rc == OK) rc = buf_puts(&command, "exec sh -c ");
    if (rc == OK) rc = remote_quote(&command, INSTALL);
    if (rc == OK) {
        remote_command c = {.line = buf_cstr(&command), .input = line.data, .n_input = line.len};
        rc = remote_run(r, &c, &out, e);
    }
    if (rc == OK && out.exit_code != 0 && out.exit_code != 44) {
        rc = err_set(e, ERR_IO, "the key cannot be added to authorized_keys on %s: %.200s", r->node,
            buf_cstr(&out.err));
    }
    if (was_there != NULL) *was_there = rc == OK && out.exit_code == 44;
    remote_result_release(&out);
    buf_release(&pub);
    buf_release(&text);
    buf_release(&line);
    buf_release(&command);
    return rc;
}
