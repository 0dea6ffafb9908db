/* Small lexers for code blocks: comments, strings, numbers and keywords of the languages that
 * models write most. Everything else is shown plain. A line that is still growing stops before a
 * word, quote or mark whose meaning may still change. */
#include <ctype.h>
#include <string.h>

#include "engine/base/str.h"
#include "tui/md_internal.h"

enum { CODE_NONE, CODE_COMMENT, CODE_TRIPLE_DOUBLE, CODE_TRIPLE_SINGLE };

typedef struct language {
    const char *names;    /* between blanks */
    const char *keywords; /* between blanks */
    const char *line_comment;
    bool has_block_comment, has_triple, has_single_quote;
} language;

static const language LANGUAGES[] = {
    {" c h cpp c++ cc cuda cu cxx hpp java js javascript ts typescript go rust rs ",
        " auto bool break case char class const constexpr continue default do double else enum "
        "export "
        "extern false float fn for func function goto if impl import inline int int32_t int64_t "
        "let long "
        "match mut namespace new null nullptr package private pub public restrict return short "
        "signed "
        "size_t sizeof static struct switch template this true type typedef uint32_t uint64_t "
        "uint8_t "
        "union unsigned use using var void volatile while __global__ __device__ __shared__ "
        "__restrict__ "
        "async await try catch throw ",
        "//", true, false, true},
    {" python py ",
        " and as assert async await break class continue def del elif else except False finally "
        "for from "
        "global if import in is lambda None nonlocal not or pass raise return True try while "
        "with yield ",
        "#", false, true, true},
    {" sh bash shell zsh console ",
        " case do done elif else esac exit export fi for function if in local read return set "
        "then while ",
        "#", false, false, true},
    {" make makefile ", " define else endef endif export ifdef ifeq ifndef ifneq include override ",
        "#", false, false, false},
    {" json ", " true false null ", NULL, false, false, false},
    {" yaml yml toml ini conf ", " true false null yes no on off ", "#", false, false, true},
    {" sql ",
        " select from where insert into values update set delete create table and or not null join "
        "on group by order having limit as SELECT FROM WHERE INSERT INTO VALUES UPDATE SET DELETE "
        "CREATE TABLE AND OR NOT NULL JOIN ON GROUP BY ORDER HAVING LIMIT AS ",
        "--", false, false, true},
};

static bool has_word(const char *list, const char *s, size_t n) {
    char padded[40];
    if (n == 0 || n + 3 > sizeof padded) return false;
    padded[0] = ' ';
    memcpy(padded + 1, s, n);
    padded[n + 1] = ' ';
    padded[n + 2] = '\0';
    return memchr(s, ' ', n) == NULL && strstr(list, padded) != NULL;
}

static const language *find_language(const char *name) {
    char lower[24];
    size_t n = str_copy(lower, sizeof lower, name);
    for (size_t i = 0; i < n && i < sizeof lower - 1; i++) {
        lower[i] = (char)tolower((unsigned char)lower[i]);
    }
    for (size_t i = 0; i < sizeof LANGUAGES / sizeof LANGUAGES[0]; i++) {
        if (has_word(LANGUAGES[i].names, lower, strlen(lower))) return &LANGUAGES[i];
    }
    return NULL;
}

typedef struct lexer {
    const language *lang;
    const char *s;
    size_t n;
    bool is_complete;
    int *state;
    rich *out;
} lexer;

static size_t put(const lexer *x, size_t i, size_t len, canvas_role role) {
    rich_add(x->out, x->s + i, len, style_of(role));
    return i + len;
}

static bool starts(const lexer *x, size_t i, const char *mark) {
    size_t len = mark != NULL ? strlen(mark) : 0;
    return len > 0 && x->n - i >= len && memcmp(x->s + i, mark, len) == 0;
}

/* Inside a comment or string that runs over lines: to its end mark or the end of the line. */
static size_t lex_open(const lexer *x, size_t i) {
    const char *mark = *x->state == CODE_COMMENT         ? "*/"
                       : *x->state == CODE_TRIPLE_DOUBLE ? "\"\"\""
                                                         : "'''";
    canvas_role role = *x->state == CODE_COMMENT ? ROLE_COMMENT : ROLE_STRING;
    const char *end = memmem(x->s + i, x->n - i, mark, strlen(mark));
    if (end == NULL) return put(x, i, x->n - i, role);
    *x->state = CODE_NONE;
    return put(x, i, (size_t)(end - x->s) + strlen(mark) - i, role);
}

static size_t lex_string(const lexer *x, size_t i) {
    char quote = x->s[i];
    size_t j = i + 1;
    while (j < x->n && x->s[j] != quote)
        j += x->s[j] == '\\' ? 2 : 1;
    j = j < x->n ? j + 1 : x->n;
    return put(x, i, j - i, ROLE_STRING);
}

static bool is_name(unsigned char c) {
    return isalnum(c) || c == '_' || c >= 0x80;
}

static size_t lex_word(const lexer *x, size_t i) {
    size_t j = i;
    bool is_number = isdigit((unsigned char)x->s[i]);
    while (j < x->n && (is_name((unsigned char)x->s[j]) || (is_number && x->s[j] == '.')))
        j++;
    if (j == x->n && !x->is_complete && j - i <= MD_HOLD_CHARS) return MD_UNCLEAR;
    canvas_role role = ROLE_TEXT;
    if (is_number)
        role = ROLE_NUMBER;
    else if (has_word(x->lang->keywords, x->s + i, j - i))
        role = ROLE_KEYWORD;
    return put(x, i, j - i, role);
}

static size_t lex_one(const lexer *x, size_t i) {
    char c = x->s[i];
    if (*x->state != CODE_NONE) return lex_open(x, i);
    if (strchr("/\"'-", c) != NULL && c != '\0' && !x->is_complete && x->n - i < 3)
        return MD_UNCLEAR;
    if (starts(x, i, x->lang->line_comment)) return put(x, i, x->n - i, ROLE_COMMENT);
    if (x->lang->has_block_comment && starts(x, i, "/*")) {
        *x->state = CODE_COMMENT;
        return put(x, i, 2, ROLE_COMMENT);
    }
    if (x->lang->has_triple && (starts(x, i, "\"\"\"") || starts(x, i, "'''"))) {
        *x->state = c == '"' ? CODE_TRIPLE_DOUBLE : CODE_TRIPLE_SINGLE;
        return put(x, i, 3, ROLE_STRING);
    }
    if (c == '"' || (c == '\'' && x->lang->has_single_quote)) return lex_string(x, i);
    if (is_name((unsigned char)c)) return lex_word(x, i);
    return put(x, i, 1, ROLE_TEXT);
}

static canvas_role diff_role(const char *s, size_t n) {
    if (n == 0) return ROLE_TEXT;
    if (s[0] == '+') return ROLE_GOOD;
    if (s[0] == '-') return ROLE_BAD;
    return s[0] == '@' ? ROLE_INFO : ROLE_TEXT;
}

void md_code_line(
    const char *name, const char *s, size_t n, bool is_complete, int *state, rich *out) {
    if (strcmp(name, "diff") == 0 || strcmp(name, "patch") == 0) {
        rich_add(out, s, n, style_of(diff_role(s, n)));
        return;
    }
    lexer x = {find_language(name), s, n, is_complete, state, out};
    if (x.lang == NULL) {
        rich_add(out, s, n, style_of(ROLE_TEXT));
        return;
    }
    for (size_t i = 0; i < n;) {
        size_t next = lex_one(&x, i);
        if (next == MD_UNCLEAR) return;
        i = next;
    }
}
