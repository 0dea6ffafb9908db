/* V1 to V9 and K1: what the machines are and whether they are alike. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/check_internal.h"

#define SMI(...)                                                                                   \
    { "nvidia-smi", __VA_ARGS__, NULL }

/* "Maker Product", "" when the machine does not say: a virtual one has neither. */
static void product_of(check_context *c, int i, char out[164], bool *is_nvidia) {
    char product[80], vendor[80];
    check_line(c, i, "/sys/class/dmi/id/product_name", product, sizeof product);
    check_line(c, i, "/sys/class/dmi/id/sys_vendor", vendor, sizeof vendor);
    snprintf(
        out, 164, "%s%s%s", vendor, vendor[0] != '\0' && product[0] != '\0' ? " " : "", product);
    *is_nvidia = strstr(vendor, "NVIDIA") != NULL;
}

CHECK_RUN(check_v1) {
    static const char *const uname[] = {"uname", "-m", NULL};
    static const char *const smi[] = SMI("--query-gpu=name,compute_cap", "--format=csv,noheader");
    char machine[32], gpu[120], product[164];
    bool is_nvidia = false;
    err e = ERR_INIT;
    if (check_tool_line(c, i, uname, machine, sizeof machine, &e) != OK) {
        check_unknown(r, "The architecture", &e);
        return;
    }
    product_of(c, i, product, &is_nvidia);
    bool has_name = product[0] != '\0';
    int rc = check_tool_line(c, i, smi, gpu, sizeof gpu, &e);
    check_remedy(
        r, "The pair needs two GB10 systems; on other machines use the built-in demo model.");
    if (!str_eq(machine, "aarch64")) {
        check_say(r, CHECK_STATUS_FAIL,
            "This machine%s%s%s has a processor of kind %s: no GB10 system.", has_name ? " (" : "",
            product, has_name ? ")" : "", machine[0] != '\0' ? machine : "unknown");
    } else if (rc == ERR_NOT_FOUND) {
        check_say(r, CHECK_STATUS_FAIL, "%s has no nvidia-smi, so no GPU driver.",
            has_name ? product : "This machine");
    } else if (rc != OK) {
        check_unknown(r, "The GPU", &e);
    } else if (strstr(gpu, "GB10") == NULL || strstr(gpu, "12.1") == NULL) {
        check_say(
            r, CHECK_STATUS_FAIL, "The GPU is %s, not a GB10 with compute capability 12.1.", gpu);
    } else {
        r->remedy[0] = '\0';
        check_say(r, is_nvidia ? CHECK_STATUS_PASS : CHECK_STATUS_WARN, "%s%saarch64, %s.", product,
            has_name ? ", " : "", gpu);
        if (!is_nvidia) check_remedy(r, "Another maker's GB10 board: it should work the same.");
    }
}

CHECK_RUN(check_v2) {
    static const char *const smi[] = SMI("--query-gpu=driver_version", "--format=csv,noheader");
    char text[120];
    err e = ERR_INIT;
    int rc = check_tool_line(c, i, smi, text, sizeof text, &e);
    if (rc == OK) {
        check_say(r, CHECK_STATUS_PASS, "nvidia-smi answers, driver %s.", text);
        return;
    }
    if (rc == ERR_NET || rc == ERR_AUTH) {
        check_unknown(r, "The driver", &e);
        return;
    }
    if (rc == ERR_NOT_FOUND) {
        check_say(r, CHECK_STATUS_FAIL, "There is no NVIDIA driver: nvidia-smi is not installed.");
        check_remedy(r,
            "On a Spark install the DGX driver packages; another machine has the built-in "
            "demo model.");
        return;
    }
    check_say(r, CHECK_STATUS_FAIL, "The driver does not answer: %s.",
        e.msg[0] != '\0' ? e.msg : "nvidia-smi says nothing");
    check_remedy(r, "Restart this machine; if it stays so, install the DGX driver packages again.");
}

/* First word of the form 1.2 or 1.2.3 in a text. */
static bool version_in(const char *text, char *out, size_t cap) {
    for (const char *p = text; *p != '\0'; p++) {
        bool is_start = *p >= '0' && *p <= '9' && (p == text || p[-1] == ' ');
        size_t n = strspn(p, "0123456789.");
        if (!is_start || n < 3 || memchr(p, '.', n) == NULL) continue;
        if (p[n] != ' ' && p[n] != '\0' && p[n] != '\n') continue;
        char *copy = mem_strndup(p, n);
        str_copy(out, cap, copy);
        mem_free(copy);
        return true;
    }
    return false;
}

