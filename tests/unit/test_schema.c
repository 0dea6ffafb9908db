/* Grammars of schemas: texts both ways, refusals with their pointer, and random replies under the
 * mask, which an independent validator must pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/run/grammar.h"
#include "tests/harness/grammar_walk.h"
#include "tests/harness/schema_check.h"

#define WALKS 25
#define FREE_TOKENS 40

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

static json *parse(const char *text) {
    json *v = NULL;
    err e = ERR_INIT;
    if (json_parse(text, strlen(text), NULL, &v, &e) != OK) fail_msg("%s: %s", text, e.msg);
    return v;
}

static grammar *compile(const json *schema, const schema_options *o) {
    grammar *g = NULL;
    err e = ERR_INIT;
    if (grammar_from_schema(trie, schema, o, &g, &e) != OK) fail_msg("%s", e.msg);
    return g;
}

/* Schemas with texts that must and must not be reachable. */
static const struct {
    const char *schema, *yes[6], *no[6];
} cases[] = {
    {"{\"type\":\"integer\"}", {"0", "-7", "-0", "123456789012345678901234"},
        {"1.0", "1e3", "01", "1234567890123456789012345", "\"1\"", ""}},
    {"{\"type\":\"number\"}", {"0.5", "-1e10", "1E+307", "0.000000000000000000000001"},
        {".5", "1.", "1e", "1e309", "+1", "1.0000000000000000000000001"}},
    {"{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":2.25}",
        {"-1.5", "0", "2.25", "-0.999", "2.2499"}, {"-1.6", "2.26", "3", "-2", "2.250001"}},
    {"{\"type\":\"number\",\"multipleOf\":0.01}", {"0.01", "19.99", "3", "2.50"},
        {"0.001", "19.999"}},
    {"{\"multipleOf\":3,\"type\":\"integer\",\"not\":{\"enum\":[3,9]},\"minimum\":1,\"maximum\":12}",
        {"6", "12"}, {"3", "9", "15", "0", "1"}},
    {"{\"type\":\"string\",\"pattern\":\"^(ab)*$\",\"minLength\":3,\"maxLength\":5}", {"\"abab\""},
        {"\"ab\"", "\"ababab\"", "\"aba\""}},
    {"{\"type\":\"string\",\"format\":\"date\",\"pattern\":\"-0[12]-\"}",
        {"\"2024-02-29\"", "\"1999-01-31\""}, {"\"2023-02-29\"", "\"1999-03-01\"", "\"1999-1-1\""}},
    {"{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\",1]},\"uniqueItems\":true}",
        {"[]", "[\"a\",1,\"b\"]", "[1]"}, {"[\"a\",\"a\"]", "[1,1.0]", "[1,\"a\",\"b\",1]"}},
    /* An escape whose only end is an element that was written is not begun (also test_random_replies). */
    {"{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"a\\nb\",\"c\"]},\"minItems\":3,"
     "\"uniqueItems\":true}",
        {"[\"a\",\"a\\nb\",\"c\"]", "[\"a\\u000ab\",\"a\",\"c\"]"},
        {"[\"a\\nb\",\"a\\u000ab\",\"c\"]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":\"a\"},{\"enum\":[\"b\",1]},{\"type\":\"string\"}],"
     "\"minItems\":3,\"uniqueItems\":true}",
        {"[\"a\",\"b\",\"c\"]", "[\"a\",1,\"b\"]"}, {"[\"a\",\"b\",\"a\"]", "[\"a\",\"b\"]"}},
    {"{\"type\":\"object\",\"properties\":null,\"required\":null}", {"{}", "{\"a\":1}"}, {"[]"}},
    {"{\"oneOf\":[{\"type\":\"object\",\"properties\":null,\"required\":null},{\"type\":\"null\"}],"
     "\"not\":{\"properties\":null,\"required\":null,\"type\":\"null\"}}",
        {"{}", "{\"a\":1}"}, {"null"}},
    /* Names that are not declared have no place in the order. */
    {"{\"type\":\"object\",\"required\":[\"x\"]}",
        {"{\"x\":1}", "{\"y\":2,\"x\":null}", "{\"x\":1,\"y\":2}"}, {"{}", "{\"y\":2}"}},
    {"{\"$defs\":{\"d\":{\"$dynamicAnchor\":\"n\",\"type\":\"integer\"}},\"$ref\":\"#n\"}", {"1"},
        {"\"x\""}},
    {"{\"type\":\"array\",\"uniqueItems\":true}",
        {"[1,2,\"1\",[1],{\"a\":1},{\"a\":2}]", "[{\"a\":1,\"b\":2},{\"b\":1,\"a\":2}]"},
        {"[1,1.0]", "[10,1e1]", "[{\"a\":1,\"b\":2},{\"b\":2,\"a\":1}]", "[[],[]]",
            "[\"a\",\"\\u0061\"]"}},
    {"{\"contains\":{\"type\":\"integer\"},\"minContains\":2,\"maxContains\":3,\"type\":\"array\"}",
        {"[1,2]", "[\"a\",1,null,2,3]"}, {"[1]", "[1,2,3,4]", "[]", "[1,\"a\"]"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}},\"patternProperties\":{\"^x-"
     "\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"null\"}}",
        {"{\"a\":\"\",\"x-1\":2,\"b\":null}", "{\"x-\":1}"},
        {"{\"a\":null}", "{\"x-1\":null}", "{\"b\":1}", "{\"b\":null,\"b\":null}"}},
    {"{\"type\":\"object\",\"propertyNames\":{\"maxLength\":2},\"maxProperties\":2}",
        {"{\"ab\":1,\"c\":2}", "{\"\":0}"}, {"{\"abc\":1}", "{\"a\":1,\"b\":2,\"c\":3}"}},
    {"{\"type\":\"object\",\"dependentRequired\":{\"a\":[\"b\"]},\"additionalProperties\":false,"
     "\"properties\":{\"a\":true,\"b\":{\"const\":1}}}",
        {"{}", "{\"b\":1}", "{\"a\":2,\"b\":1}", "{\"b\":1,\"a\":[]}"}, {"{\"a\":2}"}},
    {"{\"oneOf\":[{\"type\":\"integer\",\"minimum\":3},{\"type\":\"number\",\"maximum\":5}]}",
        {"6", "2", "4.5", "-1"}, {"3", "5", "4", "5.5"}},
    {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":true},\"additionalProperties\":false},{"
     "\"type\":\"object\",\"properties\":{\"b\":true},\"additionalProperties\":false}]}",
        {"{\"a\":1}", "{\"b\":1}"}, {"{}", "{\"a\":1,\"b\":1}", "{\"c\":1}"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":3}}},{\"properties\":{\"a\":{\"type\":"
     "\"integer\",\"maximum\":4}},\"required\":[\"a\"]}],\"type\":\"object\"}",
        {"{\"a\":3}", "{\"a\":4,\"z\":0}"}, {"{\"a\":5}", "{\"a\":2}", "{}", "{\"a\":3.5}"}},
    {"{\"if\":{\"properties\":{\"k\":{\"const\":\"n\"}},\"required\":[\"k\"]},\"then\":{\"required\":"
     "[\"n\"]},\"else\":{\"required\":[\"m\"]},\"type\":\"object\"}",
        {"{\"k\":\"n\",\"n\":1}", "{\"m\":1}", "{\"k\":\"x\",\"m\":0}"},
        {"{}", "{\"k\":\"n\"}", "{\"k\":\"n\",\"m\":1}", "{\"n\":1}"}},
    {"{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{"
     "\"anyOf\":[{\"$ref\":\"#/$defs/t\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"],"
     "\"additionalProperties\":false}},\"$ref\":\"#/$defs/t\"}",
        {"{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"}, {"{\"v\":1}", "{\"next\":null,\"v\":1}"}},
    {"{\"type\":\"string\",\"nullable\":true,\"minLength\":1}", {"null", "\"a\""}, {"\"\"", "1"}},
    {"{\"const\":{\"a\":[1,{\"b\":null}],\"c\":\"\\n\"}}",
        {"{\"a\":[1,{\"b\":null}],\"c\":\"\\n\"}", "{\"a\":[1.0,{\"b\":null}],\"c\":\"\\u000a\"}"},
        {"{\"a\":[1,{\"b\":null}]}", "{\"a\":[1,{\"b\":null}],\"c\":\"n\"}"}},
    {"{\"not\":{\"const\":{\"a\":1}},\"type\":\"object\"}",
        {"{}", "{\"a\":2}", "{\"a\":1,\"b\":1}"}, {"{\"a\":1}", "[]"}},
    {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false,\"type\":"
     "\"array\",\"minItems\":1}",
        {"[1]", "[1,\"a\"]"}, {"[]", "[\"a\"]", "[1,\"a\",2]", "[1,2]"}},
    /* A bound that no number between -10^18 and 10^18 passes holds all the same. */
    {"{\"type\":\"number\",\"maximum\":1180591620717411303424}",
        {"12", "999999999999999999", "-0.5"},
        {"99999999999999999999999", "1e300", "1180591620717411303425"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":-1e30}", {"-999999999999999999", "7"},
        {"-9999999999999999999999999999999", "-1000000000000000000000000000000"}},
    /* Runs of digits have an end, but not where the format is forbidden. */
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
        {"\"2026-11-30T07:00:00.123456789Z\"", "\"2026-11-30T07:00:00.5+01:00\""},
        {"\"2026-11-30T07:00:00.1234567890Z\"", "\"2026-11-30T07:00:00.Z\""}},
    {"{\"type\":\"string\",\"not\":{\"format\":\"date-time\"}}", {"\"x\""},
        {"\"2026-11-30T07:00:00.1234567890Z\"", "\"2026-11-30T07:00:00Z\""}},
    {"{\"type\":\"string\",\"format\":\"time\"}", {"\"07:00:00.123456789Z\""},
        {"\"07:00:00.1234567890Z\""}},
    {"{\"type\":\"string\",\"format\":\"duration\"}", {"\"P123456789DT1H\"", "\"PT0S\""},
        {"\"P1234567890D\"", "\"PT1234567890S\"", "\"P\""}},
    {"{\"type\":\"string\",\"format\":\"uri\"}", {"\"http://h:65535/a\"", "\"http://h:/\""},
        {"\"http://h:655350/a\"", "\"//h/a\""}},
};
#define N_CASES (sizeof cases / sizeof *cases)

