/* Manifests, their safety, and the journal of finished ranges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"
#include "setup/hub_ranges.h"
#include "setup/manifest.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define DIGEST "4355a46b19d348dc2f57c046f8ef63d4538ebb936000f3c9ee954a27460dd865"

static int parse(const char *files, int n, unsigned long long bytes, err *e) {
    buf text = BUF_INIT;
    manifest m;
    buf_printf(&text, "tandem-manifest 1\n%send %d %llu\n", files, n, bytes);
    int rc = manifest_parse(&m, buf_cstr(&text), text.len, e);
    buf_release(&text);
    if (rc == OK) manifest_release(&m);
    return rc;
}

static int parse_path(const char *path, err *e) {
    char line[512];
    snprintf(
        line, sizeof line, "file p o/n " COMMIT " %s 5 sha256 " DIGEST " weights both 1\n", path);
    return parse(line, 1, 5, e);
}

/* Also one whose repository said none. */
static void every_part_has_terms(const manifest *m) {
    manifest_terms t[MANIFEST_TERMS];
    assert_int_equal(manifest_terms_of(NULL, t), 1);
    assert_string_equal(t[0].part, "template");
    assert_int_equal(manifest_terms_of(m, t), 3);
    assert_string_equal(t[0].part, "model");
    assert_string_equal(t[0].repo, "Mia-AiLab/DeepSeek-V4.1-Flash-EXL3-2.9bpw");
    assert_null(t[0].licence);
    assert_string_equal(t[1].part, "tables");
    assert_string_equal(t[1].licence, "MIT");
    assert_string_equal(t[2].part, "template");
    assert_non_null(t[2].licence);
}

static void pinned_manifest_adds_up(void **state) {
    (void)state;
    const char *top = getenv("TANDEM_SOURCE_DIR");
    char path[512];
    manifest m;
    err e = ERR_INIT;
    buf text = BUF_INIT;
    snprintf(path, sizeof path, "%s/templates/manifests/0909-mia-2.9bpw.manifest",
        top != NULL ? top : ".");
    assert_int_equal(manifest_load(&m, path, &e), OK);
    assert_int_equal(m.n_files, 52);
    assert_true(manifest_bytes(&m) == 413759846711u);
    uint64_t weights = 0, engram = 0;
    for (size_t i = 0; i < m.n_files; i++) {
        if (m.files[i].role == MANIFEST_WEIGHTS) weights += m.files[i].size;
        if (m.files[i].role == MANIFEST_ENGRAM) engram += m.files[i].size;
    }
    assert_string_equal(manifest_licence_of(&m, "deepseek-ai/DeepSeek-V4.1-Flash"), "MIT");
    every_part_has_terms(&m);
    assert_true(weights == 210600939078u);
    assert_true(engram == 203080551181u);
    assert_int_equal(manifest_print(&m, &text, &e), OK);
    manifest again;
    assert_int_equal(manifest_parse(&again, buf_cstr(&text), text.len, &e), OK);
    assert_int_equal(again.n_files, m.n_files);
    assert_string_equal(again.files[50].digest, m.files[50].digest);
    manifest_release(&again);
    manifest_release(&m);
    buf_release(&text);
}

static void licences_are_kept(void **state) {
    (void)state;
    static const char file[] = "file p o/n " COMMIT " a.bin 5 sha256 " DIGEST " weights both 1\n";
    buf text = BUF_INIT, again = BUF_INIT;
    manifest m;
    err e = ERR_INIT;
    buf_printf(&text, "tandem-manifest 1\nlicence o/n MIT and more\n%send 1 5\n", file);
    assert_int_equal(manifest_parse(&m, buf_cstr(&text), text.len, &e), OK);
    assert_string_equal(manifest_licence_of(&m, "o/n"), "MIT and more");
    assert_null(manifest_licence_of(&m, "o/other"));
    assert_int_equal(manifest_print(&m, &again, &e), OK);
    assert_string_equal(buf_cstr(&text), buf_cstr(&again));
    assert_int_equal(manifest_add_licence(&m, "o/n", "MIT", &e), ERR_FORMAT);
    assert_int_equal(manifest_add_licence(&m, "o/x", "\033[2J", &e), ERR_FORMAT);
    assert_int_not_equal(manifest_add_licence(&m, "../x", "MIT", &e), OK);
    manifest_release(&m);
    buf_release(&text);
    buf_release(&again);
}

static void unsafe_names_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"../x", "/etc/passwd", "a/../b", "a//b", "-x", ".hidden",
        "a\\b", "a:b", "a/", "./a", "x.part", "x.ok", "x.ranges", "a\tb"};
    err e = ERR_INIT;
    assert_int_equal(parse_path("model-00001-of-00002.safetensors", &e), OK);
    assert_int_equal(parse_path("encoding/encoding.py", &e), OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (parse_path(bad[i], &e) == OK) fail_msg("%s was taken", bad[i]);
    }
}

