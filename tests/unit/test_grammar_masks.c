/* Masks are exact: at every place of many texts, for every token of the vocabulary, the mask says
 * what the step does. The places are those where masks are prepared or taken together: strings near
 * and far from their limits, patterns, keys beside written and declared ones, numbers with and
 * without limits, texts of calls. With the demo model's vocabulary, and with DeepSeek's own where it
 * can be had (there at every fourth byte, at all with TANDEM_LONG). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/grammar.h"
#include "tests/harness/grammar_walk.h"
#include "tests/harness/real_tokenizer.h"
#include "tests/harness/vectors.h"

typedef struct sample {
    const char *schema, *text;
} sample;

#define OBJECT(properties) "{\"type\":\"object\",\"properties\":{" properties "}}"

static const sample samples[] = {
    {"{\"type\":\"string\"}", "\"some \\\"text\\\" \\u00e9\xC3\xA9\xE2\x82\xAC \""},
    {"{\"type\":\"string\",\"maxLength\":20}", "\"abcdefghijklmnopqrst\""},
    {"{\"type\":\"string\",\"minLength\":4}", "\"ab\\ncdef\""},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":90}", "\"ab cd \xC3\xA9\""},
    {"{\"type\":\"string\",\"pattern\":\"^[a-z0-9-]+$\"}", "\"task-0042-ab\""},
    {"{\"type\":\"string\",\"pattern\":\"^.*$\",\"maxLength\":300}",
        "\"free text\\t, \xE2\x82\xAC\""},
    {"{\"type\":\"string\",\"pattern\":\"^[^<]*$\",\"minLength\":3,\"maxLength\":40}",
        "\"what ever \\\\ comes here and there, is it\""},
    {"{\"type\":\"string\",\"pattern\":\"^([a-z][a-z])*$\",\"minLength\":3,\"maxLength\":40}",
        "\"abababababababababababababab\""},
    {"{\"type\":\"string\",\"pattern\":\"^[a-zA-Z]{2,30}x$\"}", "\"ComeOnx\""},
    {"{\"type\":\"string\",\"format\":\"email\"}", "\"some.one@example.org\""},
    {"{\"type\":\"string\",\"format\":\"date-time\"}", "\"2026-11-30T07:00:00Z\""},
    {"{\"enum\":[\"read\",\"write\",\"append\",\"append all\"]}", "\"append all\""},
    {"{\"type\":\"object\"}", "{\"a\":1,\"ab\":{\"a\":[true]},\"b \":\"x\",\"n\": null}"},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}",
        "{\"key\":\"v\",\"ke\":\"v\",\"k\":\"w\",\"\":\"\"}"},
    {OBJECT("\"name\":{\"type\":\"integer\"},\"na\":{\"type\":\"string\"},\"$\":{}"),
        "{\"other\":[],\"name\":12,\"na\":\"s\",\"names\":{},\"$\":0}"},
    {"{\"type\":\"array\",\"items\":{\"type\":\"object\"},\"uniqueItems\":true}",
        "[{\"a\":1},{\"b\":1},{\"a\":2}]"},
    {"{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"uniqueItems\":true}",
        "[\"a\",\"ab\",\"\"]"},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":100000},"
     "\"uniqueItems\":true}",
        "[1, 20,300,4000,12345]"},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":2500}}",
        "[0, 25, 2499,7]"},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":-1000,\"maximum\":-3}}",
        "[-3, -999,-45]"},
    {"{\"type\":\"array\",\"items\":{\"type\":\"number\",\"multipleOf\":0.25,\"maximum\":700}}",
        "[1.25, -30,699.75]"},
    {"{\"type\":\"array\",\"items\":{\"type\":\"number\"}}", "[0, 10.50,-1e5, 123456.789E-10]"},
    {"{\"type\":\"integer\",\"minimum\":0}", "123456789012345678"},
};
enum { N_SAMPLES = sizeof samples / sizeof samples[0] };

typedef struct setting {
    vectors v;
    tokenizer *tk;
    token_trie *trie;
    uint64_t *mask;
    size_t stride; /* places looked at: one in so many */
} setting;

/* Every token against the mask; the first that differs, -1 if none does. */
static int32_t first_wrong(setting *s, grammar_state *at) {
    grammar_mask(at, s->mask);
    for (int32_t k = 0; k < tokenizer_size(s->tk); k++) {
        bool is_in = (s->mask[k / 64] >> (k % 64) & 1) != 0;
        if (grammar_allows(at, k) != is_in) return k;
    }
    return -1;
}

