/* Level 3: a small set of questions, the whole window, and an hour of mixed requests. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/rand.h"
#include "setup/verify_internal.h"

enum {
    SOAK_S = 3600,
    N_SUMS = 10,
    BODY_MAX = 8 << 20,
    PROBE_WORDS = 64,
    WINDOW_MS_PER_TOKEN = 50 /* slower than any machine that is of use */
};

static void put_question(buf *out, const char *question, int max_tokens) {
    buf_printf(out,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"temperature\":0,\"max_tokens\":%d,"
        "\"reasoning_effort\":\"none\"}",
        question, max_tokens);
}

/* ---- quality ---- */

typedef struct question {
    const char *text, *answer;
} question;

static const question GENERAL[] = {
    {"Which planet is closest to the sun? One word.", "Mercury"},
    {"What is 17 * 23? Only the number.", "391"},
    {"What is the capital of Australia? One word.", "Canberra"},
    {"If all bloops are razzies and all razzies are lazzies, are all bloops lazzies? Yes or no.",
        "es"},
    {"Write the word stressed backwards. One word.", "desserts"},
    {"Which is larger, 9.11 or 9.9? Only the number.", "9.9"},
    {"What is the chemical symbol of gold? Only the symbol.", "Au"},
    {"How many days has February in 2028? Only the number.", "29"},
    {"In C, what does sizeof(char) give? Only the number.", "1"},
    {"Translate into German, one word: water", "asser"},
};

/* What the demo model was taught. */
static void put_sum(int i, char text[64], char answer[16]) {
    int a = 11 + 7 * i % 40, b = 12 + 5 * i % 30;
    snprintf(text, 64, "What is %d + %d?", a, b);
    snprintf(answer, 16, "%d", a + b);
}

static bool is_right(
    verify_run_state *s, verify_line *l, const char *text, const char *answer, err *e) {
    buf body = BUF_INIT;
    verify_reply r;
    put_question(&body, text, 64);
    int rc = verify_chat(s, buf_cstr(&body), false, l, &r);
    bool is = rc == OK && strstr(buf_cstr(&r.content), answer) != NULL;
    if (rc != OK) err_set(e, rc, "%s", l->reason);
    verify_reply_release(&r);
    buf_release(&body);
    return is;
}

static void check_quality(verify_run_state *s, verify_line *l) {
    size_t n = s->summary->is_demo ? N_SUMS : sizeof GENERAL / sizeof GENERAL[0], n_right = 0;
    char missed[200] = "", got[80], reason[280], text[64], answer[16];
    err e = ERR_INIT;
    for (size_t i = 0; i < n && e.code == OK; i++) {
        question q = GENERAL[i % (sizeof GENERAL / sizeof GENERAL[0])];
        if (s->summary->is_demo) {
            put_sum((int)i, text, answer);
            q = (question){text, answer};
        }
        if (is_right(s, l, q.text, q.answer, &e)) {
            n_right++;
        } else if (missed[0] == '\0') {
            snprintf(missed, sizeof missed, "%s", q.text);
        }
    }
    if (e.code != OK) return; /* the line holds the verdict */
    snprintf(got, sizeof got, "%zu of %zu", n_right, n);
    verify_got(l, got);
    snprintf(reason, sizeof reason, "not answered as expected: %s", missed);
    verify_judge(l,
        n_right + 1 >= n   ? VERIFY_PASS
        : n_right + 2 >= n ? VERIFY_WARN
                           : VERIFY_FAIL,
        n_right == n ? NULL : reason);
}

/* ---- the window ---- */

static int64_t window_of(const verify_run_state *s) {
    verify_answer a;
    json *v = NULL;
    int64_t n = -1;
    if (verify_http(s->options, "/v1/models", NULL, NULL, &a, NULL) == OK && a.status == 200 &&
        json_parse(a.body.data, a.body.len, NULL, &v, NULL) == OK) {
        const json *m = json_at(json_get(v, "data"), 0);
        if (json_i64(json_get(m, "max_model_len"), &n) != OK)
            (void)json_i64(json_get(m, "context_length"), &n);
    }
    json_free(v);
    verify_answer_release(&a);
    return n;
}

static void put_words(buf *out, int64_t n) {
    buf text = BUF_MAX(BODY_MAX);
    for (int64_t i = 0; i < n; i++)
        buf_puts(&text, "so ");
    put_question(out, buf_cstr(&text), 4);
    buf_release(&text);
}

/* Prompt tokens of so many words; below 0: the line holds the verdict. */
static int64_t read_words(verify_run_state *s, verify_line *l, int64_t n) {
    buf body = BUF_MAX(BODY_MAX);
    verify_reply r;
    put_words(&body, n);
    int64_t tokens = verify_chat(s, buf_cstr(&body), false, l, &r) == OK ? r.prompt_tokens : -1;
    verify_reply_release(&r);
    buf_release(&body);
    return tokens;
}

