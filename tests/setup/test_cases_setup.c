/* Field cases of the set-up: facts of the network, known hosts, remote commands, logins. The real
 * session is tried against a real sshd; where there is none, those cases are skipped by name. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/known_hosts.h"
#include "setup/link.h"
#include "setup/ssh.h"
#include "setup/ssh_internal.h"
#include "tests/harness/sshd.h"
#include "tests/harness/vectors.h"

static vectors counts;
static sshd server;
static bool has_server;

static const char *text_of(const json *v, const char *key) {
    const char *s = json_str(json_get(v, key));
    return s != NULL ? s : "";
}

static int64_t number_of(const json *v, const char *key, int64_t fallback) {
    int64_t n = fallback;
    (void)json_i64(json_get(v, key), &n);
    return n;
}

static void same_text(const char *id, const char *what, const char *want, const char *got) {
    if (str_eq(want, got)) {
        vectors_pass(&counts);
        return;
    }
    char name[200];
    (void)snprintf(name, sizeof name, "%s %s", id, what);
    vectors_fail(&counts, name, want, got);
}

static void same_number(const char *id, const char *what, int64_t want, int64_t got) {
    char a[32], b[32];
    (void)snprintf(a, sizeof a, "%lld", (long long)want);
    (void)snprintf(b, sizeof b, "%lld", (long long)got);
    same_text(id, what, a, b);
}

static void holds(const char *id, const char *what, bool is_true) {
    same_text(id, what, "true", is_true ? "true" : "false");
}

/* known_hosts */

static void make_file(const json *c, const char *path) {
    const char *text = json_str(json_get(c, "file"));
    (void)unlink(path);
    if (text != NULL) {
        (void)file_write_atomic(path, text, strlen(text), 0644, NULL);
    } else if (str_eq(text_of(c, "file_state"), "mode 000")) {
        (void)file_write_atomic(path, "x\n", 2, 0, NULL);
    }
}

/* In a child without the rights of root, for which every file is readable. */
static known_state look(const json *c, const char *path) {
    const json *shown = json_get(c, "presented");
    known_query q = {text_of(c, "host"), (int)number_of(c, "port", 22), json_str(json_at(shown, 0)),
        json_str(json_at(shown, 1))};
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        if (geteuid() == 0 && setuid(65534) != 0) _exit(99);
        known_answer a;
        const char *const files[] = {path};
        _exit((int)known_hosts_look(files, 1, &q, &a, NULL));
    }
    int status = 0;
    (void)waitpid(pid, &status, 0);
    return WIFEXITED(status) ? (known_state)WEXITSTATUS(status) : KNOWN_ERROR;
}

static void known_hosts_case(const char *id, const json *c) {
    char dir[] = "/tmp/tandem-known.XXXXXX", path[64];
    if (mkdtemp(dir) == NULL || chmod(dir, 0755) != 0) {
        vectors_skip(&counts, id, "no folder in /tmp");
        return;
    }
    (void)snprintf(path, sizeof path, "%s/known_hosts", dir);
    make_file(c, path);
    known_state s = look(c, path);
    same_text(
        id, "state", text_of(c, "expect"), s <= KNOWN_ERROR ? known_hosts_state_name(s) : "crash");
    (void)dir_remove_all(dir, NULL);
}

/* network_facts */

static void read_if(const json *v, link_if *out) {
    *out = (link_if){.speed_mbps = number_of(v, "speed_mbps", -1), .mtu = number_of(v, "mtu", -1)};
    str_copy(out->name, sizeof out->name, text_of(v, "name"));
    str_copy(out->mac, sizeof out->mac, text_of(v, "mac"));
    str_copy(out->pci, sizeof out->pci, text_of(v, "pci"));
    out->is_up = json_is_true(json_get(v, "up"));
    JSON_EACH(a, json_get(v, "addresses")) {
        if (out->n_addresses < LINK_MAX_ADDRESSES)
            str_copy(out->addresses[out->n_addresses++], 24, json_str(a));
    }
}

