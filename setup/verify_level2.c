/* Level 2: the same prompt again, four at once, a reply cut off, counting, a needle. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "setup/verify_internal.h"

enum { PARALLEL = 4, FREE_WITHIN_MS = 2000, COUNT_TO = 200, NEEDLE_LINES = 1600 };

/* A prompt long enough to fill cache pages, whose answer the demo model knows. */
static void put_long_prompt(buf *out, const char *question, int n_lines) {
    buf_puts(out, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < n_lines; i++)
        buf_printf(out, "Line %d says that all is well. ", i + 1);
    buf_printf(
        out, "%s\"}],\"temperature\":0,\"max_tokens\":64,\"reasoning_effort\":\"none\"}", question);
}

static void check_repeat(verify_run_state *s, verify_line *l) {
    buf body = BUF_INIT;
    put_long_prompt(&body, "What is 17 + 19?", 40);
    verify_reply first, second;
    verify_reply_init(&second);
    int rc = verify_chat(s, buf_cstr(&body), false, l, &first);
    if (rc == OK) rc = verify_chat(s, buf_cstr(&body), false, l, &second);
    if (rc == OK) {
        bool is_same =
            first.content.len == second.content.len &&
            memcmp(buf_cstr(&first.content), buf_cstr(&second.content), first.content.len) == 0;
        if (!is_same) {
            verify_judge(l, VERIFY_FAIL, "the second answer differs from the first");
        } else if (second.cached_tokens < 0) {
            verify_judge(l, VERIFY_SKIP, "the endpoint does not tell cached tokens");
        } else if (second.cached_tokens == 0) {
            verify_judge(l, VERIFY_WARN, "same text, but nothing came from the prefix cache");
        } else {
            verify_judge(l, VERIFY_PASS, NULL);
        }
    }
    verify_reply_release(&first);
    verify_reply_release(&second);
    buf_release(&body);
}

typedef struct stream_job {
    const verify_run_state *state;
    const char *body;
    verify_line line;
    verify_reply reply;
    int rc;
} stream_job;

static void *run_stream(void *arg) {
    stream_job *j = arg;
    j->rc = verify_chat(j->state, j->body, true, &j->line, &j->reply);
    return NULL;
}

static void check_parallel(verify_run_state *s, verify_line *l) {
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"What is a telescope?\"}],\"temperature\":0,"
        "\"max_tokens\":96,\"reasoning_effort\":\"none\",\"stream\":true}";
    verify_reply alone;
    if (verify_chat(s, body, true, l, &alone) != OK) {
        verify_reply_release(&alone);
        return;
    }
    stream_job jobs[PARALLEL];
    pthread_t threads[PARALLEL];
    int n = 0;
    const char *wrong = NULL;
    for (; n < PARALLEL; n++) {
        jobs[n] = (stream_job){.state = s, .body = body, .line = *l};
        if (pthread_create(&threads[n], NULL, run_stream, &jobs[n]) != 0) {
            wrong = "no thread for a parallel request";
            break;
        }
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        if (wrong == NULL && jobs[i].rc != OK) wrong = "one of four parallel requests failed";
        if (wrong == NULL && (jobs[i].reply.content.len != alone.content.len ||
                                 memcmp(buf_cstr(&jobs[i].reply.content), buf_cstr(&alone.content),
                                     alone.content.len) != 0))
            wrong = "a parallel answer differs from the one alone";
        verify_reply_release(&jobs[i].reply);
    }
    verify_judge(l, wrong == NULL ? VERIFY_PASS : VERIFY_FAIL, wrong);
    verify_reply_release(&alone);
}

/* Requests the engine has in hand, or -1 when it does not tell. */
static int64_t requests_in_hand(const verify_run_state *s) {
    verify_answer a;
    json *v = NULL;
    int64_t n = -1;
    if (verify_http(s->options, "/tandem/v1/state", NULL, NULL, &a, NULL) == OK &&
        a.status == 200 && json_parse(a.body.data, a.body.len, NULL, &v, NULL) == OK &&
        json_is_array(json_get(v, "requests")))
        n = (int64_t)json_count(json_get(v, "requests"));
    json_free(v);
    verify_answer_release(&a);
    return n;
}

