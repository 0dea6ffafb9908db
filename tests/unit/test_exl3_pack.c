/* EXL3 modules in a set: what is taken, what is refused with which words, legacy sign fields. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/weights/exl3_pack.h"

enum { MAX_PARTS = 8 };

/* A tensor of a small file; its bytes are all `fill`. */
typedef struct part {
    const char *name;
    st_dtype dtype;
    int n_dims;
    uint64_t dims[3];
    int fill;
} part;

static char dir[64];

static int set_up(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/tandem-pack.XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int tear_down(void **state) {
    (void)state;
    return dir_remove_all(dir, NULL);
}

static st_set *make_set(const part *parts) {
    char path[128];
    err e = ERR_INIT;
    st_set *s;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    st_writer *w = st_writer_new(path);
    for (int i = 0; i < MAX_PARTS && parts[i].name != NULL; i++) {
        const part *p = &parts[i];
        assert_int_equal(st_writer_add(w, p->name, p->dtype, p->n_dims, p->dims, &e), i);
    }
    assert_int_equal(st_writer_begin(w, &e), OK);
    for (int i = 0; i < MAX_PARTS && parts[i].name != NULL; i++) {
        uint64_t n = st_dtype_bytes(parts[i].dtype);
        for (int d = 0; d < parts[i].n_dims; d++) {
            n *= parts[i].dims[d];
        }
        unsigned char *data = mem_alloc(n + 1);
        uint32_t marker =
            strstr(parts[i].name, "mul1") != NULL ? EXL3_MUL1_MULTIPLIER : EXL3_MCG_MULTIPLIER;
        memset(data, parts[i].fill, n);
        if (parts[i].n_dims == 0 && parts[i].fill == 0) {
            memcpy(data, &marker, 4);
        }
        assert_int_equal(st_writer_put(w, i, 0, data, n, &e), OK);
        mem_free(data);
    }
    assert_int_equal(st_writer_finish(w, &e), OK);
    st_writer_free(w);
    assert_int_equal(st_open(path, ST_MAPPED, &s, &e), OK);
    return s;
}

#define TRELLIS(k2)                                                                                \
    { "m.trellis", ST_I16, 3, {8, 16, 8 * (k2)}, 0x5a }
#define SUH                                                                                        \
    { "m.suh", ST_F16, 1, {128, 0, 0}, 0x3c }
#define SVH                                                                                        \
    { "m.svh", ST_F16, 1, {256, 0, 0}, 0x3c }
#define MUL1                                                                                       \
    { "m.mul1", ST_I32, 0, {0, 0, 0}, 0 }
#define MCG                                                                                        \
    { "m.mcg", ST_I32, 0, {0, 0, 0}, 0 }

static void test_good_modules(void **state) {
    static const struct {
        part parts[MAX_PARTS];
        int k2;
        exl3_codebook codebook;
    } good[] = {{{TRELLIS(6), SUH, SVH, MUL1}, 6, EXL3_MUL1},
        {{TRELLIS(5), SUH, SVH, MUL1}, 5, EXL3_MUL1}, {{TRELLIS(16), SUH, SVH, MCG}, 16, EXL3_MCG},
        {{TRELLIS(2), SUH, SVH}, 2, EXL3_3INST}};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        exl3_module m;
        err e = ERR_INIT;
        st_set *s = make_set(good[i].parts);
        assert_int_equal(exl3_pack_check(s, &e), OK);
        assert_int_equal(exl3_module_find(s, "m", &m, &e), OK);
        assert_int_equal(m.matrix.k2, good[i].k2);
        assert_int_equal(m.matrix.codebook, good[i].codebook);
        assert_int_equal(m.matrix.in, 128);
        assert_int_equal(m.matrix.out, 256);
        assert_ptr_equal(m.matrix.suh, st_find(s, "m.suh")->data);
        assert_null(m.matrix.bias);
        assert_int_equal(exl3_matrix_check(&m.matrix, &e), OK);
        exl3_module_release(&m);
        assert_int_equal(exl3_module_find(s, "n", &m, &e), ERR_NOT_FOUND);
        st_close(s);
    }
}

