#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <unistd.h>

#include "engine/base/crc32c.h"
#include "engine/base/err.h"
#include "engine/base/file.h"
#include "engine/base/rand.h"
#include "engine/base/sha256.h"

static void sha256_known_answers(void **state) {
    (void)state;
    uint8_t d[SHA256_BYTES];
    uint8_t back[SHA256_BYTES];
    char hex[SHA256_HEX];
    sha256_of("abc", 3, d);
    sha256_hex(d, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(sha256_parse(hex, back), OK);
    assert_true(sha256_equal(d, back));
    sha256 *s = sha256_new();
    for (int round = 0; round < 2; round++) {
        sha256_update(s, "a", 1);
        sha256_update(s, "", 0);
        sha256_update(s, "bc", 2);
        sha256_finish(s, back);
        assert_true(sha256_equal(d, back));
    }
    sha256_free(s);
    sha256_of("", 0, d);
    sha256_hex(d, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_false(sha256_equal(d, back));
    /* RFC 4231, case 2 */
    sha256_hmac("Jefe", 4, "what do ya want for nothing?", 28, d);
    sha256_hex(d, hex);
    assert_string_equal(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    assert_int_equal(sha256_parse("abc", d), ERR_FORMAT);
    hex[5] = 'g';
    assert_int_equal(sha256_parse(hex, d), ERR_FORMAT);
}

static void sha256_of_files(void **state) {
    (void)state;
    uint8_t d[SHA256_BYTES];
    uint8_t expected[SHA256_BYTES];
    char path[] = "/tmp/tandem-sha.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    char data[300000 / 100];
    memset(data, 'k', sizeof data);
    sha256 *s = sha256_new();
    for (int i = 0; i < 100; i++) {
        assert_int_equal(fd_write_full(fd, data, sizeof data, NULL), OK);
        sha256_update(s, data, sizeof data);
    }
    sha256_finish(s, expected);
    sha256_free(s);
    (void)close(fd);
    assert_int_equal(sha256_file(path, d, NULL), OK);
    (void)unlink(path);
    assert_true(sha256_equal(d, expected));
    assert_int_equal(sha256_file(path, d, NULL), ERR_NOT_FOUND);
}

static void crc32c_known_answers(void **state) {
    (void)state;
    assert_int_equal(crc32c(0, "123456789", 9), 0xE3069283u);
    /* RFC 3720 B.4 */
    unsigned char bytes[32] = {0};
    assert_int_equal(crc32c(0, bytes, 32), 0x8A9136AAu);
    memset(bytes, 0xFF, 32);
    assert_int_equal(crc32c(0, bytes, 32), 0x62A8AB43u);
    for (unsigned char i = 0; i < 32; i++)
        bytes[i] = i;
    assert_int_equal(crc32c(0, bytes, 32), 0x46DD794Eu);
}

static void crc32c_forms_agree(void **state) {
    (void)state;
    unsigned char bytes[400];
    rand_state r;
    rand_init(&r, 3, 0);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)rand_u32(&r);
    for (size_t n = 0; n < 300; n++) {
        for (size_t at = 0; at < 9; at++) {
            uint32_t whole = crc32c_table(0, bytes + at, n);
            assert_int_equal(crc32c(0, bytes + at, n), whole);
            size_t half = n / 3;
            uint32_t first = crc32c(0, bytes + at, half);
            assert_int_equal(crc32c(first, bytes + at + half, n - half), whole);
        }
    }
}

static void sequences_repeat_and_differ(void **state) {
    (void)state;
    rand_state a;
    rand_state b;
    rand_state c;
    rand_init(&a, 42, 0);
    rand_init(&b, 42, 0);
    rand_init(&c, 42, 1);
    int n_same = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t v = rand_u64(&a);
        assert_true(v == rand_u64(&b));
        n_same += v == rand_u64(&c);
    }
    assert_int_equal(n_same, 0);
    double sum = 0;
    double squares = 0;
    for (int i = 0; i < 20000; i++) {
        double v = rand_normal(&a);
        sum += v;
        squares += v * v;
        double u = rand_uniform(&a);
        assert_true(u >= 0 && u < 1);
        assert_true(rand_below(&a, 3) < 3);
    }
    assert_true(fabs(sum / 20000) < 0.05 && fabs(squares / 20000 - 1) < 0.05);
}

/* Small changes of any part of the key must change about half of the bits. */
static void keyed_noise_mixes(void **state) {
    (void)state;
    long n_bits[3] = {0};
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t h = rand_keyed(i % 7, i, i * 3);
        n_bits[0] += __builtin_popcountll(h ^ rand_keyed(i % 7 + 1, i, i * 3));
        n_bits[1] += __builtin_popcountll(h ^ rand_keyed(i % 7, i + 1, i * 3));
        n_bits[2] += __builtin_popcountll(h ^ rand_keyed(i % 7, i, i * 3 + 1));
    }
    for (int k = 0; k < 3; k++) {
        double mean = (double)n_bits[k] / 3000;
        if (mean < 31.5 || mean > 32.5) fail_msg("part %d changes %.2f of 64 bits", k, mean);
    }
}

static void keyed_noise_is_uniform(void **state) {
    (void)state;
    int cells[64] = {0};
    double sum = 0;
    for (uint64_t pos = 0; pos < 64; pos++) {
        for (uint64_t token = 0; token < 1000; token++) {
            double u = rand_keyed_uniform(1, pos, token);
            assert_true(u > 0 && u < 1);
            cells[(int)(u * 64)]++;
            sum += -log(u);
        }
    }
    double chi = 0;
    for (int i = 0; i < 64; i++)
        chi += (cells[i] - 1000.0) * (cells[i] - 1000.0) / 1000.0;
    /* 63 degrees of freedom: the 0.1 and 99.9 % points are 33 and 103. The key is fixed. */
    if (chi < 33 || chi > 103) fail_msg("chi-square %.1f", chi);
    assert_true(fabs(sum / 64000 - 1) < 0.02);
    /* Part of what a seed promises its user: these values may never change. */
    assert_true(rand_keyed(0, 0, 0) == 0x91e78d4b5c6693e6u);
    assert_true(rand_keyed(42, 1000, 129279) == 0x21b893e81a8fdd39u);
}

static void secrets_differ(void **state) {
    (void)state;
    unsigned char a[32];
    unsigned char b[32];
    rand_secret(a, sizeof a);
    rand_secret(b, sizeof b);
    assert_memory_not_equal(a, b, sizeof a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_known_answers),
        cmocka_unit_test(sha256_of_files),
        cmocka_unit_test(crc32c_known_answers),
        cmocka_unit_test(crc32c_forms_agree),
        cmocka_unit_test(sequences_repeat_and_differ),
        cmocka_unit_test(keyed_noise_mixes),
        cmocka_unit_test(keyed_noise_is_uniform),
        cmocka_unit_test(secrets_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
