/* How plain mode prints a reply: by sentence or code line, by word, or whole. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/str.h"
#include "tui/cmd_internal.h"
#include "tui/plain_internal.h"

enum { LONGEST_WAIT_BYTES = 600, PROGRESS_STEP_PERCENT = 10, PROGRESS_FIRST_MS = 2000 };

void plain_say(const char *fmt, ...) {
    buf text = BUF_INIT;
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);
    cmd_puts("Status: ");
    cmd_put_text(buf_cstr(&text), text.len);
    cmd_puts("\n");
    cmd_flush();
    buf_release(&text);
}

void plain_printer_init(plain_printer *p, plain_chunk chunk, bool shows_thinking) {
    *p = (plain_printer){.chunk = chunk,
        .shows_thinking = shows_thinking,
        .pending = BUF_INIT,
        .ends_line = true,
        .said_ms = clock_mono_ms()};
    width_cleaner_reset(&p->cleaner);
}

void plain_printer_release(plain_printer *p) {
    buf_release(&p->pending);
}

static void put(plain_printer *p, size_t n) {
    if (n == 0) return;
    cmd_put(p->pending.data, n);
    cmd_flush();
    p->ends_line = p->pending.data[n - 1] == '\n';
    buf_consume(&p->pending, n);
}

/* Bytes up to and with the last end of a sentence; 0 when none has ended. Code goes by lines. */
static size_t sentence_end(plain_printer *p) {
    const char *text = p->pending.data;
    size_t n = p->pending.len, end = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n') {
            end = i + 1;
            if (n - end >= 3 && strncmp(text + end, "```", 3) == 0) p->in_code = !p->in_code;
        } else if (!p->in_code && i + 1 < n && text[i + 1] == ' ' &&
                   strchr(".!?:;", text[i]) != NULL) {
            end = i + 2;
        }
    }
    return end;
}

static size_t word_end(const buf *pending) {
    for (size_t i = pending->len; i > 0; i--) {
        if (pending->data[i - 1] == ' ' || pending->data[i - 1] == '\n') return i;
    }
    return 0;
}

static void put_ready(plain_printer *p) {
    if (p->chunk == PLAIN_BY_REPLY) return;
    size_t n = p->chunk == PLAIN_BY_WORD ? word_end(&p->pending) : sentence_end(p);
    if (n == 0 && p->pending.len > LONGEST_WAIT_BYTES) n = word_end(&p->pending);
    put(p, n);
}

static void put_rest(plain_printer *p) {
    put(p, p->pending.len);
    if (!p->ends_line) cmd_puts("\n");
    p->ends_line = true;
    cmd_flush();
}

static void begin_text(plain_printer *p) {
    if (p->has_thinking) {
        put_rest(p);
        double seconds = (double)(clock_mono_ms() - p->think_from_ms) / 1000.0;
        cmd_printf("Thinking: done, %.0f %s\n", seconds,
            seconds >= 0.5 && seconds < 1.5 ? "second" : "seconds");
    }
    cmd_puts("Assistant: ");
    p->has_text = true;
    p->ends_line = false;
}

void plain_printer_part(void *ctx, turn_part part, const char *text, size_t len) {
    plain_printer *p = ctx;
    if (part == TURN_WAITING || part == TURN_CALL) return;
    if (part == TURN_THINKING && !p->has_thinking) {
        p->has_thinking = true;
        p->think_from_ms = clock_mono_ms();
        cmd_puts(p->shows_thinking ? "Thinking: " : "Thinking: started\n");
        cmd_flush();
        p->ends_line = !p->shows_thinking;
    }
    if (part == TURN_THINKING && !p->shows_thinking) return;
    if (part == TURN_TEXT && !p->has_text) begin_text(p);
    width_clean(&p->cleaner, text, len, &p->pending);
    put_ready(p);
}

void plain_printer_progress(void *ctx, int64_t done, int64_t total) {
    plain_printer *p = ctx;
    if (total <= 0 || p->has_text || p->has_thinking) return;
    int percent = (int)(100 * done / total);
    uint64_t now = clock_mono_ms();
    bool is_due =
        now - p->said_ms >= PROGRESS_FIRST_MS && percent >= p->said_percent + PROGRESS_STEP_PERCENT;
    if (!is_due) return;
    p->said_percent = percent;
    plain_say("reading the prompt, %d percent", percent);
}

void plain_printer_end(plain_printer *p) {
    width_clean_end(&p->cleaner, &p->pending);
    put_rest(p);
}
