/* Sessions as text for people and for other programs. */
#include "tui/session_internal.h"

#include <string.h>
#include <time.h>

#include "engine/base/mem.h"

static void put_time(buf *out, int64_t ms) {
    time_t seconds = (time_t)(ms / 1000);
    struct tm local;
    char text[32] = "";
    if (localtime_r(&seconds, &local) != NULL) {
        strftime(text, sizeof text, "%Y-%m-%d %H:%M", &local);
    }
    buf_puts(out, text);
}

static const char *speaker(session_role r) {
    static const char *const names[] = {"System", "You", "Assistant", "Tool"};
    return names[r];
}

static const char *ending(const session_turn *t) {
    switch (t->state) {
    case SESSION_STOPPED:
        return "stopped by you";
    case SESSION_CUT:
        return "cut at the length limit";
    case SESSION_FAILED:
        return t->error != NULL ? t->error : "failed";
    case SESSION_INTERRUPTED:
    case SESSION_WRITING:
        return "interrupted";
    case SESSION_DONE:
        break;
    }
    return NULL;
}

static void put_md(buf *out, const session_turn *t) {
    buf_printf(out, "\n## %s (", speaker(t->role));
    put_time(out, t->time_ms);
    buf_puts(out, ")\n\n");
    if (t->think != NULL) {
        buf_printf(out, "<details><summary>Thinking</summary>\n\n%s\n\n</details>\n\n", t->think);
    }
    buf_printf(out, "%s\n", t->text);
    if (t->tool_calls != NULL) buf_printf(out, "\n```json\n%s\n```\n", t->tool_calls);
    if (ending(t) != NULL) buf_printf(out, "\n*(%s)*\n", ending(t));
}

static void put_txt(buf *out, const session_turn *t) {
    buf_printf(out, "%s%s:\n%s\n", out->len > 0 ? "\n" : "", speaker(t->role), t->text);
    if (ending(t) != NULL) buf_printf(out, "(%s)\n", ending(t));
}

static void put_json(const session *s, buf *out) {
    json_w w;
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_ki64(&w, "v", 1);
    json_w_kstr(&w, "kind", "tandem-session");
    json_w_kstr(&w, "name", s->name);
    json_w_kstr(&w, "title", s->title != NULL ? s->title : "");
    json_w_ki64(&w, "created_ms", s->created_ms);
    json_w_ki64(&w, "head", s->head);
    json_w_key(&w, "turns");
    json_w_array(&w);
    for (int i = 0; i < s->n_turns; i++) {
        json_w_object(&w);
        record_put_turn(&w, &s->turns[i]);
        json_w_close(&w);
    }
    json_w_close(&w);
    json_w_close(&w);
    json_w_end(&w);
    buf_putc(out, '\n');
}

int session_export(const session *s, session_format format, buf *out, err *e) {
    out->max = SESSION_MAX_BYTES;
    if (format == SESSION_JSON) {
        put_json(s, out);
    } else {
        int n = session_path(s, NULL, 0);
        int *ids = mem_array((size_t)n + 1, sizeof *ids);
        session_path(s, ids, n);
        if (format == SESSION_MD) buf_printf(out, "# %s\n", session_title(s));
        for (int i = 0; i < n; i++) {
            const session_turn *t = session_turn_at(s, ids[i]);
            if (format == SESSION_MD) {
                put_md(out, t);
            } else {
                put_txt(out, t);
            }
        }
        mem_free(ids);
    }
    /* The parts above cannot fail one by one without the whole being too long. */
    if (out->len + (1u << 20) > SESSION_MAX_BYTES) {
        return err_set(e, ERR_LIMIT, "the session is too long to export as one text");
    }
    return OK;
}