static void read_node(const json *v, link_node *out) {
    memset(out, 0, sizeof *out);
    JSON_EACH(x, json_get(v, "interfaces")) read_if(x, &out->ifs[out->n_ifs++]);
    JSON_EACH(x, json_get(v, "rdma")) {
        link_rdma *d = &out->rdma[out->n_rdma++];
        str_copy(d->dev, sizeof d->dev, text_of(x, "dev"));
        str_copy(d->netdev, sizeof d->netdev, text_of(x, "netdev"));
        d->is_active = json_is_true(json_get(x, "active"));
    }
}

static int read_gids(const json *list, link_gid *out) {
    int n = 0;
    JSON_EACH(x, list) {
        out[n] = (link_gid){.index = n, .is_v2 = str_eq(json_str(json_at(x, 1)), "v2")};
        str_copy(out[n].gid, sizeof out[n].gid, json_str(json_at(x, 0)));
        n++;
    }
    return n;
}

static void gid_case(const char *id, const json *facts, const json *expect) {
    bool is_usable = true;
    JSON_EACH(table, json_get(facts, "gid_tables")) {
        link_gid gids[LINK_MAX_GIDS];
        const char *node = json_key(table);
        int n = read_gids(table, gids);
        int index = link_gid_index(gids, n, "", text_of(json_get(facts, "addresses"), node));
        is_usable = is_usable && index >= 0;
        if (json_get(expect, "gid_index") != NULL) {
            same_number(id, node, number_of(json_get(expect, "gid_index"), node, -2), index);
        }
    }
    if (json_get(expect, "verdict") != NULL) {
        same_text(id, "verdict", text_of(expect, "verdict"), is_usable ? "ready" : "no_usable_gid");
    }
}

static void library_case(const char *id, const json *nccl, const json *expect) {
    const json *a = json_get(nccl, "node1"), *b = json_get(nccl, "node2");
    bool is_same = link_same_library(text_of(a, "version"), text_of(a, "build_id"),
        text_of(b, "version"), text_of(b, "build_id"));
    same_text(id, "verdict", text_of(expect, "verdict"), is_same ? "ready" : "library_mismatch");
}

static void compare_plan(const char *id, const json *want, const link_plan *p) {
    int i = 0;
    JSON_EACH(name, json_get(want, "data_interfaces")) {
        same_text(id, "data interface", json_str(name), i < 2 ? p->rail[0][i].netdev : "");
        i++;
    }
    i = 0;
    JSON_EACH(name, json_get(want, "rdma_devices")) {
        same_text(id, "rdma device", json_str(name), i < 2 ? p->rail[1][i].rdma : "");
        i++;
    }
    if (json_get(want, "distinct_subnets") != NULL) {
        same_number(id, "subnets", number_of(want, "distinct_subnets", -1), p->distinct_subnets);
    }
    if (json_get(want, "physical_ports_used") != NULL) {
        same_number(
            id, "ports", number_of(want, "physical_ports_used", -1), p->physical_ports_used);
    }
}

/* A tree with the given files of netplan and a netplan that only notes that it ran. */
static void make_tree(const char *root, const json *files) {
    static const char shim[] = "#!/bin/sh\necho \"$@\" >> \"$NODE_ROOT/netplan.log\"\nexit 0\n";
    static const char id_shim[] = "#!/bin/sh\necho 0\n";
    static const char *const dirs[] = {"etc/netplan", "tools", "home"};
    char path[300];
    for (int i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", root, dirs[i]);
        (void)dir_make_all(path, 0755, NULL);
    }
    (void)snprintf(path, sizeof path, "%s/tools/netplan", root);
    (void)file_write_atomic(path, shim, sizeof shim - 1, 0755, NULL);
    (void)snprintf(path, sizeof path, "%s/tools/id", root);
    (void)file_write_atomic(path, id_shim, sizeof id_shim - 1, 0755, NULL);
    JSON_EACH(f, files) {
        (void)snprintf(path, sizeof path, "%s%s", root, json_key(f));
        (void)file_write_atomic(path, json_str(f), strlen(json_str(f)), 0600, NULL);
    }
}

