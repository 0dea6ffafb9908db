/* Grammars other than schemas: expressions, choices, EBNF, tool calls; states and masks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/run/grammar.h"
#include "tests/harness/grammar_walk.h"

static tokenizer *tk;
static token_trie *trie;

static int open_all(void **state) {
    err e = ERR_INIT;
    (void)state;
    return walk_tokenizer(&tk, &trie, &e);
}

static int close_all(void **state) {
    (void)state;
    token_trie_free(trie);
    tokenizer_close(tk);
    return 0;
}

static void expect(grammar *g, const char *text, bool is_accepted) {
    if (walk_accepts(g, tk, text) != is_accepted) {
        fail_msg("%s: %s", is_accepted ? "not accepted" : "accepted", text);
    }
}

static void test_regex(void **state) {
    static const struct {
        const char *pattern, *yes[4], *no[4];
    } cases[] = {
        {"[a-c]+x?", {"a", "abcx", "bx"}, {"", "x", "abxx", "d"}},
        {"(?:ab|a)(c|bcd)", {"abc", "ac", "abbcd", "abcd"}, {"ab", "abcdx"}},
        {"\\d{2,3}-\\u00e9", {"12-\xc3\xa9", "123-\xc3\xa9"}, {"1-\xc3\xa9", "1234-\xc3\xa9"}},
        {"^[^a]$", {"b", "\xf0\x9f\x98\x80", "\n"}, {"a", "bb", ""}},
        {".", {"x", "\xe2\x82\xac"}, {"\n", "xy"}},
        {"(a{0,2}b){2}", {"bb", "aabaab", "abb"}, {"b", "aaabb"}},
        {"\\S\\s\\w\\W", {"a b!"}, {"a b", " b a"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        grammar *g = NULL;
        err e = ERR_INIT;
        if (grammar_from_regex(trie, cases[i].pattern, &g, &e) != OK) fail_msg("%s", e.msg);
        for (int k = 0; k < 4; k++) {
            if (cases[i].yes[k] != NULL) expect(g, cases[i].yes[k], true);
            if (cases[i].no[k] != NULL) expect(g, cases[i].no[k], false);
        }
        grammar_put(g);
    }
}

static void test_regex_refused(void **state) {
    static const struct {
        const char *pattern;
        int code;
    } cases[] = {{"[", ERR_FORMAT}, {"(a", ERR_FORMAT}, {"a)", ERR_FORMAT}, {"*a", ERR_FORMAT},
        {"a{3,2}", ERR_FORMAT}, {"(?=a)b", ERR_UNSUPPORTED}, {"(?<!a)b", ERR_UNSUPPORTED},
        {"(a)\\1", ERR_UNSUPPORTED}, {"\\bword", ERR_UNSUPPORTED}, {"a$b", ERR_ARG},
        {"[b-a]", ERR_FORMAT}, {"\\p{L}", ERR_UNSUPPORTED}, {"(((a{1000}){1000}){9})", ERR_LIMIT}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        grammar *g = NULL;
        err e = ERR_INIT;
        int rc = grammar_from_regex(trie, cases[i].pattern, &g, &e);
        if (rc != cases[i].code) fail_msg("%s: %s", cases[i].pattern, e.msg);
    }
}

static void test_choice(void **state) {
    static const char text[] = "[\"yes\",\"no\",\"not sure\",\"\xc3\xa9t\xc3\xa9\"]";
    grammar *g = NULL;
    json *list = NULL;
    err e = ERR_INIT;
    (void)state;
    assert_int_equal(json_parse(text, sizeof text - 1, NULL, &list, &e), OK);
    assert_int_equal(grammar_from_choice(trie, list, &g, &e), OK);
    expect(g, "yes", true);
    expect(g, "not sure", true);
    expect(g, "\xc3\xa9t\xc3\xa9", true);
    expect(g, "not", false);
    expect(g, "yesno", false);
    expect(g, "", false);
    grammar_state *s = grammar_state_new(g);
    char forced[32];
    assert_int_equal(grammar_forced(s, forced, sizeof forced), 0);
    assert_int_equal(grammar_accept_bytes(s, "y", 1), OK);
    assert_int_equal(grammar_forced(s, forced, sizeof forced), 2);
    assert_memory_equal(forced, "es", 2);
    grammar_state_free(s);
    grammar_put(g);
    json_free(list);
}

static const char ebnf_sum[] = "# a small language\n"
                               "root ::= expr\n"
                               "expr ::= term (ws [+-] ws term)*\n"
                               "term ::= number | \"(\" ws expr ws \")\"\n"
                               "number ::= [0-9]{1,3} (\".\" [0-9]+)?\n"
                               "ws ::= [ \\t]*\n";

static void test_ebnf(void **state) {
    grammar *g = NULL;
    err e = ERR_INIT;
    (void)state;
    if (grammar_from_ebnf(trie, ebnf_sum, &g, &e) != OK) fail_msg("%s", e.msg);
    expect(g, "1", true);
    expect(g, "12 + (3-4.50)", true);
    expect(g, "((((7))))", true);
    expect(g, "1+", false);
    expect(g, "(1", false);
    expect(g, "1234", false);
    expect(g, "1)", false);
    grammar_put(g);
    assert_int_equal(
        grammar_from_ebnf(trie, "root ::= \"a\" [^\"\\\\]* \"\\x41\\n\" | 'b' .?\n", &g, &e), OK);
    expect(g, "abcA\n", true);
    expect(g, "b", true);
    expect(g, "b\xe2\x82\xac", true);
    expect(g, "a\"A\n", false);
    grammar_put(g);
}

static void test_ebnf_refused(void **state) {
    static const struct {
        const char *text;
        int code;
    } cases[] = {{"root ::= a\n", ERR_FORMAT}, {"a ::= \"x\"\n", ERR_FORMAT},
        {"root ::= root \"x\" | \"y\"", ERR_UNSUPPORTED},
        {"root ::= a \"x\" | \"y\"\na ::= \"\" root", ERR_UNSUPPORTED},
        {"root ::= \"x\" root", ERR_ARG}, {"root ::= (\"x\"", ERR_FORMAT},
        {"root ::= \"x", ERR_FORMAT}, {"root ::= \"x\")", ERR_FORMAT}, {"junk", ERR_FORMAT},
        {"root ::= (\"a\"?)*", ERR_UNSUPPORTED}, {"root ::= \"a\"\nroot ::= \"b\"", ERR_FORMAT}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        grammar *g = NULL;
        err e = ERR_INIT;
        int rc = grammar_from_ebnf(trie, cases[i].text, &g, &e);
        if (rc != cases[i].code) fail_msg("%s: %d %s", cases[i].text, rc, e.msg);
    }
}

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":8},\"days\":{\"type\":\"integer\","
    "\"minimum\":1,\"maximum\":9},\"unit\":{\"type\":[\"string\",\"null\"]}},\"required\":[\"city\"]"
    "}}},{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

/* Takes text with the mark written as @. */
static bool takes(grammar *g, const char *text, bool *is_final) {
    grammar_state *s = grammar_state_new(g);
    uint64_t *mask = mem_array(token_trie_words(trie), sizeof *mask);
    int32_t dsml = tokenizer_controls(tk).dsml;
    bool is_right = true;
    for (; *text != 0 && is_right; text++) {
        int32_t k = *text == '@' ? dsml : tokenizer_find(tk, text, 1);
        grammar_mask(s, mask);
        bool is_in = (mask[k / 64] >> (k % 64) & 1) != 0;
        is_right = grammar_accept(s, k) == OK;
        assert_int_equal(is_in, is_right);
    }
    *is_final = is_right && grammar_is_final(s);
    mem_free(mask);
    grammar_state_free(s);
    return is_right;
}

