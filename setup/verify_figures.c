/* Lines of level 2 that compare with something kept: the token ids of DeepSeek's encoder, the speed
 * of an earlier run, the counters of the RDMA devices. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "setup/verify_internal.h"

enum { CASES_MAX = 1 << 20, N_CASES = 12, SPEED_TOKENS = 128 };

/* ---- tokens ---- */

static int read_cases(json **out, err *e) {
    static const char *const places[] = {
        "../share/tandem/templates", "../templates", "../../templates"};
    const char *source = getenv("TANDEM_SOURCE_DIR");
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    buf dir = BUF_INIT, path = BUF_INIT;
    bool is_found = false;
    self[n > 0 ? n : 0] = '\0';
    path_dir(&dir, self);
    for (size_t i = 0; i < 3 && !is_found; i++) {
        buf_reset(&path);
        buf_printf(&path, "%s/%s/prompt-self-test.json", buf_cstr(&dir), places[i]);
        is_found = file_exists(buf_cstr(&path));
    }
    if (!is_found && source != NULL) {
        buf_reset(&path);
        buf_printf(&path, "%s/templates/prompt-self-test.json", source);
    }
    path_real(&path);
    json_limits limits = {.max_bytes = CASES_MAX};
    int rc = json_parse_file(buf_cstr(&path), &limits, out, e);
    buf_release(&dir);
    buf_release(&path);
    return rc;
}

/* SHA-256 over the ids as little-endian 32-bit numbers; false when the answer holds none. */
static bool digest_of(const json *tokens, char hex[SHA256_HEX]) {
    sha256 *sum = sha256_new();
    uint8_t raw[SHA256_BYTES];
    bool is_good = json_is_array(tokens) && json_count(tokens) > 0;
    JSON_EACH(item, tokens) {
        int64_t id = 0;
        is_good &= json_i64(item, &id) == OK;
        uint8_t bytes[4] = {(uint8_t)(id & 255), (uint8_t)(id >> 8 & 255),
            (uint8_t)(id >> 16 & 255), (uint8_t)(id >> 24 & 255)};
        sha256_update(sum, bytes, sizeof bytes);
    }
    sha256_finish(sum, raw);
    sha256_free(sum);
    sha256_hex(raw, hex);
    return is_good;
}

/* The digest of one conversation as the endpoint encodes it; "" when it refuses. */
static void ask_tokens(const verify_run_state *s, const json *body, char hex[SHA256_HEX]) {
    buf text = BUF_INIT;
    verify_answer a;
    json *v = NULL;
    hex[0] = '\0';
    json_print_compact(body, &text);
    if (verify_http(s->options, "/tokenize", buf_cstr(&text), NULL, &a, NULL) == OK &&
        a.status == 200 && json_parse(a.body.data, a.body.len, NULL, &v, NULL) == OK &&
        !digest_of(json_get(v, "tokens"), hex))
        hex[0] = '\0';
    json_free(v);
    verify_answer_release(&a);
    buf_release(&text);
}

/* The list of ids that belongs to this endpoint: the one that knows the first conversation. */
static const json *ids_for(const json *all, const char *id, const char *hex) {
    JSON_EACH(t, json_get(all, "tokenizers")) {
        const char *want = json_str(json_get(json_get(t, "ids"), id));
        if (want != NULL && str_eq(want, hex)) return json_get(t, "ids");
    }
    return NULL;
}

static void compare_tokens(const verify_run_state *s, const json *all, verify_line *l) {
    const json *ids = NULL;
    int n = 0;
    char got[64], hex[SHA256_HEX], wrong[200] = "";
    JSON_EACH(c, json_get(all, "cases")) {
        const char *id = json_str(json_get(c, "id"));
        if (id == NULL || n >= N_CASES || wrong[0] != '\0') continue;
        ask_tokens(s, json_get(c, "body"), hex);
        if (ids == NULL) ids = ids_for(all, id, hex);
        const char *want = json_str(json_get(ids, id));
        if (hex[0] == '\0') snprintf(wrong, sizeof wrong, "%.80s was not encoded", id);
        if (ids == NULL && hex[0] != '\0')
            snprintf(
                wrong, sizeof wrong, "the ids of %.80s are those of no tokenizer known here", id);
        if (want != NULL && hex[0] != '\0' && !str_eq(want, hex))
            snprintf(wrong, sizeof wrong, "the ids of %.80s differ from DeepSeek's encoder", id);
        n++;
    }
    snprintf(got, sizeof got, "%d conversations", n);
    verify_got(l, got);
    verify_judge(l, wrong[0] == '\0' ? VERIFY_PASS : VERIFY_FAIL, wrong[0] != '\0' ? wrong : NULL);
}

void verify_check_tokens(verify_run_state *s, verify_line *l) {
    json *all = NULL;
    err e = ERR_INIT;
    if (read_cases(&all, &e) != OK) {
        verify_judge(
            l, VERIFY_SKIP, "the conversations of the self-test are not beside this program");
    } else {
        compare_tokens(s, all, l);
    }
    json_free(all);
}

/* ---- speed ---- */

/* Keeps the rate of this model, or gives the one that is kept; below 0: none. */
static double kept_rate(const char *path, const char *model) {
    json *v = NULL;
    double rate = -1;
    if (file_exists(path) && json_parse_file(path, NULL, &v, NULL) == OK)
        (void)json_double(json_get(v, model), &rate);
    json_free(v);
    return rate;
}