CHECK_RUN(check_v3) {
    char text[2][200], version[2][40] = {"", ""};
    (void)i;
    for (int k = 0; k < 2; k++) {
        if (!check_line(c, k, "/proc/driver/nvidia/version", text[k], sizeof text[k]) ||
            !version_in(text[k], version[k], sizeof version[k])) {
            check_say(r, CHECK_STATUS_UNKNOWN, "No driver version can be read on the %s.",
                k == 0 ? "head" : "worker");
            return;
        }
    }
    char *last = strrchr(version[0], '.');
    size_t stem = last != NULL ? (size_t)(last - version[0]) : strlen(version[0]);
    check_remedy(r, "Update both with the DGX dashboard or apt, then restart both.");
    if (str_eq(version[0], version[1])) {
        r->remedy[0] = '\0';
        check_say(r, CHECK_STATUS_PASS, "Both have driver %s.", version[0]);
    } else {
        /* 580.95.05 and 580.95.06 differ in the last field; 580 and 595 are branches. */
        bool is_close = strncmp(version[0], version[1], stem) == 0 && version[1][stem] == '.' &&
                        strchr(version[1] + stem + 1, '.') == NULL;
        check_say(r, is_close ? CHECK_STATUS_WARN : CHECK_STATUS_FAIL,
            "Head has driver %s, worker %s.", version[0], version[1]);
    }
}

typedef enum kernel_state { KERNEL_GOOD, KERNEL_RISKY, KERNEL_BAD, KERNEL_UNREAD } kernel_state;

static kernel_state kernel_of(check_context *c, int i, char *release, size_t cap, double *cma) {
    char command_line[2048];
    buf meminfo = BUF_INIT;
    kernel_state s = KERNEL_GOOD;
    *cma = -1;
    if (!check_line(c, i, "/proc/sys/kernel/osrelease", release, cap)) return KERNEL_UNREAD;
    if (str_starts(release, "7.0.0-")) {
        bool has_option = check_line(c, i, "/proc/cmdline", command_line, sizeof command_line) &&
                          strstr(command_line, "kho=off") != NULL;
        if (check_file(c, i, "/proc/meminfo", &meminfo)) {
            (void)check_meminfo(buf_cstr(&meminfo), "CmaFree", cma);
        }
        s = has_option ? KERNEL_GOOD : *cma > GIB ? KERNEL_BAD : KERNEL_RISKY;
    }
    buf_release(&meminfo);
    return s;
}

CHECK_RUN(check_v4) {
    char release[2][80];
    double cma;
    kernel_state s[2];
    (void)i;
    for (int k = 0; k < 2; k++)
        s[k] = kernel_of(c, k, release[k], sizeof release[k], &cma);
    if (s[0] == KERNEL_UNREAD || s[1] == KERNEL_UNREAD) {
        check_say(r, CHECK_STATUS_UNKNOWN, "The kernel version cannot be read on both machines.");
        return;
    }
    bool is_bad = s[0] == KERNEL_BAD || s[1] == KERNEL_BAD;
    bool is_equal = str_eq(release[0], release[1]);
    check_say(r,
        is_bad                                                   ? CHECK_STATUS_FAIL
        : is_equal && s[0] == KERNEL_GOOD && s[1] == KERNEL_GOOD ? CHECK_STATUS_PASS
                                                                 : CHECK_STATUS_WARN,
        "Head runs kernel %s, worker %s.", release[0], release[1]);
    if (is_bad)
        check_remedy(r, "See check K1.");
    else if (!is_equal)
        check_remedy(r, "Update the older one and restart it.");
}

CHECK_RUN(check_k1) {
    char release[80];
    double cma;
    kernel_state s = kernel_of(c, i, release, sizeof release, &cma);
    if (s == KERNEL_UNREAD) {
        check_unknown(r, "The kernel version", NULL);
    } else if (s == KERNEL_GOOD) {
        check_say(r, CHECK_STATUS_PASS, "Kernel %s%s keeps no memory back from RDMA.", release,
            str_starts(release, "7.0.0-") ? " with kho=off" : "");
    } else {
        check_say(r, s == KERNEL_BAD ? CHECK_STATUS_FAIL : CHECK_STATUS_WARN,
            "Kernel %s runs without kho=off%s.", release,
            s == KERNEL_BAD ? " and holds memory that RDMA cannot use" : "");
        check_remedy(r,
            "This kernel sets aside about 9 GiB that RDMA cannot use; the engine will fail "
            "under load. Add kho=off to the boot line or boot kernel 6.17.0-1032, then "
            "restart this machine.");
    }
    if (cma >= 0) check_value(r, cma);
}

static void first_firmware(check_context *c, int k, char *out, size_t cap) {
    buf names = BUF_INIT, path = BUF_INIT;
    out[0] = '\0';
    if (node_list(c->node[k], "/sys/class/infiniband", &names, NULL) == OK && names.len > 0) {
        int n = (int)strcspn(names.data, "\n");
        if (buf_printf(&path, "/sys/class/infiniband/%.*s/fw_ver", n, names.data) == OK) {
            check_line(c, k, buf_cstr(&path), out, cap);
        }
    }
    buf_release(&names);
    buf_release(&path);
}

