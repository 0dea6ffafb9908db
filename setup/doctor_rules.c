/* The causes: what points to each, and what to do about it. */
#include <stdio.h>
#include <string.h>

#include "engine/base/str.h"
#include "setup/doctor.h"

enum { WORDS = 6, CHECKS = 5 };

/* A cause fits when a word stands in the logs, or a check has failed. Both together are certain. */
typedef struct rule {
    const char *id;
    const char *words[WORDS];   /* of logs and reasons, end with NULL */
    const char *checks[CHECKS]; /* FAIL, or WARN for those that begin with '?' */
    const char *cause, *remedy;
    enum {
        POINTS,
        TELLS,
        NEEDS_WORD
    } kind; /* of the words: a hint; say it by themselves; a check
                                                alone says nothing */
} rule;

static const rule RULES[] = {
    {"kernel-7.0", {"ibv_reg_mr", "ibv_reg_mr_iova2", NULL}, {"K1", NULL},
        "The kernel keeps about 9 GiB for itself that RDMA cannot use, so memory cannot be registered.",
        "Add kho=off to the boot line or boot kernel 6.17.0-1032, then restart that Spark.",
        POINTS},
    {"memory",
        {"NV_ERR_NO_MEMORY", "Cannot allocate memory", "MiB of memory available and needs",
            "out of memory", "stopped the pair: only", NULL},
        {"M1", "M2", "?M6", "?M8", NULL}, "There was not enough free memory on a machine.",
        "Close other programs there (tandem check M1 names the largest); after a failed load restart "
        "that Spark, as memory in large pieces does not always come back.",
        TELLS},
    {"killed-for-memory", {"ended by signal 9", "Out of memory: Killed", "oom-kill", NULL},
        {"?M9", "M1", NULL},
        "A rank was killed from outside; mostly that is the kernel or a watchdog that found no memory.",
        "Look at the kernel log of that machine (tandem check P6) and at M9; limit the program that "
        "grew, or lower CONTEXT.",
        NEEDS_WORD},
    {"foreign-gpu", {NULL}, {"M3", "M4", NULL}, "Another program uses the GPU.",
        "End it yourself (its name is in check M3 or M4): Tandem never ends foreign programs.",
        POINTS},
    {"port", {"Address already in use", "is used by", NULL}, {"U3", NULL},
        "A port the pair needs is taken by another program.",
        "End that program, or set MASTER_PORT (ranks and keepers) or API_PORT (endpoint).", TELLS},
    {"worker-ssh", {"cannot be reached", "No route to host", "connection refused", NULL},
        {"S1", NULL}, "The worker cannot be reached by ssh.",
        "Look whether it is on and in the network: tandem node list says at which step it ends.",
        TELLS},
    {"worker-wedged", {"no greeting", "banner", NULL}, {NULL},
        "The worker answers, but its ssh server does not: the sign of a machine without memory.",
        "Wait up to 25 minutes, or take its power away; then lower CONTEXT or close programs there.",
        TELLS},
    {"keepers-apart", {"did not meet", "lost the keeper", "has been silent", NULL},
        {"N-route", "N-peer", "N-latency", NULL},
        "The two machines do not reach each other over rail A.",
        "Check cable and addresses: tandem link show, tandem check N-route.", POINTS},
    {"ranks-apart", {"not all ranks", "no answer from rank", "rank 0 cannot be reached", NULL},
        {"N-route", "N-peer", "U4", NULL},
        "A rank did not come to the meeting place, or a firewall is in the way.",
        "The worker's first error is in tandem status; check U4 and N-route.", POINTS},
    {"other-start", {"belongs to another start", "start's secret", NULL}, {NULL},
        "A rank of an earlier start was still alive and was turned away.",
        "tandem stop ends what is left; then tandem start.", TELLS},
    {"build", {"other build", "different versions", "did not arrive whole", NULL}, {"V6", NULL},
        "Head and worker do not run the same engine.",
        "tandem start copies the engine again by digest; update both machines together.", TELLS},
    {"model-files", {"safetensors", "there is no model in", "digest", "shard", "rank pack", NULL},
        {"D5", NULL}, "A file of the model is missing, damaged or of another model.",
        "tandem model verify compares the files with the manifest, tandem copy brings what the worker "
        "lacks, tandem prepare builds the packs again.",
        TELLS},
    {"disk-full", {"No space left", "disk is full", NULL}, {"D1", "D2", NULL}, "A disk is full.",
        "Free space on that machine: tandem check D1 names the largest folders.", TELLS},
    {"disk", {"Input/output error", NULL}, {"D6", "D4", "D3", NULL},
        "A disk reports faults or is too slow.",
        "Back up and replace it (tandem check D6), or move the data folder to the internal NVMe.",
        POINTS},
    {"gid", {"ibv_modify_qp", "error 61", NULL}, {"N-gid", NULL},
        "The RDMA address entry (GID) of a rail is missing or has moved.",
        "Give both halves their address again: tandem link apply; nothing is pinned, so the next start "
        "finds the entry.",
        POINTS},
    {"mtu", {"completion error 12", "error 12", "retry exceeded", NULL}, {"N-mtu", NULL},
        "Large frames are on at one end only.", "Set MTU 9000 on both: tandem link apply.", POINTS},
    {"half-speed", {NULL}, {"N-half", NULL}, "Only one half of the port has an address.",
        "Add the second address on both: tandem link apply.", POINTS},
    {"sockets", {"NET/Socket", "Using network Socket", "NET/IB : No device found", NULL},
        {"N-socket", "U2", NULL}, "The ranks talk over ordinary TCP instead of RDMA.",
        "Check the RDMA devices and locked memory (tandem check U2), then start again.", TELLS},
    {"leftover-nccl", {NULL}, {"N-env", NULL},
        "A leftover NCCL settings file changes how it connects.",
        "Move /etc/nccl.conf and ~/.nccl.conf away on that machine.", POINTS},
    {"hang", {"no progress for", "was not ready within", NULL}, {NULL},
        "A rank stood still while it was loading.",
        "The .stacks file beside its log says what its threads waited in: a disk, the link or the "
        "driver; send it with tandem support.",
        TELLS},
    {"device", {"Xid", "CUDA error", "device lost", "NVRM", NULL}, {"P6", "V2", NULL},
        "The GPU or its driver reported an error.",
        "Restart that Spark; if it comes again, run NVIDIA's field diagnostic.", POINTS},
    {"power", {NULL}, {"P1", "P5", NULL}, "The GPU runs in a slow state.",
        "Shut down, unplug the power for one minute, start again: a restart alone does not help.",
        POINTS},
    {"heat", {NULL}, {"P2", "P3", NULL}, "A machine is too hot or throttles.",
        "Give it air, or cap the clock (nvidia-smi -lgc 300,2100).", POINTS},
    {"driver", {NULL}, {"V3", "V4", NULL}, "The two machines have different drivers or kernels.",
        "Update both with the DGX dashboard, then restart both.", POINTS},
    {"clone", {NULL}, {"V7", NULL}, "Both machines have the same identity: a cloned disk.",
        "Make a new machine-id and new ssh host keys on one of them.", POINTS},
    {"clock", {NULL}, {"T1", NULL}, "The clocks of the machines differ.",
        "Switch time synchronisation on; a worker without internet takes the head as its source.",
        POINTS},
    {"killed-keeper", {"keeper was killed", "keeper of the", NULL}, {NULL},
        "A keeper was ended from outside, so both ranks ended.",
        "tandem start mends it; the watchdog (tandem config set WATCH on, tandem service install) does "
        "so by itself.",
        POINTS},
    {"budget", {"new starts within six hours are used up", NULL}, {NULL},
        "The pair failed again and again, so it is not started by itself any more.",
        "Find the first cause above; then tandem start begins a new count.", TELLS},
};

