/* The network plan, the netplan file with its way back, judging of measurements, and our own link
 * test over loopback. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/link.h"
#include "setup/link_probe.h"
#include "setup/link_prove.h"
#include "setup/settings_import.h"

static void judging_follows_the_limits(void **state) {
    (void)state;
    bool is_degraded = true;
    assert_int_equal(link_judge_rdma(92.6, 97.3, &is_degraded), LINK_PASS);
    assert_false(is_degraded);
    assert_int_equal(link_judge_rdma(13.2, 13.2, &is_degraded), LINK_FAIL);
    assert_true(is_degraded);
    assert_int_equal(link_judge_rdma(3, 90, &is_degraded), LINK_FAIL);
    assert_false(is_degraded);
    assert_int_equal(link_judge_rdma(60, 90, &is_degraded), LINK_WARN);
    assert_int_equal(link_judge_tcp(95, 9000), LINK_PASS);
    assert_int_equal(link_judge_tcp(95, 1500), LINK_WARN);
    assert_int_equal(link_judge_tcp(12.9, 9000), LINK_FAIL);
    assert_int_equal(link_judge_collective(22.9), LINK_PASS);
    assert_int_equal(link_judge_collective(3), LINK_FAIL);
    assert_int_equal(link_judge_errors(0, 0), LINK_PASS);
    assert_int_equal(link_judge_errors(1, 1000000), LINK_WARN);
    assert_int_equal(link_judge_errors(200, 1000000), LINK_FAIL);
    double gbps = 0;
    assert_int_equal(
        link_parse_write_bw(
            " #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n"
            " 65536      1766140          0.00               92.59              0.176604\n",
            &gbps),
        OK);
    assert_true(gbps == 92.59);
    assert_int_equal(link_parse_write_bw("Couldn't connect\n", &gbps), ERR_FORMAT);
    char reason[160];
    assert_int_equal(
        link_judge_nccl_log("NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE", reason), 1);
    assert_int_equal(link_judge_nccl_log("NCCL INFO NET/IB : No device found.", reason), -1);
    assert_int_equal(link_judge_nccl_log("nothing", reason), 0);
}

/* The dead man's timer brings the old file back when nobody takes it away: apply fails here because
 * netplan itself fails. */
static void a_failed_apply_goes_back_by_itself(void **state) {
    (void)state;
    static const char shim[] = "#!/bin/sh\n[ \"$1\" = generate ] && exit 0\n"
                               "[ -e \"${0%/*}/../works\" ] && exit 0\nexit 1\n";
    char root[] = "/tmp/tandem-link.XXXXXX", path[200];
    buf text = BUF_INIT;
    err e = ERR_INIT;
    assert_non_null(mkdtemp(root));
    static const char *const dirs[] = {"etc/netplan", "tools", "home"};
    for (int i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", root, dirs[i]);
        assert_int_equal(dir_make_all(path, 0755, NULL), OK);
    }
    (void)snprintf(path, sizeof path, "%s/tools/netplan", root);
    assert_int_equal(file_write_atomic(path, shim, sizeof shim - 1, 0755, NULL), OK);
    (void)snprintf(path, sizeof path, "%s/tools/id", root);
    assert_int_equal(file_write_atomic(path, "#!/bin/sh\necho 0\n", 17, 0755, NULL), OK);
    (void)snprintf(path, sizeof path, "%s%s", root, LINK_NETPLAN_FILE);
    assert_int_equal(file_write_atomic(path, "old: 1\n", 7, 0600, NULL), OK);
    link_plan plan = {.physical_ports_used = 1};
    str_copy(plan.rail[0][0].netdev, 32, "enp1s0f0np0");
    node_access *n = node_access_local("head", root);
    link_apply how = {.restore_s = 1};
    assert_int_not_equal(link_netplan_apply(n, &plan, 0, "new: 1\n", &how, NULL, &e), OK);
    assert_non_null(strstr(e.msg, "come back by themselves"));
    uint64_t end = clock_mono_ms() + 120000;
    do {
        sleep_ms(100);
        assert_int_equal(file_read(path, &text, 100, &e), OK);
    } while (!str_eq(buf_cstr(&text), "old: 1\n") && clock_mono_ms() < end);
    assert_string_equal(buf_cstr(&text), "old: 1\n");
    node_access_close(n);
    buf_release(&text);
    (void)dir_remove_all(root, NULL);
}

