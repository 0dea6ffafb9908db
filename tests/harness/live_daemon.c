#include "tests/harness/live_daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "tests/harness/wire.h"

#define READY_MS 120000
#define END_MS 30000
#define ARGUMENTS_MAX 40

static int find_parts(char program[512], char model[512], err *e) {
    const char *out = getenv("OUT") != NULL ? getenv("OUT") : "build";
    const char *source = getenv("TANDEM_SOURCE_DIR") != NULL ? getenv("TANDEM_SOURCE_DIR") : ".";
    const char *weights = getenv("DEMO_WEIGHTS");
    char config[600];
    (void)snprintf(program, 512, "%s/tandemd", out);
    if (!file_exists(program)) return err_set(e, ERR_NOT_FOUND, "%s is not built", program);
    (void)snprintf(model, 512, "%s/templates/demo-model", source);
    (void)snprintf(config, sizeof config, "%s/config.json", model);
    if (file_exists(config)) return OK;
    if (weights == NULL) return err_set(e, ERR_NOT_FOUND, "there is no demo model here");
    (void)snprintf(model, 512, "%s", weights);
    return OK;
}

static void run_child(const live_daemon *d, const char *program, char *const *argv) {
    int fd = open(d->log_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int in = open("/dev/null", O_RDONLY);
    if (fd < 0 || in < 0) _exit(126);
    dup2(in, STDIN_FILENO);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execv(program, argv);
    _exit(127);
}

static int get(const live_daemon *d, const char *path, json **out) {
    wire w;
    wire_answer a;
    wire_open_unix(&w, d->socket_path);
    if (w.fd < 0) return 0;
    wire_request(&w, "GET", path, "", NULL);
    wire_read(&w, &a, READY_MS);
    int status = a.status;
    if (out != NULL && json_parse(buf_cstr(&a.body), a.body.len, NULL, out, NULL) != OK) status = 0;
    wire_answer_release(&a);
    wire_close(&w);
    return status;
}

static int wait_ready(live_daemon *d, err *e) {
    uint64_t deadline = clock_mono_ms() + READY_MS;
    json *state = NULL;
    while (get(d, "/ready", NULL) != 200) {
        if (waitpid(d->pid, NULL, WNOHANG) == d->pid) {
            d->pid = -1;
            return err_set(e, ERR_INTERNAL, "tandemd ended; its log is %s", d->log_path);
        }
        if (clock_mono_ms() > deadline) return err_set(e, ERR_TIMEOUT, "tandemd is not ready");
        sleep_ms(20);
    }
    if (get(d, "/tandem/v1/state", &state) != 200) return err_set(e, ERR_INTERNAL, "no state");
    const char *address = json_str(json_get(json_get(state, "endpoint"), "address"));
    const char *colon = address != NULL ? strrchr(address, ':') : NULL;
    d->port = colon != NULL ? (int)strtol(colon + 1, NULL, 10) : 0;
    json_free(state);
    return d->port > 0 ? OK : err_set(e, ERR_INTERNAL, "the endpoint is not on");
}

int live_daemon_start(live_daemon *d, const char *const *arguments, err *e) {
    char program[512], model[512];
    const char *argv[ARGUMENTS_MAX] = {program, "--model", model, "--socket", d->socket_path,
        "--listen", "127.0.0.1:0", "--reserve", "0"};
    int n = 9;
    memset(d, 0, sizeof *d);
    d->pid = -1;
    int rc = find_parts(program, model, e);
    if (rc != OK) return rc;
    (void)snprintf(d->dir, sizeof d->dir, "/tmp/tandem-live-XXXXXX");
    if (mkdtemp(d->dir) == NULL) return err_errno(e, "making a folder");
    (void)snprintf(d->socket_path, sizeof d->socket_path, "%s/s", d->dir);
    (void)snprintf(d->log_path, sizeof d->log_path, "%s/log", d->dir);
    while (*arguments != NULL && n < ARGUMENTS_MAX - 1)
        argv[n++] = *arguments++;
    d->pid = fork();
    if (d->pid == 0) run_child(d, program, (char *const *)(uintptr_t)argv);
    rc = wait_ready(d, e);
    if (rc != OK) live_daemon_stop(d);
    return rc;
}

void live_daemon_stop(live_daemon *d) {
    uint64_t deadline = clock_mono_ms() + END_MS;
    if (d->pid > 0) {
        (void)kill(d->pid, SIGTERM);
        while (waitpid(d->pid, NULL, WNOHANG) == 0) {
            if (clock_mono_ms() > deadline) (void)kill(d->pid, SIGKILL);
            sleep_ms(10);
        }
    }
    d->pid = -1;
    if (d->dir[0] != '\0') (void)dir_remove_all(d->dir, NULL);
}