static void test_texts(void **state) {
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        json *schema = parse(cases[i].schema);
        grammar *g = compile(schema, &(schema_options){0});
        for (int k = 0; k < 6; k++) {
            const char *yes = cases[i].yes[k], *no = cases[i].no[k];
            if (yes != NULL && !walk_accepts(g, tk, yes)) {
                fail_msg("%s\nnot reachable: %s", cases[i].schema, yes);
            }
            if (no != NULL && walk_accepts(g, tk, no)) {
                fail_msg("%s\nreachable: %s", cases[i].schema, no);
            }
        }
        grammar_put(g);
        json_free(schema);
    }
}

static void test_random_replies(void **state) {
    int n_checked = 0;
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        json *schema = parse(cases[i].schema);
        grammar *g = compile(schema, &(schema_options){0});
        for (uint64_t seed = 0; seed < WALKS; seed++) {
            buf text = BUF_INIT;
            if (!walk_random(g, tk, seed, FREE_TOKENS, &text)) {
                buf_release(&text);
                continue;
            }
            json *value = parse(buf_cstr(&text));
            if (schema_check_knows(schema)) {
                n_checked++;
                if (!schema_check(schema, schema, value)) {
                    fail_msg("%s\nbreaks it: %s", cases[i].schema, buf_cstr(&text));
                }
            }
            json_free(value);
            buf_release(&text);
        }
        grammar_put(g);
        json_free(schema);
    }
    assert_true(n_checked > 20 * (int)N_CASES / 2);
}

