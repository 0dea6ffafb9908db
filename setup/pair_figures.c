/* Figures of both machines for status: memory, swap, GPU, disk, logs; and how old the proofs are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/check.h"
#include "setup/pair_internal.h"
#include "setup/paths.h"

enum { TOOL_MS = 20000 };

/* A figure that is not known is null, never 0. */
static void put(json_w *w, const char *key, bool is_known, double value) {
    json_w_key(w, key);
    if (is_known) {
        json_w_fixed(w, value, 0);
    } else {
        json_w_null(w);
    }
}

static bool meminfo(const char *text, const char *key, double *bytes) {
    const char *at = strstr(text, key);
    if (at == NULL) return false;
    *bytes = strtod(at + strlen(key), NULL) * 1024.0;
    return true;
}

static void write_memory(node_access *n, json_w *w) {
    static const char *const keys[][2] = {{"mem_total_bytes", "MemTotal:"},
        {"mem_available_bytes", "MemAvailable:"}, {"mem_free_bytes", "MemFree:"}};
    buf text = BUF_INIT;
    double total = 0, left = 0;
    (void)node_read(n, "/proc/meminfo", 64 << 10, &text, NULL);
    for (size_t i = 0; i < 3; i++) {
        double bytes = 0;
        bool is_known = meminfo(buf_cstr(&text), keys[i][1], &bytes);
        put(w, keys[i][0], is_known, bytes);
    }
    bool has_swap = meminfo(buf_cstr(&text), "SwapTotal:", &total) &&
                    meminfo(buf_cstr(&text), "SwapFree:", &left);
    put(w, "swap_used_bytes", has_swap, total - left);
    buf_release(&text);
}

/* Clock, temperature and power of the first GPU. */
static void write_gpu(node_access *n, json_w *w) {
    static const char *const keys[] = {"gpu_clock_mhz", "gpu_temperature_c", "gpu_power_w"};
    buf out = BUF_INIT;
    double value[3];
    bool is_known[3] = {false, false, false};
    if (node_tool(n, &out, NULL, "nvidia-smi", "--query-gpu=clocks.sm,temperature.gpu,power.draw",
            "--format=csv,noheader,nounits", NULL) == OK) {
        const char *at = buf_cstr(&out);
        for (int i = 0; i < 3; i++) {
            char *end = NULL;
            value[i] = strtod(at, &end);
            is_known[i] = end != at;
            at += strcspn(at, ",\n");
            if (*at == ',') at++;
        }
    }
    for (int i = 0; i < 3; i++)
        put(w, keys[i], is_known[i], is_known[i] ? value[i] : 0);
    buf_release(&out);
}

/* Free bytes of the data folder, and what the logs take. */
static void write_disk(node_access *n, const char *data, json_w *w) {
    static const char script[] =
        "[ -n \"$1\" ] && df -P -B1 -- \"$1\" 2>/dev/null | awk 'NR==2 {print \"free\", $4}'; "
        "du -sb -- \"${XDG_STATE_HOME:-$HOME/.local/state}/tandem/logs\" 2>/dev/null | "
        "awk '{print \"logs\", $1}'";
    const char *argv[] = {"sh", "-c", script, "sh", data, NULL};
    remote_result r;
    remote_result_init(&r);
    node_command c = {.argv = argv, .timeout_ms = TOOL_MS};
    (void)node_run(n, &c, &r, NULL);
    const char *room = strstr(buf_cstr(&r.out), "free "), *logs = strstr(buf_cstr(&r.out), "logs ");
    put(w, "disk_free_bytes", room != NULL, room != NULL ? strtod(room + 5, NULL) : 0);
    put(w, "log_bytes", logs != NULL, logs != NULL ? strtod(logs + 5, NULL) : 0);
    remote_result_release(&r);
}

void pair_figures_write(const pair_options *o, json_w *w) {
    json_w_key(w, "machines");
    json_w_array(w);
    for (int i = 0; i < PAIR_NODES; i++) {
        json_w_object(w);
        json_w_kstr(w, "node", pair_node_name(i));
        json_w_kbool(w, "reachable", o->node[i] != NULL);
        if (o->node[i] != NULL) {
            const char *key = i == PAIR_HEAD ? "HEAD_DATA" : "WORKER_DATA";
            write_memory(o->node[i], w);
            write_gpu(o->node[i], w);
            write_disk(o->node[i], settings_get(o->settings, key), w);
        }
        json_w_close(w);
    }
    json_w_close(w);
}

/* ---- proofs ---- */

/* The proof of the link holds for the boots it was made in. */
static void write_proof(const pair_options *o, json_w *w) {
    buf state = BUF_INIT;
    uint64_t at_ms = 0;
    bool is_stale = false, is_known = paths_state(&state, NULL) == OK &&
                                      buf_puts(&state, "/baselines.json") == OK &&
                                      file_exists(buf_cstr(&state));
    for (int i = 0; i < PAIR_NODES && is_known; i++) {
        check_baseline b = {0};
        buf now = BUF_INIT;
        is_known = check_baseline_get(buf_cstr(&state), "V8", pair_node_name(i), &b, NULL) == OK;
        if (is_known) at_ms = b.wall_ms;
        if (is_known && o->node[i] != NULL &&
            node_read_line(o->node[i], "/proc/sys/kernel/random/boot_id", &now, NULL) == OK)
            is_stale |= !str_eq(buf_cstr(&now), b.text);
        buf_release(&now);
    }
    json_w_key(w, "network_proof");
    json_w_object(w);
    json_w_kbool(w, "done", is_known);
    json_w_kbool(w, "stale", is_known && is_stale);
    put(w, "time_ms", is_known, (double)at_ms);
    json_w_close(w);
    buf_release(&state);
}

static void write_verify(json_w *w) {
    buf path = BUF_INIT;
    json *v = NULL;
    if (pair_file("verify.json", &path, NULL) == OK && file_exists(buf_cstr(&path)))
        (void)json_parse_file(buf_cstr(&path), NULL, &v, NULL);
    json_w_key(w, "last_verify");
    json_w_value(w, v);
    json_free(v);
    buf_release(&path);
}

void pair_proofs_write(const pair_options *o, json_w *w) {
    write_proof(o, w);
    write_verify(w);
}

void pair_verify_keep(const verify_summary *s, int level, const char *first_failed) {
    buf path = BUF_INIT, dir = BUF_INIT, text = BUF_INIT;
    json_w w;
    json_w_begin(&w, &text);
    json_w_object(&w);
    json_w_ki64(&w, "level", level);
    json_w_kstr(&w, "model", s->model);
    json_w_ki64(&w, "passed", s->n_pass);
    json_w_ki64(&w, "warnings", s->n_warn);
    json_w_ki64(&w, "failed", s->n_fail);
    json_w_ki64(&w, "skipped", s->n_skip);
    json_w_kstr(&w, "first_failed", first_failed[0] != '\0' ? first_failed : NULL);
    json_w_ku64(&w, "time_ms", clock_wall_ms());
    json_w_close(&w);
    if (json_w_end(&w) == OK && pair_file("verify.json", &path, NULL) == OK &&
        path_dir(&dir, buf_cstr(&path)) == OK && paths_make_private(buf_cstr(&dir), NULL) == OK)
        (void)file_write_atomic(buf_cstr(&path), text.data, text.len, 0600, NULL);
    buf_release(&path);
    buf_release(&dir);
    buf_release(&text);
}
