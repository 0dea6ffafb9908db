/* The pre_tokenizer rule of a tokenizer.json. An unknown rule is an error: splitting otherwise than
 * the model was trained would give wrong ids without a word. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/text/tokenizer_internal.h"

#define PATTERN_NUMBER3 "\\p{N}{1,3}"
/* [U+4E00-U+9FA5 U+3040-U+309F U+30A0-U+30FF]+ in UTF-8 */
#define PATTERN_CJK "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+"
#define PATTERN_WORDS                                                                              \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"                                       \
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|"                      \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PATTERN_GPT2                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static int add_stage(tokenizer *t, split_stage **out, err *e) {
    if (t->n_stages == SPLIT_MAX_STAGES) {
        return err_set(e, ERR_LIMIT, "pre_tokenizer has more than %d rules", SPLIT_MAX_STAGES);
    }
    *out = &t->stages[t->n_stages++];
    memset(*out, 0, sizeof **out);
    return OK;
}

/* Equal, where a CR or LF in the pattern may stand as itself or as an escape: DeepSeek's own files
 * differ in that. */
static bool same_pattern(const char *pattern, const char *known) {
    for (; *pattern != 0; pattern++) {
        if (*pattern == '\r' || *pattern == '\n') {
            if (known[0] != '\\' || known[1] != (*pattern == '\r' ? 'r' : 'n')) return false;
            known += 2;
        } else if (*pattern != *known++) {
            return false;
        }
    }
    return *known == 0;
}

static int set_pattern(split_stage *s, const char *pattern, err *e) {
    if (same_pattern(pattern, PATTERN_NUMBER3))
        s->kind = SPLIT_NUMBER3;
    else if (same_pattern(pattern, PATTERN_CJK))
        s->kind = SPLIT_CJK;
    else if (same_pattern(pattern, PATTERN_WORDS))
        s->kind = SPLIT_WORDS;
    else {
        s->kind = SPLIT_REGEX;
        return split_regex_compile(pattern, &s->regex, e);
    }
    return OK;
}

static int read_behavior(const json *rule, split_behavior *out, err *e) {
    static const char *const names[] = {
        "Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = json_str(json_get(rule, "behavior"));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (name != NULL && strcmp(name, names[i]) == 0) {
            *out = (split_behavior)i;
            return OK;
        }
    }
    return err_set(e, ERR_UNSUPPORTED,
        "pre_tokenizer Split has the behavior '%s', which is unknown",
        name != NULL ? name : "(none)");
}

static int load_split(tokenizer *t, const json *rule, err *e) {
    split_stage *s = NULL;
    int rc = add_stage(t, &s, e);
    if (rc != OK) return rc;
    s->kind = SPLIT_LITERAL;
    rc = read_behavior(rule, &s->behavior, e);
    if (rc != OK) return rc;
    s->is_inverted = json_is_true(json_get(rule, "invert"));
    const json *pattern = json_get(rule, "pattern");
    const char *regex = json_str(json_get(pattern, "Regex"));
    if (regex != NULL) return set_pattern(s, regex, e);
    const char *literal = json_str(json_get(pattern, "String"));
    if (literal == NULL || literal[0] == 0) {
        return err_set(e, ERR_FORMAT, "pre_tokenizer Split has no pattern (Regex or String)");
    }
    s->literal = mem_strdup(literal);
    s->literal_len = strlen(literal);
    return OK;
}

static int load_byte_level(tokenizer *t, const json *rule, err *e) {
    if (json_is_true(json_get(rule, "add_prefix_space"))) {
        return err_set(e, ERR_UNSUPPORTED,
            "pre_tokenizer ByteLevel adds a prefix space, which this "
            "family never does");
    }
    const json *uses = json_get(rule, "use_regex");
    if (uses != NULL && !json_is_true(uses)) return OK;
    split_stage *s = NULL;
    int rc = add_stage(t, &s, e);
    return rc != OK ? rc : set_pattern(s, PATTERN_GPT2, e);
}

static int load_rule(tokenizer *t, const json *rule, err *e) {
    const char *type = json_str(json_get(rule, "type"));
    if (type == NULL) return err_set(e, ERR_FORMAT, "pre_tokenizer rule has no type");
    if (strcmp(type, "Split") == 0) return load_split(t, rule, e);
    if (strcmp(type, "ByteLevel") == 0) return load_byte_level(t, rule, e);
    if (strcmp(type, "Digits") == 0) {
        split_stage *s = NULL;
        int rc = add_stage(t, &s, e);
        if (rc != OK) return rc;
        s->kind = SPLIT_DIGITS;
        s->is_single = json_is_true(json_get(rule, "individual_digits"));
        return OK;
    }
    return err_set(e, ERR_UNSUPPORTED, "pre_tokenizer rule '%s' is not supported", type);
}

int split_load(tokenizer *t, const json *rule, err *e) {
    int rc = OK;
    if (rule == NULL || json_is_null(rule)) return OK;
    if (str_eq(json_str(json_get(rule, "type")), "Sequence")) {
        JSON_EACH(item, json_get(rule, "pretokenizers")) {
            rc = load_rule(t, item, e);
            if (rc != OK) return rc;
        }
    } else {
        rc = load_rule(t, rule, e);
    }
    static const split_kind deepseek[] = {SPLIT_NUMBER3, SPLIT_CJK, SPLIT_WORDS};
    t->is_deepseek = rc == OK && t->n_stages == 3;
    for (int i = 0; i < 3 && t->is_deepseek; i++) {
        const split_stage *s = &t->stages[i];
        t->is_deepseek = s->kind == deepseek[i] && s->behavior == SPLIT_ISOLATED && !s->is_inverted;
    }
    return rc;
}

void split_release(tokenizer *t) {
    for (int i = 0; i < t->n_stages; i++) {
        split_regex_free(t->stages[i].regex);
        mem_free(t->stages[i].literal);
    }
    t->n_stages = 0;
}