static void test_bad_modules(void **state) {
    static const struct {
        part parts[MAX_PARTS];
        const char *words;
        int rc;
    } bad[] = {
        {{TRELLIS(5), SUH, SVH, MCG}, "m.trellis", ERR_FORMAT},
        {{TRELLIS(18), SUH, SVH, MUL1}, "m.trellis", ERR_FORMAT},
        {{TRELLIS(6), SUH, SVH, MUL1, MCG}, "one codebook", ERR_FORMAT},
        {{TRELLIS(6), SVH, MUL1}, "m.suh is missing", ERR_NOT_FOUND},
        {{TRELLIS(6), MUL1}, "m.suh and m.svh are missing", ERR_NOT_FOUND},
        {{TRELLIS(6), SUH, MUL1}, "m.svh is missing", ERR_NOT_FOUND},
        {{SUH, SVH, MUL1}, "m.trellis is missing", ERR_NOT_FOUND},
        {{TRELLIS(6), SUH, {"m.svh", ST_F16, 1, {255, 0, 0}, 1}, MUL1}, "m.svh", ERR_FORMAT},
        {{TRELLIS(6), {"m.suh", ST_BF16, 1, {128, 0, 0}, 1}, SVH, MUL1}, "m.suh", ERR_FORMAT},
        {{{"m.trellis", ST_I16, 3, {8, 12, 48}, 1}, SUH, SVH, MUL1}, "128", ERR_FORMAT},
        {{{"m.trellis", ST_I16, 2, {8, 16, 0}, 1}, SUH, SVH, MUL1}, "three dimensions", ERR_FORMAT},
        {{TRELLIS(6), SUH, SVH, {"m.mul1", ST_I32, 0, {0, 0, 0}, 7}}, "0x83dcd12d", ERR_FORMAT},
        {{TRELLIS(6), SUH, SVH, {"m.mul1", ST_F32, 0, {0, 0, 0}, 7}}, "m.mul1", ERR_FORMAT},
        {{TRELLIS(6), SUH, SVH, MUL1, {"m.bias", ST_F16, 1, {128, 0, 0}, 7}}, "m.bias", ERR_FORMAT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = ERR_INIT;
        st_set *s = make_set(bad[i].parts);
        int rc = exl3_pack_check(s, &e);
        if (rc != bad[i].rc || strstr(e.msg, bad[i].words) == NULL || strstr(e.msg, dir) == NULL) {
            fail_msg("case %zu: %d, %s", i, rc, e.msg);
        }
        st_close(s);
    }
}

static void test_legacy_signs_and_float_bias(void **state) {
    static const part parts[MAX_PARTS] = {TRELLIS(6), {"m.su", ST_I16, 1, {8, 0, 0}, 0x81},
        {"m.sv", ST_I16, 1, {16, 0, 0}, 0x00}, {"m.bias", ST_F32, 1, {256, 0, 0}, 0x00}, MUL1};
    exl3_module m;
    err e = ERR_INIT;
    st_set *s = make_set(parts);
    const uint16_t *suh;
    (void)state;
    assert_int_equal(exl3_module_find(s, "m", &m, &e), OK);
    suh = m.matrix.suh;
    /* 0x8181: bits 0, 7, 8 and 15 are set, each is -1. */
    for (int i = 0; i < 128; i++) {
        bool is_negative = i % 16 == 0 || i % 16 == 7 || i % 16 == 8 || i % 16 == 15;
        assert_int_equal(suh[i], is_negative ? 0xBC00 : 0x3C00);
    }
    assert_int_equal(((const uint16_t *)m.matrix.svh)[255], 0x3C00);
    assert_non_null(m.matrix.bias);
    assert_int_equal(((const uint16_t *)m.matrix.bias)[3], 0);
    exl3_module_release(&m);
    st_close(s);
}

static void test_splits(void **state) {
    err e = ERR_INIT;
    (void)state;
    assert_int_equal(exl3_split_check("x", 2304, 2, &e), OK);
    assert_int_equal(exl3_split_check("x", 2304, 3, &e), OK);
    assert_int_equal(exl3_split_check("x", 2304, 4, &e), ERR_UNSUPPORTED);
    assert_int_equal(exl3_split_check("x", 1152, 2, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "128"));
    assert_int_equal(exl3_split_check("x", 256, 0, &e), ERR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_modules),
        cmocka_unit_test(test_bad_modules),
        cmocka_unit_test(test_legacy_signs_and_float_bias),
        cmocka_unit_test(test_splits),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