typedef struct side {
    link_probe_options o;
    pthread_t thread;
    _Atomic int port;
    int rc;
} side;

static void take_port(void *ctx, int port) {
    ((side *)ctx)->port = port;
}

static void *serve(void *ctx) {
    side *s = ctx;
    s->rc = link_probe_serve(&s->o, take_port, s, NULL);
    return NULL;
}

static void start(side *s) {
    s->o.address = "127.0.0.1";
    s->o.wait_ms = 120000;
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
    while (s->port == 0)
        sleep_ms(1);
}

static void the_link_test_measures_and_wants_the_secret(void **state) {
    (void)state;
    side s = {.port = 0};
    link_probe_result r;
    err e = ERR_INIT;
    memset(s.o.secret, 7, sizeof s.o.secret);
    start(&s);
    link_probe_options o = {.address = "127.0.0.1",
        .source = "127.0.0.1",
        .port = s.port,
        .streams = 2,
        .duration_ms = 200,
        .pings = 20};
    memset(o.secret, 8, sizeof o.secret);
    assert_int_not_equal(link_probe_run(&o, &r, &e), OK);
    memset(o.secret, 7, sizeof o.secret);
    if (link_probe_run(&o, &r, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(r.pings, 20);
    assert_int_equal(r.lost, 0);
    assert_true(r.bytes > 0 && r.gbps > 0 && r.median_ms > 0 && r.worst_ms >= r.median_ms);
    pthread_join(s.thread, NULL);
    assert_int_equal(s.rc, OK);
}

/* A machine with one port that is up and the given addresses on its halves. */
static void one_port(link_node *n, const char *a, const char *b) {
    static const char *const names[] = {"enp1s0f0np0", "enP2p1s0f0np0"};
    static const char *const pci[] = {"0000:01:00.0", "0002:01:00.0"};
    const char *const address[] = {a, b};
    memset(n, 0, sizeof *n);
    n->n_ifs = 2;
    for (int i = 0; i < 2; i++) {
        n->ifs[i] = (link_if){.is_up = true, .mtu = 9000, .n_addresses = address[i][0] != '\0'};
        str_copy(n->ifs[i].name, sizeof n->ifs[i].name, names[i]);
        str_copy(n->ifs[i].pci, sizeof n->ifs[i].pci, pci[i]);
        str_copy(n->ifs[i].addresses[0], 24, address[i]);
    }
}

/* Half A lies in a wide network that holds the usual one of half B: the plan, once applied, must be
 * one that the program itself calls ready. */
static void a_new_rail_stays_out_of_a_wide_one(void **state) {
    (void)state;
    static link_node head, worker;
    const link_node *const both[] = {&head, &worker};
    link_plan plan;
    one_port(&head, "192.168.0.1/16", "");
    one_port(&worker, "192.168.0.2/16", "");
    link_make_plan(both, NULL, &plan);
    assert_int_equal(plan.verdict, LINK_CONFIGURABLE);
    one_port(&head, plan.rail[0][0].address, plan.rail[0][1].address);
    one_port(&worker, plan.rail[1][0].address, plan.rail[1][1].address);
    link_make_plan(both, NULL, &plan);
    assert_string_equal(link_verdict_name(plan.verdict), "ready");
}

static const import_line *line_named(const import_report *r, const char *name) {
    for (size_t i = 0; i < r->n; i++) {
        if (str_eq(r->lines[i].name, name)) return &r->lines[i];
    }
    fail_msg("no line %s", name);
    return NULL;
}

static void other_recipes_settings_are_understood(void **state) {
    (void)state;
    static const char text[] =
        "# recipe\nexport HEAD_IP=192.168.100.10\nWORKER_USER=\"me\"\n"
        "WORKER_HOST=spark2\nHF_TOKEN=hf_abcdefgh\nMAX_MODEL_LEN=65536 # tokens\n"
        "NCCL_IB_GID_INDEX=3\nMODEL_HOST=$HOME/models\nPORT=99999\nFOO=1\nset -e\n";
    import_report r;
    err e = ERR_INIT;
    assert_int_equal(settings_import(text, sizeof text - 1, ".env", &r, &e), OK);
    assert_string_equal(line_named(&r, "HEAD_IP")->key, "HEAD_IP_A");
    assert_string_equal(line_named(&r, "MAX_MODEL_LEN")->value, "65536");
    assert_string_equal(line_named(&r, "WORKER_USER, WORKER_HOST")->value, "me@spark2");
    assert_int_equal(line_named(&r, "NCCL_IB_GID_INDEX")->state, IMPORT_IGNORED);
    assert_int_equal(line_named(&r, "MODEL_HOST")->state, IMPORT_UNMAPPED);
    assert_int_equal(line_named(&r, "PORT")->state, IMPORT_UNMAPPED);
    assert_int_equal(line_named(&r, "FOO")->state, IMPORT_UNMAPPED);
    const import_line *token = line_named(&r, "HF_TOKEN");
    assert_string_equal(token->value, "");
    assert_null(strstr(token->note, "hf_abcdefgh"));
    import_report_release(&r);
}

static void odd_lines_of_a_recipe_are_understood(void **state) {
    (void)state;
    static const char text[] =
        "\xef\xbb\xbfHEAD_IP=192.168.100.10\r\nexport\tPARALLEL='2' # two\r\n"
        "WORKER_USER=me\r\nWORKER=spark2:2222\r\nPARALLEL=3\r\n"
        "MEMGUARD_MIN_AVAIL_MB=3072\r\n";
    static const char alone[] = "WORKER_USER=me\nWORKER_SSH=you@spark2\n";
    static const char twins[] = "WORKER_USER=me\nWORKER_IP=10.0.0.2\nWEIGHT_SYNC=rsync\n"
                                "HEAD_CX7_IB=\"rocep1s0f1,roceP2p1s0f1\"\nSKIP_SYNC=0\n";
    import_report r;
    err e = ERR_INIT;
    assert_int_equal(settings_import(text, sizeof text - 1, ".env", &r, &e), OK);
    assert_string_equal(line_named(&r, "HEAD_IP")->key, "HEAD_IP_A");
    assert_string_equal(line_named(&r, "HEAD_IP")->value, "192.168.100.10");
    assert_string_equal(r.lines[1].note, "a later line sets the same");
    assert_string_equal(r.lines[4].value, "3");
    assert_string_equal(line_named(&r, "WORKER_USER, WORKER")->value, "me@spark2:2222");
    assert_int_equal(line_named(&r, "MEMGUARD_MIN_AVAIL_MB")->state, IMPORT_IGNORED);
    import_report_release(&r);
    assert_int_equal(settings_import(alone, sizeof alone - 1, ".env", &r, &e), OK);
    assert_int_equal(line_named(&r, "WORKER_USER")->state, IMPORT_UNMAPPED);
    assert_string_equal(line_named(&r, "WORKER_SSH")->value, "you@spark2");
    import_report_release(&r);
    assert_int_equal(settings_import(twins, sizeof twins - 1, ".env", &r, &e), OK);
    assert_string_equal(line_named(&r, "WORKER_USER, WORKER_IP")->value, "me@10.0.0.2");
    assert_string_equal(line_named(&r, "WEIGHT_SYNC")->value, "rsync");
    assert_string_equal(r.lines[3].key, "HEAD_HCA_A");
    assert_string_equal(r.lines[3].value, "rocep1s0f1");
    assert_string_equal(r.lines[4].key, "HEAD_HCA_B");
    assert_string_equal(r.lines[4].value, "roceP2p1s0f1");
    import_report_release(&r);
}

/* ib_write_bw stands in PATH as a script that notes how it was called; what it "measures" depends on
 * the device that asks. */
static void rdma_is_measured_both_ways(void **state) {
    (void)state;
    static const char shim[] =
        "#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho \"$*\" >> \"${0%/*}/calls\"\n"
        "case $2 in h0) r=97.10 ;; h1) r=92.60 ;; w0) r=95.00 ;; w1) r=93.00 ;; esac\n"
        "case \"$*\" in *10.9.*) echo \" 65536 1766140 0.00 $r 0.17\" ;; esac\n";
    char dir[] = "/tmp/tandem-rdma.XXXXXX", path[600];
    const char *before = getenv("PATH");
    char *kept = strdup(before != NULL ? before : "/usr/bin:/bin");
    double gbps[2] = {0};
    buf calls = BUF_INIT;
    err e = ERR_INIT;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/ib_write_bw", dir);
    assert_int_equal(file_write_atomic(path, shim, strlen(shim), 0755, &e), OK);
    (void)snprintf(path, sizeof path, "%s:%.400s", dir, kept);
    setenv("PATH", path, 1);
    link_plan plan = {
        .rail = {{{.rdma = "h0", .now = "10.9.0.1/24"}, {.rdma = "h1", .now = "10.9.1.1/24"}},
            {{.rdma = "w0", .now = "10.9.0.2/24"}, {.rdma = "w1", .now = "10.9.1.2/24"}}}};
    node_access *head = node_access_local("head", NULL),
                *worker = node_access_local("worker", NULL);
    int rc = link_prove_rdma(head, worker, &plan, gbps, &e);
    setenv("PATH", kept, 1);
    free(kept);
    if (rc != OK) fail_msg("%s", e.msg);
    assert_true(gbps[0] == 95.0); /* the worker's way back is the slower one */
    assert_true(gbps[1] == 92.6);
    (void)snprintf(path, sizeof path, "%s/calls", dir);
    assert_int_equal(file_read(path, &calls, 65536, &e), OK);
    static const char *const wanted[] = {
        "-d h0 -s 65536 -D 10 -p 12000 --report_gbits -F 10.9.0.2\n",
        "-d h1 -s 65536 -D 10 -p 12001 --report_gbits -F 10.9.1.2\n",
        "-d w0 -s 65536 -D 10 -p 12000 --report_gbits -F 10.9.0.1\n",
        "-d w1 -s 65536 -D 10 -p 12001 --report_gbits -F 10.9.1.1\n",
        "-d w0 -s 65536 -D 10 -p 12000 --report_gbits -F\n",
        "-d h1 -s 65536 -D 10 -p 12001 --report_gbits -F\n"};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (strstr(buf_cstr(&calls), wanted[i]) == NULL)
            fail_msg("not called: %s%s", wanted[i], buf_cstr(&calls));
    }
    buf_release(&calls);
    node_access_close(head);
    node_access_close(worker);
    (void)dir_remove_all(dir, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(judging_follows_the_limits),
        cmocka_unit_test(a_failed_apply_goes_back_by_itself),
        cmocka_unit_test(the_link_test_measures_and_wants_the_secret),
        cmocka_unit_test(rdma_is_measured_both_ways),
        cmocka_unit_test(other_recipes_settings_are_understood),
        cmocka_unit_test(odd_lines_of_a_recipe_are_understood),
        cmocka_unit_test(a_new_rail_stays_out_of_a_wide_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
