#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/text/tokenizer_internal.h"

#define MINI "tests/data/cases/tokenizer/mini-tokenizer.json"
#define BAR "\xEF\xBD\x9C"

static tokenizer *mini;
static json *mini_json;

static uint64_t random_state = 7;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

static int setup(void **state) {
    (void)state;
    err e = ERR_INIT;
    if (tokenizer_open(MINI, &mini, &e) == OK &&
        json_parse_file(MINI, NULL, &mini_json, &e) == OK) {
        return 0;
    }
    printf("%s\n", e.msg);
    return -1;
}

static int teardown(void **state) {
    (void)state;
    tokenizer_close(mini);
    json_free(mini_json);
    return 0;
}

static void encode(
    const tokenizer *t, const char *text, size_t len, bool trusted, token_list *out) {
    assert_int_equal(tokenizer_encode(t, (text_span){text, len, trusted}, out, NULL), OK);
}

/* The mini tokenizer with one member replaced by JSON text. */
static int load_with(const char *key, const char *value, tokenizer **out, err *e) {
    buf text = BUF_INIT;
    json_w w;
    json_w_begin(&w, &text);
    json_w_object(&w);
    JSON_EACH(member, mini_json) {
        json_w_key(&w, json_key(member));
        if (strcmp(json_key(member), key) == 0)
            json_w_raw(&w, value, strlen(value));
        else
            json_w_value(&w, member);
    }
    json_w_close(&w);
    assert_int_equal(json_w_end(&w), OK);
    int rc = tokenizer_parse(text.data, text.len, out, e);
    buf_release(&text);
    return rc;
}

/* --- merging --- */

