/* The ssh session against a real sshd and against servers that misbehave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/known_hosts.h"
#include "setup/node_access.h"
#include "setup/ssh.h"
#include "setup/ssh_secret.h"
#include "tests/harness/sshd.h"

static sshd server;
static char home[] = "/tmp/tandem-home.XXXXXX";

static remote_options usual(void) {
    return (remote_options){.target = server.target,
        .key_file = server.key,
        .known_hosts = server.known_hosts,
        .only_key_file = true};
}

static remote *open_usual(void) {
    remote_options o = usual();
    remote *r = NULL;
    err e = ERR_INIT;
    sshd_trust(&server);
    if (remote_open(&o, &r, NULL, &e) != OK) fail_msg("%s", e.msg);
    return r;
}

static remote_fault fault_of(const remote_options *o, err *e) {
    remote *r = NULL;
    remote_fault f = REMOTE_FINE;
    (void)remote_open(o, &r, &f, e);
    remote_close(r);
    return f;
}

static void runs_commands_and_gives_codes_and_streams(void **state) {
    (void)state;
    remote *r = open_usual();
    remote_result out;
    remote_result_init(&out);
    err e = ERR_INIT;
    remote_command c = {
        .line = "cat; echo problem >&2; exit 7", .input = "some input", .n_input = 10};
    assert_int_equal(remote_run(r, &c, &out, &e), OK);
    assert_int_equal(out.exit_code, 7);
    assert_string_equal(buf_cstr(&out.out), "some input");
    assert_string_equal(buf_cstr(&out.err), "problem\n");
    c = (remote_command){.line = "kill -TERM $$"};
    assert_int_equal(remote_run(r, &c, &out, &e), OK);
    assert_int_equal(out.exit_code, -1);
    assert_string_equal(out.signal, "TERM");
    assert_int_equal(remote_alive(r, &e), OK);
    remote_result_release(&out);
    remote_close(r);
}

/* A command that never ends, one that prints too much, and one that is stopped leave the session
 * usable. */
static void limits_end_a_command_only(void **state) {
    (void)state;
    remote *r = open_usual();
    remote_result out;
    remote_result_init(&out);
    err e = ERR_INIT;
    atomic_bool stop = true;
    remote_command slow = {.line = "sleep 60", .timeout_ms = 300};
    remote_command loud = {.line = "head -c 100000 /dev/zero", .max_out = 1000};
    remote_command stopped = {.line = "sleep 60", .stop = &stop};
    assert_int_equal(remote_run(r, &slow, &out, &e), ERR_TIMEOUT);
    assert_int_equal(remote_run(r, &loud, &out, &e), ERR_LIMIT);
    assert_int_equal(remote_run(r, &stopped, &out, &e), ERR_CANCELLED);
    assert_int_equal(remote_alive(r, &e), OK);
    remote_result_release(&out);
    remote_close(r);
}

static void a_second_session_has_the_same_key(void **state) {
    (void)state;
    remote *r = open_usual(), *bulk = NULL;
    err e = ERR_INIT;
    assert_int_equal(remote_again(r, &bulk, &e), OK);
    assert_string_equal(remote_fingerprint(r), remote_fingerprint(bulk));
    remote_close(bulk);
    remote_close(r);
}

typedef struct person {
    const char *typed;
    int n_asked;
} person;

static bool answer_key(void *ctx, const remote_host_key *key) {
    person *p = ctx;
    p->n_asked++;
    assert_true(str_starts(key->fingerprint, "SHA256:"));
    assert_non_null(strstr(key->picture, "+----[SHA256]-----+"));
    const char *typed =
        p->typed != NULL ? p->typed : key->fingerprint + strlen(key->fingerprint) - 6;
    return remote_key_confirmed(key->fingerprint, typed);
}