static void broken_manifests_are_refused(void **state) {
    (void)state;
    err e = ERR_INIT;
    static const char good[] = "file p o/n " COMMIT " a 5 sha256 " DIGEST " weights both 1\n";
    static const char other[] = "file q o/n " COMMIT " b 5 sha256 " DIGEST " weights both 1\n";
    char two[1024];
    assert_int_equal(parse(good, 1, 5, &e), OK);
    assert_int_equal(parse(good, 2, 5, &e), ERR_FORMAT);
    assert_int_equal(parse(good, 1, 6, &e), ERR_FORMAT);
    snprintf(two, sizeof two, "%s%s", good, good);
    assert_int_equal(parse(two, 2, 10, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "twice"));
    snprintf(two, sizeof two, "%s%s", good, other);
    assert_int_equal(parse(two, 2, 10, &e), ERR_FORMAT);
    manifest m;
    assert_int_equal(manifest_parse(&m, "tandem-manifest 1\n", 18, &e), ERR_FORMAT);
    assert_int_equal(manifest_parse(&m, "", 0, &e), ERR_FORMAT);
}

static void ranges_of_a_file_over_50_gb(void **state) {
    (void)state;
    uint8_t id[RANGES_ID_BYTES] = {1};
    ranges r;
    err e = ERR_INIT;
    uint64_t size = 101537926640u, unit = (uint64_t)128 << 20, start = 0, end = 0;
    assert_int_equal(ranges_init(&r, size, unit, id, &e), OK);
    assert_int_equal(r.n_units, 757);
    uint64_t last = (uint64_t)756 * unit;
    assert_true(ranges_unit_bytes(&r, 756) == size - last);
    ranges_mark(&r, last, size);
    assert_true(ranges_missing(&r, 0, &start, &end));
    assert_true(start == 0 && end == last);
    /* A range across the borders of 2^32 and 2^36. */
    ranges_mark(&r, (uint64_t)32 * unit, (uint64_t)34 * unit);
    ranges_mark(&r, (uint64_t)511 * unit, (uint64_t)513 * unit + 5);
    assert_true(ranges_missing(&r, (uint64_t)32 * unit, &start, &end));
    assert_true(start == (uint64_t)34 * unit && end == (uint64_t)511 * unit);
    assert_true(ranges_missing(&r, (uint64_t)511 * unit, &start, &end));
    assert_true(start == (uint64_t)513 * unit + 5);
    ranges_mark(&r, 0, last);
    assert_true(ranges_prefix(&r) == (uint64_t)513 * unit + 5 || ranges_is_complete(&r));
    ranges_mark(&r, (uint64_t)513 * unit + 5, last);
    assert_true(ranges_is_complete(&r));
    assert_false(ranges_missing(&r, 0, &start, &end));
    ranges_release(&r);
}

static void journal_comes_back_and_damage_is_seen(void **state) {
    (void)state;
    uint8_t id[RANGES_ID_BYTES] = {7}, other[RANGES_ID_BYTES] = {8};
    ranges r, back;
    err e = ERR_INIT;
    buf text = BUF_INIT;
    rand_state rnd;
    rand_init(&rnd, 5, 1);
    assert_int_equal(ranges_init(&r, 100003, 1000, id, &e), OK);
    for (int i = 0; i < 60; i++) {
        uint64_t at = rand_below(&rnd, 101) * 1000u, n = rand_below(&rnd, 1001);
        ranges_mark(
            &r, at < r.size ? at : 0, at + n < r.size ? (at + n > at ? at + n : at) : r.size);
    }
    assert_int_equal(ranges_encode(&r, &text), OK);
    assert_int_equal(ranges_init(&back, 100003, 1000, id, &e), OK);
    assert_int_equal(ranges_decode(&back, text.data, text.len, &e), OK);
    assert_true(back.done_bytes == r.done_bytes);
    assert_memory_equal(back.done, r.done, r.n_units * sizeof *r.done);
    for (size_t i = 0; i < text.len; i++) {
        text.data[i] ^= 4;
        assert_int_not_equal(ranges_decode(&back, text.data, text.len, &e), OK);
        text.data[i] ^= 4;
    }
    for (size_t n = 0; n < text.len; n++)
        assert_int_not_equal(ranges_decode(&back, text.data, n, &e), OK);
    ranges foreign;
    assert_int_equal(ranges_init(&foreign, 100003, 1000, other, &e), OK);
    assert_int_equal(ranges_decode(&foreign, text.data, text.len, &e), ERR_MISMATCH);
    ranges_release(&foreign);
    ranges_release(&r);
    ranges_release(&back);
    buf_release(&text);
}

static void a_hole_is_never_marked(void **state) {
    (void)state;
    uint8_t id[RANGES_ID_BYTES] = {0};
    ranges r;
    err e = ERR_INIT;
    assert_int_equal(ranges_init(&r, 1000, 400, id, &e), OK);
    ranges_mark(&r, 100, 200);
    assert_true(r.done_bytes == 0);
    ranges_mark(&r, 300, 500); /* the second unit from its beginning */
    assert_true(r.done_bytes == 100);
    ranges_mark(&r, 0, 150);
    ranges_mark(&r, 100, 400);
    assert_true(ranges_prefix(&r) == 500);
    ranges_release(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pinned_manifest_adds_up),
        cmocka_unit_test(licences_are_kept),
        cmocka_unit_test(unsafe_names_are_refused),
        cmocka_unit_test(broken_manifests_are_refused),
        cmocka_unit_test(ranges_of_a_file_over_50_gb),
        cmocka_unit_test(journal_comes_back_and_damage_is_seen),
        cmocka_unit_test(a_hole_is_never_marked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