/* The plain rule: the lowest rank anywhere, leftmost first, one merge at a time. */
static void merge_plainly(const tokenizer *t, const char *p, size_t len, token_list *out) {
    size_t n = len;
    int32_t *ids = mem_array(len, sizeof *ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = t->byte_ids[(uint8_t)p[i]];
    for (;;) {
        size_t best = n;
        uint32_t best_rank = TOKENIZER_NO_RANK;
        for (size_t i = 0; i + 1 < n; i++) {
            uint32_t rank = tokenizer_rank(t, ids[i], ids[i + 1]);
            if (rank < best_rank) {
                best_rank = rank;
                best = i;
            }
        }
        if (best == n) break;
        ids[best] = tokenizer_merge(t, ids[best], ids[best + 1])->id;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
    for (size_t i = 0; i < n; i++)
        assert_int_equal(token_list_push(out, ids[i]), OK);
    mem_free(ids);
}

static void compare_merge(const tokenizer *t, const char *p, size_t len) {
    token_list want = {0}, got = {0};
    encoder enc = {.t = t, .out = &got};
    merge_plainly(t, p, len, &want);
    encoder_piece(&enc, p, len);
    assert_int_equal(enc.rc, OK);
    assert_int_equal(want.len, got.len);
    assert_memory_equal(want.ids, got.ids, want.len * sizeof *want.ids);
    mem_free(enc.work);
    token_list_release(&want);
    token_list_release(&got);
}

static void test_every_length_merges_alike(void **state) {
    (void)state;
    static const char *const alphabets[] = {
        "a", "ab", "the in", "0123456789", "\n ", "aaab\xC3\xA9"};
    static char text[6000];
    for (size_t k = 0; k < sizeof alphabets / sizeof alphabets[0]; k++) {
        size_t n = strlen(alphabets[k]);
        for (size_t len = 2; len < 200; len += 1 + len / 8) {
            for (size_t i = 0; i < len; i++)
                text[i] = alphabets[k][random_below((uint32_t)n)];
            compare_merge(mini, text, len);
        }
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = alphabets[k][random_below((uint32_t)n)];
        compare_merge(mini, text, sizeof text);
    }
}

/* Lists per rank need ordered merges; a file without that order goes through the heap. */
static void test_unordered_merges(void **state) {
    (void)state;
    static const char merges[] = "[\"aa a\", \"a a\", \"b a\", \"aa aa\"]";
    buf model = BUF_INIT;
    json_w w;
    json_w_begin(&w, &model);
    json_w_object(&w);
    int32_t next = 0;
    JSON_EACH(member, json_get(mini_json, "model")) {
        json_w_key(&w, json_key(member));
        if (strcmp(json_key(member), "merges") == 0) {
            json_w_raw(&w, merges, strlen(merges));
        } else if (strcmp(json_key(member), "vocab") == 0) {
            json_w_object(&w);
            JSON_EACH(token, member) {
                int64_t id = 0;
                (void)json_i64(token, &id);
                if (id >= 256) continue;
                json_w_ki64(&w, json_key(token), id);
                next++;
            }
            json_w_ki64(&w, "aa", 256);
            json_w_ki64(&w, "aaa", 257);
            json_w_ki64(&w, "ba", 258);
            json_w_ki64(&w, "aaaa", 259);
            json_w_close(&w);
        } else {
            json_w_value(&w, member);
        }
    }
    json_w_close(&w);
    assert_int_equal(json_w_end(&w), OK);
    assert_int_equal(next, 256);
    tokenizer *t = NULL;
    err e = ERR_INIT;
    int rc = load_with("model", buf_cstr(&model), &t, &e);
    if (rc != OK) fail_msg("%s", e.msg);
    assert_false(t->is_ordered);
    assert_true(mini->is_ordered);
    static char text[5000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "aaab"[random_below(4)];
    compare_merge(t, text, sizeof text);
    compare_merge(t, text, 40);
    tokenizer_close(t);
    buf_release(&model);
}

/* --- splitting --- */

static const char deepseek_rule[] =
    "{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\\\\p{N}{1,3}\"},\"behavior\":\"Isolated\"},"
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s[\\u4e00-\\u9fa5\\u3040-\\u309f\\u30a0-\\u30ff]+\"},"
    "\"behavior\":\"Isolated\"},"
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s[!\\\"#$%%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~]"
    "[A-Za-z]+|[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+"
    "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\"},"
    "{\"type\":\"ByteLevel\",\"use_regex\":false}]}";

/* prefix "(?:)" changes nothing but sends the pattern to the regular expression library. */
static tokenizer *deepseek_splits(const char *prefix) {
    buf rule = BUF_INIT;
    tokenizer *t = NULL;
    err e = ERR_INIT;
    assert_int_equal(buf_printf(&rule, deepseek_rule, prefix, prefix, prefix), OK);
    if (load_with("pre_tokenizer", buf_cstr(&rule), &t, &e) != OK) fail_msg("%s", e.msg);
    buf_release(&rule);
    return t;
}

static void random_text(buf *out, size_t n) {
    static const char *const parts[] = {"a", "Z", "9", "12", " ", "  ", "\n", "\r\n", "\t", ".",
        "-", "\xC3\xA9", "\xCC\x81", "\xE4\xB8\xAD", "\xE3\x81\x82", "\xE3\x83\xBC", "\xE3\x83\xBB",
        "\xE3\x80\x80", "\xC2\xA0", "\xC2\x85", "\xE2\x80\xA8", "\xF0\x9F\x98\x80", "\xD9\xA3",
        "\x01", "\x1C", "<", "_x", "\xE2\x80\x94", "'s", "\xC2\xB2", "\xEF\xBF\xBF",
        "\xE3\x82\x99"};
    buf_reset(out);
    for (size_t i = 0; i < n; i++) {
        size_t k = random_below(sizeof parts / sizeof parts[0]);
        assert_int_equal(buf_puts(out, parts[k]), OK);
    }
}

static void test_native_splits_equal_the_patterns(void **state) {
    (void)state;
    tokenizer *native = deepseek_splits(""), *regex = deepseek_splits("(?:)");
    assert_true(native->is_deepseek);
    assert_int_equal(regex->stages[0].kind, SPLIT_REGEX);
    buf text = BUF_INIT;
    for (int i = 0; i < 4000; i++) {
        size_t *a = NULL, *b = NULL, n_a = 0, n_b = 0;
        token_list x = {0}, y = {0};
        random_text(&text, 1 + random_below(14));
        assert_int_equal(tokenizer_split(native, text.data, text.len, &a, &n_a, NULL), OK);
        assert_int_equal(tokenizer_split(regex, text.data, text.len, &b, &n_b, NULL), OK);
        bool same = n_a == n_b && memcmp(a, b, n_a * sizeof *a) == 0;
        if (!same) fail_msg("split differs for '%s'", buf_cstr(&text));
        encode(native, text.data, text.len, false, &x); /* the fused scan */
        encode(regex, text.data, text.len, false, &y);
        assert_int_equal(x.len, y.len);
        assert_memory_equal(x.ids, y.ids, x.len * sizeof *x.ids);
        token_list_release(&x);
        token_list_release(&y);
        mem_free(a);
        mem_free(b);
    }
    buf_release(&text);
    tokenizer_close(native);
    tokenizer_close(regex);
}

static void check_split(const char *rule, const char *text, const char *want) {
    buf sequence = BUF_INIT, got = BUF_INIT;
    tokenizer *t = NULL;
    err e = ERR_INIT;
    size_t *ends = NULL, n = 0, at = 0;
    assert_int_equal(buf_printf(&sequence,
                         "{\"type\":\"Sequence\",\"pretokenizers\":[%s,"
                         "{\"type\":\"ByteLevel\",\"use_regex\":false}]}",
                         rule),
        OK);
    if (load_with("pre_tokenizer", buf_cstr(&sequence), &t, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(tokenizer_split(t, text, strlen(text), &ends, &n, NULL), OK);
    /* A removed match is a jump: shown by the text between the ends. */
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(buf_printf(&got, "[%.*s]", (int)(ends[i] - at), text + at), OK);
        at = ends[i];
    }
    assert_string_equal(buf_cstr(&got), want);
    mem_free(ends);
    tokenizer_close(t);
    buf_release(&sequence);
    buf_release(&got);
}

#define SPLIT_ON(pattern, behavior, invert)                                                        \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"},\"behavior\":\"" behavior         \
    "\",\"invert\":" invert "}"

static void test_split_behaviors(void **state) {
    (void)state;
    check_split(SPLIT_ON("-", "Isolated", "false"), "a--b-c", "[a][-][-][b][-][c]");
    check_split(SPLIT_ON("-", "MergedWithPrevious", "false"), "a--b-c", "[a-][-][b-][c]");
    check_split(SPLIT_ON("-", "MergedWithNext", "false"), "a--b-c", "[a][-][-b][-c]");
    check_split(SPLIT_ON("-", "Contiguous", "false"), "a--b-c", "[a][--][b][-][c]");
    check_split(SPLIT_ON("[a-z]+", "Isolated", "true"), "ab-c", "[ab][-][c]");
    check_split("{\"type\":\"Digits\",\"individual_digits\":true}", "a12b", "[a][1][2][b]");
    check_split("{\"type\":\"Digits\",\"individual_digits\":false}", "a12b", "[a][12][b]");
    check_split("{\"type\":\"ByteLevel\",\"add_prefix_space\":false}", "it's  ok 12",
        "[it]['s][ ][ ok][ 12]");
}

static void test_removed_matches(void **state) {
    (void)state;
    tokenizer *t = NULL;
    assert_int_equal(load_with("pre_tokenizer",
                         "{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT_ON("-", "Removed",
                             "false") ",{\"type\":\"ByteLevel\",\"use_regex\":false}]}",
                         &t, NULL),
        OK);
    token_list a = {0};
    buf text = BUF_INIT;
    encode(t, "-x--y-", 6, false, &a);
    assert_int_equal(tokenizer_decode(t, a.ids, a.len, &text), OK);
    assert_string_equal(buf_cstr(&text), "xy");
    token_list_release(&a);
    buf_release(&text);
    tokenizer_close(t);
}

/* --- added tokens and trust --- */

static void test_only_template_text_holds_control_tokens(void **state) {
    (void)state;
    control_ids c = tokenizer_controls(mini);
    token_list ids = {0};
    encode(mini, "<think>", 7, true, &ids);
    assert_int_equal(ids.len, 1);
    assert_int_equal(ids.ids[0], c.think_open);
    token_list_reset(&ids);
    encode(mini, "<think>", 7, false, &ids);
    assert_true(ids.len > 1);
    for (size_t i = 0; i < ids.len; i++)
        assert_false(tokenizer_is_added(mini, ids.ids[i]));
    token_list_reset(&ids);
    /* Half in template text, half typed: no match. Two template spans side by side: a match. */
    text_span half[] = {{"<thi", 4, true}, {"nk>", 3, false}};
    assert_int_equal(tokenizer_encode_spans(mini, half, 2, &ids, NULL), OK);
    for (size_t i = 0; i < ids.len; i++)
        assert_false(tokenizer_is_added(mini, ids.ids[i]));
    token_list_reset(&ids);
    half[1].is_template = true;
    assert_int_equal(tokenizer_encode_spans(mini, half, 2, &ids, NULL), OK);
    assert_int_equal(ids.len, 1);
    token_list_release(&ids);
}

/* Text around a border is split as if there were none. */
static void test_span_borders_do_not_matter(void **state) {
    (void)state;
    buf text = BUF_INIT;
    for (int i = 0; i < 300; i++) {
        token_list whole = {0}, cut = {0};
        random_text(&text, 12);
        size_t at = random_below((uint32_t)text.len + 1);
        text_span spans[] = {{text.data, at, false}, {text.data + at, text.len - at, false}};
        encode(mini, text.data, text.len, false, &whole);
        assert_int_equal(tokenizer_encode_spans(mini, spans, 2, &cut, NULL), OK);
        assert_int_equal(whole.len, cut.len);
        assert_memory_equal(whole.ids, cut.ids, cut.len * sizeof *cut.ids);
        token_list_release(&whole);
        token_list_release(&cut);
    }
    buf_release(&text);
}

static void test_longest_added_token_wins(void **state) {
    (void)state;
    tokenizer *t = NULL;
    assert_int_equal(load_with("added_tokens",
                         "[{\"id\":280,\"content\":\"<a\"},{\"id\":281,\"content\":\"<ab>\"},"
                         "{\"id\":282,\"content\":\"b>c\"}]",
                         &t, NULL),
        OK);
    token_list ids = {0};
    encode(t, "<ab>c<ac", 8, true, &ids);
    const int32_t want[] = {281, 'c', 280, 'c'};
    assert_int_equal(ids.len, 4);
    assert_memory_equal(ids.ids, want, sizeof want);
    assert_int_equal(tokenizer_added(t, "<a"), 280);
    assert_int_equal(tokenizer_added(t, "<"), -1);
    token_list_release(&ids);
    tokenizer_close(t);
}

/* --- bytes --- */

static void test_any_bytes_survive(void **state) {
    (void)state;
    for (int i = 0; i < 500; i++) {
        char bytes[40];
        token_list ids = {0};
        buf back = BUF_INIT;
        size_t n = random_below(sizeof bytes) + 1;
        for (size_t k = 0; k < n; k++)
            bytes[k] = (char)random_below(256);
        encode(mini, bytes, n, false, &ids);
        assert_int_equal(tokenizer_decode_bytes(mini, ids.ids, ids.len, &back), OK);
        assert_int_equal(back.len, n);
        assert_memory_equal(back.data, bytes, n);
        token_list_release(&ids);
        buf_release(&back);
    }
}

static void test_stream_does_not_depend_on_cuts(void **state) {
    (void)state;
    for (int i = 0; i < 2000; i++) {
        char bytes[24];
        buf whole = BUF_INIT, cut = BUF_INIT;
        utf8_stream a = {0}, b = {0};
        static const char *const pool =
            "a\xE4\xB8\xAD\xF0\x9F\x98\x80\xC3\xA9\xFF\xED\xA0\xF4\x90\xC0\x80";
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = pool[random_below(17)];
        assert_int_equal(utf8_stream_feed(&a, bytes, sizeof bytes, &whole), OK);
        assert_int_equal(utf8_stream_end(&a, &whole), OK);
        for (size_t k = 0; k < sizeof bytes;) {
            size_t n = random_below(4) + 1;
            if (n > sizeof bytes - k) n = sizeof bytes - k;
            assert_int_equal(utf8_stream_feed(&b, bytes + k, n, &cut), OK);
            assert_true(utf8_valid(buf_cstr(&cut), cut.len));
            k += n;
        }
        assert_int_equal(utf8_stream_end(&b, &cut), OK);
        assert_string_equal(buf_cstr(&whole), buf_cstr(&cut));
        buf_release(&whole);
        buf_release(&cut);
    }
}

static void test_alphabet_is_a_bijection(void **state) {
    (void)state;
    bool seen[0x200] = {false};
    for (int b = 0; b < 256; b++) {
        uint32_t letter = gpt2_letter((uint8_t)b);
        assert_true(letter < 0x200 && !seen[letter]);
        seen[letter] = true;
        assert_int_equal(gpt2_byte(letter), b);
    }
    assert_int_equal(gpt2_letter(' '), 0x120);
    assert_int_equal(gpt2_byte(0xFF5C), -1);
}

static void test_raw_is_the_string_of_the_file(void **state) {
    (void)state;
    JSON_EACH(item, json_get(json_get(mini_json, "model"), "vocab")) {
        int64_t id = 0;
        buf raw = BUF_INIT;
        assert_int_equal(json_i64(item, &id), OK);
        assert_int_equal(tokenizer_raw(mini, (int32_t)id, &raw), OK);
        assert_string_equal(buf_cstr(&raw), json_key(item));
        buf_release(&raw);
    }
}

/* --- threads --- */

static const char shared_text[] =
    "The quick brown fox; the 12345 lazy dogs of the inner theatre.\n";

static void *encode_often(void *ids) {
    const tokenizer *t = mini;
    for (int i = 0; i < 200; i++) {
        token_list_reset(ids);
        if (tokenizer_encode(
                t, (text_span){shared_text, sizeof shared_text - 1, false}, ids, NULL) != OK) {
            return ids;
        }
    }
    return NULL;
}

static void test_one_tokenizer_many_threads(void **state) {
    (void)state;
    enum { N = 4 };
    pthread_t threads[N];
    token_list lists[N] = {{0}};
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &lists[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
        assert_int_equal(lists[i].len, lists[0].len);
        assert_memory_equal(lists[i].ids, lists[0].ids, lists[0].len * sizeof(int32_t));
    }
    for (int i = 0; i < N; i++)
        token_list_release(&lists[i]);
}

/* --- files that do not fit --- */

static void refuses(const char *key, const char *value, const char *says) {
    tokenizer *t = NULL;
    err e = ERR_INIT;
    assert_int_not_equal(load_with(key, value, &t, &e), OK);
    if (strstr(e.msg, says) == NULL) fail_msg("expected '%s' in '%s'", says, e.msg);
}

static void test_refusals(void **state) {
    (void)state;
    refuses("normalizer", "{\"type\":\"NFKC\"}", "NFKC");
    refuses("pre_tokenizer", "{\"type\":\"Whitespace\"}", "Whitespace");
    refuses("pre_tokenizer", "null", "byte-level");
    refuses("model", "{\"type\":\"Unigram\"}", "Unigram");
    refuses("model", "{\"type\":\"BPE\",\"byte_fallback\":true}", "byte_fallback");
    refuses("model", "{\"type\":\"BPE\",\"vocab\":{}}", "vocabulary");
    refuses("model", "{\"type\":\"BPE\",\"vocab\":{\"a\":-1}}", "not in 0");
    refuses("model", "{\"type\":\"BPE\",\"vocab\":{\"a\":1.5}}", "integer id");
    refuses("model", "{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1}}", "twice");
    refuses("model", "{\"type\":\"BPE\",\"vocab\":{\"a\":1}}", "byte 0x00");
    refuses("added_tokens", "[{\"id\":300,\"content\":\"x\",\"lstrip\":true}]", "lstrip");
    refuses("added_tokens", "[{\"id\":300,\"content\":\"\"}]", "content");
    refuses("added_tokens", "[{\"id\":1,\"content\":\"<x>\"}]", "another token");
    refuses(
        "added_tokens", "[{\"id\":300,\"content\":\"x\"},{\"id\":301,\"content\":\"x\"}]", "twice");
}

static void test_missing_file_is_named(void **state) {
    (void)state;
    tokenizer *t = NULL;
    err e = ERR_INIT;
    assert_int_equal(tokenizer_open("/nonexistent/tokenizer.json", &t, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "/nonexistent/tokenizer.json"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_length_merges_alike),
        cmocka_unit_test(test_unordered_merges),
        cmocka_unit_test(test_native_splits_equal_the_patterns),
        cmocka_unit_test(test_split_behaviors),
        cmocka_unit_test(test_removed_matches),
        cmocka_unit_test(test_only_template_text_holds_control_tokens),
        cmocka_unit_test(test_span_borders_do_not_matter),
        cmocka_unit_test(test_longest_added_token_wins),
        cmocka_unit_test(test_any_bytes_survive),
        cmocka_unit_test(test_stream_does_not_depend_on_cuts),
        cmocka_unit_test(test_alphabet_is_a_bijection),
        cmocka_unit_test(test_raw_is_the_string_of_the_file),
        cmocka_unit_test(test_one_tokenizer_many_threads),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_missing_file_is_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