static void report(setting *s, const char *id, size_t place, int32_t wrong) {
    char what[64], name[200];
    if (wrong < 0) {
        vectors_pass(&s->v);
        return;
    }
    bool is_in = (s->mask[wrong / 64] >> (wrong % 64) & 1) != 0;
    (void)snprintf(name, sizeof name, "%.120s at %zu", id, place);
    (void)snprintf(what, sizeof what, "token %d %s", wrong, is_in ? "allowed" : "not allowed");
    vectors_fail(&s->v, name, is_in ? "not allowed" : "allowed", what);
}

/* At each byte of the text; '@' stands for the mark of calls when there is one. */
static void walk(setting *s, grammar *g, const char *id, const char *text, bool has_marks) {
    grammar_state *at = grammar_state_new(g);
    int32_t dsml = tokenizer_controls(s->tk).dsml;
    for (size_t i = 0;; i++) {
        if (i % s->stride == 0) report(s, id, i, first_wrong(s, at));
        if (text[i] == '\0') break;
        int rc = has_marks && text[i] == '@' ? grammar_accept(at, dsml)
                                             : grammar_accept_bytes(at, text + i, 1);
        if (rc == OK) continue;
        vectors_fail(&s->v, id, "the text is taken", text + i);
        break;
    }
    grammar_state_free(at);
}

static void check_schemas(setting *s) {
    for (int i = 0; i < N_SAMPLES; i++) {
        json *schema = NULL;
        grammar *g = NULL;
        err e = ERR_INIT;
        int rc = json_parse(samples[i].schema, strlen(samples[i].schema), NULL, &schema, &e);
        if (rc == OK) rc = grammar_from_schema(s->trie, schema, &(schema_options){0}, &g, &e);
        if (rc == OK) {
            walk(s, g, samples[i].schema, samples[i].text, false);
        } else {
            vectors_fail(&s->v, samples[i].schema, "compiles", e.msg);
        }
        grammar_put(g);
        json_free(schema);
    }
}

static void check_others(setting *s) {
    static const char tools[] =
        "[{\"name\":\"sh\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{"
        "\"c\":{\"type\":\"string\",\"pattern\":\"^[^;]+$\"},\"d\":{\"type\":\"string\","
        "\"maxLength\":6},\"e\":{\"type\":\"string\"}},\"required\":[\"c\"],"
        "\"additionalProperties\":false}}]";
    static const char call[] = " calls>\n<@ invoke name=\"sh\">\n<@ parameter name=\"c\" "
                               "string=\"true\">ls <x></@ parameter>\n<@ parameter name=\"d\" "
                               "string=\"true\">abcdef</@ parameter>\n</@ invoke>\n</@ calls>";
    grammar *g = NULL;
    json *list = NULL;
    err e = ERR_INIT;
    if (grammar_from_regex(s->trie, "[A-Za-z ]+: [0-9]{3,5}(\\.[^x]*)?", &g, &e) == OK) {
        walk(s, g, "regex", "Some Name: 1234.5 and so", false);
    }
    grammar_put(g);
    g = NULL;
    if (grammar_from_ebnf(s->trie, "root ::= [a-z ]+ \"=\" [0-9]+ \";\"", &g, &e) == OK) {
        walk(s, g, "ebnf", "some name=12;", false);
    }
    grammar_put(g);
    g = NULL;
    if (json_parse(tools, sizeof tools - 1, NULL, &list, &e) != OK) exit(1);
    tools_options o = {.tools = list};
    if (grammar_from_tools(s->trie, s->tk, &o, &g, &e) == OK) walk(s, g, "tools", call, true);
    grammar_put(g);
    json_free(list);
    if (e.code != OK) vectors_fail(&s->v, "regex, ebnf, tools", "compile", e.msg);
}

static void check_all(setting *s) {
    s->mask = mem_array(token_trie_words(s->trie), sizeof *s->mask);
    check_schemas(s);
    check_others(s);
    mem_free(s->mask);
    token_trie_free(s->trie);
    tokenizer_close(s->tk);
}

int main(void) {
    setting s = {.stride = 1};
    err e = ERR_INIT;
    buf text = BUF_INIT;
    char why[256];
    if (walk_tokenizer(&s.tk, &s.trie, &e) != OK) {
        (void)printf("%s\n", e.msg);
        return 1;
    }
    check_all(&s);
    s.stride = getenv("TANDEM_LONG") != NULL ? 1 : 4;
    if (real_tokenizer_v41(vectors_golden_dir(), &text, why) != OK) {
        vectors_skip(&s.v, "DeepSeek's vocabulary", why);
    } else if (tokenizer_parse(text.data, text.len, &s.tk, &e) == OK &&
               token_trie_new(s.tk, &s.trie, &e) == OK) {
        check_all(&s);
    } else {
        vectors_fail(&s.v, "DeepSeek's vocabulary", "is read", e.msg);
    }
    buf_release(&text);
    return vectors_end(&s.v);
}