static int keep_rate(const char *path, const char *model, double rate) {
    json *old = NULL;
    buf text = BUF_INIT;
    json_w w;
    if (file_exists(path)) (void)json_parse_file(path, NULL, &old, NULL);
    json_w_begin(&w, &text);
    json_w_object(&w);
    JSON_EACH(item, old) {
        if (str_eq(json_key(item), model)) continue;
        json_w_key(&w, json_key(item));
        json_w_value(&w, item);
    }
    json_w_key(&w, model);
    json_w_fixed(&w, rate, 2);
    json_w_close(&w);
    int rc = json_w_end(&w);
    if (rc == OK) rc = file_write_atomic(path, text.data, text.len, 0600, NULL);
    json_free(old);
    buf_release(&text);
    return rc;
}

static void judge_rate(const verify_run_state *s, double rate, verify_line *l) {
    const char *path = s->options->baseline;
    double before = path != NULL ? kept_rate(path, s->summary->model) : -1;
    char text[240];
    if (path == NULL) {
        verify_judge(l, VERIFY_SKIP, "no place to keep the rate of the first run");
    } else if (before <= 0) {
        bool is_kept = keep_rate(path, s->summary->model, rate) == OK;
        verify_judge(l, is_kept ? VERIFY_PASS : VERIFY_SKIP,
            is_kept ? "the first run: its rate is kept to compare with"
                    : "the rate of the first run cannot be kept");
    } else {
        double share = rate / before;
        snprintf(text, sizeof text,
            "%.1f tokens/s, the first run had %.1f; look at tandem check P1, P5 and N-socket", rate,
            before);
        verify_judge(l,
            share >= 0.9   ? VERIFY_PASS
            : share >= 0.7 ? VERIFY_WARN
                           : VERIFY_FAIL,
            share >= 0.9 ? NULL : text);
    }
}

static const char SPEED_BODY[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Explain what a telescope is.\"}],"
    "\"temperature\":0,\"max_tokens\":128,\"min_tokens\":128,\"ignore_eos\":true,"
    "\"reasoning_effort\":\"none\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}";

void verify_check_speed(verify_run_state *s, verify_line *l) {
    verify_reply r;
    uint64_t begin = clock_mono_ns();
    int rc = verify_chat(s, SPEED_BODY, true, l, &r);
    double seconds = (double)(clock_mono_ns() - begin) / 1e9 - l->first_ms / 1e3;
    int64_t n = r.completion_tokens;
    verify_reply_release(&r);
    if (rc != OK) return;
    if (n < SPEED_TOKENS / 2 || seconds <= 0) {
        verify_judge(l, VERIFY_SKIP, "the reply was too short to measure a rate");
        return;
    }
    double rate = (double)(n - 1) / seconds;
    l->tokens_per_s = rate;
    if (s->summary->is_demo) {
        verify_judge(l, VERIFY_SKIP,
            "measured, not compared: the demo model's rate depends on what else this machine does");
        return;
    }
    judge_rate(s, rate, l);
}

/* ---- RDMA ---- */

/* Sum of all ports; -1 when there is no RDMA device. */
static double counters(const char *sysfs) {
    char folder[PATH_MAX];
    double sum = -1;
    snprintf(folder, sizeof folder, "%s/class/infiniband", sysfs);
    DIR *d = opendir(folder);
    for (struct dirent *entry = d != NULL ? readdir(d) : NULL; entry != NULL; entry = readdir(d)) {
        buf path = BUF_INIT, text = BUF_INIT;
        uint64_t n = 0;
        if (entry->d_name[0] == '.') continue;
        buf_printf(&path, "%s/%s/ports/1/counters/port_xmit_data", folder, entry->d_name);
        if (file_read(buf_cstr(&path), &text, 64, NULL) == OK) {
            buf_truncate(&text, strcspn(buf_cstr(&text), "\n"));
            if (parse_u64(buf_cstr(&text), &n) == OK) sum = (sum < 0 ? 0 : sum) + (double)n;
        }
        buf_release(&path);
        buf_release(&text);
    }
    if (d != NULL) closedir(d);
    return sum;
}

void verify_check_rdma(verify_run_state *s, verify_line *l) {
    const char *sysfs = s->options->sysfs != NULL ? s->options->sysfs : "/sys";
    double before = counters(sysfs);
    char got[80];
    if (s->options->socket_path == NULL) {
        verify_judge(l, VERIFY_SKIP, "the counters belong to the machine of the engine");
        return;
    }
    if (before < 0) {
        verify_judge(l, VERIFY_SKIP, "this machine has no RDMA device");
        return;
    }
    verify_reply r;
    int rc = verify_chat(s, SPEED_BODY, true, l, &r);
    verify_reply_release(&r);
    if (rc != OK) return;
    double moved = counters(sysfs) - before;
    snprintf(got, sizeof got, "%.0f bytes sent", moved * 4.0); /* counted in 4-byte words */
    verify_got(l, got);
    verify_judge(l, moved > 0 ? VERIFY_PASS : VERIFY_FAIL,
        moved > 0 ? NULL
                  : "nothing went over RDMA: the ranks talk over sockets (tandem check N-socket)");
}
