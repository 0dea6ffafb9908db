/* Patterns of other tokenizers, by PCRE2. Differences from Oniguruma that matter here: PCRE2 with
 * Unicode properties does not count U+0085 as white space, so \s and \S are rewritten; its Unicode
 * tables may be older than the library's. A match limit makes a pattern that explodes an error.
 * Subjects must be valid UTF-8: checking them at every match would cost quadratic time. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/tokenizer_internal.h"

#define REGEX_MAX_PATTERN 65536
#define REGEX_MATCH_LIMIT 50000000u

/* Appends the pattern with \s and \S as Unicode White_Space. */
static int rewrite_spaces(const char *pattern, buf *out) {
    bool in_class = false;
    int rc = OK;
    for (const char *p = pattern; *p != 0 && rc == OK; p++) {
        if (*p == '\\' && p[1] != 0) {
            if (p[1] == 's')
                rc = buf_puts(out, in_class ? "\\s\\x{85}" : "[\\s\\x{85}]");
            else if (p[1] == 'S' && !in_class)
                rc = buf_puts(out, "[^\\s\\x{85}]");
            else
                rc = buf_append(out, p, 2);
            p++;
            continue;
        }
        if (*p == '[') in_class = true;
        if (*p == ']') in_class = false;
        rc = buf_putc(out, *p);
    }
    return rc;
}

int split_regex_compile(const char *pattern, void **out, err *e) {
    buf text = BUF_MAX(REGEX_MAX_PATTERN);
    int rc = rewrite_spaces(pattern, &text);
    if (rc != OK) {
        buf_release(&text);
        return err_set(e, rc, "pre-tokenizer pattern is longer than %d bytes", REGEX_MAX_PATTERN);
    }
    int number = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)buf_cstr(&text), text.len,
        PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &number, &offset, NULL);
    buf_release(&text);
    if (code == NULL) {
        PCRE2_UCHAR why[160];
        (void)pcre2_get_error_message(number, why, sizeof why);
        return err_set(e, ERR_FORMAT, "pre-tokenizer pattern '%.200s' does not compile: %s",
            pattern, (const char *)why);
    }
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it matching is only slower */
    *out = code;
    return OK;
}

void split_regex_free(void *regex) {
    pcre2_code_free(regex);
}

typedef struct regex_data {
    pcre2_match_data *match;
    pcre2_match_context *context;
} regex_data;

void *split_regex_data(void *regex) {
    regex_data *d = mem_alloc(sizeof *d);
    d->match = pcre2_match_data_create_from_pattern(regex, NULL);
    d->context = pcre2_match_context_create(NULL);
    if (d->match == NULL || d->context == NULL) {
        split_regex_data_free(d);
        return NULL;
    }
    (void)pcre2_set_match_limit(d->context, REGEX_MATCH_LIMIT);
    return d;
}

void split_regex_data_free(void *data) {
    regex_data *d = data;
    if (d == NULL) return;
    pcre2_match_data_free(d->match);
    pcre2_match_context_free(d->context);
    mem_free(d);
}

int split_regex_find(
    void *regex, void *data, const char *p, size_t len, size_t from, size_t out[2]) {
    regex_data *d = data;
    while (from < len) {
        int rc = pcre2_match(regex, (PCRE2_SPTR)p, len, from, PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK,
            d->match, d->context);
        if (rc == PCRE2_ERROR_NOMATCH) return 0;
        if (rc == PCRE2_ERROR_NOMEMORY) return ERR_MEMORY;
        if (rc < 0) return ERR_LIMIT;
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(d->match);
        if (v[1] > v[0]) {
            out[0] = v[0];
            out[1] = v[1];
            return 1;
        }
        from = v[1] > from ? v[1] : from + 1; /* \K can move the start behind the end */
    }
    return 0;
}
