/* The wizard from nothing to a verified chat over two ranks, on a pseudo terminal, between two fake
 * nodes, with faults on the way: each must be explained on the screen and recovered from. Started
 * plainly it builds the nodes (wizard_nodes.sh, needs root) and is started again on the head. The
 * hub is a server in this process; trees of tests/data/spark stand for what only a Spark has. The
 * tests are one walk and run in order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "setup/manifest.h"
#include "tests/harness/hub_server.h"
#include "tests/harness/proc.h"
#include "tests/harness/pty.h"
#include "tests/harness/spark_tree.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
enum {
    N_FILES = 3,
    ROWS = 24,
    COLUMNS = 80,
    LIST_COLUMNS = 22,
    SOON_MS = 120000,
    LONG_MS = 300000
};
extern char **environ;

typedef struct served {
    const char *path;
    manifest_role role;
    buf data;
} served;

static struct world {
    char dir[200], program[500], home[300], worker_home[300], roots[2][300];
    pty term;
    bool is_open, is_broken;
    hub_server *hub;
    bool is_corrupt; /* one bit of the weights is wrong */
    int n_stalls;    /* so many answers stop in the middle */
    uint64_t speed;  /* bytes a second, 0: as it goes */
    served files[N_FILES];
    int asked, said; /* pipes to the outside */
} w;

/* --- the outside, and other programs --- */