static bool is_refused(const verify_run_state *s, int64_t n_words) {
    buf body = BUF_MAX(BODY_MAX);
    verify_answer a;
    put_words(&body, n_words);
    bool is =
        verify_http(s->options, "/v1/chat/completions", buf_cstr(&body), NULL, &a, NULL) == OK &&
        a.status == 400;
    verify_answer_release(&a);
    buf_release(&body);
    return is;
}

static void try_window(verify_run_state *s, verify_line *l, int64_t window) {
    int64_t few = 0, more = 0;
    char got[120];
    /* How many tokens a word is in this vocabulary is measured, not guessed. */
    few = read_words(s, l, PROBE_WORDS);
    if (few > 0) more = read_words(s, l, 2 * PROBE_WORDS);
    if (few <= 0 || more <= few) return;
    int64_t words = (window * 9 / 10 - few) * PROBE_WORDS / (more - few) + PROBE_WORDS;
    int64_t n = read_words(s, l, words);
    if (n < 0) return;
    snprintf(got, sizeof got, "%lld of %lld tokens read", (long long)n, (long long)window);
    verify_got(l, got);
    bool is_whole = n >= window * 8 / 10, is_over_refused = is_refused(s, words * 2);
    verify_judge(l, is_whole && is_over_refused ? VERIFY_PASS : VERIFY_FAIL,
        !is_whole          ? "the endpoint counted fewer tokens than were sent"
        : !is_over_refused ? "a prompt longer than the window was not refused with 400"
                           : NULL);
}

/* A prompt of nine tenths of the window is read whole, and one that is too long is refused. A million
 * tokens take longer than any other request: the wait grows with them. */
static void check_window(verify_run_state *s, verify_line *l) {
    const verify_options *usual = s->options;
    verify_options patient = *usual;
    int64_t window = window_of(s);
    if (window < 512) {
        verify_judge(l, VERIFY_SKIP, "the endpoint does not tell its window");
        return;
    }
    int64_t wait = (usual->timeout_ms > 0 ? usual->timeout_ms : VERIFY_TIMEOUT_MS) +
                   window * WINDOW_MS_PER_TOKEN;
    patient.timeout_ms = wait < INT_MAX ? (int)wait : INT_MAX;
    s->options = &patient;
    try_window(s, l, window);
    s->options = usual;
}

/* ---- the soak ---- */

static bool is_stopped(const verify_run_state *s) {
    return s->options->stop != NULL && atomic_load(s->options->stop);
}

/* The sum of the first line again and again, with other requests between: always the same text. */
static void check_soak(verify_run_state *s, verify_line *l) {
    int seconds = s->options->soak_s == 0 ? SOAK_S : s->options->soak_s;
    uint64_t end = clock_mono_ms() + (uint64_t)(seconds > 0 ? seconds : 0) * 1000, n = 0;
    rand_state random;
    char got[80];
    if (seconds < 0) {
        verify_judge(l, VERIFY_SKIP, "left out as asked (--soak 0)");
        return;
    }
    if (s->first_text.len == 0) {
        verify_judge(l, VERIFY_FAIL, "the first line did not pass, so there is nothing to compare");
        return;
    }
    rand_init(&random, 17, 0);
    while (clock_mono_ms() < end) {
        buf body = BUF_INIT;
        verify_reply other, same;
        char question_text[64];
        if (is_stopped(s)) break;
        snprintf(question_text, sizeof question_text, "Tell me about the number %u.",
            rand_below(&random, 10000));
        put_question(&body, question_text, 16 + (int)rand_below(&random, 48));
        int rc = verify_chat(s, buf_cstr(&body), false, l, &other);
        verify_reply_release(&other);
        buf_release(&body);
        if (rc != OK && is_stopped(s)) break;
        if (rc != OK) return;
        rc = verify_chat(s, VERIFY_SUM_BODY, false, l, &same);
        bool is_same = rc == OK && same.content.len == s->first_text.len &&
                       memcmp(same.content.data, s->first_text.data, same.content.len) == 0;
        verify_reply_release(&same);
        if (rc != OK && is_stopped(s)) break;
        if (rc != OK) return;
        if (!is_same) {
            verify_judge(l, VERIFY_FAIL, "the same question gave another text after a while");
            return;
        }
        n += 2;
    }
    snprintf(got, sizeof got, "%llu requests in %d s", (unsigned long long)n, seconds);
    verify_got(l, got);
    verify_judge(l, n > 0 ? VERIFY_PASS : VERIFY_SKIP, n > 0 ? NULL : "it was stopped at once");
}

const verify_check *verify_level_3(size_t *n) {
    static const verify_check checks[] = {
        {"quality", "ten questions with short answers", "nine right", check_quality},
        {"window", "a prompt near the whole window, then one beyond it", "read, then refused",
            check_window},
        {"soak", "mixed requests, the first sum again and again", "always the same text",
            check_soak},
    };
    *n = sizeof checks / sizeof *checks;
    return checks;
}
