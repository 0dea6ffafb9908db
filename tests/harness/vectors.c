#include "tests/harness/vectors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/file.h"

static const char *folder(const char *name, const char *fallback) {
    const char *dir = getenv(name);
    return dir != NULL && dir[0] != 0 ? dir : fallback;
}

const char *vectors_golden_dir(void) {
    return folder("GOLDEN_DIR", "tests/data/golden");
}

const char *vectors_cases_dir(void) {
    return folder("CASES_DIR", "tests/data/cases");
}

json *vectors_load(const char *dir, const char *name) {
    buf path = BUF_INIT;
    json *root = NULL;
    err e = ERR_INIT;
    if (path_join(&path, dir, name) != OK ||
        json_parse_file(buf_cstr(&path), NULL, &root, &e) != OK) {
        fprintf(stderr, "cannot read vectors %s/%s: %s\n", dir, name, e.msg);
        exit(1);
    }
    buf_release(&path);
    return root;
}

void vectors_pass(vectors *v) {
    v->passed++;
}

void vectors_fail(vectors *v, const char *id, const char *want, const char *got) {
    v->failed++;
    printf("FAIL %s\n  expected: %s\n  got:      %s\n", id, want, got);
}

void vectors_skip(vectors *v, const char *id, const char *why) {
    v->skipped++;
    printf("SKIP %s: %s\n", id, why);
}

static void show(const char *label, const buf *b, size_t from) {
    size_t n = b->len - from < 600 ? b->len - from : 600;
    printf("  %s %.*s%s\n", label, (int)n, buf_cstr(b) + from, b->len - from > n ? "..." : "");
}

bool vectors_text(vectors *v, const char *id, const char *what, const buf *want, const buf *got) {
    size_t same = 0;
    while (same < want->len && same < got->len && want->data[same] == got->data[same])
        same++;
    if (same == want->len && same == got->len) {
        v->passed++;
        return true;
    }
    v->failed++;
    size_t from = same > 60 ? same - 60 : 0;
    /* Not from the middle of a character. */
    while (from > 0 && ((unsigned char)want->data[from] & 0xc0) == 0x80)
        from--;
    printf("FAIL %s: %s differs at byte %zu\n", id, what, same);
    show("expected:", want, from);
    show("got:     ", got, from);
    return false;
}

int64_t vectors_cpu_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int vectors_end(const vectors *v) {
    printf("%d passed, %d failed, %d skipped\n", v->passed, v->failed, v->skipped);
    return v->failed > 0 ? 1 : 0;
}