static void writes_case(const char *id, const json *facts, const json *expect, const link_plan *p) {
    char root[] = "/tmp/tandem-netplan.XXXXXX", path[300];
    if (mkdtemp(root) == NULL) {
        vectors_skip(&counts, id, "no folder in /tmp");
        return;
    }
    make_tree(root, json_get(facts, "netplan_files"));
    const json *w = json_at(json_get(expect, "writes"), 0);
    node_access *n = node_access_local("head", root);
    link_netplan now;
    buf text = BUF_INIT, written = BUF_INIT, undo = BUF_INIT;
    err e = ERR_INIT;
    link_apply how = {.is_dry = true, .restore_s = 60};
    int rc = link_netplan_read(n, p, 0, &now, &e);
    if (rc == OK) rc = link_netplan_render(p, 0, &now, &text, &e);
    if (rc == OK) rc = link_netplan_apply(n, p, 0, buf_cstr(&text), &how, NULL, &e);
    (void)snprintf(path, sizeof path, "%s%s", root, LINK_NETPLAN_FILE);
    holds(id, "a dry run writes nothing", rc == OK && !file_exists(path));
    how.is_dry = false;
    if (rc == OK) rc = link_netplan_apply(n, p, 0, buf_cstr(&text), &how, &undo, &e);
    if (rc == OK) rc = file_read(path, &written, 65536, &e);
    same_text(id, "apply", "", e.msg);
    same_text(id, "dry run equals real run", buf_cstr(&text), buf_cstr(&written));
    struct stat st;
    int mode = stat(path, &st) == 0 ? (int)(st.st_mode & 0777) : -1;
    same_number(id, "mode", 0600, mode);
    holds(id, "path",
        str_starts(LINK_NETPLAN_FILE, text_of(w, "path_prefix")) &&
            strstr(LINK_NETPLAN_FILE, text_of(w, "must_not_be")) == NULL);
    rc = link_netplan_undo(n, buf_cstr(&undo), &how, &e);
    holds(id, "undo", rc == OK && !file_exists(path));
    link_netplan_release(&now);
    buf_release(&text);
    buf_release(&written);
    buf_release(&undo);
    node_access_close(n);
    (void)dir_remove_all(root, NULL);
}

static void network_case(const char *id, const json *c) {
    const json *facts = json_get(c, "facts"), *expect = json_get(c, "expect");
    if (json_get(facts, "gid_tables") != NULL) {
        gid_case(id, facts, expect);
        return;
    }
    if (json_get(facts, "nccl") != NULL) {
        library_case(id, json_get(facts, "nccl"), expect);
        return;
    }
    link_node *node[2] = {mem_alloc(sizeof(link_node)), mem_alloc(sizeof(link_node))};
    link_plan plan;
    for (int i = 0; i < 2; i++)
        read_node(json_at(json_get(facts, "nodes"), (size_t)i), node[i]);
    const link_node *both[2] = {node[0], node[1]};
    link_make_plan(both, NULL, &plan);
    if (json_get(expect, "verdict") != NULL) {
        same_text(id, "verdict", text_of(expect, "verdict"), link_verdict_name(plan.verdict));
    }
    if (json_get(expect, "needs_consent") != NULL) {
        bool is_wanted = json_is_true(json_get(expect, "needs_consent"));
        holds(id, "needs consent as expected", plan.needs_consent == is_wanted);
    }
    compare_plan(id, json_get(expect, "plan"), &plan);
    double share = 0;
    if (json_double(json_get(expect, "test_bytes_max_share_of_free_memory"), &share) == OK) {
        for (uint64_t gib = 1; gib <= 128; gib *= 2)
            holds(
                id, "test size", (double)link_test_bytes(gib << 30) <= share * (double)(gib << 30));
    }
    if (json_get(expect, "writes") != NULL) writes_case(id, facts, expect, &plan);
    mem_free(node[0]);
    mem_free(node[1]);
}

