/* Opening a model: what is refused and with which words, the memory plan, and that a step allocates nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/model.h"
#include "tests/harness/model_probe.h"
#include "tests/harness/vectors.h"

static char golden[1024];

static model_options small_options(const char *dir) {
    return (model_options){.dir = dir,
        .n_threads = 2,
        .n_slots = 2,
        .max_rows = 64,
        .max_logit_rows = 64,
        .page_tokens = 32,
        .n_pages = 16,
        .max_context = 256};
}

/* Opening fails with this code and a sentence that holds the word. */
static void refuse(const model_options *o, int rc, const char *word) {
    model *m = NULL;
    err e = ERR_INIT;
    int got = model_open(o, &m, &e);
    if (got != rc || m != NULL || strstr(e.msg, word) == NULL) {
        fail_msg("%s (%d), \"%s\"; expected %s with \"%s\"", err_name(got), got, e.msg,
            err_name(rc), word);
    }
}

static void test_options(void **state) {
    (void)state;
    char dir[256];
    probe_folder(golden, "config.json", dir);
    model_options o = small_options("/nonexistent/model");
    refuse(&o, ERR_NOT_FOUND, "config.json");
    o = small_options(NULL);
    refuse(&o, ERR_ARG, "folder");
    o = small_options(dir);
    o.page_tokens = 33;
    refuse(&o, ERR_ARG, "page_tokens");
    o = small_options(dir);
    o.backend = "abacus";
    refuse(&o, ERR_UNSUPPORTED, "abacus");
    o = small_options(dir);
    o.world = 2;
    refuse(&o, ERR_ARG, "exchange");
    probe_folder_remove(dir);
}

static void replace(const char *dir, const char *name, const char *data, size_t len) {
    char path[512];
    err e = ERR_INIT;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void)unlink(path);
    assert_int_equal(file_write_atomic(path, data, len, 0600, &e), OK);
}

static void test_files(void **state) {
    (void)state;
    char dir[256], path[2048];
    buf data = BUF_MAX((size_t)64 << 20);
    err e = ERR_INIT;
    probe_folder(golden, "config.json", dir);
    model_options o = small_options(dir);
    snprintf(path, sizeof(path), "%s/token_map.json", dir);
    assert_int_equal(unlink(path), 0);
    refuse(&o, ERR_NOT_FOUND, "tokenizer.json");
    buf map = BUF_INIT;
    buf_puts(&map, "{\"token_map\": [0");
    for (int i = 1; i < 400; i++) {
        buf_printf(&map, ", %d", i);
    }
    buf_puts(&map, "]}");
    replace(dir, "token_map.json", map.data, map.len);
    refuse(&o, ERR_MISMATCH, "classes");
    buf_release(&map);
    snprintf(path, sizeof(path), "%s/model.safetensors", golden);
    assert_int_equal(file_read(path, &data, (size_t)64 << 20, &e), OK);
    replace(dir, "model.safetensors", data.data, data.len / 2);
    refuse(&o, ERR_FORMAT, "model.safetensors");
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_int_equal(unlink(path), 0);
    refuse(&o, ERR_NOT_FOUND, "safetensors");
    buf_release(&data);
    probe_folder_remove(dir);
}

/* The weights of one size with the configuration of another. */
static void test_wrong_shapes(void **state) {
    (void)state;
    char dir[256], path[2048];
    buf text = BUF_INIT, other = BUF_INIT;
    err e = ERR_INIT;
    probe_folder(golden, "config.json", dir);
    snprintf(path, sizeof(path), "%s/config.json", golden);
    assert_int_equal(file_read(path, &text, 1 << 20, &e), OK);
    static const char from[] = "\"q_lora_rank\": 64", to[] = "\"q_lora_rank\": 96";
    const char *at = strstr(buf_cstr(&text), from);
    assert_non_null(at);
    buf_append(&other, text.data, (size_t)(at - text.data));
    buf_puts(&other, to);
    buf_puts(&other, at + strlen(from));
    replace(dir, "config.json", other.data, other.len);
    model_options o = small_options(dir);
    refuse(&o, ERR_FORMAT, "wq_a");
    buf_release(&text);
    buf_release(&other);
    probe_folder_remove(dir);
}

static void test_memory_plan(void **state) {
    (void)state;
    char dir[256];
    err e = ERR_INIT;
    model_memory_plan before;
    model_info info;
    probe_folder(golden, "config.json", dir);
    model_options o = small_options(dir);
    assert_int_equal(model_memory(&o, &before, &e), OK);
    model *m = probe_open(&o);
    model_get_info(m, &info);
    assert_memory_equal(&before, &info.memory, sizeof(before));
    assert_int_equal(before.pages_bytes, 16 * before.page_bytes);
    assert_true(before.total_bytes > before.weight_bytes + before.pages_bytes);
    o.n_pages = 32;
    model_memory_plan more;
    assert_int_equal(model_memory(&o, &more, &e), OK);
    assert_int_equal(more.total_bytes - before.total_bytes, 16 * before.page_bytes);
    model_close(m);
    probe_folder_remove(dir);
}

/* Every allocation would end the process here. */
static void test_steps_allocate_nothing(void **state) {
    (void)state;
    char dir[256];
    err e = ERR_INIT;
    int32_t tokens[40];
    for (int i = 0; i < 40; i++) {
        tokens[i] = (i * 37) % 500;
    }
    probe_folder(golden, "config.json", dir);
    model_options o = small_options(dir);
    model *m = probe_open(&o);
    probe_slot(m, 0, 0, 200);
    mem_fail_after(0);
    (void)probe_step(m, 0, tokens, 40, PLAN_PROMPT);
    (void)probe_step(m, 0, tokens, 1, PLAN_DECODE);
    draft_request request = {.slot = 0, .token = 5};
    draft_result out;
    int rc = model_draft(m, &request, 1, NULL, NULL, &out, &e);
    (void)probe_step(m, 0, tokens, 4, PLAN_VERIFY);
    int rc_commit = model_commit(m, 0, 43, &e);
    (void)probe_step(m, 0, tokens, 1, PLAN_DECODE);
    mem_fail_after(-1);
    assert_int_equal(rc, OK);
    assert_int_equal(rc_commit, OK);
    model_close(m);
    probe_folder_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_options), cmocka_unit_test(test_files),
        cmocka_unit_test(test_wrong_shapes), cmocka_unit_test(test_memory_plan),
        cmocka_unit_test(test_steps_allocate_nothing)};
    snprintf(golden, sizeof(golden), "%s/model/tiny-a", vectors_golden_dir());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
