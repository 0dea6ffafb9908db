/* M1 to M10: memory and who else uses it. On this GPU nvidia-smi knows nothing about memory, so
 * /proc/meminfo is the source. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/check_internal.h"

#define M1_MARGIN_GIB 10.0
#define M2_PASS_GIB 104.0
#define M2_FAIL_GIB 90.0
#define LARGE_PIECES_GIB 8.0 /* own choice: less than this in pieces of 2 MiB and up is low */

/* Calls fn with each line; fn may cut it. */
static void each_line(const buf *text, void (*fn)(void *ctx, char *line), void *ctx) {
    char *copy = mem_strndup(buf_cstr(text), text->len), *save = NULL;
    for (char *line = strtok_r(copy, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save))
        fn(ctx, line);
    mem_free(copy);
}

typedef struct users {
    double rss;
    buf top;
    int n;
} users;

/* "  123456  4711 python3", largest first. */
static void add_user(void *ctx, char *line) {
    users *u = ctx;
    char *save = NULL, *kib = strtok_r(line, " ", &save), *pid = strtok_r(NULL, " ", &save);
    char *name = strtok_r(NULL, "", &save);
    uint64_t v = 0;
    if (kib == NULL || pid == NULL || name == NULL || parse_u64(kib, &v) != OK) return;
    u->rss += (double)v * 1024.0;
    /* What is small explains nothing. */
    if (v >= 100 * 1024 && u->n++ < 4) {
        (void)buf_printf(
            &u->top, "%s%s (%s) %.1f GiB", u->n > 1 ? ", " : "", name, pid, (double)v / 1048576.0);
    }
}

/* The largest users, and what no process accounts for. */
static void name_users(check_context *c, int i, const char *meminfo, buf *out) {
    static const char *const ps[] = {"ps", "-eo", "rss=,pid=,comm=", "--sort=-rss", NULL};
    users u = {.top = BUF_INIT};
    buf text = BUF_INIT;
    int code = 0;
    double total = 0, free_bytes = 0, cached = 0, buffers = 0, slab = 0;
    if (check_tool(c, i, ps, &text, &code, NULL) == OK && code == 0) each_line(&text, add_user, &u);
    bool is_full = check_meminfo(meminfo, "MemTotal", &total) &&
                   check_meminfo(meminfo, "MemFree", &free_bytes) &&
                   check_meminfo(meminfo, "Cached", &cached) &&
                   check_meminfo(meminfo, "Buffers", &buffers) &&
                   check_meminfo(meminfo, "Slab", &slab);
    double driver = total - free_bytes - cached - buffers - slab - u.rss;
    (void)buf_puts(out, u.top.len > 0 ? buf_cstr(&u.top) : "no large program");
    if (is_full && u.rss > 0 && driver > 0.1 * GIB) {
        (void)buf_printf(out, ", GPU driver and not attributable %.1f GiB", driver / GIB);
    }
    buf_release(&u.top);
    buf_release(&text);
}

CHECK_RUN(check_m1) {
    buf meminfo = BUF_INIT, who = BUF_INIT;
    double available = 0, gate = settings_number(c->settings, "MEM_GATE_GIB") * GIB;
    if (!check_file(c, i, "/proc/meminfo", &meminfo) ||
        !check_meminfo(buf_cstr(&meminfo), "MemAvailable", &available)) {
        check_unknown(r, "The available memory", NULL);
        buf_release(&meminfo);
        return;
    }
    check_value(r, available);
    check_status s = available >= gate + M1_MARGIN_GIB * GIB ? CHECK_STATUS_PASS
                     : available >= gate                     ? CHECK_STATUS_WARN
                                                             : CHECK_STATUS_FAIL;
    check_say(r, s, "%.1f GiB are available, %.0f are needed.", available / GIB, gate / GIB);
    if (s != CHECK_STATUS_PASS) {
        name_users(c, i, buf_cstr(&meminfo), &who);
        check_remedy(r,
            "Using memory now: %s. Close other AI programs; if nothing is listed, restart this machine.",
            buf_cstr(&who));
    }
    buf_release(&meminfo);
    buf_release(&who);
}