/* remote_command, auth */

/* The seconds of a case stand for "it does not wait for ever"; a busy machine gets two minutes. */
static bool is_soon(uint64_t begin_ms, int64_t limit_s) {
    enum { LEAST_S = 120 };
    return clock_mono_ms() - begin_ms < (uint64_t)(limit_s > LEAST_S ? limit_s : LEAST_S) * 1000;
}

static void command_case(const char *id, const json *c) {
    const json *expect = json_get(c, "expect");
    remote *r = NULL;
    remote_result out;
    buf line = BUF_INIT;
    err e = ERR_INIT;
    if (!has_server) {
        vectors_skip(&counts, id, "no sshd here");
        return;
    }
    remote_options o = {.target = server.target,
        .key_file = server.key,
        .known_hosts = server.known_hosts,
        .only_key_file = true};
    remote_result_init(&out);
    uint64_t begin = clock_mono_ms();
    int rc = remote_open(&o, &r, NULL, &e);
    if (rc == OK) rc = buf_puts(&line, "exec sh -c ");
    if (rc == OK) rc = remote_quote(&line, text_of(c, "script"));
    remote_command k = {.line = buf_cstr(&line), .max_out = 64 << 20, .timeout_ms = 120000};
    if (rc == OK) rc = remote_run(r, &k, &out, &e);
    same_text(id, "error", "", e.msg);
    same_number(id, "stdout", number_of(expect, "stdout_bytes", 0), (int64_t)out.out.len);
    same_number(id, "stderr", number_of(expect, "stderr_bytes", 0), (int64_t)out.err.len);
    same_number(id, "exit", number_of(expect, "exit", 0), out.exit_code);
    holds(id, "time", is_soon(begin, number_of(expect, "max_s", 60)));
    remote_result_release(&out);
    buf_release(&line);
    remote_close(r);
}

typedef struct agent {
    pid_t pid;
    char socket[240];
} agent;

