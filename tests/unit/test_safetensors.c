/* Reader, sharded sets and writer of safetensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/weights/safetensors.h"

static char dir[64];

static int set_up(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/tandem-st.XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int tear_down(void **state) {
    (void)state;
    return dir_remove_all(dir, NULL);
}

static void in_dir(const char *name, char out[128]) {
    snprintf(out, 128, "%s/%s", dir, name);
}

static void write_text(const char *name, const char *text) {
    char path[128];
    in_dir(name, path);
    assert_int_equal(file_write_atomic(path, text, strlen(text), 0644, NULL), OK);
}

/* A file of one U8 tensor whose bytes are value. */
static void write_shard(const char *file, const char *tensor, uint64_t n, int value) {
    char path[128];
    err e = ERR_INIT;
    in_dir(file, path);
    st_writer *w = st_writer_new(path);
    assert_int_equal(st_writer_add(w, tensor, ST_U8, 1, &n, &e), 0);
    assert_int_equal(st_writer_begin(w, &e), OK);
    char *data = mem_alloc(n + 1);
    memset(data, value, n);
    assert_int_equal(st_writer_put(w, 0, 0, data, n, &e), OK);
    assert_int_equal(st_writer_finish(w, &e), OK);
    mem_free(data);
    st_writer_free(w);
}

static void test_round_trip(void **state) {
    static const st_mode modes[] = {ST_MAPPED, ST_DIRECT};
    uint64_t big_dims[2] = {1000, 1112};
    uint64_t odd_dims[3] = {1, 3, 5};
    size_t big_bytes = 4 * 1000 * 1112;
    unsigned char *big = mem_alloc(big_bytes);
    unsigned char *back = mem_alloc(big_bytes);
    char path[128];
    err e = ERR_INIT;
    (void)state;
    for (size_t i = 0; i < big_bytes; i++) {
        big[i] = (unsigned char)(i * 7 + i / 256);
    }
    in_dir("model.safetensors", path);
    st_writer *w = st_writer_new(path);
    st_writer_metadata(w, "who \"am\" I\n", "value");
    assert_int_equal(st_writer_add(w, "odd", ST_U8, 3, odd_dims, &e), 0);
    assert_int_equal(st_writer_add(w, "scalar", ST_I32, 0, NULL, &e), 1);
    assert_int_equal(st_writer_add(w, "big.weight", ST_F32, 2, big_dims, &e), 2);
    uint64_t none[2] = {0, 7};
    assert_int_equal(st_writer_add(w, "empty", ST_BF16, 2, none, &e), 3);
    assert_int_equal(st_writer_begin(w, &e), OK);
    assert_int_equal(st_writer_put(w, 1, 0, "abcd", 4, &e), OK);
    assert_int_equal(st_writer_put(w, 2, 1000, big + 1000, big_bytes - 1000, &e), OK);
    assert_int_equal(st_writer_put(w, 2, 0, big, 1000, &e), OK);
    assert_int_equal(st_writer_put(w, 2, big_bytes - 1, big, 2, &e), ERR_ARG);
    assert_int_equal(st_writer_finish(w, &e), ERR_INTERNAL);
    assert_non_null(strstr(e.msg, "odd"));
    assert_false(file_exists(path));
    assert_int_equal(st_writer_put(w, 0, 0, "0123456789abcde", 15, &e), OK);
    assert_int_equal(st_writer_finish(w, &e), OK);
    st_writer_free(w);
    for (size_t i = 0; i < 2; i++) {
        st_set *s;
        assert_int_equal(st_open(path, modes[i], &s, &e), OK);
        assert_int_equal(st_count(s), 4);
        assert_string_equal(st_metadata(s, 0, "who \"am\" I\n"), "value");
        assert_null(st_metadata(s, 0, "other"));
        assert_null(st_find(s, "nothing"));
        const st_tensor *t = st_find(s, "big.weight");
        assert_non_null(t);
        assert_true(st_has_shape(t, 2, big_dims));
        assert_int_equal(t->offset % 64, 0);
        assert_int_equal(st_elements(t), 1000 * 1112);
        assert_int_equal(st_read(s, t, 0, back, big_bytes, &e), OK);
        assert_memory_equal(back, big, big_bytes);
        assert_int_equal(st_read(s, t, 12345, back, 54321, &e), OK);
        assert_memory_equal(back, big + 12345, 54321);
        assert_int_equal(st_read(s, t, big_bytes, back, 1, &e), ERR_ARG);
        assert_true((t->data != NULL) == (modes[i] == ST_MAPPED));
        t = st_find(s, "scalar");
        assert_int_equal(t->n_dims, 0);
        assert_int_equal(st_read(s, t, 0, back, 4, &e), OK);
        assert_memory_equal(back, "abcd", 4);
        assert_int_equal(st_find(s, "empty")->bytes, 0);
        st_close(s);
    }
    mem_free(big);
    mem_free(back);
    unlink(path);
}

static void test_writer_refuses(void **state) {
    uint64_t huge[2] = {1ull << 40, 1ull << 40};
    uint64_t one = 1;
    char path[128];
    err e = ERR_INIT;
    (void)state;
    in_dir("refused.safetensors", path);
    st_writer *w = st_writer_new(path);
    assert_int_equal(st_writer_add(w, "t", ST_U8, 2, huge, &e), ERR_LIMIT);
    assert_int_equal(st_writer_add(w, "__metadata__", ST_U8, 1, &one, &e), ERR_ARG);
    assert_int_equal(st_writer_add(w, "\xff", ST_U8, 1, &one, &e), ERR_ARG);
    assert_int_equal(st_writer_add(w, "t", ST_U8, 1, &one, &e), 0);
    assert_int_equal(st_writer_add(w, "t", ST_U8, 1, &one, &e), 1);
    assert_int_equal(st_writer_begin(w, &e), ERR_EXISTS);
    st_writer_free(w);
    w = st_writer_new("/nonexistent-folder/x.safetensors");
    assert_int_equal(st_writer_add(w, "t", ST_U8, 1, &one, &e), 0);
    assert_int_equal(st_writer_begin(w, &e), ERR_NOT_FOUND);
    st_writer_free(w);
}