CHECK_RUN(check_m2) {
    buf meminfo = BUF_INIT;
    double free_bytes = 0, cached = 0, shmem = 0;
    bool is_read = check_file(c, i, "/proc/meminfo", &meminfo) &&
                   check_meminfo(buf_cstr(&meminfo), "MemFree", &free_bytes) &&
                   check_meminfo(buf_cstr(&meminfo), "Cached", &cached);
    (void)check_meminfo(buf_cstr(&meminfo), "Shmem", &shmem);
    buf_release(&meminfo);
    if (!is_read) {
        check_unknown(r, "The free memory", NULL);
        return;
    }
    check_value(r, free_bytes);
    double evictable = cached - shmem;
    if (free_bytes >= M2_PASS_GIB * GIB) {
        check_say(r, CHECK_STATUS_PASS, "%.1f GiB are free.", free_bytes / GIB);
    } else if (free_bytes + evictable >= M2_FAIL_GIB * GIB) {
        check_say(r, CHECK_STATUS_WARN, "%.1f GiB are free, %.1f GiB hold cached files.",
            free_bytes / GIB, evictable / GIB);
        check_remedy(r,
            "The start drops cached model files by itself (EVICT_CACHE); or run: sync; echo 1 "
            "| sudo tee /proc/sys/vm/drop_caches");
    } else {
        check_say(r, CHECK_STATUS_FAIL, "Only %.1f GiB would be free even without cached files.",
            (free_bytes + evictable) / GIB);
        check_remedy(r, "Close other programs (check M1 names them) or restart this machine.");
    }
}

typedef struct gpu_users {
    buf foreign, desktop, ours;
} gpu_users;

static void add_gpu_user(void *ctx, char *line) {
    static const char *const desktop[] = {
        "gnome-shell", "Xorg", "Xwayland", "gnome-remote", "plasmashell", "kwin", "mutter", "gdm"};
    gpu_users *g = ctx;
    bool is_desktop = false;
    for (size_t k = 0; k < sizeof desktop / sizeof desktop[0]; k++) {
        if (strstr(line, desktop[k]) != NULL) is_desktop = true;
    }
    buf *b = strstr(line, "tandemd") != NULL ? &g->ours : is_desktop ? &g->desktop : &g->foreign;
    if (b->len < 300) (void)buf_printf(b, "%s%s", b->len > 0 ? "; " : "", line);
}

CHECK_RUN(check_m3) {
    static const char *const smi[] = {"nvidia-smi",
        "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader", NULL};
    buf text = BUF_INIT;
    gpu_users g = {BUF_INIT, BUF_INIT, BUF_INIT};
    err e = ERR_INIT;
    int code = 0, rc = check_tool(c, i, smi, &text, &code, &e);
    if (rc == OK && code == 0) each_line(&text, add_gpu_user, &g);
    if (rc != OK || code != 0) {
        check_unknown(r, "Who uses the GPU", &e);
    } else if (g.foreign.len > 0) {
        check_say(r, CHECK_STATUS_FAIL, "Another program uses the GPU: %s.", buf_cstr(&g.foreign));
        check_remedy(r, "This program never stops foreign programs. Stop it, then check again.");
    } else if (g.ours.len > 0) {
        check_say(r, CHECK_STATUS_WARN, "The engine runs already: %s.", buf_cstr(&g.ours));
    } else if (g.desktop.len > 0) {
        check_say(r, CHECK_STATUS_WARN, "Only the desktop uses the GPU: %s.", buf_cstr(&g.desktop));
    } else {
        check_say(r, CHECK_STATUS_PASS, "No program uses the GPU.");
    }
    buf_release(&text);
    buf_release(&g.foreign);
    buf_release(&g.desktop);
    buf_release(&g.ours);
}

typedef struct containers {
    buf running, ours_left;
} containers;