/* One line per fact of V5. */
static void facts_of(check_context *c, int k, char out[5][80]) {
    buf text = BUF_INIT;
    memset(out, 0, 5 * 80);
    if (check_file(c, k, "/etc/os-release", &text)) {
        (void)check_key(buf_cstr(&text), "PRETTY_NAME", out[0], 80);
    }
    if (check_file(c, k, "/etc/dgx-release", &text)) {
        (void)check_key(buf_cstr(&text), "DGX_OTA_VERSION", out[1], 80);
    }
    if (check_file(c, k, "/usr/local/cuda/version.json", &text)) {
        json *v = NULL;
        if (json_parse(buf_cstr(&text), text.len, NULL, &v, NULL) == OK) {
            const char *s = json_str(json_get(json_get(v, "cuda"), "version"));
            if (s != NULL) str_copy(out[2], 80, s);
        }
        json_free(v);
    }
    first_firmware(c, k, out[3], 80);
    check_line(c, k, "/sys/class/dmi/id/bios_version", out[4], 80);
    buf_release(&text);
}

CHECK_RUN(check_v5) {
    static const char *const names[] = {"OS", "DGX release", "CUDA", "network firmware", "BIOS"};
    char fact[2][5][80];
    buf same = BUF_INIT, different = BUF_INIT;
    (void)i;
    for (int k = 0; k < 2; k++)
        facts_of(c, k, fact[k]);
    int rc = OK;
    for (int f = 0; f < 5 && rc == OK; f++) {
        const char *a = fact[0][f], *b = fact[1][f];
        if (a[0] == '\0' && b[0] == '\0') continue;
        if (str_eq(a, b))
            rc = buf_printf(&same, "%s%s %s", same.len > 0 ? ", " : "", names[f], a);
        else
            rc = buf_printf(&different, "%s%s %s on head, %s on worker",
                different.len > 0 ? "; " : "", names[f], a[0] != '\0' ? a : "none",
                b[0] != '\0' ? b : "none");
    }
    if (different.len > 0) {
        check_say(r, CHECK_STATUS_WARN, "Different: %s.", buf_cstr(&different));
        check_remedy(r, "Update the older one.");
    } else if (same.len > 0) {
        check_say(r, CHECK_STATUS_PASS, "Equal: %s.", buf_cstr(&same));
    } else {
        check_unknown(r, "The versions", NULL);
    }
    buf_release(&same);
    buf_release(&different);
}

/* The same build; then the files of the model, by the records of their digests. */
static void compare_files(check_context *c, check_result *r, const char *build) {
    for (int k = 0; k < 2 && c->has_need; k++) {
        if (c->files[k].wrong[0] == '\0') continue;
        check_say(r, CHECK_STATUS_FAIL, "%s on the %s is not the file of the manifest.",
            c->files[k].wrong, k == 0 ? "head" : "worker");
        check_remedy(r, k == 0 ? "Load it again: tandem download" : "Send it again: tandem copy");
        return;
    }
    if (!c->has_need) {
        check_say(r, CHECK_STATUS_PASS, "Both have %s.", build);
        return;
    }
    check_say(r, CHECK_STATUS_PASS,
        "Both have %s; verified against the manifest are %zu of %zu files on the head, %zu of %zu on "
        "the worker.",
        build, c->files[0].n_verified, c->files[0].n_files, c->files[1].n_verified,
        c->files[1].n_files);
}

CHECK_RUN(check_v6) {
    static const char *const node[] = {"tandemd", "--version", NULL};
    char build[2][120] = {"", ""};
    (void)i;
    for (int k = 0; k < 2; k++) {
        const char *own[] = {c->engine, "--version", NULL};
        bool is_own = k == 0 && c->engine != NULL && !node_access_is_fixture(c->node[k]);
        /* On the worker a start puts the engine into the data folder. */
        buf placed = BUF_INIT;
        const char *data = settings_get(c->settings, "WORKER_DATA");
        const char *there[] = {NULL, "--version", NULL};
        if (k == 1 && data[0] != '\0') buf_printf(&placed, "%s/.tandem/bin/tandemd", data);
        there[0] = buf_cstr(&placed);
        bool is_placed = placed.len > 0 && !node_access_is_fixture(c->node[k]) &&
                         node_exists(c->node[k], there[0]);
        const char *const *argv = is_own ? own : is_placed ? there : node;
        int rc = check_tool_line(c, k, argv, build[k], sizeof build[k], NULL);
        buf_release(&placed);
        if (rc != OK) {
            build[k][0] = '\0';
        }
    }
    check_remedy(r, "Copy the engine to the worker again.");
    if (build[0][0] == '\0' || build[1][0] == '\0') {
        check_say(r, CHECK_STATUS_SKIP, "No engine is installed on %s yet.",
            build[0][0] == '\0' && build[1][0] == '\0' ? "both machines"
            : build[0][0] == '\0'                      ? "the head"
                                                       : "the worker");
    } else if (str_eq(build[0], build[1])) {
        r->remedy[0] = '\0';
        compare_files(c, r, build[0]);
    } else {
        check_say(r, CHECK_STATUS_FAIL, "Head has %s, worker %s.", build[0], build[1]);
    }
}