const char *doctor_certainty_name(doctor_certainty c) {
    return c == DOCTOR_CERTAIN ? "certain" : c == DOCTOR_LIKELY ? "likely" : "possible";
}

/* The whole line of a text that holds a word, without regard to case. */
static bool find_line(const char *texts, const char *word, char *out, size_t cap) {
    const char *at = strcasestr(texts, word);
    if (at == NULL) return false;
    const char *begin = at;
    while (begin > texts && begin[-1] != '\n')
        begin--;
    size_t n = strcspn(begin, "\n");
    str_copy(out, n < cap ? n + 1 : cap, begin);
    return true;
}

static const check_result *find_check(const doctor_evidence *v, const char *name) {
    bool takes_warn = name[0] == '?';
    const char *id = takes_warn ? name + 1 : name;
    for (size_t i = 0; i < v->n_results; i++) {
        const check_result *r = &v->results[i];
        if (!str_eq(r->id, id)) continue;
        if (r->status == CHECK_STATUS_FAIL || (takes_warn && r->status == CHECK_STATUS_WARN))
            return r;
    }
    return NULL;
}

static void judge_rule(const doctor_evidence *v, const rule *r, doctor_report *out) {
    char line[400] = "";
    bool has_word = false;
    const check_result *check = NULL;
    for (int i = 0; i < WORDS && r->words[i] != NULL && !has_word; i++)
        has_word = find_line(v->texts, r->words[i], line, sizeof line);
    for (int i = 0; i < CHECKS && r->checks[i] != NULL && check == NULL; i++)
        check = find_check(v, r->checks[i]);
    if ((!has_word && (check == NULL || r->kind == NEEDS_WORD)) ||
        out->n_causes == DOCTOR_CAUSES_MAX)
        return;
    doctor_cause *c = &out->causes[out->n_causes++];
    *c = (doctor_cause){.id = r->id, .cause = r->cause, .remedy = r->remedy};
    /* A failed check alone is a fault, but not always the one that was felt. */
    c->certainty = has_word && (check != NULL || r->kind == TELLS) ? DOCTOR_CERTAIN
                   : has_word                                      ? DOCTOR_LIKELY
                                                                   : DOCTOR_POSSIBLE;
    int n = 0;
    if (has_word) n = snprintf(c->evidence, sizeof c->evidence, "%.380s", line);
    if (check != NULL && n >= 0 && (size_t)n < sizeof c->evidence)
        snprintf(c->evidence + n, sizeof c->evidence - (size_t)n, "%scheck %s on %s: %.160s",
            n > 0 ? "; " : "", check->id, check->node, check->fact);
}

/* Most certain first; the table's order stays among equals. */
static void sort(doctor_report *out) {
    for (int i = 1; i < out->n_causes; i++) {
        doctor_cause c = out->causes[i];
        int k = i;
        for (; k > 0 && out->causes[k - 1].certainty < c.certainty; k--)
            out->causes[k] = out->causes[k - 1];
        out->causes[k] = c;
    }
}

void doctor_judge(const doctor_evidence *v, doctor_report *out) {
    out->n_causes = 0;
    for (size_t i = 0; i < sizeof RULES / sizeof RULES[0]; i++)
        judge_rule(v, &RULES[i], out);
    sort(out);
}