static void test_refused(void **state) {
    static const struct {
        const char *schema;
        int code;
        const char *place;
    } refused[] = {{"{\"type\":\"object\",\"properties\":{\"a/b\":{\"pattern\":\"(?!x)\"}}}",
                       ERR_UNSUPPORTED, "/properties/a~1b/pattern"},
        {"{\"$ref\":\"https://example.com/s.json\"}", ERR_UNSUPPORTED, "/$ref"},
        {"{\"$dynamicRef\":\"#x\"}", ERR_UNSUPPORTED, "/$dynamicRef"},
        {"{\"anyOf\":[{\"type\":\"strnig\"}]}", ERR_FORMAT, "/anyOf/0/type"},
        {"{\"properties\":{\"s\":{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":600}}}",
            ERR_UNSUPPORTED, "/properties/s/uniqueItems"},
        {"{\"prefixItems\":[{\"enum\":[\"a\",\"b\"]},{\"const\":\"a\"}],\"minItems\":2,\"type\":\"array\","
         "\"uniqueItems\":true}",
            ERR_UNSUPPORTED, "/uniqueItems"},
        {"{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\"]},\"contains\":{\"const\":\"a\"},\"minItems\":3,"
         "\"uniqueItems\":true}",
            ERR_ARG, ""},
        {"{\"type\":\"array\",\"contains\":{\"const\":\"a\"},\"minContains\":2,\"uniqueItems\":true}",
            ERR_ARG, ""},
        {"{\"items\":{\"type\":\"object\",\"dependentRequired\":{\"a\":[\"b\"]},\"minProperties\":1,"
         "\"maxProperties\":1}}",
            ERR_UNSUPPORTED, "/items/dependentRequired"},
        {"{\"items\":{\"type\":\"object\",\"patternProperties\":{\"a\":{},\"b\":{},\"c\":{},\"d\":{},"
         "\"e\":{},\"f\":{},\"g\":{\"type\":\"null\"}}}}",
            ERR_UNSUPPORTED, "/items/patternProperties"},
        {"{\"minLength\":-1}", ERR_FORMAT, "/minLength"},
        {"{\"multipleOf\":0}", ERR_FORMAT, "/multipleOf"},
        {"{\"minimum\":0.1234567890123456789}", ERR_UNSUPPORTED, "/minimum"},
        {"{\"not\":{\"uniqueItems\":true}}", ERR_UNSUPPORTED, "/not/uniqueItems"},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", ERR_ARG, ""},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":8,\"maximum\":13}", ERR_ARG, ""},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", ERR_ARG, ""},
        {"{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"a\"]}", ERR_ARG, ""},
        {"{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"uniqueItems\":true,\"minItems\":3}",
            ERR_ARG, ""},
        {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}", ERR_ARG, ""},
        {"{\"type\":\"string\",\"pattern\":\"^a$\",\"minLength\":2}", ERR_ARG, ""},
        {"[]", ERR_FORMAT, ""}};
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        json *schema = parse(refused[i].schema);
        grammar *g = NULL;
        err e = ERR_INIT;
        int rc = grammar_from_schema(trie, schema, &(schema_options){0}, &g, &e);
        if (rc != refused[i].code) fail_msg("%s: %d %s", refused[i].schema, rc, e.msg);
        assert_string_equal(e.place, refused[i].place);
        json_free(schema);
    }
}