static void expect_call(grammar *g, const char *text, bool is_accepted) {
    bool is_final;
    takes(g, text, &is_final);
    if (is_final != is_accepted) fail_msg("%s: %s", is_accepted ? "refused" : "accepted", text);
}

#define CITY(x) "<@ parameter name=\"city\" string=\"true\">" x "</@ parameter>\n"
#define DAYS(x) "<@ parameter name=\"days\" string=\"false\">" x "</@ parameter>\n"
#define UNIT(a, x) "<@ parameter name=\"unit\" string=\"" a "\">" x "</@ parameter>\n"
#define CALL(n, x) "<@ invoke name=\"" n "\">\n" x "</@ invoke>\n"
#define BLOCK(x) " calls>\n" x "</@ calls>"

static void test_tools_auto(void **state) {
    grammar *g = NULL;
    json *tools = NULL;
    err e = ERR_INIT;
    (void)state;
    assert_int_equal(json_parse(tools_text, sizeof tools_text - 1, NULL, &tools, &e), OK);
    tools_options o = {.tools = tools};
    if (grammar_from_tools(trie, tk, &o, &g, &e) != OK) fail_msg("%s", e.msg);
    expect_call(g, BLOCK(CALL("weather", CITY("Bern"))), true);
    expect_call(g, BLOCK(CALL("weather", DAYS("3") CITY("a </b> < /"))), true);
    expect_call(g, BLOCK(CALL("weather", CITY("") DAYS("99999"))), true); /* loose: types only */
    expect_call(g, BLOCK(CALL("weather", CITY("x") UNIT("false", "null"))), true);
    expect_call(g, BLOCK(CALL("weather", CITY("x") UNIT("true", "null"))), true);
    expect_call(g, BLOCK(CALL("now", "\n") CALL("weather", CITY("Bern"))), true);
    expect_call(g, BLOCK(CALL("now", "")), false);
    expect_call(g, BLOCK(""), false);
    expect_call(g, BLOCK(CALL("weather", "\n")), false); /* city is missing */
    expect_call(g, BLOCK(CALL("weather", DAYS("3"))), false);
    expect_call(g, BLOCK(CALL("weather", CITY("x") CITY("y"))), false);
    expect_call(g, BLOCK(CALL("weather", CITY("x") DAYS("\"3\""))), false);
    expect_call(g, BLOCK(CALL("weather", CITY("x") DAYS("1.5"))), false);
    expect_call(g, BLOCK(CALL("other", "\n")), false);
    grammar_put(g);
    json_free(tools);
}

