/* T1, T2, U1 to U6 and S1: time, engine, rights, ports, firewall, hub, ssh identity. */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/check_internal.h"

enum { SKEW_ROUNDS = 5, HUB_MS = 10000 };

/* The machine's clock against ours in seconds. */
static bool skew_of(check_context *c, int k, double *skew, double *trip) {
    static const char *const argv[] = {"date", "+%s.%N", NULL};
    char text[64];
    double there = 0;
    double before = (double)clock_wall_ms() / 1000.0;
    if (check_tool_line(c, k, argv, text, sizeof text, NULL) != OK) return false;
    double after = (double)clock_wall_ms() / 1000.0;
    if (parse_double(text, &there) != OK) return false;
    *trip = after - before;
    *skew = there - (before + after) / 2;
    return true;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

CHECK_RUN(check_t1) {
    double all[SKEW_ROUNDS];
    (void)i;
    for (int n = 0; n < SKEW_ROUNDS; n++) {
        double head = 0, worker = 0, trip = 0;
        if (!skew_of(c, 0, &head, &trip) || !skew_of(c, 1, &worker, &trip)) {
            check_unknown(r, "The clocks", NULL);
            return;
        }
        all[n] = worker - head;
    }
    qsort(all, SKEW_ROUNDS, sizeof all[0], by_value);
    double skew = all[SKEW_ROUNDS / 2], size = skew < 0 ? -skew : skew;
    check_value(r, skew);
    check_status s = size < 1     ? CHECK_STATUS_PASS
                     : size <= 30 ? CHECK_STATUS_WARN
                                  : CHECK_STATUS_FAIL;
    check_say(
        r, s, "The worker's clock is %.1f s %s the head's.", size, skew < 0 ? "behind" : "before");
    if (s != CHECK_STATUS_PASS) {
        check_remedy(r,
            "Turn on time synchronisation; on a worker without internet use the head as the "
            "time source.");
    }
}

CHECK_RUN(check_t2) {
    static const char *const argv[] = {
        "timedatectl", "show", "-p", "NTP", "-p", "NTPSynchronized", NULL};
    buf text = BUF_INIT;
    char on[16], synced[16];
    err e = ERR_INIT;
    int code = 0, rc = check_tool(c, i, argv, &text, &code, &e);
    bool is_read = rc == OK && code == 0 && check_key(buf_cstr(&text), "NTP", on, sizeof on) &&
                   check_key(buf_cstr(&text), "NTPSynchronized", synced, sizeof synced);
    buf_release(&text);
    if (!is_read) {
        check_unknown(r, "Time synchronisation", &e);
        return;
    }
    bool is_fine = str_eq(on, "yes") && str_eq(synced, "yes");
    check_say(r, is_fine ? CHECK_STATUS_PASS : CHECK_STATUS_WARN, "Time service %s, clock %s.",
        str_eq(on, "yes") ? "on" : "off",
        str_eq(synced, "yes") ? "synchronised" : "not synchronised");
    if (!is_fine) check_remedy(r, "Run: sudo timedatectl set-ntp true");
}

CHECK_RUN(check_u1) {
    static const char *const usual[] = {"tandemd", "--version", NULL};
    static const char *const nvcc[] = {"nvcc", "--version", NULL};
    const char *own[] = {c->engine, "--version", NULL};
    bool is_own = c->engine != NULL && !node_access_is_fixture(c->node[i]);
    char text[160];
    buf out = BUF_INIT;
    int code = 0;
    if (check_tool_line(c, i, is_own ? own : usual, text, sizeof text, NULL) == OK) {
        check_say(r, CHECK_STATUS_PASS, "The engine is here: %s.", text);
        return;
    }
    bool has_nvcc = check_tool(c, i, nvcc, &out, &code, NULL) == OK && code == 0;
    const char *release = has_nvcc ? strstr(buf_cstr(&out), "release ") : NULL;
    double version = 0;
    char number[16] = "";
    if (release != NULL) str_copy(number, sizeof number, release + 8);
    number[strspn(number, "0123456789.")] = '\0';
    bool is_new = parse_double(number, &version) == OK && version >= 13.0;
    bool has_nccl = node_exists(c->node[i], "/usr/include/nccl.h");
    check_say(r, is_new && has_nccl ? CHECK_STATUS_WARN : CHECK_STATUS_FAIL,
        is_new && has_nccl ? "No engine is here, but CUDA %s and NCCL can build it."
                           : "No engine is here and nothing to build it (CUDA %s).",
        number[0] != '\0' ? number : "not found");
    check_remedy(r,
        is_new && has_nccl
            ? "Build it: make bundle"
            : "Install a bundle of this version, or CUDA 13.0 or newer with libnccl-dev and gcc.");
    buf_release(&out);
}

CHECK_RUN(check_u2) {
    static const char *const limits[] = {"cat", "/proc/self/limits", NULL};
    buf names = BUF_INIT, text = BUF_INIT;
    err e = ERR_INIT;
    int code = 0, n = 0, n_open = 0;
    bool has = node_list(c->node[i], "/dev/infiniband", &names, NULL) == OK && names.len > 0;
    char *save = NULL;
    for (char *p = has ? strtok_r(names.data, "\n", &save) : NULL; p != NULL;
         p = strtok_r(NULL, "\n", &save)) {
        buf path = BUF_INIT;
        if (!str_starts(p, "uverbs") || buf_printf(&path, "/dev/infiniband/%s", p) != OK) continue;
        const char *test[] = {"test", "-r", buf_cstr(&path), "-a", "-w", buf_cstr(&path), NULL};
        n++;
        if (check_tool(c, i, test, &text, &code, NULL) == OK && code == 0) n_open++;
        buf_release(&path);
    }
    int rc = check_tool(c, i, limits, &text, &code, &e);
    const char *locked = rc == OK ? strstr(buf_cstr(&text), "Max locked memory") : NULL;
    bool is_unlimited =
        locked != NULL && str_starts(locked + 17 + strspn(locked + 17, " "), "unlimited");
    check_remedy(r,
        "Start through the supplied unit or raise the memlock limit; inside a container pass "
        "/dev/infiniband and --ulimit memlock=-1.");
    if (locked == NULL) {
        check_unknown(r, "The limit of locked memory", &e);
    } else if (n == 0) {
        check_say(r, CHECK_STATUS_FAIL, "There is no RDMA device (/dev/infiniband/uverbs*).");
    } else if (n_open < n || !is_unlimited) {
        check_say(r, CHECK_STATUS_FAIL, "%d of %d RDMA devices may be used; locked memory is %s.",
            n_open, n, is_unlimited ? "unlimited" : "limited");
    } else {
        r->remedy[0] = '\0';
        check_say(
            r, CHECK_STATUS_PASS, "%d RDMA devices may be used; locked memory is unlimited.", n);
    }
    buf_release(&names);
    buf_release(&text);
}

/* True when a text of /proc/net/tcp has a listener on the port. */
static bool listens(const buf *text, int port) {
    const char *p = strchr(buf_cstr(text), '\n');
    while (p != NULL && p[1] != '\0') {
        unsigned slot, local_port, state;
        char local[40];
        if (sscanf(p + 1, " %u: %39[0-9A-F]:%4X %*[0-9A-F]:%*4X %2X", &slot, local, &local_port,
                &state) == 4 &&
            state == 0x0a && (int)local_port == port) {
            return true;
        }
        p = strchr(p + 1, '\n');
    }
    return false;
}

/* What ss says about the owner, "" unknown. */
static void owner_of(check_context *c, int i, int port, char *out, size_t cap) {
    buf filter = BUF_INIT, text = BUF_INIT;
    int code = 0;
    out[0] = '\0';
    if (buf_printf(&filter, "sport = :%d", port) == OK) {
        const char *argv[] = {"ss", "-Hltnp", buf_cstr(&filter), NULL};
        if (check_tool(c, i, argv, &text, &code, NULL) == OK && code == 0) {
            const char *users = strstr(buf_cstr(&text), "users:((");
            if (users != NULL) str_copy(out, cap, users + 8);
            out[strcspn(out, ")\n")] = '\0';
        }
    }
    buf_release(&filter);
    buf_release(&text);
}

CHECK_RUN(check_u3) {
    int master = (int)settings_int(c->settings, "MASTER_PORT");
    int ports[3] = {master, master + 1, (int)settings_int(c->settings, "API_PORT")};
    int n = i == 0 ? 3 : 2;
    buf tcp = BUF_INIT, tcp6 = BUF_INIT, taken = BUF_INIT;
    char owner[120] = "";
    bool is_foreign = false;
    err clash = ERR_INIT;
    bool is_read = check_file(c, i, "/proc/net/tcp", &tcp);
    (void)check_file(c, i, "/proc/net/tcp6", &tcp6);
    for (int k = 0; k < n && is_read; k++) {
        if (!listens(&tcp, ports[k]) && !listens(&tcp6, ports[k])) continue;
        owner_of(c, i, ports[k], owner, sizeof owner);
        bool is_ours = strstr(owner, "\"tandem") != NULL;
        is_foreign = is_foreign || !is_ours;
        (void)buf_printf(&taken, "%s%d is used by %s", taken.len > 0 ? "; " : "", ports[k],
            owner[0] != '\0' ? owner : "a program of another user");
    }
    if (i == 0 && settings_check_ports(c->settings, &clash) != OK) {
        check_say(r, CHECK_STATUS_FAIL, "%s.", clash.msg);
        check_remedy(r, "Run: tandem config set MASTER_PORT N, or API_PORT N, with a free port.");
    } else if (!is_read) {
        check_unknown(r, "The ports in use", NULL);
    } else if (taken.len == 0) {
        check_say(r, CHECK_STATUS_PASS, "The ports are free (%d, %d%s).", ports[0], ports[1],
            i == 0 ? " and the endpoint's" : "");
    } else {
        check_say(
            r, is_foreign ? CHECK_STATUS_FAIL : CHECK_STATUS_WARN, "Port %s.", buf_cstr(&taken));
        check_remedy(r, is_foreign
                            ? "Stop that program or choose another port (MASTER_PORT, API_PORT)."
                            : "The engine runs already.");
    }
    buf_release(&tcp);
    buf_release(&tcp6);
    buf_release(&taken);
}

CHECK_RUN(check_u4) {
    const char *argv[] = {"nft", "list", "ruleset", NULL};
    node_command k = {.argv = argv};
    remote_result out;
    remote_result_init(&out);
    const char *rail = settings_get(c->settings, i == 0 ? "HEAD_IF_A" : "WORKER_IF_A");
    const char *peer = settings_get(c->settings, i == 0 ? "WORKER_IP_A" : "HEAD_IP_A");
    err e = ERR_INIT;
    int rc = node_access_is_fixture(c->node[i])
                 ? node_run(c->node[i], &k, &out, &e)
                 : node_run_root(c->node[i], &k, "reading the firewall", &out, &e);
    const char *rules = buf_cstr(&out.out);
    bool is_dropping =
        strstr(rules, "hook input") != NULL &&
        (strstr(rules, "policy drop") != NULL || strstr(rules, "policy reject") != NULL);
    bool names_rail = (rail[0] != '\0' && strstr(rules, rail) != NULL) ||
                      (peer[0] != '\0' && strstr(rules, peer) != NULL);
    if (rc == ERR_NOT_FOUND) {
        check_say(r, CHECK_STATUS_PASS, "There is no nft on this machine, so no rules of it.");
    } else if (rc != OK || out.exit_code != 0) {
        check_unknown(r, "The firewall", &e);
        check_remedy(r,
            "Look yourself: sudo nft list ruleset. The traffic tests of the rails tell as well.");
    } else if (!is_dropping) {
        check_say(r, CHECK_STATUS_PASS, "The firewall does not drop incoming traffic by default.");
    } else if (names_rail) {
        check_say(
            r, CHECK_STATUS_WARN, "The firewall drops by default and has rules for the rail.");
    } else {
        check_say(r, CHECK_STATUS_FAIL,
            "The firewall drops incoming traffic and names neither the rail "
            "nor the other machine.");
        check_remedy(r, "Allow the two rail addresses on the two link interfaces only.");
    }
    remote_result_release(&out);
}

static size_t drop(char *p, size_t size, size_t n, void *ctx) {
    (void)p, (void)ctx;
    return size * n;
}

/* The stage at which the way to the hub ends. */
static const char *stage_of(CURLcode code) {
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
        return "its name has no address (DNS)";
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_PROXY:
        return "the proxy does not work";
    case CURLE_COULDNT_CONNECT:
        return "no connection";
    case CURLE_OPERATION_TIMEDOUT:
        return "no answer in time";
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CONNECT_ERROR:
        return "its certificate is not accepted (TLS; a captive portal, or the clock)";
    default:
        return curl_easy_strerror(code);
    }
}