/* "/name runtime gpu-requests running": docker prints these four words for each container. */
static void add_container(void *ctx, char *line) {
    containers *k = ctx;
    char *save = NULL, *name = strtok_r(line, " ", &save), *runtime = strtok_r(NULL, " ", &save);
    char *requests = strtok_r(NULL, " ", &save), *running = strtok_r(NULL, " ", &save);
    if (running == NULL) return;
    bool has_gpu = str_eq(runtime, "nvidia") || !str_eq(requests, "0");
    if (!has_gpu) return;
    bool is_ours = strstr(name, "tandem") != NULL;
    if (str_eq(running, "true") && !is_ours) {
        (void)buf_printf(&k->running, "%s%s", k->running.len > 0 ? ", " : "", name);
    } else if (is_ours) {
        (void)buf_printf(&k->ours_left, "%s%s", k->ours_left.len > 0 ? ", " : "", name);
    }
}

CHECK_RUN(check_m4) {
    static const char *const list[] = {"docker", "ps", "-aq", NULL};
    enum { MOST = 40 };
    const char *inspect[MOST + 5] = {"docker", "inspect", "--format",
        "{{.Name}} {{.HostConfig.Runtime}} {{len .HostConfig.DeviceRequests}} {{.State.Running}}"};
    buf ids = BUF_INIT, text = BUF_INIT;
    containers k = {BUF_INIT, BUF_INIT};
    err e = ERR_INIT;
    int code = 0, n = 4, rc = check_tool(c, i, list, &ids, &code, &e);
    char *copy = mem_strdup(buf_cstr(&ids)), *save = NULL;
    for (char *p = strtok_r(copy, "\n", &save); p != NULL && n < MOST + 4;
         p = strtok_r(NULL, "\n", &save))
        inspect[n++] = p;
    if (rc == OK && code == 0 && n > 4) rc = check_tool(c, i, inspect, &text, &code, &e);
    if (rc == OK && code == 0) each_line(&text, add_container, &k);
    bool is_absent = rc == ERR_NOT_FOUND, is_off = strstr(e.msg, "Is the docker daemon") != NULL;
    if (is_absent || is_off) {
        check_say(r, CHECK_STATUS_PASS, "%s.",
            is_absent ? "There is no docker on this machine"
                      : "Docker is installed but does not run, so no container does");
    } else if (rc != OK || code != 0) {
        check_unknown(r, "The containers", &e);
        check_remedy(r,
            "The user may not ask docker; look yourself: sudo docker ps. Do not join the group "
            "docker for it: whoever is in it is as good as root.");
    } else if (k.running.len > 0) {
        check_say(r, CHECK_STATUS_FAIL, "Containers with the GPU run: %s.", buf_cstr(&k.running));
        check_remedy(
            r, "This program never stops foreign containers. Stop them, then check again.");
    } else if (k.ours_left.len > 0) {
        check_say(r, CHECK_STATUS_WARN, "Left over from us: %s.", buf_cstr(&k.ours_left));
    } else {
        check_say(r, CHECK_STATUS_PASS, "No container with the GPU runs (%d known).", n - 4);
    }
    mem_free(copy);
    buf_release(&ids);
    buf_release(&text);
    buf_release(&k.running);
    buf_release(&k.ours_left);
}

CHECK_RUN(check_m5) {
    static const char *const du[] = {"du", "-s", "-B1", "/dev/shm", NULL};
    char text[120];
    uint64_t bytes = 0;
    buf names = BUF_INIT;
    err e = ERR_INIT;
    int rc = check_tool_line(c, i, du, text, sizeof text, &e);
    text[strcspn(text, "\t ")] = '\0';
    bool is_read = rc == OK && parse_u64(text, &bytes) == OK;
    if (is_read && node_list(c->node[i], "/dev/shm", &names, NULL) != OK) buf_reset(&names);
    for (size_t k = 0; k < names.len; k++) {
        if (names.data[k] == '\n') names.data[k] = ' ';
    }
    if (!is_read) {
        check_unknown(r, "Shared memory", &e);
    } else if (names.len == 0) {
        check_say(r, CHECK_STATUS_PASS, "/dev/shm is empty.");
    } else {
        check_say(r, (double)bytes > 4 * GIB ? CHECK_STATUS_FAIL : CHECK_STATUS_WARN,
            "/dev/shm holds %.2f GiB: %.200s.", (double)bytes / GIB, buf_cstr(&names));
        check_remedy(r, "If no program of yours uses them, remove what an earlier run left there.");
    }
    buf_release(&names);
}