/* A tool that takes nothing has one way to be called; no token may lead away from it. */
static void test_tools_without_parameters(void **state) {
    static const char *const lists[] = {"[{\"name\":\"now\"}]",
        "[{\"name\":\"now\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}]",
        "[{\"name\":\"now\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{},"
        "\"additionalProperties\":false}}]",
        /* A name that only "required" knows. */
        "[{\"name\":\"now\",\"parameters\":{\"type\":\"object\",\"required\":[\"zone\"]}}]",
        "[{\"name\":\"now\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":"
        "{\"type\":\"integer\"}},\"required\":[\"a\",\"b\"]}}]"};
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        for (int is_required = 0; is_required < 2; is_required++) {
            grammar *g = NULL;
            json *tools = NULL;
            err e = ERR_INIT;
            assert_int_equal(json_parse(lists[i], strlen(lists[i]), NULL, &tools, &e), OK);
            tools_options o = {.tools = tools, .is_required = is_required != 0};
            if (grammar_from_tools(trie, tk, &o, &g, &e) != OK) fail_msg("%s", e.msg);
            for (uint64_t seed = 0; seed < 40; seed++) {
                buf text = BUF_INIT;
                (void)walk_random(g, tk, seed, 40, &text); /* ends the program at a dead end */
                buf_release(&text);
            }
            grammar_put(g);
            json_free(tools);
        }
    }
}

static void test_tools_forced(void **state) {
    static const char *const names[] = {"weather"};
    grammar *g = NULL;
    json *tools = NULL;
    err e = ERR_INIT;
    size_t n_opening;
    (void)state;
    assert_int_equal(json_parse(tools_text, sizeof tools_text - 1, NULL, &tools, &e), OK);
    tools_options o = {
        .tools = tools, .names = names, .n_names = 1, .is_required = true, .is_single = true};
    if (grammar_from_tools(trie, tk, &o, &g, &e) != OK) fail_msg("%s", e.msg);
    expect_call(g, "\n\n<@" BLOCK(CALL("weather", CITY("Bern") DAYS("9"))), true);
    expect_call(g, "\n\n<@" BLOCK(CALL("weather", CITY("Bern") DAYS("10"))), false);
    expect_call(g, "\n\n<@" BLOCK(CALL("weather", CITY("123456789"))), false);
    expect_call(g, "\n\n<@" BLOCK(CALL("weather", CITY("1") CITY("2"))), false);
    expect_call(g, "\n\n<@" BLOCK(CALL("weather", CITY("1")) CALL("weather", CITY("1"))), false);
    expect_call(g, "\n\n<@" BLOCK(CALL("now", "\n")), false);
    expect_call(g, " calls>\n", false);
    const int32_t *opening = grammar_opening(g, &n_opening);
    assert_true(n_opening > 4);
    grammar_state *s = grammar_state_new(g);
    buf text = BUF_INIT;
    for (size_t i = 0; i < n_opening; i++) {
        size_t len;
        assert_int_equal(grammar_accept(s, opening[i]), OK);
        const char *bytes = tokenizer_bytes(tk, opening[i], &len);
        assert_int_equal(buf_append(&text, bytes, len), OK);
    }
    assert_non_null(strstr(buf_cstr(&text), " invoke name=\"weather\">\n"));
    buf_release(&text);
    grammar_state_free(s);
    grammar_put(g);
    json_free(tools);
}

