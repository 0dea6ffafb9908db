#include "engine/text/stop.h"

#include <stdint.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"

/* One string, its table of borders (Knuth, Morris, Pratt), how much of it the text ends in. */
typedef struct stop_string {
    char *text;
    size_t len;
    size_t *border; /* border[k]: longest proper border of the first k bytes */
    size_t matched;
    int i_given;
} stop_string;

struct stop_matcher {
    stop_string *strings;
    size_t n;
    buf held; /* text that is not out yet */
    int which;
};

static void fill_borders(stop_string *s) {
    s->border = mem_array(s->len + 1, sizeof *s->border);
    for (size_t i = 1, k = 0; i < s->len; i++) {
        while (k > 0 && s->text[i] != s->text[k])
            k = s->border[k];
        if (s->text[i] == s->text[k]) k++;
        s->border[i + 1] = k;
    }
}

stop_matcher *stop_matcher_new(const char *const *strings, size_t n) {
    stop_matcher *m = mem_alloc(sizeof *m);
    m->strings = mem_array(n + 1, sizeof *m->strings);
    m->held = (buf)BUF_INIT;
    m->which = -1;
    for (size_t i = 0; i < n; i++) {
        if (strings[i] == NULL || strings[i][0] == 0) continue;
        stop_string *s = &m->strings[m->n++];
        s->text = mem_strdup(strings[i]);
        s->len = strlen(strings[i]);
        s->i_given = (int)i;
        fill_borders(s);
    }
    return m;
}

void stop_matcher_free(stop_matcher *m) {
    if (m == NULL) return;
    for (size_t i = 0; i < m->n; i++) {
        mem_free(m->strings[i].text);
        mem_free(m->strings[i].border);
    }
    mem_free(m->strings);
    buf_release(&m->held);
    mem_free(m);
}

void stop_matcher_reset(stop_matcher *m) {
    for (size_t i = 0; i < m->n; i++)
        m->strings[i].matched = 0;
    buf_reset(&m->held);
    m->which = -1;
}

/* One byte. Returns the longest string that ends here, or NULL; *partial is the longest beginning
 * of any string that the text ends in. */
static const stop_string *advance(stop_matcher *m, char c, size_t *partial) {
    const stop_string *hit = NULL;
    *partial = 0;
    for (size_t i = 0; i < m->n; i++) {
        stop_string *s = &m->strings[i];
        while (s->matched > 0 && s->text[s->matched] != c)
            s->matched = s->border[s->matched];
        if (s->text[s->matched] == c) s->matched++;
        if (s->matched > *partial) *partial = s->matched;
        if (s->matched == s->len && (hit == NULL || s->len > hit->len)) hit = s;
    }
    return hit;
}

int stop_matcher_feed(stop_matcher *m, const char *text, size_t len, buf *out, bool *is_hit) {
    *is_hit = m->which >= 0;
    if (*is_hit || len == 0) return OK;
    if (m->n == 0) return buf_append(out, text, len);
    int rc = buf_append(&m->held, text, len);
    size_t before = m->held.len - len, partial = 0;
    for (size_t i = 0; i < len && rc == OK; i++) {
        const stop_string *hit = advance(m, text[i], &partial);
        if (hit == NULL) continue;
        *is_hit = true;
        m->which = hit->i_given;
        rc = buf_append(out, m->held.data, before + i + 1 - hit->len);
        buf_reset(&m->held);
        return rc;
    }
    if (rc != OK) return rc;
    size_t done = m->held.len - partial;
    rc = buf_append(out, m->held.data, done);
    buf_consume(&m->held, done);
    return rc;
}

int stop_matcher_end(stop_matcher *m, buf *out) {
    int rc = m->which < 0 ? buf_append(out, m->held.data, m->held.len) : OK;
    buf_reset(&m->held);
    return rc;
}

int stop_matcher_which(const stop_matcher *m) {
    return m->which;
}