static bool swapped_pages(check_context *c, int i, double *pages) {
    buf text = BUF_INIT;
    char in[32], out[32];
    uint64_t a = 0, b = 0;
    node_access *n = c->node[i];
    bool is_read = node_tool(n, &text, NULL, "cat", "/proc/vmstat", NULL) == OK &&
                   strstr(buf_cstr(&text), "pswpin ") != NULL;
    const char *p = is_read ? strstr(buf_cstr(&text), "pswpin ") + 7 : "";
    const char *q = is_read ? strstr(buf_cstr(&text), "pswpout ") : NULL;
    str_copy(in, sizeof in, p);
    str_copy(out, sizeof out, q != NULL ? q + 8 : "");
    in[strcspn(in, "\n")] = '\0';
    out[strcspn(out, "\n")] = '\0';
    is_read = parse_u64(in, &a) == OK && parse_u64(out, &b) == OK;
    *pages = (double)a + (double)b;
    buf_release(&text);
    return is_read;
}

CHECK_RUN(check_m6) {
    buf meminfo = BUF_INIT;
    double total = 0, free_bytes = 0, before = 0, after = 0, rate = 0;
    bool is_read = check_file(c, i, "/proc/meminfo", &meminfo) &&
                   check_meminfo(buf_cstr(&meminfo), "SwapTotal", &total) &&
                   check_meminfo(buf_cstr(&meminfo), "SwapFree", &free_bytes);
    buf_release(&meminfo);
    if (!is_read) {
        check_unknown(r, "The swap", NULL);
        return;
    }
    double used = total - free_bytes;
    /* The rate matters only where swap is in use, and a stored tree has none. */
    if (used > 0.1 * GIB && !node_access_is_fixture(c->node[i]) && swapped_pages(c, i, &before)) {
        sleep_ms(1000);
        if (swapped_pages(c, i, &after)) rate = (after - before) * 4096.0 / 1e6;
    }
    check_value(r, used);
    check_status s = used > 4 * GIB || rate > 10 ? CHECK_STATUS_FAIL
                     : used >= GIB || total == 0 ? CHECK_STATUS_WARN
                                                 : CHECK_STATUS_PASS;
    check_say(r, s, total == 0 ? "There is no swap." : "%.1f of %.1f GiB swap are used.",
        used / GIB, total / GIB);
    if (total == 0)
        check_remedy(r,
            "A few GiB let a short peak pass: sudo fallocate -l 8G /swapfile; sudo chmod "
            "600 /swapfile; sudo mkswap /swapfile; sudo swapon /swapfile");
    else if (s != CHECK_STATUS_PASS)
        check_remedy(r, "Close programs, then restart this machine.");
}

CHECK_RUN(check_m7) {
    static const char *const manager[] = {
        "systemctl", "is-active", "display-manager.service", NULL};
    buf text = BUF_INIT;
    err e = ERR_INIT;
    int code = 0, rc = check_tool(c, i, manager, &text, &code, &e);
    if (rc != OK || text.len == 0) {
        check_unknown(r, "The desktop", &e);
    } else if (str_starts(buf_cstr(&text), "active")) {
        check_say(r, CHECK_STATUS_WARN, "A desktop session manager is active.");
        check_remedy(r, "Without it 1 to several GiB more are free: sudo systemctl set-default "
                        "multi-user.target, then restart.");
    } else {
        check_say(r, CHECK_STATUS_PASS, "No desktop runs.");
    }
    buf_release(&text);
}

static void add_zone(void *ctx, char *line) {
    double *bytes = ctx;
    char *save = NULL;
    const char *zone = strstr(line, "zone");
    if (zone == NULL) return;
    char *copy = mem_strdup(zone + 4);
    int column = -1; /* the zone's name comes first */
    for (char *w = strtok_r(copy, " ", &save); w != NULL;
         w = strtok_r(NULL, " ", &save), column++) {
        uint64_t n = 0;
        if (column >= 9 && parse_u64(w, &n) == OK)
            *bytes += (double)n * 4096.0 * (double)(1ull << column);
    }
    mem_free(copy);
}