static void test_given_up_writer_leaves_nothing(void **state) {
    uint64_t one = 1;
    char path[128];
    st_set *s;
    err e = ERR_INIT;
    (void)state;
    in_dir("sub", path);
    assert_int_equal(dir_make_all(path, 0755, &e), OK);
    in_dir("sub/a.safetensors", path);
    st_writer *w = st_writer_new(path);
    assert_int_equal(st_writer_add(w, "t", ST_U8, 1, &one, &e), 0);
    assert_int_equal(st_writer_begin(w, &e), OK);
    st_writer_free(w);
    in_dir("sub", path);
    assert_int_equal(st_open(path, ST_MAPPED, &s, &e), ERR_NOT_FOUND);
    assert_null(s);
    assert_int_equal(rmdir(path), 0);
}

static void test_shards_with_index(void **state) {
    st_set *s;
    err e = ERR_INIT;
    (void)state;
    write_shard("model-00001-of-00002.safetensors", "a", 10, 1);
    write_shard("model-00002-of-00002.safetensors", "b", 20, 2);
    write_text("model.safetensors.index.json",
        "{\"metadata\":{\"total_size\":30,\"x\":[1,{}]},\"weight_map\":{"
        "\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\"}}");
    assert_int_equal(st_open(dir, ST_MAPPED, &s, &e), OK);
    assert_int_equal(st_count(s), 2);
    assert_int_equal(st_n_files(s), 2);
    assert_string_equal(st_warnings(s), "");
    assert_int_equal(*(const unsigned char *)st_find(s, "b")->data, 2);
    assert_non_null(strstr(st_path(s, st_find(s, "b")->i_file), "00002-of"));
    st_close(s);
    write_text("model.safetensors.index.json",
        "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
        "\"c\":\"model-00002-of-00002.safetensors\"}}");
    assert_int_equal(st_open(dir, ST_MAPPED, &s, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "tensor c"));
    assert_non_null(strstr(e.msg, "model-00002-of-00002"));
}

static void test_bad_indexes(void **state) {
    static const char *const bad[] = {"", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{}}",
        "{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "{\"weight_map\":{\"a\":\"/etc/passwd\"}}",
        "{\"weight_map\":{\"a\":1}}", "{\"weight_map\":{\"a\":\"gone.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}} x",
        "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"},\"weight_map\":{}}"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        st_set *s;
        err e = ERR_INIT;
        write_text("model.safetensors.index.json", bad[i]);
        if (st_open(dir, ST_MAPPED, &s, &e) == OK) fail_msg("index taken: %s", bad[i]);
        assert_null(s);
        assert_true(e.msg[0] != '\0');
    }
}

static void test_folder_without_index(void **state) {
    char path[128];
    st_set *s;
    err e = ERR_INIT;
    (void)state;
    in_dir("model.safetensors.index.json", path);
    unlink(path);
    assert_int_equal(st_open(dir, ST_MAPPED, &s, &e), OK);
    assert_non_null(strstr(st_warnings(s), "no model.safetensors.index.json"));
    st_close(s);
    in_dir("model-00002-of-00002.safetensors", path);
    unlink(path);
    assert_int_equal(st_open(dir, ST_MAPPED, &s, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "1 of 2"));
    assert_non_null(strstr(e.msg, "missing: model-00002-of-00002.safetensors;"));
    write_shard("model-00002-of-00002.safetensors", "a", 20, 2);
    assert_int_equal(st_open(dir, ST_MAPPED, &s, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "also stands in"));
    write_text("model.safetensors.index.json",
        "{\"weight_map\":{\"a\":\"model-00002-of-00002.safetensors\"}}");
    assert_int_equal(st_open(dir, ST_MAPPED, &s, &e), OK);
    assert_int_equal(st_find(s, "a")->bytes, 20);
    assert_non_null(strstr(st_warnings(s), "model-00001-of-00002.safetensors: the index does not"));
    st_close(s);
    in_dir("none", path);
    assert_int_equal(st_open(path, ST_MAPPED, &s, &e), ERR_NOT_FOUND);
}

static int check(const char *header, uint64_t data_bytes) {
    return st_check_header(header, strlen(header), data_bytes, "x", NULL);
}

static void test_headers(void **state) {
    static const char *const good[] = {"{}", "{\"__metadata__\":{}}",
        "{\"t\":{\"shape\":[],\"dtype\":\"F32\",\"data_offsets\":[0,4]}}",
        "{\"t\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}} \n"};
    static const char *const bad[] = {" {}", "{", "{}{}", "{\"t\":{}}", "{\"t\":1}",
        "{\"t\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}",
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}",
        "{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},}",
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}",
        "{\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
        ("{\"__metadata__\":{},\"__metadata__\":{},\"t\":{\"dtype\":\"U8\",\"shape\":[4],"
         "\"data_offsets\":[0,4]}}")};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (check(good[i], i < 2 ? 0 : 4) != OK) fail_msg("refused: %s", good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (check(bad[i], 4) != ERR_FORMAT) fail_msg("taken: %s", bad[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_writer_refuses),
        cmocka_unit_test(test_given_up_writer_leaves_nothing),
        cmocka_unit_test(test_shards_with_index),
        cmocka_unit_test(test_bad_indexes),
        cmocka_unit_test(test_folder_without_index),
        cmocka_unit_test(test_headers),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
