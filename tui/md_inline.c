/* Inline text of one line. A scanner of our own finds constructs that are whole on the line (so
 * that nothing shown ever changes) and md4c reads each of them; marks without a partner within
 * MD_HOLD_CHARS stay what they are. */
#include <ctype.h>
#include <md4c.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/md_internal.h"

typedef struct scan {
    const char *s;
    size_t n;
    bool is_complete;
} scan;

/* The end of what may be looked at from i: the line, or MD_HOLD_CHARS characters on. */
static size_t horizon(const scan *k, size_t i, bool *is_cut) {
    size_t n_chars = 0, at = i;
    while (at < k->n && n_chars <= MD_HOLD_CHARS) {
        at++;
        while (at < k->n && ((unsigned char)k->s[at] & 0xc0) == 0x80)
            at++;
        n_chars++;
    }
    *is_cut = at < k->n || n_chars > MD_HOLD_CHARS;
    return at;
}

/* No partner was found before the horizon. */
static size_t give_up(const scan *k, bool is_cut) {
    return k->is_complete || is_cut ? 0 : MD_UNCLEAR;
}

static size_t run_at(const scan *k, size_t i) {
    size_t n = 0;
    while (i + n < k->n && k->s[i + n] == k->s[i])
        n++;
    return n;
}

static bool is_word(unsigned char c) {
    return isalnum(c) || c >= 0x80;
}

static size_t code_span(const scan *k, size_t i) {
    bool is_cut;
    size_t run = run_at(k, i), end = horizon(k, i + run, &is_cut);
    if (i + run == k->n && !k->is_complete) return MD_UNCLEAR;
    for (size_t j = i + run; j < end; j++) {
        if (k->s[j] != '`') continue;
        size_t found = run_at(k, j);
        if (j + found == k->n && !k->is_complete) return MD_UNCLEAR;
        if (found == run) return j + found - i;
        j += found - 1;
    }
    return give_up(k, is_cut);
}

/* Steps over an escape or a code span at j while a closing mark is looked for; MD_UNCLEAR while the
 * code span is. */
static size_t step(const scan *k, size_t j) {
    if (k->s[j] == '\\' && j + 1 < k->n) return 2;
    if (k->s[j] != '`') return 1;
    size_t len = code_span(k, j);
    return len == 0 ? run_at(k, j) : len;
}

static size_t emphasis(const scan *k, size_t i) {
    char c = k->s[i];
    size_t run = run_at(k, i);
    if (i + run >= k->n) return k->is_complete ? 0 : MD_UNCLEAR;
    if (run > 3 || (c == '~' && run != 2)) return 0;
    if (isspace((unsigned char)k->s[i + run])) return 0;
    if (c == '_' && i > 0 && is_word((unsigned char)k->s[i - 1])) return 0;
    bool is_cut;
    size_t end = horizon(k, i + run, &is_cut);
    for (size_t j = i + run; j < end;) {
        if (k->s[j] != c) {
            size_t len = step(k, j);
            if (len == MD_UNCLEAR) return MD_UNCLEAR;
            j += len;
            continue;
        }
        size_t found = run_at(k, j);
        if (j + found >= k->n && !k->is_complete) return MD_UNCLEAR;
        bool closes = !isspace((unsigned char)k->s[j - 1]) && (found == run || found == 3);
        if (c == '_' && j + found < k->n && is_word((unsigned char)k->s[j + found])) closes = false;
        if (closes) return j + found - i;
        j += found;
    }
    return give_up(k, is_cut);
}

/* [text](target) and, with is_image, ![text](target). */
static size_t link_at(const scan *k, size_t i, bool is_image) {
    size_t open = i + (is_image ? 1 : 0);
    bool is_cut;
    size_t end = horizon(k, open, &is_cut), j = open + 1;
    int depth = 1;
    while (j < end && depth > 0) {
        if (k->s[j] == '[') depth++;
        if (k->s[j] == ']') depth--;
        size_t len = step(k, j);
        if (len == MD_UNCLEAR) return MD_UNCLEAR;
        j += len;
    }
    if (depth > 0) return give_up(k, is_cut);
    if (j >= k->n) return k->is_complete ? 0 : MD_UNCLEAR;
    if (k->s[j] != '(') return 0;
    int round = 0;
    for (size_t start = j; j < k->n && j - start < MD_LINK_BYTES; j++) {
        if (k->s[j] == '(') round++;
        if (k->s[j] == ')' && --round == 0) return j + 1 - i;
    }
    return k->is_complete || j < k->n ? 0 : MD_UNCLEAR;
}