static void an_unknown_host_is_never_taken_silently(void **state) {
    (void)state;
    err e = ERR_INIT;
    remote_options o = usual();
    (void)unlink(server.known_hosts);
    assert_int_equal(fault_of(&o, &e), REMOTE_HOST_UNKNOWN);
    assert_false(file_exists(server.known_hosts));
    person wrong = {.typed = "yes"}, right = {.typed = NULL};
    remote_ask ask = {&wrong, answer_key, NULL};
    o.ask = &ask;
    assert_int_equal(fault_of(&o, &e), REMOTE_HOST_UNKNOWN);
    assert_int_equal(wrong.n_asked, 1);
    assert_false(file_exists(server.known_hosts));
    ask.ctx = &right;
    assert_int_equal(fault_of(&o, &e), REMOTE_FINE);
    buf text = BUF_INIT;
    assert_int_equal(file_read(server.known_hosts, &text, 4096, NULL), OK);
    assert_true(str_starts(buf_cstr(&text), "|1|")); /* hashed */
    buf_release(&text);
    o.ask = NULL;
    assert_int_equal(fault_of(&o, &e), REMOTE_FINE);
    const char *tool[] = {"ssh-keygen", "-F", "", "-f", server.known_hosts, NULL};
    char name[80];
    (void)snprintf(name, sizeof name, "[127.0.0.1]:%d", server.port);
    tool[2] = name;
    assert_true(sshd_tool(tool)); /* OpenSSH finds our entry too */
}

/* As OpenSSH reads the file: a key that is cut short or of another type than its line says is no
 * entry, so it neither fits nor stands for a change. */
static void a_line_without_a_whole_key_is_no_entry(void **state) {
    (void)state;
    static const char key[] =
        "AAAAC3NzaC1lZDI1NTE5AAAAIMqXgRLKG73K+sIxs5oj3E2nhu/4FHxOcrmAd4Wv7ki7";
    static const struct {
        const char *type;
        int n; /* of the key's characters */
        known_state want;
    } cases[] = {{"ssh-ed25519", 68, KNOWN_OK}, {"ssh-ed25519", 40, KNOWN_UNKNOWN},
        {"ssh-rsa", 68, KNOWN_UNKNOWN}};
    char path[300], line[200];
    (void)snprintf(path, sizeof path, "%s/lines", server.dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int n = snprintf(line, sizeof line, "spark2 %s %.*s\n", cases[i].type, cases[i].n, key);
        assert_int_equal(file_write_atomic(path, line, (size_t)n, 0600, NULL), OK);
        const char *const files[] = {path};
        const known_query q = {"spark2", 22, "ssh-ed25519", key};
        known_answer a;
        assert_int_equal(known_hosts_look(files, 1, &q, &a, NULL), cases[i].want);
    }
}

static void a_changed_host_is_refused_with_the_way_out(void **state) {
    (void)state;
    err e = ERR_INIT;
    remote_options o = usual();
    sshd_trust(&server);
    assert_true(sshd_new_keys(&server));
    person p = {.typed = "accept"};
    remote_ask ask = {&p, answer_key, NULL};
    o.ask = &ask;
    assert_int_equal(fault_of(&o, &e), REMOTE_HOST_CHANGED);
    assert_int_equal(p.n_asked, 0); /* nobody is asked: there is no accept button */
    assert_non_null(strstr(e.msg, "ssh-keygen -f "));
    assert_non_null(strstr(e.msg, "another machine answers"));
    sshd_trust(&server);
    assert_int_equal(fault_of(&o, &e), REMOTE_FINE);
}

