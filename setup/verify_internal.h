/* What the levels of tandem verify share. */
#ifndef SETUP_VERIFY_INTERNAL_H
#define SETUP_VERIFY_INTERNAL_H

#include "setup/verify.h"
#include "setup/verify_http.h"

typedef struct verify_run_state {
    const verify_options *options;
    verify_summary *summary;
    buf first_text; /* content of the first chat line, to compare with */
} verify_run_state;

typedef struct verify_check {
    const char *id, *request, *expected;
    void (*run)(verify_run_state *s, verify_line *l);
} verify_check;

const verify_check *verify_level_1(size_t *n);
const verify_check *verify_level_2(size_t *n);
const verify_check *verify_level_3(size_t *n);
/* Lines of level 2 that have a file of their own (verify_figures.c). */
void verify_check_tokens(verify_run_state *s, verify_line *l);
void verify_check_speed(verify_run_state *s, verify_line *l);
void verify_check_rdma(verify_run_state *s, verify_line *l);

/* Sets verdict and reason; OK. */
int verify_judge(verify_line *l, verify_verdict verdict, const char *reason);
/* Puts text into l->got as one line. */
void verify_got(verify_line *l, const char *text);
/* One chat request; on any failure l holds the verdict and the return value is not OK. The caller
 * releases r in every case. */
int verify_chat(
    const verify_run_state *s, const char *body, bool is_stream, verify_line *l, verify_reply *r);

/* The request of the first line, which others repeat. */
extern const char VERIFY_SUM_BODY[];

#endif