static void test_tools_refused(void **state) {
    static const char text[] =
        "[{\"name\":\"a\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{"
        "\"pattern\":\"(?=a)\"}}}}]";
    grammar *g = NULL;
    json *tools = NULL;
    err e = ERR_INIT;
    (void)state;
    assert_int_equal(json_parse(text, sizeof text - 1, NULL, &tools, &e), OK);
    tools_options o = {.tools = tools};
    assert_int_equal(grammar_from_tools(trie, tk, &o, &g, &e), ERR_UNSUPPORTED);
    assert_string_equal(e.place, "tools[0].function.parameters/properties/x/pattern");
    json_free(tools);
}

/* A copy goes its own way, and copying back is rolling back. */
static void test_copy(void **state) {
    grammar *g = NULL;
    err e = ERR_INIT;
    (void)state;
    assert_int_equal(grammar_from_json_object(trie, &g, &e), OK);
    grammar_state *a = grammar_state_new(g), *b = grammar_state_new(g);
    size_t n = token_trie_words(trie);
    uint64_t *before = mem_array(n, sizeof *before), *after = mem_array(n, sizeof *after);
    assert_int_equal(grammar_accept_bytes(a, "{\"a\":[1,{\"b", 11), OK);
    grammar_mask(a, before);
    grammar_state_copy(b, a);
    assert_int_equal(grammar_accept_bytes(b, "\":2}],\"a", 8), OK);
    assert_int_equal(grammar_accept_bytes(b, "\"", 1), ERR_MISMATCH); /* a is written */
    grammar_state_copy(b, a);
    grammar_mask(b, after);
    assert_memory_equal(before, after, n * sizeof *before);
    assert_int_equal(grammar_accept_bytes(b, "\":2}]}", 6), OK);
    assert_true(grammar_is_final(b));
    assert_false(grammar_is_final(a));
    mem_free(before);
    mem_free(after);
    grammar_state_free(a);
    grammar_state_free(b);
    grammar_put(g);
}

/* A long reply: the pool is put in order again and again. */
static void test_long_reply(void **state) {
    grammar *g = NULL;
    err e = ERR_INIT;
    (void)state;
    assert_int_equal(grammar_from_json_object(trie, &g, &e), OK);
    grammar_state *s = grammar_state_new(g);
    assert_int_equal(grammar_accept_bytes(s, "{\"list\":[", 9), OK);
    for (int i = 0; i < 20000; i++) {
        assert_int_equal(
            grammar_accept_bytes(s, "{\"k\":\"some text\",\"n\":-1.5e3},", 30 - 1), OK);
    }
    assert_int_equal(grammar_accept_bytes(s, "null]}", 6), OK);
    assert_true(grammar_is_final(s));
    grammar_state_free(s);
    grammar_put(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_regex),
        cmocka_unit_test(test_regex_refused), cmocka_unit_test(test_choice),
        cmocka_unit_test(test_ebnf), cmocka_unit_test(test_ebnf_refused),
        cmocka_unit_test(test_tools_auto), cmocka_unit_test(test_tools_without_parameters),
        cmocka_unit_test(test_tools_forced), cmocka_unit_test(test_tools_refused),
        cmocka_unit_test(test_copy), cmocka_unit_test(test_long_reply)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