static size_t autolink(const scan *k, size_t i) {
    static const char *const SCHEMES[] = {"<http://", "<https://", "<mailto:"};
    bool may_be = false, is_cut;
    for (size_t j = 0; j < 3; j++) {
        size_t len = strlen(SCHEMES[j]), have = k->n - i < len ? k->n - i : len;
        if (memcmp(k->s + i, SCHEMES[j], have) != 0) continue;
        if (have < len && k->is_complete) continue;
        may_be = true;
    }
    if (!may_be) return 0;
    size_t end = horizon(k, i, &is_cut);
    for (size_t j = i + 1; j < end; j++) {
        if (k->s[j] == ' ' || k->s[j] == '<') return 0;
        if (k->s[j] == '>') return j + 1 - i;
    }
    return give_up(k, is_cut);
}

static size_t entity(const scan *k, size_t i) {
    for (size_t j = i + 1; j < k->n; j++) {
        if (k->s[j] == ';') return j > i + 1 ? j + 1 - i : 0;
        if ((!isalnum((unsigned char)k->s[j]) && k->s[j] != '#') || j - i > 10) return 0;
    }
    return k->is_complete ? 0 : MD_UNCLEAR;
}

/* $...$ is mathematics and stays as written, marks inside included. */
static size_t math(const scan *k, size_t i) {
    bool is_cut;
    if (i + 1 >= k->n) return k->is_complete ? 0 : MD_UNCLEAR;
    if (isspace((unsigned char)k->s[i + 1]) || isdigit((unsigned char)k->s[i + 1])) return 0;
    size_t end = horizon(k, i + 1, &is_cut);
    for (size_t j = i + 1; j < end; j++) {
        if (k->s[j] != '$' || j == i + 1 || isspace((unsigned char)k->s[j - 1])) continue;
        if (j + 1 >= k->n && !k->is_complete) return MD_UNCLEAR;
        if (j + 1 < k->n && isdigit((unsigned char)k->s[j + 1])) continue;
        return j + 1 - i;
    }
    return give_up(k, is_cut);
}

static size_t escape(const scan *k, size_t i) {
    if (i + 1 >= k->n) return k->is_complete ? 0 : MD_UNCLEAR;
    unsigned char c = (unsigned char)k->s[i + 1];
    /* \( \) \[ \] are mathematics: as written. */
    return ispunct(c) && strchr("()[]", c) == NULL ? 2 : 0;
}

static size_t construct_at(const scan *k, size_t i) {
    switch (k->s[i]) {
    case '\\':
        return escape(k, i);
    case '`':
        return code_span(k, i);
    case '*':
    case '_':
    case '~':
        return emphasis(k, i);
    case '[':
        return link_at(k, i, false);
    case '!':
        if (i + 1 >= k->n) return k->is_complete ? 0 : MD_UNCLEAR;
        return k->s[i + 1] == '[' ? link_at(k, i, true) : 0;
    case '<':
        return autolink(k, i);
    case '&':
        return entity(k, i);
    default:
        return 0;
    }
}

/* --- md4c reads one construct --- */

typedef struct reading {
    md *d;
    rich *out;
    style base;
    int n_bold, n_italic, n_struck, n_code, n_link;
    bool is_image, has_started;
    int *n_links;
    size_t link_from;
    char target[MD_LINK_BYTES];
} reading;

static style current_style(const reading *r) {
    style st = r->base;
    if (r->n_code > 0) st.role = ROLE_CODE;
    if (r->n_struck > 0) st.role = ROLE_DIM;
    if (r->n_bold > 0) st.flags |= STYLE_BOLD;
    if (r->n_italic > 0) st.flags |= STYLE_ITALIC;
    if (r->n_link > 0) st.flags |= STYLE_UNDERLINE;
    return st;
}

static void keep_link(reading *r) {
    md *d = r->d;
    int number = ++*r->n_links;
    if (number > d->n_links && number <= MD_MAX_LINKS) {
        d->links = mem_realloc(d->links, (size_t)number * sizeof *d->links);
        while (d->n_links < number)
            d->links[d->n_links++] = mem_strdup(r->target);
    }
    size_t len = r->out->text.len - r->link_from;
    const char *shown = r->out->text.data + r->link_from;
    if (len == strlen(r->target) && memcmp(shown, r->target, len) == 0) return;
    char mark[24];
    snprintf(mark, sizeof mark, "[%d]", number);
    rich_puts(r->out, mark, style_of(ROLE_DIM));
}

static int enter_block(MD_BLOCKTYPE type, void *detail, void *ctx) {
    (void)type;
    (void)detail;
    (void)ctx;
    return 0;
}

