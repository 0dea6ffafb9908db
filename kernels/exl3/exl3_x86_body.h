/*
 * The x86 variants: one text, compiled three times by exl3_x86.c with X86_TARGET (the target
 * attribute), X86_NAME (names) and X86_DOT(sum, b, a) (sum + the pair products of 16-bit
 * integers, in 32-bit lanes). No include guard on purpose.
 *
 * Decode works on vectors of eight lanes (exl3_internal.h) that hold two states each, positions
 * 2i (low half) and 2i + 1 (high half), which are two neighbouring inputs of one output: y =
 * state * M in 16-bit halves, the four bytes of y summed by two multiply-adds with ones, and the
 * pair of byte sums meets the pair of activations in one pair product.
 */

/* Two states of every lane: windows that end at `end0` and `end1` bits. v[0] is the word before
 * word 0. */
X86_INLINE __m256i X86_NAME(states)(const __m256i *v, const __m256i *middle, int end0, int end1) {
    int i0 = (end0 - 1) >> 5, s0 = 32 * (i0 + 1) - end0;
    int i1 = (end1 - 1) >> 5, s1 = 32 * (i1 + 1) - end1;
    __m256i low = s0 > 16 ? middle[i0] : v[i0 + 1], high = s1 > 16 ? middle[i1] : v[i1 + 1];
    if (s0 > 16) s0 -= 16;
    if (s1 > 16) s1 -= 16;
    if (s0 != 0) low = _mm256_srli_epi32(low, s0);
    if (s1 != 16) high = _mm256_slli_epi32(high, 16 - s1);
    return _mm256_blend_epi16(low, high, 0xAA);
}

/* Byte sums of state * M for 16 states. */
X86_INLINE __m256i X86_NAME(byte_sums)(__m256i state) {
    const __m256i low = _mm256_set1_epi16((short)(EXL3_MUL1_MULTIPLIER & 0xffff));
    const __m256i high = _mm256_set1_epi16((short)(EXL3_MUL1_MULTIPLIER >> 16));
    const __m256i ones = _mm256_set1_epi8(1);
    __m256i y0 = _mm256_mullo_epi16(state, low);
    __m256i y1 = _mm256_add_epi16(_mm256_mulhi_epu16(state, low), _mm256_mullo_epi16(state, high));
    return _mm256_add_epi16(_mm256_maddubs_epi16(y0, ones), _mm256_maddubs_epi16(y1, ones));
}

/* Loads a packed tile: v[0] = the words before word 0, v[1..n]; middle[i] = the 32 bits around
 * the start of word i. */
X86_INLINE void X86_NAME(load_tile)(
    const uint32_t *words, int n_words, __m256i *v, __m256i *middle) {
    const __m256i previous_lane = _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6);
    for (int i = 0; i < n_words; i++)
        v[i + 1] = _mm256_load_si256((const __m256i *)(words + i * EXL3_LANES));
    v[0] = _mm256_permutevar8x32_epi32(v[n_words], previous_lane);
    for (int i = 0; i < n_words; i++)
        middle[i] =
            _mm256_blend_epi16(_mm256_srli_epi32(v[i + 1], 16), _mm256_slli_epi32(v[i], 16), 0xAA);
}

/* The byte sums of input pair `pair` (0..7) of a loaded tile, columns 0-7 (half 0) or 8-15 (half
 * 1). */
X86_INLINE __m256i X86_NAME(pair)(
    const __m256i *v, const __m256i *middle, int k2, int pair, int half) {
    int p = 8 * (pair & 3) + 2 * (pair >> 2) + 4 * half;
    return X86_NAME(byte_sums)(
        X86_NAME(states)(v, middle, exl3_lane_end(p, k2), exl3_lane_end(p + 1, k2)));
}

