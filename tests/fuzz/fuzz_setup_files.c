/* Bytes from disk and from the other machine: manifest, journal of ranges, frames and
 * acknowledgements of the copy, what the receiver is told, the hub's listing, job commands. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/mem.h"
#include "setup/job.h"
#include "setup/manifest_lock.h"
#include "setup/stream_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_manifest(const char *text, size_t n) {
    manifest m, again;
    err e = ERR_INIT;
    buf out = BUF_INIT;
    if (manifest_parse(&m, text, n, &e) != OK) return;
    /* What was taken must survive being written. */
    CHECK(manifest_print(&m, &out, &e) == OK);
    CHECK(manifest_parse(&again, buf_cstr(&out), out.len, &e) == OK);
    CHECK(again.n_files == m.n_files && manifest_bytes(&again) == manifest_bytes(&m));
    manifest_release(&again);
    manifest_release(&m);
    buf_release(&out);
}

static void try_journal(const uint8_t *data, size_t n) {
    uint8_t id[RANGES_ID_BYTES] = {0};
    ranges r;
    err e = ERR_INIT;
    CHECK(ranges_init(&r, 100003, 1000, id, &e) == OK);
    if (ranges_decode(&r, data, n, &e) == OK) CHECK(r.done_bytes <= r.size);
    CHECK(ranges_prefix(&r) <= r.size);
    ranges_release(&r);
}

static void try_frame(const uint8_t *data, size_t n) {
    uint8_t id[RANGES_ID_BYTES] = {0}, in[FRAME_HEAD_BYTES] = {0};
    frame f;
    ranges r;
    uint32_t sequence;
    ack_state state;
    err e = ERR_INIT;
    memcpy(in, data, n < sizeof in ? n : sizeof in);
    CHECK(ranges_init(&r, 100003, 4096, id, &e) == OK);
    if (frame_decode(&f, in, &e) == OK && frame_check(&f, &r, &e) == OK)
        CHECK(f.offset + f.length <= r.size);
    (void)ack_decode(in, &sequence, &state, &e);
    ranges_release(&r);
}

static void try_setup(const char *text, size_t n) {
    stream_setup s;
    manifest m;
    err e = ERR_INIT;
    if (stream_setup_parse(&s, &m, text, n, &e) == OK) CHECK(s.n_listen > 0 && m.n_files > 0);
    manifest_release(&m);
}

static void try_listing(const char *text, size_t n) {
    manifest m;
    err e = ERR_INIT;
    const lock_rules *rules = lock_rules_find("1017-libertai-2.9bpw");
    manifest_file like = {
        .repo = (char *)"o/n", .commit = "0123456789abcdef0123456789abcdef01234567"};
    manifest_init(&m);
    (void)manifest_lock_tree(&m, rules, &like, n % 2 == 0, text, n, &e);
    for (size_t i = 0; i < m.n_files; i++)
        CHECK(manifest_path_check(m.files[i].path, &e) == OK);
    manifest_release(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    size_t n = size - 1;
    switch (data[0] % 6) {
    case 0:
        try_manifest(text, n);
        break;
    case 1:
        try_journal(data + 1, n);
        break;
    case 2:
        try_frame(data + 1, n);
        break;
    case 3:
        try_setup(text, n);
        break;
    case 4:
        try_listing(text, n);
        break;
    default:
        (void)job_command_parse(text, n);
        break;
    }
    return 0;
}
