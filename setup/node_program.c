#include "setup/node_program.h"

#include <stdio.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"

enum { PROGRAM_MAX = 256 << 20 };

static int read_program(buf *out, err *e) {
    char self[PATH_MAX];
    buf dir = BUF_INIT, path = BUF_INIT;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return err_errno(e, "finding this program");
    self[n] = '\0';
    path_dir(&dir, self);
    path_join(&path, buf_cstr(&dir), "tandem-node");
    int rc = file_read(buf_cstr(&path), out, PROGRAM_MAX, e);
    buf_release(&dir);
    buf_release(&path);
    return rc;
}

/* Digest of the program there, "" when there is none. */
static void digest_there(node_access *worker, const char *program, char hex[SHA256_HEX]) {
    buf out = BUF_INIT;
    hex[0] = '\0';
    if (node_tool(worker, &out, NULL, "sha256sum", program, NULL) == OK && out.len >= 64)
        snprintf(hex, SHA256_HEX, "%.64s", buf_cstr(&out));
    buf_release(&out);
}

static int put(node_access *worker, const char *folder, const char *program, err *e) {
    buf bytes = BUF_MAX(PROGRAM_MAX), out = BUF_INIT;
    uint8_t raw[SHA256_BYTES];
    char ours[SHA256_HEX] = "", theirs[SHA256_HEX] = "";
    int rc = read_program(&bytes, e);
    if (rc == OK) {
        sha256_of(bytes.data, bytes.len, raw);
        sha256_hex(raw, ours);
        digest_there(worker, program, theirs);
    }
    if (rc == OK && !str_eq(ours, theirs)) {
        rc = node_tool(worker, &out, e, "mkdir", "-p", folder, NULL);
        if (rc == OK) rc = node_write(worker, program, bytes.data, bytes.len, 0700, e);
        digest_there(worker, program, theirs);
        if (rc == OK && !str_eq(ours, theirs))
            rc = err_set(e, ERR_MISMATCH, "tandem-node did not arrive whole on the worker");
    }
    buf_release(&bytes);
    buf_release(&out);
    return rc;
}

int node_program_put(node_access *worker, const char *root, char program[PATH_MAX], err *e) {
    buf folder = BUF_INIT, out = BUF_INIT;
    buf_printf(&folder, "%s/.tandem", root);
    int n = snprintf(program, PATH_MAX, "%s/tandem-node", buf_cstr(&folder));
    int rc = n > 0 && n < PATH_MAX ? OK : err_set(e, ERR_ARG, "the data folder's name is too long");
    if (rc == OK) rc = put(worker, buf_cstr(&folder), program, e);
    if (rc == OK) {
        rc = node_tool(worker, &out, e, program, "--version", NULL);
        rc = err_add(e, rc, "tandem-node does not run on the worker (copy the bundle there)");
    }
    buf_release(&folder);
    buf_release(&out);
    return rc;
}