CHECK_RUN(check_u5) {
    const char *url = settings_get(c->settings, "HF_ENDPOINT");
    (void)i;
    CURL *h = curl_easy_init();
    if (h == NULL) {
        check_unknown(r, "The way to the hub", NULL);
        return;
    }
    long status = 0;
    curl_easy_setopt(h, CURLOPT_URL, url);
    curl_easy_setopt(h, CURLOPT_NOBODY, 1L);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, (long)HUB_MS);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, drop);
    CURLcode code = curl_easy_perform(h);
    curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(h);
    bool is_usual = str_eq(url, settings_key("HF_ENDPOINT")->builtin);
    if (code != CURLE_OK || status == 407 || status >= 500) {
        check_say(r, CHECK_STATUS_FAIL, "%s cannot be reached: %s.", url,
            code != CURLE_OK ? stage_of(code)
            : status == 407  ? "the proxy asks for a login"
                             : "it answers with a server error");
        check_remedy(
            r, "Set a proxy (https_proxy) or a mirror (HF_ENDPOINT), or take files from a disk.");
    } else {
        check_say(r, is_usual ? CHECK_STATUS_PASS : CHECK_STATUS_WARN, "%s answers (%ld)%s.", url,
            status, is_usual ? "" : ", a mirror");
    }
}