/* Adds one block's 32-bit sums, less 510 * A_block, to eight exact sums in double (|S| < 2^39). */
X86_INLINE void X86_NAME(add_block)(__m256i sums, __m256i centre, double *total) {
    __m256i s = _mm256_sub_epi32(sums, centre);
    __m256d low = _mm256_cvtepi32_pd(_mm256_castsi256_si128(s));
    __m256d high = _mm256_cvtepi32_pd(_mm256_extracti128_si256(s, 1));
    _mm256_store_pd(total, _mm256_add_pd(_mm256_load_pd(total), low));
    _mm256_store_pd(total + 4, _mm256_add_pd(_mm256_load_pd(total + 4), high));
}

X86_INLINE __m256i X86_NAME(two_inputs)(const int16_t *a, int pair) {
    int32_t both;
    memcpy(&both, a + 2 * pair, sizeof both);
    return _mm256_set1_epi32(both);
}

/* One block of 128 inputs for one row, decoded and used in registers. */
X86_INLINE void X86_NAME(one_row)(
    const uint32_t *words, const int16_t *a, int k2, int n_words, __m256i sums[2]) {
    __m256i s0 = _mm256_setzero_si256(), s1 = s0;
    for (int tile = 0; tile < EXL3_BLOCK / EXL3_TILE; tile++) {
        __m256i v[9], middle[8];
        X86_NAME(load_tile)(words + tile * n_words * EXL3_LANES, n_words, v, middle);
        EXL3_UNROLL(8)
        for (int pair = 0; pair < 8; pair++) {
            __m256i both = X86_NAME(two_inputs)(a + tile * EXL3_TILE, pair);
            s0 = X86_DOT(s0, X86_NAME(pair)(v, middle, k2, pair, 0), both);
            s1 = X86_DOT(s1, X86_NAME(pair)(v, middle, k2, pair, 1), both);
        }
    }
    sums[0] = s0;
    sums[1] = s1;
}

/* One block of 128 inputs into b[64 pairs][2 halves]. */
X86_INLINE void X86_NAME(decode)(const uint32_t *words, int k2, int n_words, __m256i *b) {
    for (int tile = 0; tile < EXL3_BLOCK / EXL3_TILE; tile++) {
        __m256i v[9], middle[8];
        X86_NAME(load_tile)(words + tile * n_words * EXL3_LANES, n_words, v, middle);
        EXL3_UNROLL(8)
        for (int pair = 0; pair < 8; pair++) {
            b[16 * tile + 2 * pair] = X86_NAME(pair)(v, middle, k2, pair, 0);
            b[16 * tile + 2 * pair + 1] = X86_NAME(pair)(v, middle, k2, pair, 1);
        }
    }
}

/* One function per rate, so that every shift is a constant. */
#define X86_RATE(k2)                                                                               \
    X86_FN void X86_NAME(one_row_##k2)(const uint32_t *words, const int16_t *a, __m256i sums[2]) { \
        X86_NAME(one_row)(words, a, k2, (k2 + 1) / 2, sums);                                       \
    }                                                                                              \
    X86_FN void X86_NAME(decode_##k2)(const uint32_t *words, __m256i *b) {                         \
        X86_NAME(decode)(words, k2, (k2 + 1) / 2, b);                                              \
    }
X86_RATE(2)
X86_RATE(3)
X86_RATE(4)
X86_RATE(5)
X86_RATE(6)
X86_RATE(7)
X86_RATE(8)
X86_RATE(10)
X86_RATE(12)
X86_RATE(14)
X86_RATE(16)
#undef X86_RATE

typedef struct X86_NAME(rate) {
    void (*one_row)(const uint32_t *words, const int16_t *a, __m256i sums[2]);
    void (*decode)(const uint32_t *words, __m256i *b);
} X86_NAME(rate);

#define X86_ENTRY(k2) [k2] = {X86_NAME(one_row_##k2), X86_NAME(decode_##k2)}
static const X86_NAME(rate) X86_NAME(rates)[EXL3_MAX_K2 + 1] = {X86_ENTRY(2), X86_ENTRY(3),
    X86_ENTRY(4), X86_ENTRY(5), X86_ENTRY(6), X86_ENTRY(7), X86_ENTRY(8), X86_ENTRY(10),
    X86_ENTRY(12), X86_ENTRY(14), X86_ENTRY(16)};