static void test_order(void **state) {
    static const char text[] = "{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"integer\"},"
                               "\"a\":{\"type\":\"integer\"},\"c\":{\"type\":\"integer\"}},"
                               "\"required\":[\"b\",\"c\"],\"additionalProperties\":false}";
    json *schema = parse(text);
    (void)state;
    grammar *g = compile(schema, &(schema_options){0}); /* a is optional: any order */
    assert_true(walk_accepts(g, tk, "{\"c\":1,\"a\":2,\"b\":3}"));
    grammar_put(g);
    g = compile(schema, &(schema_options){.is_strict = true});
    assert_true(walk_accepts(g, tk, "{\"b\":1,\"a\":2,\"c\":3}"));
    assert_true(walk_accepts(g, tk, "{\"b\":1,\"c\":3}"));
    assert_false(walk_accepts(g, tk, "{\"a\":1,\"b\":2,\"c\":3}"));
    assert_false(walk_accepts(g, tk, "{\"c\":1,\"b\":2}"));
    assert_false(walk_accepts(g, tk, "{\"b\":1}"));
    grammar_put(g);
    json_free(schema);
}

static void test_white_space(void **state) {
    json *schema = parse("{\"type\":\"array\"}");
    grammar *g = compile(schema, &(schema_options){0});
    (void)state;
    assert_true(walk_accepts(g, tk, "[ 1 , 2 ]"));
    assert_true(walk_accepts(g, tk, "[\n    1,\n    [\n        2\n    ]\n]"));
    assert_false(walk_accepts(g, tk, "[  1]"));
    assert_false(walk_accepts(g, tk, "[\n\n1]"));
    assert_false(walk_accepts(g, tk, "[\n            1]"));
    assert_false(walk_accepts(g, tk, " []"));
    assert_false(walk_accepts(g, tk, "[] "));
    grammar_put(g);
    json_free(schema);
}