CHECK_RUN(check_u6) {
    char text[120];
    if (node_exists(c->node[i], "/run/reboot-required")) {
        check_line(c, i, "/run/reboot-required", text, sizeof text);
        check_say(r, CHECK_STATUS_WARN, "An update waits for a restart.");
        check_remedy(r, "Restart this machine before the network is proved.");
    } else {
        check_say(r, CHECK_STATUS_PASS, "No update waits for a restart.");
    }
}

/* The key of a machine at one more address; true when it could be read. */
static bool key_at(check_context *c, const char *address, char type[40], buf *key) {
    remote *session = node_access_session(c->node[1]);
    if (session == NULL || address[0] == '\0') return false;
    remote_options o = {.target = address, .node = "the worker", .connect_ms = 4000};
    return remote_host_key_of(&o, type, key, NULL) == OK;
}

CHECK_RUN(check_s1) {
    static const char *const keys[] = {"WORKER_IP_A", "WORKER_IP_B"};
    remote *session = node_access_session(c->node[1]);
    (void)i;
    if (session == NULL) {
        check_say(r, CHECK_STATUS_SKIP, "The worker is not reached by ssh.");
        return;
    }
    int n_same = 0, n_set = 0;
    for (int k = 0; k < 2; k++) {
        const char *address = settings_get(c->settings, keys[k]);
        char type[40], shown[64];
        buf key = BUF_INIT;
        n_set += address[0] != '\0' ? 1 : 0;
        if (key_at(c, address, type, &key)) {
            remote_fingerprint_of(buf_cstr(&key), shown);
            if (!str_eq(shown, remote_fingerprint(session))) {
                check_say(r, CHECK_STATUS_FAIL,
                    "%s shows the key %s, %s shows %s: not one machine.", remote_host(session),
                    remote_fingerprint(session), address, shown);
                check_remedy(r,
                    "Correct the address in %s, or find out which machine answers there.", keys[k]);
                buf_release(&key);
                return;
            }
            n_same++;
        }
        buf_release(&key);
    }
    check_say(r, n_same == n_set ? CHECK_STATUS_PASS : CHECK_STATUS_UNKNOWN,
        "Login works; %d of %d rail addresses show the same key %s.", n_same, n_set,
        remote_fingerprint(session));
}