static void check_cancel(verify_run_state *s, verify_line *l) {
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a long story.\"}],\"temperature\":1,\"seed\":5,"
        "\"ignore_eos\":true,\"max_tokens\":2000,\"stream\":true}";
    if (s->options->socket_path == NULL || requests_in_hand(s) < 0) {
        verify_judge(l, VERIFY_SKIP, "needs the engine's own socket to see its requests");
        return;
    }
    const verify_cut cut = {.after_bytes = 600};
    verify_answer a;
    err e = ERR_INIT;
    int rc = verify_http(s->options, "/v1/chat/completions", body, &cut, &a, &e);
    uint64_t begin = clock_mono_ms();
    int64_t left = -1;
    while (
        rc == OK && (left = requests_in_hand(s)) != 0 && clock_mono_ms() - begin < FREE_WITHIN_MS)
        sleep_ms(20);
    char got[80];
    snprintf(got, sizeof got, "free after %llu ms", (unsigned long long)(clock_mono_ms() - begin));
    verify_got(l, got);
    if (rc != OK) {
        verify_judge(l, VERIFY_FAIL, e.msg);
    } else if (left != 0) {
        verify_judge(l, VERIFY_FAIL, "the request is still in hand 2 s after the client left");
    } else {
        verify_judge(l, VERIFY_PASS, NULL);
    }
    verify_answer_release(&a);
}

static void check_count(verify_run_state *s, verify_line *l) {
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Count from 1 to 200. Write only the numbers, with single "
        "spaces between them.\"}],\"temperature\":0,\"max_tokens\":1200,\"reasoning_effort\":\"none\",\"stream\":true}";
    if (s->summary->is_demo) {
        verify_judge(l, VERIFY_SKIP, "the demo model cannot count that far");
        return;
    }
    verify_reply r;
    if (verify_chat(s, body, true, l, &r) == OK) {
        const char *at = buf_cstr(&r.content);
        int next = 1;
        while (next <= COUNT_TO) {
            at += strspn(at, " ,\r\n");
            char want[8];
            int n = snprintf(want, sizeof want, "%d", next);
            if (strncmp(at, want, (size_t)n) != 0) break;
            at += n;
            next++;
        }
        char reason[80];
        snprintf(reason, sizeof reason, "the count breaks off before %d", next);
        verify_judge(
            l, next > COUNT_TO ? VERIFY_PASS : VERIFY_FAIL, next > COUNT_TO ? NULL : reason);
    }
    verify_reply_release(&r);
}

static void check_needle(verify_run_state *s, verify_line *l) {
    if (s->summary->is_demo) {
        verify_judge(l, VERIFY_SKIP, "the demo model reads 4096 tokens");
        return;
    }
    buf body = BUF_INIT;
    buf_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < NEEDLE_LINES; i++) {
        buf_printf(&body,
            "Entry %d: the archive holds nothing of note on this shelf, as every year before. ", i);
        if (i == NEEDLE_LINES / 3) buf_puts(&body, "The password of the blue door is marigold. ");
    }
    buf_puts(&body,
        "What is the password of the blue door? Answer with one word.\"}],\"temperature\":0,"
        "\"max_tokens\":32,\"reasoning_effort\":\"none\"}");
    verify_reply r;
    if (verify_chat(s, buf_cstr(&body), false, l, &r) == OK) {
        bool is_found = strstr(buf_cstr(&r.content), "arigold") != NULL;
        verify_judge(l, is_found ? VERIFY_PASS : VERIFY_FAIL,
            is_found ? NULL : "the word is not in the answer");
    }
    verify_reply_release(&r);
    buf_release(&body);
}

const verify_check *verify_level_2(size_t *n) {
    static const verify_check checks[] = {
        {"repeat", "a long prompt twice, temperature 0",
            "the same text, the second time from the cache", check_repeat},
        {"parallel", "one stream alone, then four at once", "five times the same text",
            check_parallel},
        {"cancel", "a stream whose client leaves", "nothing in hand within 2 s", check_cancel},
        {"count", "count from 1 to 200", "every number, in order", check_count},
        {"needle", "one sentence hidden in about 32,000 tokens", "the word asked for",
            check_needle},
        {"tokens", "the conversations of the prompt self-test to /tokenize",
            "the token ids of DeepSeek's own encoder", verify_check_tokens},
        {"speed", "one reply of 128 tokens", "within a tenth of the first run's rate",
            verify_check_speed},
        {"rdma", "RDMA counters around a reply", "they moved", verify_check_rdma},
    };
    *n = sizeof checks / sizeof *checks;
    return checks;
}
