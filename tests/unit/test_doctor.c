/* From what was seen to the cause: lines as ranks, NCCL and the kernel write them, and failed
 * checks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "setup/doctor.h"

typedef struct sample {
    const char *text;  /* of a log, or "" */
    const char *check; /* id that failed, or NULL */
    const char *cause; /* the first one named */
    doctor_certainty certainty;
} sample;

/* The field faults of the catalogue that leave such traces. */
static const sample SAMPLES[] = {
    {"worker: transport/net_ib.cc: ibv_reg_mr_iova2 failed with error Cannot allocate memory", "K1",
        "kernel-7.0", DOCTOR_CERTAIN},
    {"head: NVRM: nvAssertOk: NV_ERR_NO_MEMORY", "M1", "memory", DOCTOR_CERTAIN},
    {"worker: the worker has 3000 MiB of memory available and needs 102400 before loading", NULL,
        "memory", DOCTOR_CERTAIN},
    {"worker: it was ended by signal 9 (Killed)", NULL, "killed-for-memory", DOCTOR_LIKELY},
    {"", "M3", "foreign-gpu", DOCTOR_POSSIBLE},
    {"pair: port 29620 on the head is used by python3 (process 12, user me)", NULL, "port",
        DOCTOR_CERTAIN},
    {"worker: worker (10.0.0.2) cannot be reached on port 22: No route to host", NULL, "worker-ssh",
        DOCTOR_CERTAIN},
    {"head: the keepers of the two machines did not meet (head looked for the worker)", "N-route",
        "keepers-apart", DOCTOR_CERTAIN},
    {"head: rank 1 belongs to another start", NULL, "other-start", DOCTOR_CERTAIN},
    {"head: /data/models/x/model-00001-of-00039.safetensors: the header is cut short", NULL,
        "model-files", DOCTOR_CERTAIN},
    {"worker: writing: No space left on device", "D1", "disk-full", DOCTOR_CERTAIN},
    {"head: NCCL WARN Call to ibv_modify_qp failed with error 61 No data available", "N-gid", "gid",
        DOCTOR_CERTAIN},
    {"head: NCCL WARN NET/IB: Got completion from peer with status=12 completion error 12", "N-mtu",
        "mtu", DOCTOR_CERTAIN},
    {"", "N-half", "half-speed", DOCTOR_POSSIBLE},
    {"head: NCCL INFO NET/Socket : Using [0]enP7s7", NULL, "sockets", DOCTOR_CERTAIN},
    {"worker: rank 1 on the worker made no progress for 420 s in phase loading", NULL, "hang",
        DOCTOR_CERTAIN},
    {"head: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus", "P6", "device",
        DOCTOR_CERTAIN},
    {"", "P1", "power", DOCTOR_POSSIBLE},
    {"", "P2", "heat", DOCTOR_POSSIBLE},
    {"", "V3", "driver", DOCTOR_POSSIBLE},
    {"", "V7", "clone", DOCTOR_POSSIBLE},
    {"", "T1", "clock", DOCTOR_POSSIBLE},
    {"worker: its keeper was killed", NULL, "killed-keeper", DOCTOR_LIKELY},
};

static void every_fault_has_its_cause(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof SAMPLES / sizeof SAMPLES[0]; i++) {
        const sample *s = &SAMPLES[i];
        check_result r = {.node = "head", .status = CHECK_STATUS_FAIL, .fact = "It is so."};
        doctor_report *out = mem_alloc(sizeof *out);
        r.id = s->check;
        doctor_evidence v = {&r, s->check != NULL ? 1 : 0, s->text, PAIR_FAILED};
        doctor_judge(&v, out);
        if (out->n_causes == 0 || strcmp(out->causes[0].id, s->cause) != 0)
            fail_msg("\"%s\" with check %s: expected %s, got %s", s->text,
                s->check != NULL ? s->check : "(none)", s->cause,
                out->n_causes > 0 ? out->causes[0].id : "nothing");
        if (out->causes[0].certainty != s->certainty)
            fail_msg("%s: expected %s, got %s", s->cause, doctor_certainty_name(s->certainty),
                doctor_certainty_name(out->causes[0].certainty));
        assert_true(out->causes[0].evidence[0] != '\0');
        assert_true(out->causes[0].remedy[0] != '\0');
        mem_free(out);
    }
}

static void nothing_seen_is_nothing_said(void **state) {
    (void)state;
    doctor_report *out = mem_alloc(sizeof *out);
    check_result r = {.id = "M1", .node = "head", .status = CHECK_STATUS_PASS};
    doctor_evidence v = {&r, 1, "head: all is well\nworker: ready", PAIR_READY};
    doctor_judge(&v, out);
    assert_int_equal(out->n_causes, 0);
    r.status = CHECK_STATUS_WARN; /* a warning is no cause by itself where only FAIL counts */
    doctor_judge(&v, out);
    assert_int_equal(out->n_causes, 0);
    r.id = "M6";
    doctor_judge(&v, out);
    assert_int_equal(out->n_causes, 1);
    mem_free(out);
}

/* What the log says stands before what a check fears; the evidence is the line itself. */
static void the_certain_one_comes_first(void **state) {
    (void)state;
    doctor_report *out = mem_alloc(sizeof *out);
    check_result r[2] = {
        {.id = "M1", .node = "head", .status = CHECK_STATUS_FAIL, .fact = "21 GiB."},
        {.id = "P2", .node = "worker", .status = CHECK_STATUS_FAIL, .fact = "Hot."}};
    doctor_evidence v = {
        r, 2, "head: first line\nworker: No space left on device\nhead: last line", PAIR_FAILED};
    doctor_judge(&v, out);
    assert_int_equal(out->n_causes, 3);
    assert_string_equal(out->causes[0].id, "disk-full");
    assert_string_equal(out->causes[0].evidence, "worker: No space left on device");
    assert_string_equal(out->causes[1].id, "memory");
    assert_non_null(strstr(out->causes[1].evidence, "check M1 on head: 21 GiB."));
    assert_string_equal(out->causes[2].id, "heat");
    mem_free(out);
}

/* Long lines and many causes stay within the report. */
static void the_report_is_bounded(void **state) {
    (void)state;
    buf text = BUF_INIT;
    doctor_report *out = mem_alloc(sizeof *out);
    for (size_t i = 0; i < sizeof SAMPLES / sizeof SAMPLES[0]; i++) {
        buf_puts(&text, SAMPLES[i].text);
        for (int k = 0; k < 200; k++)
            buf_puts(&text, " and more of it");
        buf_puts(&text, "\n");
    }
    doctor_evidence v = {NULL, 0, buf_cstr(&text), PAIR_FAILED};
    doctor_judge(&v, out);
    assert_in_range(out->n_causes, 10, DOCTOR_CAUSES_MAX);
    for (int i = 0; i < out->n_causes; i++)
        assert_in_range(strlen(out->causes[i].evidence), 1, sizeof out->causes[i].evidence - 1);
    buf_release(&text);
    mem_free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fault_has_its_cause),
        cmocka_unit_test(nothing_seen_is_nothing_said),
        cmocka_unit_test(the_certain_one_comes_first),
        cmocka_unit_test(the_report_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
