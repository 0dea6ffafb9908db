/* GPT-2 writes the 256 byte values as printable letters: the printable ones of Latin-1 stand for
 * themselves, the others follow from U+0100 on in byte order. */
#include "engine/text/tokenizer_internal.h"

static bool is_plain(unsigned b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

/* Bytes below b that are not plain. */
static unsigned hidden_before(unsigned b) {
    if (b <= 0x20) return b;
    if (b <= 0x7E) return 0x21;
    if (b <= 0xA0) return 0x21 + (b - 0x7F);
    return b <= 0xAD ? 0x21 + 0x22 : 0x21 + 0x22 + 1;
}

uint32_t gpt2_letter(uint8_t byte) {
    return is_plain(byte) ? byte : 0x100u + hidden_before(byte);
}

int gpt2_byte(uint32_t cp) {
    if (cp < 0x100) return is_plain(cp) ? (int)cp : -1;
    uint32_t i = cp - 0x100;
    if (i <= 0x20) return (int)i;
    if (i < 0x21 + 0x22) return (int)(0x7F + (i - 0x21));
    return i == 0x21 + 0x22 ? 0xAD : -1;
}