#undef X86_ENTRY

/* The n rows of a group against one decoded block. n is a constant at every call, so the sums
 * stay in registers. */
X86_INLINE void X86_NAME(group)(
    const __m256i *b, const exl3_row *rows, int i_block, int n, double (*totals)[EXL3_TILE]) {
    __m256i sums[X86_GROUP][2];
    const int16_t *a[X86_GROUP];
    for (int r = 0; r < n; r++) {
        sums[r][0] = sums[r][1] = _mm256_setzero_si256();
        a[r] = rows[r].a + i_block * EXL3_BLOCK;
    }
    EXL3_UNROLL(4) /* else the compiler moves every sum to another register in every step */
    for (int pair = 0; pair < EXL3_BLOCK / 2; pair++) {
        __m256i b0 = _mm256_load_si256(b + 2 * pair), b1 = _mm256_load_si256(b + 2 * pair + 1);
        EXL3_UNROLL(4)
        for (int r = 0; r < n; r++) {
            __m256i both = X86_NAME(two_inputs)(a[r], pair);
            sums[r][0] = X86_DOT(sums[r][0], b0, both);
            sums[r][1] = X86_DOT(sums[r][1], b1, both);
        }
    }
    for (int r = 0; r < n; r++) {
        __m256i centre = _mm256_set1_epi32(EXL3_CENTRE * rows[r].block_sums[i_block]);
        X86_NAME(add_block)(sums[r][0], centre, totals[r]);
        X86_NAME(add_block)(sums[r][1], centre, totals[r] + 8);
    }
}

X86_FN void X86_NAME(groups)(
    const __m256i *b, const exl3_row *rows, int n_rows, int i_block, double (*totals)[EXL3_TILE]) {
    int r = 0;
    for (; r + X86_GROUP <= n_rows; r += X86_GROUP)
        X86_NAME(group)(b, rows + r, i_block, X86_GROUP, totals + r);
    switch (n_rows - r) {
    case 3:
        X86_NAME(group)(b, rows + r, i_block, 3, totals + r);
        break;
    case 2:
        X86_NAME(group)(b, rows + r, i_block, 2, totals + r);
        break;
    case 1:
        X86_NAME(group)(b, rows + r, i_block, 1, totals + r);
        break;
    default:
        break;
    }
}

/* Exact totals to float, one rounding. */
X86_FN void X86_NAME(store_totals)(
    double (*totals)[EXL3_TILE], int n_rows, float *out, size_t stride) {
    for (int r = 0; r < n_rows; r++)
        for (int n = 0; n < EXL3_TILE; n += 4)
            _mm_storeu_ps(
                out + (size_t)r * stride + n, _mm256_cvtpd_ps(_mm256_load_pd(totals[r] + n)));
}

X86_FN void X86_NAME(dot)(
    const exl3_strip *s, const exl3_row *rows, int n_rows, float *out, size_t stride) {
    _Alignas(32) double totals[EXL3_ROW_BLOCK][EXL3_TILE];
    const X86_NAME(rate) *rate = &X86_NAME(rates)[s->k2];
    const size_t block_words = (size_t)(EXL3_BLOCK / EXL3_TILE * s->n_words * EXL3_LANES);
    memset(totals, 0, (size_t)n_rows * sizeof totals[0]);
    for (int i = 0; i < s->in / EXL3_BLOCK; i++) {
        const uint32_t *words = s->packed + (size_t)i * block_words;
        if (n_rows == 1) {
            __m256i sums[2], centre = _mm256_set1_epi32(EXL3_CENTRE * rows[0].block_sums[i]);
            rate->one_row(words, rows[0].a + i * EXL3_BLOCK, sums);
            X86_NAME(add_block)(sums[0], centre, totals[0]);
            X86_NAME(add_block)(sums[1], centre, totals[0] + 8);
        } else {
            __m256i b[EXL3_BLOCK];
            rate->decode(words, b);
            X86_NAME(groups)(b, rows, n_rows, i, totals);
        }
    }
    X86_NAME(store_totals)(totals, n_rows, out, stride);
}
