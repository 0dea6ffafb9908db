/* The lines in which tandem-node prepare says how far it is. */
#include <stdio.h>
#include <string.h>

#include "engine/base/str.h"
#include "setup/prepare.h"

const char *prepare_state_name(prepare_state s) {
    static const char *const names[] = {"waiting", "writing", "verifying", "done", "failed"};
    return names[s];
}

/* ---- the lines of tandem-node prepare ---- */

static bool take_progress(const char *line, prepare_progress *p) {
    char phase[16];
    unsigned long long done = 0, total = 0, had = 0;
    if (sscanf(line, "progress %15s %llu %llu %llu", phase, &done, &total, &had) != 4) return false;
    if (str_eq(phase, "verifying")) {
        p->state = PREPARE_VERIFYING;
        p->read_bytes = done;
        p->done_bytes = p->total_bytes = total;
    } else {
        p->state = PREPARE_WRITING;
        p->done_bytes = done;
        p->total_bytes = total;
        p->had_bytes = had;
    }
    return true;
}

static bool take_done(const char *line, prepare_progress *p) {
    unsigned long long bytes = 0, mended = 0;
    unsigned kept = 0;
    int at = 0;
    char source[65], root[65];
    int n = sscanf(line, "done %llu %llu %u %64[0-9a-f] %64[0-9a-f] %n", &bytes, &mended, &kept,
        source, root, &at);
    if (n != 5 || at == 0 || strlen(source) != 64 || strlen(root) != 64 || line[at] != '/')
        return false;
    p->state = PREPARE_DONE;
    p->done_bytes = p->total_bytes = p->read_bytes = bytes;
    p->n_mended = mended;
    p->is_kept = kept != 0;
    str_copy(p->source, sizeof p->source, source);
    str_copy(p->root, sizeof p->root, root);
    str_copy(p->path, sizeof p->path, line + at);
    return true;
}

bool prepare_line_parse(const char *line, prepare_progress *p) {
    if (str_starts(line, "progress ")) return take_progress(line, p);
    if (str_starts(line, "done ")) return take_done(line, p);
    if (!str_starts(line, "fail ")) return false;
    p->state = PREPARE_FAILED;
    (void)err_set(&p->error, ERR_PEER, "%.600s", line + 5);
    return true;
}
