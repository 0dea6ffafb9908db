/* A session journal with any content: as it is, and with right checksums on every line. Opening,
 * walking, exporting and adding must work or be refused; a repaired journal must open clean. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "tui/session.h"

static char dir[64];

static void cleanup(void) {
    dir_remove_all(dir, NULL);
}

static void setup(void) {
    if (dir[0] != '\0') return;
    memcpy(dir, "/tmp/tandem-fuzz-XXXXXX", sizeof "/tmp/tandem-fuzz-XXXXXX");
    CHECK(mkdtemp(dir) != NULL);
    atexit(cleanup);
}

/* Each line of the input becomes a record with a right length and checksum. */
static void with_checksums(const char *data, size_t n, buf *out) {
    buf_puts(out, "TNDMSESS 1\n");
    while (n > 0) {
        const char *end = memchr(data, '\n', n);
        size_t len = end != NULL ? (size_t)(end - data) : n;
        buf_printf(out, "%08zx %08x ", len, crc32c(0, data, len));
        buf_append(out, data, len);
        buf_putc(out, '\n');
        n -= len + (end != NULL ? 1 : 0);
        data += len + (end != NULL ? 1 : 0);
    }
}

static void use(session *s) {
    buf out = BUF_INIT;
    int ids[16];
    int n = session_n_turns(s);
    session_path(s, ids, 16);
    for (int id = 1; id <= n && id < 64; id++) {
        CHECK(session_turn_at(s, id)->text != NULL);
        session_siblings(s, id, ids, 16);
        CHECK(session_leaf(s, id) >= id);
    }
    for (int f = SESSION_MD; f <= SESSION_TXT; f++) {
        buf_reset(&out);
        session_export(s, (session_format)f, &out, NULL);
    }
    buf_release(&out);
}

static void open_one(const buf *text) {
    buf path = BUF_INIT;
    session *s = NULL;
    session_info *rows = NULL;
    int n_rows = 0;
    buf_printf(&path, "%s/x.journal", dir);
    CHECK(file_write_atomic(buf_cstr(&path), buf_cstr(text), text->len, 0600, NULL) == OK);
    if (session_list(dir, &rows, &n_rows, NULL) == OK) mem_free(rows);
    if (session_open(dir, "x", &s, NULL) == OK) {
        use(s);
        int before = session_n_turns(s);
        if (session_add(s, SESSION_USER, "more", -1, NULL, NULL) == OK) {
            session_close(s);
            CHECK(session_open(dir, "x", &s, NULL) == OK);
            CHECK(session_n_turns(s) == before + 1);
        }
        session_close(s);
        session_delete(dir, "x", NULL);
    }
    buf_release(&path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    setup();
    buf text = BUF_INIT;
    buf_append(&text, data, size);
    open_one(&text);
    buf_reset(&text);
    with_checksums((const char *)data, size, &text);
    open_one(&text);
    buf_release(&text);
    return 0;
}