/* Nesting has an end, and nothing is left half open there. */
static void test_deep(void **state) {
    char text[300] = "";
    json *schema = parse("{\"type\":\"array\"}");
    grammar *g = compile(schema, &(schema_options){0});
    (void)state;
    memset(text, '[', 128);
    memset(text + 128, ']', 128);
    assert_true(walk_accepts_bytes(g, tk, text, 256));
    memset(text, '[', 129);
    memset(text + 129, ']', 129);
    assert_false(walk_accepts_bytes(g, tk, text, 258));
    grammar_put(g);
    json_free(schema);
}

/* True if every byte of text can be written, one token each. */
static bool can_begin(grammar *g, const char *text) {
    grammar_state *s = grammar_state_new(g);
    bool is_right = true;
    for (; *text != '\0' && is_right; text++) {
        is_right = grammar_accept(s, tokenizer_find(tk, text, 1)) == OK;
    }
    grammar_state_free(s);
    return is_right;
}

/* A number without limits that equals an earlier element never comes to where no byte is left. */
static void test_different_numbers(void **state) {
    static const struct {
        const char *items, *possible, *stuck;
    } all[] = {
        {"{\"type\":\"integer\"}", "[0,-1,111111111111111111111111,11111111111111111111111",
            "[0,0"},
        {"{\"type\":\"integer\"}", "[0,-1", "[0,-0"},
        {"{\"type\":\"integer\"}", "[111111111111111111111111,111111111111111111111112",
            "[111111111111111111111111,111111111111111111111111"},
        {"{}", "[1,1.111111111111111111111111,1.111111111111111111111112",
            "[1,1.111111111111111111111111,1.111111111111111111111111"},
        {"{}", "[12,1.5", "[12,1.2e"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char text[200];
        (void)snprintf(text, sizeof text, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":%s}",
            all[i].items);
        json *schema = parse(text);
        grammar *g = compile(schema, &(schema_options){0});
        if (!can_begin(g, all[i].possible)) fail_msg("cannot be written: %s", all[i].possible);
        if (can_begin(g, all[i].stuck)) fail_msg("can be written: %s", all[i].stuck);
        grammar_put(g);
        json_free(schema);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts),
        cmocka_unit_test(test_different_numbers), cmocka_unit_test(test_random_replies),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_order),
        cmocka_unit_test(test_white_space), cmocka_unit_test(test_deep)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