static int listen_port(int *port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

/* Each way of not getting in has its own name and sentence. */
static void faults_have_clear_names(void **state) {
    (void)state;
    int port = 0, fd = listen_port(&port);
    char target[80];
    (void)snprintf(target, sizeof target, "me@127.0.0.1:%d", port);
    remote_options o = {
        .target = target, .connect_ms = 400, .only_key_file = true, .node = "worker"};
    err e = ERR_INIT;
    assert_int_equal(fault_of(&o, &e), REMOTE_BANNER); /* accepts, then silence */
    assert_non_null(strstr(e.msg, "out of memory"));
    assert_string_equal(e.node, "worker");
    close(fd);
    assert_int_equal(fault_of(&o, &e), REMOTE_REFUSED);
    assert_non_null(strstr(e.msg, "refuses"));
    o.target = "me@no-such-name.invalid";
    assert_int_equal(fault_of(&o, &e), REMOTE_NO_NAME);
    o.target = "-oProxyCommand=x";
    assert_int_equal(fault_of(&o, &e), REMOTE_BAD_TARGET);
    o.target = "a b@host";
    assert_int_equal(fault_of(&o, &e), REMOTE_BAD_TARGET);
    o = usual();
    sshd_trust(&server);
    o.key_file = NULL;
    assert_int_equal(fault_of(&o, &e), REMOTE_PERMISSION);
    assert_non_null(strstr(e.msg, "authorized_keys"));
}

static void goes_through_a_jump_host(void **state) {
    (void)state;
    remote_options o = usual();
    remote *r = NULL;
    remote_result out;
    remote_result_init(&out);
    err e = ERR_INIT;
    sshd_trust(&server);
    o.jump = server.target;
    if (remote_open(&o, &r, NULL, &e) != OK) fail_msg("%s", e.msg);
    remote_command c = {
        .line = "head -c 3000000 /dev/zero; cat", .max_out = 8 << 20, .input = "end", .n_input = 3};
    assert_int_equal(remote_run(r, &c, &out, &e), OK);
    assert_int_equal(out.out.len, 3000003);
    remote_close(r);
    o.target = "me@127.0.0.1:1";
    assert_int_equal(fault_of(&o, &e), REMOTE_JUMP);
    remote_result_release(&out);
}

/* The key is only in the agent: no file of it is named, and HOME holds none. */
static void an_agent_is_enough(void **state) {
    (void)state;
    char sock[300];
    err e = ERR_INIT;
    remote *r = NULL;
    (void)snprintf(sock, sizeof sock, "%s/agent", home);
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        if (null >= 0) dup2(null, 1);
        execlp("ssh-agent", "ssh-agent", "-D", "-a", sock, (char *)NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    struct stat st;
    for (int i = 0; i < 3000 && stat(sock, &st) != 0 && waitpid(pid, NULL, WNOHANG) == 0; i++)
        sleep_ms(10);
    if (stat(sock, &st) != 0) skip(); /* no ssh-agent is installed */
    setenv("SSH_AUTH_SOCK", sock, 1);
    sshd_trust(&server);
    remote_options o = usual();
    o.key_file = NULL;
    o.only_key_file = false;
    assert_int_equal(fault_of(&o, &e), REMOTE_PERMISSION); /* an empty agent lets nobody in */
    const char *add[] = {"ssh-add", "-q", server.key, NULL};
    assert_true(sshd_tool(add));
    int rc = remote_open(&o, &r, NULL, &e);
    unsetenv("SSH_AUTH_SOCK");
    kill(pid, SIGTERM);
    (void)waitpid(pid, NULL, 0);
    if (rc != OK) fail_msg("%s", e.msg);
    assert_int_equal(remote_alive(r, &e), OK);
    remote_close(r);
}

static void makes_and_installs_a_key_once(void **state) {
    (void)state;
    remote *r = open_usual();
    char path[300], keys[300];
    buf text = BUF_INIT;
    bool was_there = true;
    err e = ERR_INIT;
    (void)snprintf(path, sizeof path, "%s/secrets/id", home);
    if (remote_key_make(path, "tandem@head", &e) != OK) fail_msg("%s", e.msg);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    const char *check[] = {"ssh-keygen", "-l", "-f", path, NULL};
    assert_true(sshd_tool(check));
    (void)snprintf(keys, sizeof keys, "%s/home/.ssh", server.dir);
    assert_int_equal(dir_make_all(keys, 0755, NULL), OK);
    (void)snprintf(keys, sizeof keys, "%s/home/.ssh/authorized_keys", server.dir);
    assert_int_equal(file_write_atomic(keys, "ssh-rsa AAAA other", 18, 0644, NULL), OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(remote_key_install(r, path, "10.0.0.1", &was_there, &e), OK);
        assert_int_equal(was_there, i == 1);
    }
    assert_int_equal(stat(keys, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(file_read(keys, &text, 4096, NULL), OK);
    assert_true(
        str_starts(buf_cstr(&text), "ssh-rsa AAAA other\nfrom=\"10.0.0.1\" ssh-ed25519 AAAA"));
    assert_true(str_ends(buf_cstr(&text), " tandem@head\n"));
    assert_int_equal(remote_key_install(r, path, "10.0.0.1\" x", &was_there, &e), ERR_ARG);
    buf_release(&text);
    remote_close(r);
}

/* One interface, local and by ssh: the same files, commands and answers. */
static void both_kinds_of_access_answer_alike(void **state) {
    (void)state;
    char file[300];
    (void)snprintf(file, sizeof file, "%s/it's a file", server.dir);
    node_access *n[2] = {
        node_access_local("here", NULL), node_access_ssh("there", open_usual(), NULL)};
    for (int i = 0; i < 2; i++) {
        buf text = BUF_INIT;
        err e = ERR_INIT;
        assert_int_equal(node_write(n[i], file, "line one\n", 9, 0640, &e), OK);
        assert_int_equal(node_read(n[i], file, 100, &text, &e), OK);
        assert_string_equal(buf_cstr(&text), "line one\n");
        assert_int_equal(node_read(n[i], file, 5, &text, &e), ERR_LIMIT);
        assert_int_equal(node_read(n[i], "/no/such/file", 5, &text, &e), ERR_NOT_FOUND);
        assert_true(node_exists(n[i], file));
        assert_false(node_exists(n[i], "/no/such/file"));
        assert_int_equal(node_list(n[i], server.dir, &text, &e), OK);
        assert_non_null(strstr(buf_cstr(&text), "it's a file\n"));
        assert_int_equal(node_link(n[i], "/proc/self/exe", &text, &e), OK);
        assert_int_equal(
            node_tool(n[i], &text, &e, "printf", "%s|", "a b", "$HOME", "", "*", NULL), OK);
        assert_string_equal(buf_cstr(&text), "a b|$HOME||*|");
        assert_int_equal(node_tool(n[i], &text, &e, "tandem-no-such-tool", NULL), ERR_NOT_FOUND);
        assert_int_equal(node_fetch(n[i], "/proc/sys/kernel/* /sys/class/net/*/mtu", &e), OK);
        assert_int_equal(node_read_line(n[i], "/sys/class/net/lo/mtu", &text, &e), OK);
        assert_int_equal(node_read_line(n[i], "/sys/class/net/none/mtu", &text, &e), ERR_NOT_FOUND);
        buf_release(&text);
        node_access_close(n[i]);
    }
}

/* sudo is played by a script of the fixture: it wants a password as the first line of its input, and
 * passes the rest on. The password stands in no argument and in no log line. */
static char logged[65536];
static size_t n_logged;
static void keep_log(void *ctx, log_level level, const char *line, size_t len) {
    (void)ctx, (void)level;
    if (n_logged + len < sizeof logged) memcpy(logged + n_logged, line, len), n_logged += len;
}

static bool give_password(void *ctx, const char *node, ssh_secret *out) {
    (void)node;
    ++*(int *)ctx;
    return ssh_secret_set(out, "open sesame", 11) == OK;
}

static void sudo_gets_the_password_on_its_input_only(void **state) {
    (void)state;
    static const char shim[] =
        "#!/bin/sh\necho \"$@\" >> \"$NODE_ROOT/sudo.log\"\n"
        "if [ \"$1\" = -n ]; then echo 'a password is required' >&2; exit 1; fi\n"
        "IFS= read -r p; [ \"$p\" = 'open sesame' ] || exit 1\n"
        "while [ \"$1\" != -- ] && [ \"$1\" != true ]; do shift; done; [ \"$1\" = -- ] && shift; exec \"$@\"\n";
    static const char id[] = "#!/bin/sh\necho 1000\n";
    char path[300];
    int n_asked = 0;
    log_options lo = {.fd = -1, .level = LOG_DEBUG, .rank = -1, .sink = keep_log};
    log_open(&lo);
    (void)snprintf(path, sizeof path, "%s/tools", home);
    assert_int_equal(dir_make_all(path, 0755, NULL), OK);
    (void)snprintf(path, sizeof path, "%s/tools/sudo", home);
    assert_int_equal(file_write_atomic(path, shim, sizeof shim - 1, 0755, NULL), OK);
    (void)snprintf(path, sizeof path, "%s/tools/id", home);
    assert_int_equal(file_write_atomic(path, id, sizeof id - 1, 0755, NULL), OK);
    node_access *n = node_access_local("worker", home);
    node_sudo sudo = {&n_asked, give_password, NULL};
    const char *argv[] = {"/bin/cat", NULL};
    node_command c = {.argv = argv, .input = "file text", .n_input = 9};
    remote_result out;
    remote_result_init(&out);
    err e = ERR_INIT;
    node_sudo_begin(n, &sudo);
    for (int i = 0; i < 2; i++) {
        if (node_run_root(n, &c, "because", &out, &e) != OK) fail_msg("%s", e.msg);
        assert_string_equal(buf_cstr(&out.out), "file text");
    }
    assert_int_equal(n_asked, 1); /* once for the step */
    node_sudo_end(n);
    assert_int_equal(node_run_root(n, &c, "because", &out, &e), ERR_AUTH);
    LOG(LOG_INFO, "test", "the password is open sesame");
    log_close();
    assert_null(strstr(logged, "open sesame"));
    buf text = BUF_INIT;
    (void)snprintf(path, sizeof path, "%s/sudo.log", home);
    assert_int_equal(file_read(path, &text, 65536, NULL), OK);
    assert_null(strstr(buf_cstr(&text), "sesame"));
    buf_release(&text);
    remote_result_release(&out);
    node_access_close(n);
}

static void a_dead_server_is_noticed(void **state) {
    (void)state;
    remote *r = open_usual();
    err e = ERR_INIT;
    remote_result out;
    remote_result_init(&out);
    /* The session's own server process ends in the middle of the command. */
    remote_command c = {.line = "kill -9 $PPID; sleep 5", .timeout_ms = 120000};
    int rc = remote_run(r, &c, &out, &e);
    assert_int_equal(rc, ERR_NET);
    assert_int_not_equal(remote_alive(r, &e), OK);
    remote_result_release(&out);
    remote_close(r);
}

static void targets_are_read_strictly(void **state) {
    (void)state;
    err e = ERR_INIT;
    static const char *const bad[] = {"", "@", "a@", "host:", "host:0", "host:70000", "[::1",
        "a@b@c d", "host;id", "$(id)", "-l root"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        remote_options o = {.target = bad[i], .connect_ms = 200};
        assert_int_equal(fault_of(&o, &e), REMOTE_BAD_TARGET);
    }
}

static int stop_all(void **state) {
    (void)state;
    sshd_stop(&server);
    return dir_remove_all(home, NULL);
}

static void no_core_dump_while_a_secret_is_held(void **state) {
    (void)state;
    assert_int_equal(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
    ssh_secret *a = ssh_secret_new(), *b = ssh_secret_new();
    assert_int_equal(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), 0);
    ssh_secret_free(a);
    assert_int_equal(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), 0);
    ssh_secret_free(b);
    assert_int_equal(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), 1);
}

int main(void) {
    unsetenv("SSH_AUTH_SOCK");
    if (mkdtemp(home) == NULL) return 1;
    setenv("HOME", home, 1);
    if (!sshd_start(&server)) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_core_dump_while_a_secret_is_held),
        cmocka_unit_test(runs_commands_and_gives_codes_and_streams),
        cmocka_unit_test(limits_end_a_command_only),
        cmocka_unit_test(a_second_session_has_the_same_key),
        cmocka_unit_test(an_unknown_host_is_never_taken_silently),
        cmocka_unit_test(a_line_without_a_whole_key_is_no_entry),
        cmocka_unit_test(a_changed_host_is_refused_with_the_way_out),
        cmocka_unit_test(faults_have_clear_names),
        cmocka_unit_test(goes_through_a_jump_host),
        cmocka_unit_test(an_agent_is_enough),
        cmocka_unit_test(makes_and_installs_a_key_once),
        cmocka_unit_test(both_kinds_of_access_answer_alike),
        cmocka_unit_test(sudo_gets_the_password_on_its_input_only),
        cmocka_unit_test(a_dead_server_is_noticed),
        cmocka_unit_test(targets_are_read_strictly),
    };
    return cmocka_run_group_tests(tests, NULL, stop_all);
}