static void outside(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void outside(const char *fmt, ...) {
    char line[700], answer[16] = "";
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    line[n] = '\n';
    assert_int_equal(write(w.asked, line, (size_t)n + 1), n + 1);
    for (size_t k = 0; k + 1 < sizeof answer; k++) {
        if (read(w.said, answer + k, 1) != 1 || answer[k] == '\n') {
            answer[k] = '\0';
            break;
        }
    }
    line[n] = '\0';
    if (!str_eq(answer, "0")) fail_msg("outside: \"%s\" ended with \"%s\"", line, answer);
}

/* A shell line here on the head; its exit status. */
static int shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int shell(const char *fmt, ...) {
    char line[1200];
    int status = 0;
    pid_t pid = 0;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    const char *argv[] = {"/bin/sh", "-c", line, NULL};
    assert_int_equal(posix_spawn(&pid, argv[0], NULL, NULL, (char *const *)argv, environ), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *text_of(const char *path) {
    static buf text = BUF_INIT;
    buf_reset(&text);
    return file_read(path, &text, 1 << 22, NULL) == OK ? buf_cstr(&text) : "";
}

/* --- the screen --- */

/* What stands right of the list of steps as one line of words: boxes and line breaks fall away. */
static void words_of(const pty *p, buf *out) {
    buf rows = BUF_INIT;
    vt_text(&p->screen, &rows);
    buf_reset(out);
    bool is_gap = true, has_list = strstr(buf_cstr(&rows), "[ Steps ]") != NULL &&
                                   strstr(buf_cstr(&rows), "[ Esc closes ]") == NULL;
    for (const char *s = buf_cstr(&rows); *s != '\0';) {
        size_t n = strcspn(s, "\n");
        size_t from = has_list && n > 0 && (s[0] == '|' || s[0] == '+') && n > LIST_COLUMNS
                          ? LIST_COLUMNS
                          : 0;
        for (size_t i = from; i < n; i++) {
            bool is_blank = s[i] == ' ' || s[i] == '|';
            if (!is_blank || !is_gap) (void)buf_putc(out, is_blank ? ' ' : s[i]);
            is_gap = is_blank;
        }
        if (!is_gap) (void)buf_putc(out, ' ');
        is_gap = true;
        s += n + (s[n] == '\n');
    }
    buf_release(&rows);
}

static bool has(const char *text) {
    buf words = BUF_INIT;
    words_of(&w.term, &words);
    bool is = strstr(buf_cstr(&words), text) != NULL;
    buf_release(&words);
    return is;
}

static void show(const char *why, const char *text) {
    buf rows = BUF_INIT;
    vt_text(&w.term.screen, &rows);
    fprintf(stderr, "%s\n---\n", buf_cstr(&rows));
    buf_release(&rows);
    fail_msg("%s: \"%s\"", why, text);
}

static void see_within(const char *text, int limit_ms) {
    for (uint64_t until = clock_mono_ms() + (uint64_t)limit_ms;
         !has(text) || w.term.screen.in_sync;) {
        if (clock_mono_ms() >= until) show("never came", text);
        pty_read(&w.term, 20);
    }
}
static void see(const char *text) {
    see_within(text, SOON_MS);
}

static void keys(const char *k) {
    pty_keys(&w.term, k);
}
#define ENTER "\r"
#define TAB "\t"

/* All keys so far are taken and the screen shows it. */
static void catch_up(void) {
    if (!pty_redraw(&w.term, SOON_MS)) show("not drawn anew", "Ctrl-L");
}

/* Presses a key of the page. False: it is the last one, the page stays. */
static bool turn_page(const char *key) {
    buf before = BUF_INIT, now = BUF_INIT;
    words_of(&w.term, &before);
    pty_keys(&w.term, key);
    catch_up();
    words_of(&w.term, &now);
    bool is_other = strcmp(buf_cstr(&before), buf_cstr(&now)) != 0;
    buf_release(&before);
    buf_release(&now);
    return is_other;
}

/* Somewhere in the step's text, which may be longer than the screen. */
static void find_below(const char *text) {
    int n = 0;
    while (n < 12 && !has(text) && turn_page("\033[6~"))
        n++;
    while (n < 24 && !has(text) && turn_page("\033[5~"))
        n++;
    if (!has(text)) show("not in this step", text);
}

/* The three sentences of a failure; the words are those of the first and the last. */
static void see_explained(const char *what, const char *next) {
    see_within(what, LONG_MS);
    see("What happened:");
    see("Why it matters:");
    find_below(next);
}

/* Tab until it has the focus. Buttons and fields are there only while the wizard waits, so nothing
 * else moves the focus meanwhile. */
static void focus_on(const char *focused, const char *other) {
    catch_up();
    for (uint64_t until = clock_mono_ms() + SOON_MS; !has(focused);) {
        if (clock_mono_ms() >= until) show("cannot be reached", focused);
        if (has(other)) keys(TAB);
        catch_up();
    }
}

/* Esc, alone: with the next key it would be another one. */
static void leave_words(void) {
    see("[ Esc closes ]"); /* the end of the page may come after what was looked for */
    keys("\033");
    for (uint64_t until = clock_mono_ms() + SOON_MS; has("[ Esc closes ]");) {
        if (clock_mono_ms() >= until) show("does not go", "Esc closes");
        pty_read(&w.term, 20);
    }
}

static void press(const char *name) {
    char focused[60], other[60];
    snprintf(focused, sizeof focused, "[>%s<]", name);
    snprintf(other, sizeof other, "[ %s ]", name);
    focus_on(focused, other);
    keys(ENTER);
}

static void type_field(const char *label, const char *value) {
    char focused[80];
    snprintf(focused, sizeof focused, "* %s", label);
    focus_on(focused, label);
    keys("\025");
    keys(value);
    see(value);
    keys(ENTER);
}

/* A field of two words is set to one of them. */
static void choose_word(const char *label, const char *value) {
    char focused[80], shown[40];
    snprintf(focused, sizeof focused, "* %s", label);
    snprintf(shown, sizeof shown, "[ %s ]", value);
    focus_on(focused, label);
    if (!has(shown)) keys(" ");
    see(shown);
    keys(ENTER);
}

/* The step is proven, with or without warnings: on to the next. */
static void pass(const char *title_of_next) {
    for (uint64_t until = clock_mono_ms() + LONG_MS; !has("[>Next<]");) {
        if (clock_mono_ms() >= until) show("the step is not proven", "Next");
        if (has("[>Go on with warnings<]")) {
            keys(ENTER);
            see("[>Next<]");
        }
        pty_read(&w.term, 100);
    }
    keys(ENTER);
    see(title_of_next);
}

static void open_wizard(void) {
    const char *argv[] = {w.program, "setup", "--ascii", "--color", "none", "--head-root",
        w.roots[0], "--worker-root", w.roots[1], NULL};
    const char *env[] = {"TERM=xterm-256color", "LC_ALL=C.UTF-8", NULL};
    if (w.is_open) pty_stop(&w.term);
    pty_start(&w.term, argv, env, ROWS, COLUMNS);
    w.is_open = true;
}

/* --- the hub --- */

static const served *file_of(const char *path) {
    for (int i = 0; i < N_FILES; i++) {
        if (strstr(path, w.files[i].path) != NULL) return &w.files[i];
    }
    return NULL;
}

static void take_bytes(void *ctx, uint64_t offset, void *out, size_t n) {
    const served *f = ctx;
    memcpy(out, f->data.data + offset, n);
}

static void decide(void *ctx, const hub_seen *r, hub_answer *a) {
    const served *f = file_of(r->path);
    (void)ctx;
    if (f == NULL) {
        a->status = 404;
        return;
    }
    hub_server_file(r, f->data.len, take_bytes, (void *)f, a);
    bool is_weights = f->role == MANIFEST_WEIGHTS && str_eq(r->method, "GET");
    if (is_weights) a->bytes_per_s = w.speed;
    if (is_weights && w.is_corrupt) a->corrupt_at = 1000;
    if (is_weights && w.n_stalls > 0) {
        w.n_stalls--;
        a->send_bytes = 4096;
        a->then = HUB_THEN_STALL;
    }
}

static void write_manifest(void) {
    manifest m;
    buf text = BUF_INIT, path = BUF_INIT;
    err e = ERR_INIT;
    manifest_init(&m);
    for (int i = 0; i < N_FILES; i++) {
        uint8_t raw[SHA256_BYTES];
        manifest_file f = {.repo = (char *)"o/demo",
            .commit = COMMIT,
            .path = (char *)w.files[i].path,
            .size = w.files[i].data.len,
            .kind = MANIFEST_SHA256,
            .role = w.files[i].role,
            .is_required = true};
        sha256_of(w.files[i].data.data, w.files[i].data.len, raw);
        sha256_hex(raw, f.digest);
        assert_int_equal(manifest_add(&m, "demo", &f, &e), OK);
    }
    assert_int_equal(manifest_print(&m, &text, &e), OK);
    buf_printf(&path, "%s/.config/tandem/manifests", w.home);
    assert_int_equal(dir_make_all(buf_cstr(&path), 0700, &e), OK);
    buf_puts(&path, "/demo.manifest");
    assert_int_equal(file_write_atomic(buf_cstr(&path), text.data, text.len, 0600, &e), OK);
    manifest_release(&m);
    buf_release(&text);
    buf_release(&path);
}

/* --- the world --- */

static const char NETPLAN[] =
    "#!/bin/sh\n"
    "# Stands for netplan: large frames come where the file asks for them.\n"
    "NODE_ROOT=${NODE_ROOT:-${0%/tools/netplan}}\n"
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin\n"
    "[ \"$1\" = apply ] || exit 0\n"
    "f=$NODE_ROOT/etc/netplan/40-cx7.yaml\n"
    "for d in enp1s0f0np0 enP2p1s0f0np0; do\n"
    "  if grep -q 'mtu: 9000' \"$f\" 2>/dev/null; then m=9000; else m=$(cat \"$NODE_ROOT/mtu-$d\"); fi\n"
    "  echo $m > \"$NODE_ROOT/sys/class/net/$d/mtu\"; ip link set $d mtu $m 2>/dev/null || true\n"
    "done\n";

static const char ROOT_ID[] = "#!/bin/sh\necho 0\n";

static void lay_trees(const char *source) {
    char healthy[600], fault[600], path[400];
    err e = ERR_INIT;
    snprintf(healthy, sizeof healthy, "%s/tests/data/spark/healthy.tree", source);
    snprintf(fault, sizeof fault, "%s/tests/data/spark/fault-mtu-mismatch.tree", source);
    for (int i = 0; i < 2; i++) {
        spark_tree_lay(healthy, w.roots[i], i + 1, NULL);
        if (i == 1) spark_tree_lay(fault, w.roots[i], 2, NULL);
        snprintf(path, sizeof path, "%s/tools/netplan", w.roots[i]);
        assert_int_equal(file_write_atomic(path, NETPLAN, strlen(NETPLAN), 0755, &e), OK);
        snprintf(path, sizeof path, "%s/tools/id", w.roots[i]);
        assert_int_equal(file_write_atomic(path, ROOT_ID, strlen(ROOT_ID), 0755, &e), OK);
        for (int r = 0; r < 2; r++) {
            const char *d = r == 0 ? "enp1s0f0np0" : "enP2p1s0f0np0";
            shell("cp %s/sys/class/net/%s/mtu %s/mtu-%s", w.roots[i], d, w.roots[i], d);
        }
    }
}

static void take_environment(const char *name, char *out, size_t cap) {
    const char *value = getenv(name);
    if (value == NULL) {
        fprintf(stderr, "%s is not set; wizard_nodes.sh starts this\n", name);
        exit(1);
    }
    str_copy(out, cap, value);
}

static int build_world(void **state) {
    static const struct {
        const char *path;
        manifest_role role;
    } files[N_FILES] = {{"config.json", MANIFEST_CONFIG}, {"tokenizer.json", MANIFEST_TOKENIZER},
        {"model.safetensors", MANIFEST_WEIGHTS}};
    char path[600], model[400], source[400];
    (void)state;
    setlocale(LC_CTYPE, "C.UTF-8");
    take_environment("WORLD", w.dir, sizeof w.dir);
    take_environment("HEAD_HOME", w.home, sizeof w.home);
    take_environment("WORKER_HOME", w.worker_home, sizeof w.worker_home);
    take_environment("MODEL", model, sizeof model);
    take_environment("TANDEM_SOURCE_DIR", source, sizeof source);
    take_environment("OUT", path, 400);
    snprintf(w.program, sizeof w.program, "%s/tandem", path);
    for (int i = 0; i < N_FILES; i++) {
        w.files[i] = (served){files[i].path, files[i].role, BUF_INIT};
        snprintf(path, sizeof path, "%s/%s", model, files[i].path);
        assert_int_equal(file_read(path, &w.files[i].data, 60 << 20, NULL), OK);
    }
    snprintf(path, sizeof path, "%s/asked", w.dir);
    w.asked = open(path, O_WRONLY | O_CLOEXEC);
    w.said = dup(STDIN_FILENO);
    snprintf(w.roots[0], sizeof w.roots[0], "%s/head/root", w.dir);
    snprintf(w.roots[1], sizeof w.roots[1], "%s/worker/root", w.dir);
    lay_trees(source);
    write_manifest();
    w.hub = hub_server_new(decide, NULL);
    setenv("TANDEM_HF_ENDPOINT", hub_server_url(w.hub, 0), 1);
    setenv("TANDEM_DL_CHUNK_MIB", "8", 1);
    outside("snapshot before");
    return 0;
}

static int end_world(void **state) {
    (void)state;
    if (w.is_open) pty_stop(&w.term);
    shell("%s stop >/dev/null 2>&1", w.program);
    hub_server_free(w.hub);
    for (int i = 0; i < N_FILES; i++)
        buf_release(&w.files[i].data);
    return 0;
}

/* --- the walk --- */

static void first_run_offers_demo_or_two_sparks(void **state) {
    (void)state;
    const char *argv[] = {w.program, "--ascii", NULL};
    const char *env[] = {"TERM=xterm-256color", "LC_ALL=C.UTF-8", NULL};
    pty_start(&w.term, argv, env, ROWS, COLUMNS);
    w.is_open = true;
    see("Chat now with the built-in demo model");
    see("Set up two Sparks");
    see("Attach to an engine that runs already");
    keys("s");
    see("Sixteen steps lead from two boxes");
    keys("\033[21~"); /* F10 */
    assert_true(pty_wait_end(&w.term, SOON_MS));
}

/* Another set-up holds the lock; killed, its lock is stale and holds nobody up. */
static void stale_lock_is_explained_and_passed(void **state) {
    (void)state;
    pty other;
    const char *argv[] = {w.program, "setup", "--plain", NULL};
    const char *env[] = {"TERM=xterm-256color", NULL};
    pty_start(&other, argv, env, ROWS, COLUMNS);
    assert_true(pty_wait(&other, "worker, as user@host", true, SOON_MS));
    open_wizard();
    see_explained("another set-up is open (process", "Wait for it or end it");
    kill(other.pid, SIGKILL);
    assert_true(pty_wait_end(&other, SOON_MS));
    pty_stop(&other);
    keys(ENTER);
    see("1 Find");
}

static void worker_without_ssh_is_explained(void **state) {
    (void)state;
    char target[64];
    snprintf(target, sizeof target, "root@%s", getenv("WORKER_IP"));
    see("worker, as user@host");
    type_field("worker, as user@host", target);
    see_explained("refuses", "sudo systemctl enable --now ssh");
    outside("worker_sshd");
    press("Again");
    see("tandem config set WORKER_SSH");
    press("Use this address");
    /* Another machine's key is stored for this address. */
    shell("ssh-keygen -q -t ed25519 -N '' -f \"$WORLD/other\"; mkdir -p %s/.ssh; "
          "echo \"$WORKER_IP $(cut -d' ' -f1,2 \"$WORLD/other.pub\")\" > %s/.ssh/known_hosts",
        w.home, w.home);
    pass("2 Trust");
}

static void changed_host_key_has_no_accept_button(void **state) {
    (void)state;
    /* Trust was entered while another key was stored for this address. */
    see_explained("The worker's identity is not the one that is stored", "ssh-keygen -f");
    assert_false(has("[ Connect ]"));
    assert_int_equal(shell("ssh-keygen -f %s/.ssh/known_hosts -R %s 2>/dev/null >&2", w.home,
                         getenv("WORKER_IP")),
        0);
    shell("rm -f %s/.ssh/known_hosts %s/.ssh/known_hosts.old", w.home, w.home);
    press("Again");
    see("not known yet");
    press("Connect");
    see("Type the last 6 characters of the fingerprint");
    char print[200] = "";
    FILE *f = popen("ssh-keygen -lf \"$WORLD/worker/host.pub\" | cut -d' ' -f2", "r");
    assert_non_null(f);
    assert_non_null(fgets(print, sizeof print, f));
    pclose(f);
    print[strcspn(print, "\n")] = '\0';
    see(print);
    keys(print + strlen(print) - 6);
    keys(ENTER);
    see_within("assword", SOON_MS);
    keys(getenv("WORKER_PASSWORD"));
    keys(ENTER);
    see("the head logs in to");
    pass("3 Machines");
}

static void machines_are_compared(void **state) {
    (void)state;
    see_within(" 0 failures", LONG_MS);
    pass("4 Cable");
}

static void wrong_mtu_is_explained_and_set(void **state) {
    (void)state;
    see_explained("Large frames are not on everywhere", "Apply sets 9000 on both machines");
    press("Commands");
    see("/etc/netplan/40-cx7.yaml");
    leave_words();
    press("Set up the network");
    see_within("both halves of the port have an address and large frames", LONG_MS);
    pass("5 Network");
    press("Measure");
    see_within("the cable carries what it should", LONG_MS);
    find_below("traffic on rail B");
    pass("6 Model");
}

static void model_and_folders_are_chosen(void **state) {
    (void)state;
    char path[400];
    type_field("model profile", "demo");
    snprintf(path, sizeof path, "%s/data", w.home);
    type_field("folder for the model on the head", path);
    snprintf(path, sizeof path, "%s/data", w.worker_home);
    type_field("folder for the model on the worker", path);
    see("demo: 3 files");
    press("Make the folders");
    pass("7 Download");
}

static void full_disk_pauses_the_download(void **state) {
    (void)state;
    press("Download");
    see_explained("space", "Free space on the head");
    outside("disk_size head %s/data 9000", w.home);
}

/* Killed in the middle, the wizard comes back at the same step and the download was never gone. */
static void stall_and_kill_do_not_lose_the_download(void **state) {
    (void)state;
    hub_server_pause(w.hub);
    w.n_stalls = 1;
    w.is_corrupt = true; /* for the next step of the walk */
    w.speed = 1 << 20;
    hub_server_go_on(w.hub);
    press("Again");
    press("Download");
    see("Leave it running");
    kill(w.term.pid, SIGKILL);
    assert_true(pty_wait_end(&w.term, SOON_MS));
    open_wizard();
    see("7 Download");
    press("Download");
    see_within("stalled: no bytes of model.safetensors; the connection is replaced", LONG_MS);
    see("finished parts are kept");
}

static void corrupt_shard_is_explained(void **state) {
    (void)state;
    hub_server_pause(w.hub);
    w.speed = 0;
    hub_server_go_on(w.hub);
    see_explained("the bytes arrived but are wrong", "the bad file is loaded anew");
    hub_server_pause(w.hub);
    w.is_corrupt = false;
    hub_server_go_on(w.hub);
    press("Again");
    press("Download");
    see_within("all 3 files are verified", LONG_MS);
    pass("8 Copy");
}

static void full_worker_pauses_the_copy(void **state) {
    (void)state;
    press("Copy");
    see_explained("the worker has not enough space", "Free space on the worker");
    outside("disk_size worker %s/data 9000", w.worker_home);
    press("Again");
    press("Copy");
    see_within("files are verified on the worker", LONG_MS);
    pass("9 Prompt form");
}

static void prompts_engine_and_prepared_files(void **state) {
    (void)state;
    press("Test");
    see_within("prompts are as the reference renders them", LONG_MS);
    pass("10 Engine");
    see("processors");
    pass("11 Prepare");
    press("Prepare");
    see_within("both machines are prepared", LONG_MS);
    pass("12 Start");
}

static int listen_on(const char *address, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int yes = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(inet_pton(AF_INET, address, &a.sin_addr), 1);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 4), 0);
    return fd;
}

static void port_in_use_is_explained(void **state) {
    (void)state;
    see_within("This will be changed", LONG_MS);
    int fd = listen_on(getenv("HEAD_IP_A"), 29620);
    press("Start");
    see_explained("29620", "Stop the program that is named");
    close(fd);
    press("Again");
    press("Start");
    see_within("both ranks are ready", LONG_MS);
    pass("13 Verify");
}

static void killed_worker_is_explained_and_started_again(void **state) {
    (void)state;
    outside("worker_kill");
    shell(
        "for i in $(seq 300); do %s status >/dev/null 2>&1 || exit 0; sleep 0.1; done", w.program);
    press("Verify");
    see_explained("no endpoint answers", "Start it again in step Start");
    press("Back");
    see("12 Start");
    see_within("This will be changed", LONG_MS);
    press("Start");
    see_within("both ranks are ready", LONG_MS);
    pass("13 Verify");
    press("Verify");
    see_within(" 0 failed", LONG_MS);
    pass("14 Connect");
}

static void endpoint_port_in_use_is_explained(void **state) {
    (void)state;
    int fd = listen_on("127.0.0.1", 8889);
    choose_word("endpoint for other programs", "on");
    type_field("address of the endpoint", "127.0.0.1");
    type_field("port of the endpoint", "8889");
    press("Again");
    press("Set the endpoint");
    see_explained("8889", "Stop the program that has it");
    close(fd);
    press("Again");
    press("Set the endpoint");
    see_within("programs connect to http://127.0.0.1:8889/v1", LONG_MS);
}

/* An address of this machine alone, typed again, with a key that is shown once. */
static void others_come_in_only_on_purpose(void **state) {
    (void)state;
    const char *address = getenv("HEAD_IP");
    char text[100], key[80] = "";
    type_field("address of the endpoint", "10.99.7.77");
    press("Again");
    see_explained(
        "no interface of this machine has the address 10.99.7.77", "one of these addresses");
    type_field("address of the endpoint", "0.0.0.0");
    press("Again");
    see("every network of this machine at once");
    find_below("Better give one address");
    find_below(address);
    type_field("address of the endpoint", address);
    type_field("label of a new API key", "laptop");
    press("Again");
    find_below("you are asked to type it again");
    find_below("tandem api key new laptop");
    press("Set the endpoint");
    see("Type the address again:");
    keys("10.99.7.2" ENTER);
    see_explained("was not typed again", "set it back to 127.0.0.1");
    assert_int_equal(shell("test ! -e %s/.config/tandem/api-keys", w.home), 0);
    press("Again");
    press("Set the endpoint");
    see("Type the address again:");
    keys(address);
    keys(ENTER);
    see("is shown only now");
    see("sk-tandem-");
    buf words = BUF_INIT;
    words_of(&w.term, &words);
    const char *at = strstr(buf_cstr(&words), "sk-tandem-");
    assert_non_null(at);
    str_copy(key, sizeof key, at);
    key[strcspn(key, " ")] = '\0';
    buf_release(&words);
    assert_int_equal(strlen(key), strlen("sk-tandem-") + 43);
    keys(ENTER);
    snprintf(text, sizeof text, "programs connect to http://%s:8889/v1", address);
    see_within(text, LONG_MS);
    find_below("without a key");
    find_below("with the new key");
    assert_false(has("sk-tandem-"));
    outside("worker_asks %s:8889 401", address);
    outside("worker_asks %s:8889 200 %s", address, key);
    /* Its digest is kept, and the key is nowhere. */
    assert_int_equal(shell("grep -q '^laptop sha256:' %s/.config/tandem/api-keys", w.home), 0);
    assert_int_equal(shell("grep -rqF %s %s/.config %s/.local", key, w.home, w.home), 1);
    assert_false(proc_shows(key));
    pass("15 Keep running");
}

static void summary_and_chat(void **state) {
    (void)state;
    choose_word("install user units", "off");
    keys(ENTER);
    press("Install");
    pass("16 Summary");
    press("Write the report");
    press("Chat");
    see("session:");
    keys("What is 12 plus 30?" ENTER);
    see_within("12 + 30 = 42", LONG_MS);
    see_within("done ", LONG_MS);
    keys("\033[21~");
    assert_true(pty_wait_end(&w.term, SOON_MS));
}

/* After undo both nodes are as they were before the first key. */
static void undo_leaves_the_nodes_as_they_were(void **state) {
    (void)state;
    char path[400];
    assert_int_equal(shell("%s undo apply --yes --data >\"$WORLD/undo.out\" 2>&1", w.program), 0);
    outside("snapshot after");
    snprintf(path, sizeof path, "%s/snapshot-before", w.dir);
    if (shell("diff -u %s/snapshot-before %s/snapshot-after", w.dir, w.dir) != 0)
        fail_msg("%s", "something is left");
    /* The comparison is not one of two empty texts. */
    assert_non_null(strstr(text_of(path), "== worker"));
    assert_non_null(strstr(text_of(path), "manifests/demo.manifest"));
}

/* One step of the walk; after one that failed there is nowhere to go on from. */
typedef struct walker {
    void (*fn)(void **state);
} walker;

static void step(void **state) {
    const walker *x = *state;
    if (w.is_broken) skip();
    w.is_broken = true;
    x->fn(state);
    w.is_broken = false;
}

static int walk(void) {
#define WALK(f)                                                                                    \
    {                                                                                              \
#f, step, NULL, NULL, &(walker) {                                                          \
            f                                                                                      \
        }                                                                                          \
    }
    const struct CMUnitTest tests[] = {
        WALK(first_run_offers_demo_or_two_sparks),
        WALK(stale_lock_is_explained_and_passed),
        WALK(worker_without_ssh_is_explained),
        WALK(changed_host_key_has_no_accept_button),
        WALK(machines_are_compared),
        WALK(wrong_mtu_is_explained_and_set),
        WALK(model_and_folders_are_chosen),
        WALK(full_disk_pauses_the_download),
        WALK(stall_and_kill_do_not_lose_the_download),
        WALK(corrupt_shard_is_explained),
        WALK(full_worker_pauses_the_copy),
        WALK(prompts_engine_and_prepared_files),
        WALK(port_in_use_is_explained),
        WALK(killed_worker_is_explained_and_started_again),
        WALK(endpoint_port_in_use_is_explained),
        WALK(others_come_in_only_on_purpose),
        WALK(summary_and_chat),
        WALK(undo_leaves_the_nodes_as_they_were),
    };
    return cmocka_run_group_tests(tests, build_world, end_world);
}

int main(int argc, char **argv) {
    char self[500], script[500];
    const char *source = getenv("TANDEM_SOURCE_DIR");
    if (argc > 1 && str_eq(argv[1], "--inside")) return walk();
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return 1;
    self[n] = '\0';
    snprintf(script, sizeof script, "%s/tests/e2e/wizard_nodes.sh", source != NULL ? source : ".");
    execl("/bin/bash", "bash", script, self, (char *)NULL);
    perror("bash");
    return 1;
}