CHECK_RUN(check_v7) {
    char id[2][64], host[2][80], key[2][200];
    (void)i;
    for (int k = 0; k < 2; k++) {
        check_line(c, k, "/etc/machine-id", id[k], sizeof id[k]);
        check_line(c, k, "/proc/sys/kernel/hostname", host[k], sizeof host[k]);
        check_line(c, k, "/etc/ssh/ssh_host_ed25519_key.pub", key[k], sizeof key[k]);
        key[k][strcspn(key[k], " ")] = ' ';
        char *comment = strrchr(key[k], ' ');
        if (comment != NULL && comment != strchr(key[k], ' ')) *comment = '\0';
    }
    bool is_clone = id[0][0] != '\0' && str_eq(id[0], id[1]);
    bool is_same_key = key[0][1] != '\0' && str_eq(key[0], key[1]);
    if (is_clone || is_same_key) {
        check_say(r, CHECK_STATUS_FAIL, "Head and worker have the same %s.",
            is_clone ? "machine id" : "ssh host key");
        check_remedy(r,
            "One disk was cloned, or both names are one machine. On the worker make new "
            "ones: sudo rm /etc/machine-id /etc/ssh/ssh_host_*; sudo "
            "systemd-machine-id-setup; sudo ssh-keygen -A; then restart it.");
    } else if (id[0][0] == '\0' || id[1][0] == '\0') {
        check_unknown(r, "The machine id", NULL);
    } else if (str_eq(host[0], host[1])) {
        check_say(r, CHECK_STATUS_WARN, "Both machines are called %s.", host[0]);
        check_remedy(r, "Give one another name: sudo hostnamectl set-hostname NAME");
    } else {
        check_say(r, CHECK_STATUS_PASS, "Two machines, %s and %s.", host[0], host[1]);
    }
}

CHECK_RUN(check_v8) {
    char boot[64], uptime[64];
    double seconds = 0;
    if (!check_line(c, i, "/proc/sys/kernel/random/boot_id", boot, sizeof boot) ||
        !check_line(c, i, "/proc/uptime", uptime, sizeof uptime)) {
        check_unknown(r, "The time since boot", NULL);
        return;
    }
    uptime[strcspn(uptime, " ")] = '\0';
    if (parse_double(uptime, &seconds) != OK) seconds = 0;
    check_value(r, seconds);
    check_baseline before;
    bool has =
        c->baseline != NULL && check_baseline_get(c->baseline, "V8", r->node, &before, NULL) == OK;
    bool is_new = has && !str_eq(before.text, boot);
    check_say(r, is_new ? CHECK_STATUS_WARN : CHECK_STATUS_PASS, "Up for %.1f hours%s.",
        seconds / 3600.0, is_new ? ", restarted since the network was proved" : "");
    if (is_new) check_remedy(r, "The network proof is repeated: tandem link prove");
}

CHECK_RUN(check_v9) {
    const char *term = getenv("TERM"), *lc = getenv("LC_ALL");
    (void)c, (void)i;
    if (lc == NULL || lc[0] == '\0') lc = getenv("LC_CTYPE");
    if (lc == NULL || lc[0] == '\0') lc = getenv("LANG");
    struct winsize size = {0};
    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) {
        check_say(r, CHECK_STATUS_SKIP, "Standard output is no terminal.");
        return;
    }
    bool is_utf8 = lc != NULL && (strstr(lc, "UTF-8") != NULL || strstr(lc, "utf8") != NULL);
    bool is_small = size.ws_col < 80 || size.ws_row < 24;
    bool is_dumb = term == NULL || term[0] == '\0' || str_eq(term, "dumb");
    check_say(r, is_utf8 && !is_small && !is_dumb ? CHECK_STATUS_PASS : CHECK_STATUS_WARN,
        "%s, %dx%d, %s.", is_dumb ? "no usable TERM" : term, size.ws_col, size.ws_row,
        is_utf8 ? "UTF-8" : "no UTF-8 locale (ASCII frames are used)");
    if (r->status != CHECK_STATUS_PASS) {
        check_remedy(r, "Use a terminal of at least 80x24 with LANG set to a UTF-8 locale.");
    }
}