CHECK_RUN(check_m8) {
    buf text = BUF_INIT;
    double bytes = 0;
    if (!check_file(c, i, "/proc/buddyinfo", &text)) {
        check_unknown(r, "The free pieces of memory", NULL);
    } else {
        each_line(&text, add_zone, &bytes);
        bool is_low = bytes < LARGE_PIECES_GIB * GIB;
        check_value(r, bytes);
        check_say(r, is_low ? CHECK_STATUS_WARN : CHECK_STATUS_PASS,
            "%.1f GiB are free in pieces of 2 MiB and more.", bytes / GIB);
        if (is_low) check_remedy(r, "Restart this machine before the first load.");
    }
    buf_release(&text);
}

/* The limit of earlyoom in bytes from its options; -1 unknown. Its default is a tenth of all memory. */
static double earlyoom_limit(check_context *c, int i) {
    buf text = BUF_INIT, meminfo = BUF_INIT;
    char options[300] = "";
    double total = 0, limit = -1;
    if (check_file(c, i, "/etc/default/earlyoom", &text)) {
        (void)check_key(buf_cstr(&text), "EARLYOOM_ARGS", options, sizeof options);
    }
    if (check_file(c, i, "/proc/meminfo", &meminfo) &&
        check_meminfo(buf_cstr(&meminfo), "MemTotal", &total)) {
        limit = total / 10;
    }
    char *save = NULL;
    for (char *w = strtok_r(options, " ", &save); w != NULL; w = strtok_r(NULL, " ", &save)) {
        bool is_share = str_eq(w, "-m"), is_kib = str_eq(w, "-M");
        if (!is_share && !is_kib) continue;
        char *value = strtok_r(NULL, " ", &save);
        double v = 0;
        if (value == NULL) break;
        value[strcspn(value, ",")] = '\0';
        if (parse_double(value, &v) != OK) break;
        limit = is_share ? total * v / 100 : v * 1024;
    }
    buf_release(&text);
    buf_release(&meminfo);
    return limit;
}

CHECK_RUN(check_m9) {
    static const char *const names[] = {
        "earlyoom.service", "systemd-oomd.service", "dgx-anti-oom.service"};
    double floor_bytes = settings_number(c->settings, "MEM_FLOOR_GIB") * GIB, limit = -1;
    buf active = BUF_INIT, text = BUF_INIT;
    err e = ERR_INIT;
    bool is_unknown = false, is_asked = false;
    for (int k = 0; k < 3; k++) {
        const char *argv[] = {"systemctl", "is-active", names[k], NULL};
        int code = 0;
        /* Where no systemd runs there is no word on standard output. */
        if (check_tool(c, i, argv, &text, &code, &e) != OK || text.len == 0) break;
        is_asked = true;
        if (!str_starts(buf_cstr(&text), "active")) continue;
        (void)buf_printf(&active, "%s%s", active.len > 0 ? ", " : "", names[k]);
        if (k == 0) limit = earlyoom_limit(c, i);
        is_unknown = is_unknown || k > 0 || limit < 0;
    }
    if (!is_asked) {
        check_unknown(r, "The out-of-memory killers", &e);
    } else if (active.len == 0) {
        check_say(r, CHECK_STATUS_PASS, "No out-of-memory killer runs beside the kernel's.");
    } else if (limit > floor_bytes) {
        check_say(r, CHECK_STATUS_FAIL,
            "earlyoom acts below %.1f GiB, the engine's floor is %.1f GiB.", limit / GIB,
            floor_bytes / GIB);
        check_remedy(r,
            "Set EARLYOOM_ARGS=\"-M 2500000\" in /etc/default/earlyoom and restart it, or "
            "raise MEM_FLOOR_GIB.");
    } else {
        check_say(r, is_unknown ? CHECK_STATUS_WARN : CHECK_STATUS_PASS, "Active: %s%s.",
            buf_cstr(&active), is_unknown ? ", limit not known" : ", below the engine's floor");
        if (is_unknown)
            check_remedy(r, "Make sure that it acts only below %.1f GiB.", floor_bytes / GIB);
    }
    buf_release(&active);
    buf_release(&text);
}

CHECK_RUN(check_m10) {
    char text[120];
    if (check_line(c, i, "/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text))
        check_say(r, CHECK_STATUS_PASS, "Transparent huge pages: %s.", text);
    else
        check_unknown(r, "The huge page setting", NULL);
}
