/* Runs the json cases of CASES_DIR: texts that the strict reader must take or refuse, decoded bytes
 * and digits that must survive. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

typedef struct counts {
    int passed;
    int failed;
    const char *dir;
} counts;

static int repeat(buf *out, const char *text, int64_t times) {
    int rc = OK;
    for (int64_t i = 0; rc == OK && i < times; i++)
        rc = buf_puts(out, text);
    return rc;
}

static int from_hex(buf *out, const char *hex) {
    int rc = OK;
    for (size_t i = 0; rc == OK && hex[i] != '\0' && hex[i + 1] != '\0'; i += 2) {
        char pair[3] = {hex[i], hex[i + 1], '\0'};
        rc = buf_putc(out, (char)strtol(pair, NULL, 16));
    }
    return rc;
}

/* The bytes that an item describes. */
static int item_text(const json *item, buf *out) {
    const json *text = json_get(item, "text");
    if (text != NULL) return json_str_bytes(text, out);
    const char *hex = json_str(json_get(item, "hex"));
    if (hex != NULL) return from_hex(out, hex);
    int64_t times = 0;
    const json *form = json_get(item, "repeat");
    if (form != NULL) {
        int rc = json_i64(json_at(form, 1), &times);
        return rc == OK ? repeat(out, json_str(json_at(form, 0)), times) : rc;
    }
    form = json_get(item, "nest");
    int rc = json_i64(json_at(form, 2), &times);
    if (rc == OK) rc = repeat(out, json_str(json_at(form, 0)), times);
    if (rc == OK) rc = buf_puts(out, "1");
    return rc == OK ? repeat(out, json_str(json_at(form, 1)), times) : rc;
}

static bool has_bytes(const json *v, const char *hex) {
    buf got = BUF_INIT;
    buf expected = BUF_INIT;
    bool is_same = json_str_bytes(v, &got) == OK && from_hex(&expected, hex) == OK &&
                   got.len == expected.len && memcmp(got.data, expected.data, got.len) == 0;
    buf_release(&got);
    buf_release(&expected);
    return is_same;
}

/* NULL when the item is as expected, else what is wrong. */
static const char *judge(const json *item, const buf *text, err *e) {
    json *v = NULL;
    int rc = json_parse(buf_cstr(text), text->len, NULL, &v, e);
    const json *accept = json_get(item, "accept");
    const char *wrong = NULL;
    if (json_is_bool(accept) && json_is_true(accept) != (rc == OK)) {
        wrong = rc == OK ? "expected refused, got accepted" : "expected accepted, got refused";
    }
    const char *hex = json_str(json_get(item, "utf8_hex"));
    if (wrong == NULL && hex != NULL && !has_bytes(v, hex)) wrong = "the decoded bytes differ";
    const char *kept = json_str(json_get(item, "keeps_text"));
    if (wrong == NULL && kept != NULL) {
        buf printed = BUF_INIT;
        if (json_print(v, &printed) != OK || strstr(buf_cstr(&printed), kept) == NULL) {
            wrong = "the digits were not kept";
        }
        buf_release(&printed);
    }
    json_free(v);
    return wrong;
}

static void run_case(counts *c, const char *name, const json *doc) {
    size_t i = 0;
    JSON_EACH(item, json_get(doc, "items")) {
        err e = ERR_INIT;
        buf text = BUF_INIT;
        const char *wrong = item_text(item, &text) == OK ? judge(item, &text, &e) : "unknown form";
        if (wrong == NULL) {
            c->passed++;
        } else {
            c->failed++;
            printf("FAIL %s item %zu: %s (%s)\n", name, i, wrong, e.msg);
        }
        buf_release(&text);
        i++;
    }
}

static int run_file(void *ctx, const char *name, err *e) {
    counts *c = ctx;
    if (!str_ends(name, ".json")) return OK;
    buf path = BUF_INIT;
    json *doc = NULL;
    int rc = path_join(&path, c->dir, name);
    if (rc == OK) rc = json_parse_file(path.data, NULL, &doc, e);
    if (rc == OK) run_case(c, name, doc);
    json_free(doc);
    buf_release(&path);
    return rc;
}

int main(void) {
    const char *cases = getenv("CASES_DIR");
    buf dir = BUF_INIT;
    err e = ERR_INIT;
    counts c = {0};
    int rc =
        path_join(&dir, cases == NULL || cases[0] == '\0' ? "tests/data/cases" : cases, "json");
    c.dir = buf_cstr(&dir);
    if (rc == OK && !dir_exists(c.dir)) {
        printf("skip: there is no folder %s\n0 passed, 0 failed, 1 skipped\n", c.dir);
        buf_release(&dir);
        return 77;
    }
    if (rc == OK) rc = dir_each(c.dir, run_file, &c, &e);
    if (rc != OK) {
        c.failed++;
        printf("FAIL %s\n", e.msg);
    }
    printf("%d passed, %d failed, 0 skipped\n", c.passed, c.failed);
    buf_release(&dir);
    return c.failed == 0 && c.passed > 0 ? 0 : 1;
}
