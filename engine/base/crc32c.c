#include "engine/base/crc32c.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

static struct {
    pthread_once_t once;
    uint32_t by_byte[8][256]; /* row k: the effect of a byte followed by k zero bytes */
} g_crc = {.once = PTHREAD_ONCE_INIT};

static void fill_tables(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = c >> 1 ^ ((c & 1) != 0 ? 0x82F63B78u : 0);
        g_crc.by_byte[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++) {
        for (int k = 1; k < 8; k++) {
            uint32_t c = g_crc.by_byte[k - 1][i];
            g_crc.by_byte[k][i] = c >> 8 ^ g_crc.by_byte[0][c & 255];
        }
    }
}

uint32_t crc32c_table(uint32_t crc, const void *data, size_t n) {
    (void)pthread_once(&g_crc.once, fill_tables);
    const unsigned char *p = data;
    uint32_t(*t)[256] = g_crc.by_byte;
    uint32_t c = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t low = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                               (uint32_t)p[3] << 24);
        c = t[7][low & 255] ^ t[6][low >> 8 & 255] ^ t[5][low >> 16 & 255] ^ t[4][low >> 24] ^
            t[3][p[4]] ^ t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]];
    }
    for (; n > 0; n--, p++)
        c = c >> 8 ^ t[0][(c ^ *p) & 255];
    return ~c;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(
    uint32_t crc, const void *data, size_t n) {
    const unsigned char *p = data;
    uint64_t c = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        c = _mm_crc32_u64(c, word);
    }
    for (; n > 0; n--, p++)
        c = _mm_crc32_u8((uint32_t)c, *p);
    return ~(uint32_t)c;
}

uint32_t crc32c(uint32_t crc, const void *data, size_t n) {
    if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42(crc, data, n);
    return crc32c_table(crc, data, n);
}
#elif defined(__aarch64__)
static uint32_t crc32c_arm(uint32_t crc, const void *data, size_t n) {
    const unsigned char *p = data;
    uint32_t c = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(c) : "r"(word));
    }
    for (; n > 0; n--, p++) {
        __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(c) : "r"((uint32_t)*p));
    }
    return ~c;
}

uint32_t crc32c(uint32_t crc, const void *data, size_t n) {
    if ((getauxval(AT_HWCAP) & HWCAP_CRC32) != 0) return crc32c_arm(crc, data, n);
    return crc32c_table(crc, data, n);
}
#else
uint32_t crc32c(uint32_t crc, const void *data, size_t n) {
    return crc32c_table(crc, data, n);
}
#endif