static void agent_start(agent *a) {
    (void)snprintf(a->socket, sizeof a->socket, "%s/agent", server.dir);
    a->pid = fork();
    if (a->pid == 0) {
        execlp("ssh-agent", "ssh-agent", "-D", "-a", a->socket, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 12000 && access(a->socket, F_OK) != 0; i++)
        sleep_ms(10);
    setenv("SSH_AUTH_SOCK", a->socket, 1);
}

static void auth_case(const char *id, const json *c) {
    const json *expect = json_get(c, "expect"), *agents = json_get(c, "agent");
    char protected_key[260], copy_from[260];
    agent a = {.pid = -1};
    if (!has_server) {
        vectors_skip(&counts, id, "no sshd here");
        return;
    }
    /* The allowed key again, behind a passphrase. */
    (void)snprintf(protected_key, sizeof protected_key, "%s/protected", server.dir);
    (void)snprintf(copy_from, sizeof copy_from, "%s", server.key);
    const char *copy[] = {"cp", copy_from, protected_key, NULL};
    const char *protect[] = {
        "ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", protected_key, NULL};
    const char *add[] = {"ssh-add", "-q", copy_from, NULL};
    bool is_ready = sshd_tool(copy) && sshd_tool(protect);
    unsetenv("SSH_AUTH_SOCK");
    if (json_is_array(agents)) {
        agent_start(&a);
        is_ready = is_ready && sshd_tool(add);
    }
    holds(id, "prepared", is_ready);
    remote_options o = {
        .target = server.target, .key_file = protected_key, .known_hosts = server.known_hosts};
    remote *r = NULL;
    err e = ERR_INIT;
    uint64_t begin = clock_mono_ms();
    int rc = remote_open(&o, &r, NULL, &e);
    remote_close(r);
    int64_t limit = number_of(expect, "max_s", 30);
    holds(id, "time", is_soon(begin, limit));
    if (json_is_true(json_get(expect, "ok"))) same_text(id, "login", "", rc == OK ? "" : e.msg);
    if (json_get(expect, "exit_not") != NULL) holds(id, "refused", rc != OK);
    const char *contains = text_of(expect, "message_contains");
    if (contains[0] != '\0' && strstr(e.msg, contains) == NULL)
        vectors_fail(&counts, id, contains, e.msg);
    if (a.pid > 0) {
        (void)kill(a.pid, SIGTERM);
        (void)waitpid(a.pid, NULL, 0);
    }
    unsetenv("SSH_AUTH_SOCK");
    (void)unlink(protected_key);
}

/* read_results: the reader of a command's output fed with a list of answers. */
typedef struct script {
    const json *at;
    bool is_open;
} script;

static int script_read(void *ctx, bool is_error, void *p, size_t n) {
    script *s = ctx;
    if (is_error) return SSH_EOF;
    const char *step = json_str(s->at);
    if (step == NULL) return SSH_EOF;
    s->at = json_next(s->at);
    int64_t bytes = 0;
    if (str_starts(step, "data:") && parse_i64(step + 5, &bytes) == OK && (size_t)bytes <= n) {
        memset(p, 'x', (size_t)bytes);
        return (int)bytes;
    }
    if (str_eq(step, "again")) return SSH_AGAIN;
    if (str_eq(step, "zero_open")) return 0;
    if (str_eq(step, "eof")) return SSH_EOF;
    return SSH_ERROR;
}

static bool script_open(void *ctx) {
    return ((script *)ctx)->at != NULL;
}

static void results_case(const char *id, const json *c) {
    script s = {.at = json_first(json_get(c, "results"))};
    remote_reader reader = {.source = {&s, script_read, script_open}};
    remote_command k = {.line = ""};
    remote_result out;
    remote_step step = REMOTE_STEP_WAIT;
    err e = ERR_INIT;
    remote_result_init(&out);
    int rc = OK;
    for (int i = 0; i < 1000 && rc == OK && step != REMOTE_STEP_END; i++)
        rc = remote_reader_step(&reader, &k, &out, &step, &e);
    same_number(id, "bytes", number_of(json_get(c, "expect"), "bytes", 0), (int64_t)out.out.len);
    same_text(id, "error", "", rc == OK && step == REMOTE_STEP_END ? "" : "did not end well");
    remote_result_release(&out);
}

static void one_case(const char *dir, const char *name) {
    json *c = vectors_load(dir, name);
    const char *kind = text_of(c, "kind"), *id = text_of(c, "id");
    if (str_eq(kind, "known_hosts"))
        known_hosts_case(id, c);
    else if (str_eq(kind, "network_facts"))
        network_case(id, c);
    else if (str_eq(kind, "remote_command"))
        command_case(id, c);
    else if (str_eq(kind, "read_results"))
        results_case(id, c);
    else if (str_eq(kind, "auth"))
        auth_case(id, c);
    else
        vectors_fail(&counts, id, "a kind that is known", kind);
    json_free(c);
}

static int each(void *ctx, const char *name, err *e) {
    (void)e;
    if (str_ends(name, ".json")) one_case(ctx, name);
    return OK;
}

int main(void) {
    buf dir = BUF_INIT;
    err e = ERR_INIT;
    (void)buf_printf(&dir, "%s/setup", vectors_cases_dir());
    has_server = sshd_start(&server);
    if (has_server) sshd_trust(&server);
    char home[] = "/tmp/tandem-home.XXXXXX";
    /* No key of the person who runs the test may take part. */
    if (mkdtemp(home) != NULL) setenv("HOME", home, 1);
    if (dir_each(buf_cstr(&dir), each, dir.data, &e) != OK) {
        vectors_fail(&counts, "cases", buf_cstr(&dir), e.msg);
    }
    if (has_server) sshd_stop(&server);
    (void)dir_remove_all(home, NULL);
    buf_release(&dir);
    return vectors_end(&counts);
}