static int enter_span(MD_SPANTYPE type, void *detail, void *ctx) {
    reading *r = ctx;
    if (type == MD_SPAN_STRONG)
        r->n_bold++;
    else if (type == MD_SPAN_EM)
        r->n_italic++;
    else if (type == MD_SPAN_DEL)
        r->n_struck++;
    else if (type == MD_SPAN_CODE)
        r->n_code++;
    else if (type == MD_SPAN_IMG)
        rich_puts(r->out, "[image: ", style_of(ROLE_DIM));
    else if (type == MD_SPAN_A) {
        const MD_SPAN_A_DETAIL *a = detail;
        size_t n = a->href.size < sizeof r->target ? a->href.size : sizeof r->target - 1;
        memcpy(r->target, a->href.text, n);
        r->target[n] = '\0';
        r->link_from = r->out->text.len;
        r->n_link++;
    }
    return 0;
}

static int leave_span(MD_SPANTYPE type, void *detail, void *ctx) {
    reading *r = ctx;
    (void)detail;
    if (type == MD_SPAN_STRONG)
        r->n_bold--;
    else if (type == MD_SPAN_EM)
        r->n_italic--;
    else if (type == MD_SPAN_DEL)
        r->n_struck--;
    else if (type == MD_SPAN_CODE)
        r->n_code--;
    else if (type == MD_SPAN_IMG)
        rich_puts(r->out, "]", style_of(ROLE_DIM));
    else if (type == MD_SPAN_A) {
        r->n_link--;
        keep_link(r);
    }
    return 0;
}

static void put_entity(reading *r, const char *s, size_t n) {
    static const struct {
        const char *name, *text;
    } NAMED[] = {{"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"},
        {"&nbsp;", " "}, {"&mdash;", "\xe2\x80\x94"}, {"&ndash;", "\xe2\x80\x93"},
        {"&hellip;", "\xe2\x80\xa6"}, {"&times;", "\xc3\x97"}, {"&deg;", "\xc2\xb0"}};
    for (size_t i = 0; i < sizeof NAMED / sizeof NAMED[0]; i++) {
        if (strlen(NAMED[i].name) != n || memcmp(NAMED[i].name, s, n) != 0) continue;
        rich_puts(r->out, NAMED[i].text, current_style(r));
        return;
    }
    /* Numeric ones could name control characters: they stay as written, like unknown names. */
    rich_add(r->out, s, n, current_style(r));
}

static int on_text(MD_TEXTTYPE type, const MD_CHAR *s, MD_SIZE n, void *ctx) {
    reading *r = ctx;
    if (!r->has_started) { /* the full stop that md_inline put in front */
        r->has_started = true;
        s++;
        n--;
    }
    if (type == MD_TEXT_ENTITY)
        put_entity(r, s, n);
    else if (type == MD_TEXT_BR || type == MD_TEXT_SOFTBR || type == MD_TEXT_NULLCHAR)
        rich_puts(r->out, " ", current_style(r));
    else if (n > 0)
        rich_add(r->out, s, n, current_style(r));
    return 0;
}

/* A full stop in front keeps md4c from taking the construct for the mark of a block. */
static void read_construct(reading *r, const char *s, size_t n) {
    char small[1 + 4 * MD_HOLD_CHARS + 2 * MD_LINK_BYTES];
    if (n + 1 > sizeof small) {
        rich_add(r->out, s, n, r->base);
        return;
    }
    small[0] = '.';
    memcpy(small + 1, s, n);
    r->has_started = false;
    const MD_PARSER parser = {
        .flags = MD_FLAG_NOHTML | MD_FLAG_STRIKETHROUGH | MD_FLAG_NOINDENTEDCODEBLOCKS,
        .enter_block = enter_block,
        .leave_block = enter_block,
        .enter_span = enter_span,
        .leave_span = leave_span,
        .text = on_text,
    };
    if (md_parse(small, (MD_SIZE)(n + 1), &parser, r) != 0) rich_add(r->out, s, n, r->base);
}

void md_inline(
    md *d, const char *s, size_t n, bool is_complete, style base, rich *out, int *n_links) {
    scan k = {s, n, is_complete};
    reading r = {.d = d, .out = out, .base = base, .n_links = n_links};
    size_t plain = 0;
    for (size_t i = 0; i < n;) {
        bool is_math = s[i] == '$';
        size_t len = is_math ? math(&k, i) : construct_at(&k, i);
        if (len == MD_UNCLEAR) {
            n = i;
            break;
        }
        if (is_math || len == 0) {
            /* A run of marks that opens nothing stays whole: its rest must not open something. */
            size_t step_by = is_math ? len : strchr("*_`~", s[i]) != NULL ? run_at(&k, i) : 1;
            i += step_by > 0 ? step_by : 1;
            continue;
        }
        rich_add(out, s + plain, i - plain, base);
        read_construct(&r, s + i, len);
        i += len;
        plain = i;
    }
    if (plain < n) rich_add(out, s + plain, n - plain, base);
}
