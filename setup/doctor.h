/* From what is wrong to why: looks at the pair, the checks of both machines and the ends of the logs,
 * and names the causes that fit, most certain first, each with its evidence and what to do. Changes
 * nothing. The table of causes is the failure catalogue of setup.md 15. One thread. */
#ifndef SETUP_DOCTOR_H
#define SETUP_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "setup/check.h"
#include "setup/pair.h"

enum { DOCTOR_CAUSES_MAX = 16, DOCTOR_CHECKS_MAX = 256 };

typedef enum doctor_certainty { DOCTOR_POSSIBLE, DOCTOR_LIKELY, DOCTOR_CERTAIN } doctor_certainty;
const char *doctor_certainty_name(doctor_certainty c);

typedef struct doctor_cause {
    const char *id;    /* "memory", ... */
    const char *cause; /* one sentence */
    const char *remedy;
    char evidence[600]; /* the line or the check that points there */
    doctor_certainty certainty;
} doctor_cause;

typedef struct doctor_report {
    char symptom[900]; /* what is wrong, "" nothing is */
    doctor_cause causes[DOCTOR_CAUSES_MAX];
    int n_causes;
    int n_pass, n_warn, n_fail, n_skip, n_unknown;
} doctor_report;

/* A result of a check as it comes; may be NULL. */
typedef void (*doctor_sink)(void *ctx, const check_row *row, const check_result *r);

typedef struct doctor_options {
    pair_options pair;          /* also without a pair: the head alone is looked at */
    const check_options *check; /* how the checks are run; heavy ones are left out */
} doctor_options;
int doctor_run(const doctor_options *o, doctor_sink sink, void *ctx, doctor_report *out, err *e);

/* The judging alone: texts holds lines of logs and reasons, results what the checks said. */
typedef struct doctor_evidence {
    const check_result *results;
    size_t n_results;
    const char *texts;
    pair_state state;
} doctor_evidence;
void doctor_judge(const doctor_evidence *v, doctor_report *out);

#endif
