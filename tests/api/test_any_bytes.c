/* Seeds of the HTTP fuzzers and a fixed number of damaged copies against a real server: never a fault
 * of its own, never a crash, nothing left behind, memory bounded. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/file.h"
#include "engine/base/str.h"
#include "tests/harness/http_probe.h"
#include "tests/harness/mutate.h"

enum { SEEDS_MAX = 64, INPUT_MAX = 20000, N_DAMAGED = 2500, N_LONG = 60000 };

static http_probe *probe;

typedef struct seeds {
    buf texts[SEEDS_MAX];
    int n;
} seeds;

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* In the order of their names, so that every machine does the same. */
static void read_seeds(seeds *s, const char *folder) {
    char *names[SEEDS_MAX];
    char path[512];
    err e = ERR_INIT;
    struct dirent *entry;
    snprintf(path, sizeof path, "tests/data/fuzz/%s", folder);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    s->n = 0;
    while ((entry = readdir(dir)) != NULL && s->n < SEEDS_MAX) {
        if (entry->d_name[0] != '.') names[s->n++] = strdup(entry->d_name);
    }
    closedir(dir);
    qsort(names, (size_t)s->n, sizeof names[0], by_name);
    for (int i = 0; i < s->n; i++) {
        snprintf(path, sizeof path, "tests/data/fuzz/%s/%s", folder, names[i]);
        s->texts[i] = (buf)BUF_INIT;
        assert_int_equal(file_read(path, &s->texts[i], INPUT_MAX, &e), OK);
        free(names[i]);
    }
    assert_true(s->n > 10);
}

static void release_seeds(seeds *s) {
    for (int i = 0; i < s->n; i++) {
        buf_release(&s->texts[i]);
    }
}

static int n_damaged(void) {
    return getenv("TANDEM_LONG") != NULL ? N_LONG : N_DAMAGED;
}

static int count_in(const char *folder) {
    struct dirent *entry;
    int n = 0;
    DIR *dir = opendir(folder);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        n += entry->d_name[0] != '.';
    }
    if (dir != NULL) closedir(dir);
    return n;
}

/* The input is printed with its odd bytes escaped: that is all one needs to see it again. */
static void complain(const char *what, const buf *input, const buf *why) {
    buf text = BUF_INIT;
    for (size_t i = 0; i < input->len && i < 3000; i++) {
        unsigned char c = (unsigned char)input->data[i];
        buf_printf(&text, c >= 0x20 && c < 0x7f && c != '\\' ? "%c" : "\\x%02x", c);
    }
    print_message("%s: %s\n", what, buf_cstr(&text));
    buf_release(&text);
    fail_msg("%s", buf_cstr(why));
}

static void send_bytes(const buf *b, int i) {
    buf why = BUF_INIT;
    if (!http_probe_bytes(probe, b->data, b->len, i % 2 == 0, &why)) complain("bytes", b, &why);
    buf_release(&why);
}

static void send_body(const buf *b, int i) {
    buf why = BUF_INIT;
    (void)i;
    if (b->len > 0 &&
        !http_probe_body(probe, (unsigned char)b->data[0], b->data + 1, b->len - 1, &why)) {
        complain("body", b, &why);
    }
    buf_release(&why);
}

/* Threads and descriptors of connections that have ended go away. */
static void wait_for_count(const char *folder, int n) {
    uint64_t deadline = clock_mono_ms() + 120000;
    assert_true(http_probe_is_idle(probe));
    while (count_in(folder) > n && clock_mono_ms() < deadline)
        sleep_ms(5);
    assert_true(count_in(folder) <= n);
}

static void any_bytes(void **state) {
    (void)state;
    static seeds s;
    rand_state r;
    read_seeds(&s, "http");
    rand_init(&r, 20260, 1);
    for (int i = 0; i < s.n * 2; i++) {
        send_bytes(&s.texts[i / 2], i);
    }
    int n_fds = count_in("/proc/self/fd");
    int n_threads = count_in("/proc/self/task");
    for (int i = 0; i < n_damaged(); i++) {
        buf b = BUF_INIT;
        const buf *seed = &s.texts[rand_below(&r, (uint32_t)s.n)];
        buf_append(&b, seed->data, seed->len);
        mutate_bytes(&r, &b, &s.texts[rand_below(&r, (uint32_t)s.n)], INPUT_MAX);
        send_bytes(&b, i);
        buf_release(&b);
    }
    assert_true(http_probe_is_idle(probe));
    wait_for_count("/proc/self/fd", n_fds + 4);
    wait_for_count("/proc/self/task", n_threads + 4);
    release_seeds(&s);
}

static void any_bodies(void **state) {
    (void)state;
    static seeds s;
    rand_state r;
    int counts[6];
    read_seeds(&s, "routes");
    rand_init(&r, 20260, 2);
    for (int i = 0; i < s.n; i++) {
        send_body(&s.texts[i], i);
    }
    for (int i = 0; i < n_damaged(); i++) {
        buf b = BUF_INIT;
        buf body = BUF_INIT;
        const buf *seed = &s.texts[rand_below(&r, (uint32_t)s.n)];
        buf_append(&body, seed->data + 1, seed->len - 1);
        for (uint32_t k = rand_below(&r, 3) + 1; k > 0; k--) {
            mutate_json(&r, &body, INPUT_MAX);
        }
        buf_putc(&b, seed->data[0]);
        buf_append(&b, buf_cstr(&body), body.len);
        send_body(&b, i);
        buf_release(&body);
        buf_release(&b);
    }
    assert_true(http_probe_is_idle(probe));
    http_probe_counts(probe, counts);
    print_message("answers: %d of 2xx, %d of 4xx\n", counts[2], counts[4]);
    /* The damage must neither be refused at the first look nor be harmless. */
    assert_true(counts[2] > n_damaged() / 10 && counts[4] > n_damaged() / 10);
    release_seeds(&s);
}

/* What clients announce is not reserved, and what they send is bounded: the peak of the whole
 * process, sanitizers' shadows aside. */
static void memory_is_bounded(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#else
    buf text = BUF_INIT;
    err e = ERR_INIT;
    assert_int_equal(file_read("/proc/self/status", &text, 65536, &e), OK);
    const char *line = strstr(buf_cstr(&text), "VmHWM:");
    assert_non_null(line);
    unsigned long peak_kib = strtoul(line + 6, NULL, 10);
    print_message("peak %lu MiB\n", peak_kib / 1024);
    assert_true(peak_kib < 400 * 1024);
    buf_release(&text);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_bytes), cmocka_unit_test(any_bodies),
        cmocka_unit_test(memory_is_bounded)};
    probe = http_probe_new();
    if (probe == NULL) {
        print_message("skipped: no demo tokenizer here (templates/demo-model or DEMO_WEIGHTS)\n");
        return 77;
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    http_probe_free(probe);
    return rc;
}
