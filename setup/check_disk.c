/* D1 to D6: the data folder's file system and disk. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/check_internal.h"

#define GB 1e9
#define SLOW_BYTES_PER_S 1e9

typedef struct disk {
    char dir[512], source[160], type[32], target[200];
    uint64_t available, inodes_used_percent;
    bool exists;
} disk;

/* One line of df about the data folder. False: result filled. */
static bool read_disk(check_context *c, int i, disk *d, check_result *r) {
    if (!check_data_dir(c, i, d->dir, sizeof d->dir, &d->exists)) {
        check_say(r, CHECK_STATUS_SKIP, "No data folder is set (%s).",
            i == 0 ? "HEAD_DATA" : "WORKER_DATA");
        return false;
    }
    const char *argv[] = {
        "df", "-B1", "--output=avail,ipcent,fstype,source,target", "--", d->dir, NULL};
    buf text = BUF_INIT;
    err e = ERR_INIT;
    int code = 0, rc = check_tool(c, i, argv, &text, &code, &e);
    char *line = rc == OK && code == 0 ? strchr(buf_cstr(&text), '\n') : NULL;
    char *word[5] = {NULL}, *save = NULL;
    int n = 0;
    for (char *w = line != NULL ? strtok_r(line, " \n", &save) : NULL; w != NULL && n < 5;
         w = strtok_r(NULL, n == 4 ? "\n" : " \n", &save))
        word[n++] = w;
    bool is_read = n == 5 && parse_u64(word[0], &d->available) == OK;
    if (is_read) {
        word[1][strcspn(word[1], "%")] = '\0';
        if (parse_u64(word[1], &d->inodes_used_percent) != OK) d->inodes_used_percent = 0;
        str_copy(d->type, sizeof d->type, word[2]);
        str_copy(d->source, sizeof d->source, word[3]);
        str_copy(d->target, sizeof d->target, word[4]);
    } else {
        check_unknown(r, "The disk space", &e);
    }
    buf_release(&text);
    return is_read;
}

CHECK_RUN(check_d1) {
    disk d;
    if (!read_disk(c, i, &d, r)) return;
    check_value(r, (double)d.available);
    double free_bytes = (double)d.available, need = (double)c->need_bytes[i];
    if (!c->has_need) {
        check_say(r, CHECK_STATUS_UNKNOWN,
            "%.0f GB (%.0f GiB) are free in %s; no model is chosen yet.", free_bytes / GB,
            free_bytes / GIB, d.dir);
        return;
    }
    check_status s = free_bytes >= need + 30 * GB  ? CHECK_STATUS_PASS
                     : free_bytes >= need + 5 * GB ? CHECK_STATUS_WARN
                                                   : CHECK_STATUS_FAIL;
    if (free_bytes >= need && s == CHECK_STATUS_FAIL) s = CHECK_STATUS_WARN;
    check_say(r, s, "Needs %.0f GB (%.0f GiB) more, free are %.0f GB (%.0f GiB) in %s.", need / GB,
        need / GIB, free_bytes / GB, free_bytes / GIB, d.dir);
    if (s != CHECK_STATUS_PASS) {
        check_remedy(r,
            "This machine needs %.0f GB (%.0f GiB) more for %s. Free space or choose another "
            "disk (%s), then check again.",
            need / GB, need / GIB, c->need_text != NULL ? c->need_text : "the model files",
            i == 0 ? "HEAD_DATA" : "WORKER_DATA");
    }
}

CHECK_RUN(check_d2) {
    if (!c->has_need) {
        check_say(r, CHECK_STATUS_SKIP, "No model is chosen yet (PROFILE).");
        return;
    }
    double need = (double)c->need_bytes[i];
    check_value(r, need);
    check_say(r, CHECK_STATUS_PASS, "%.0f GB (%.0f GiB) are still missing: %s.", need / GB,
        need / GIB, c->need_text != NULL ? c->need_text : "model files");
}

CHECK_RUN(check_d3) {
    static const char *const far[] = {"nfs", "nfs4", "cifs", "smb3", "fuse", "fuse.sshfs", "tmpfs",
        "ramfs", "overlay", "9p", "ceph", "glusterfs", "virtiofs"};
    static const char *const good[] = {"ext4", "xfs", "btrfs"};
    disk d;
    if (!read_disk(c, i, &d, r)) return;
    bool is_far = str_starts(d.type, "fuse"), is_good = false;
    for (size_t k = 0; k < sizeof far / sizeof far[0]; k++)
        is_far = is_far || str_eq(d.type, far[k]);
    for (size_t k = 0; k < sizeof good / sizeof good[0]; k++)
        is_good = is_good || str_eq(d.type, good[k]);
    bool is_nvme = str_starts(d.source, "/dev/nvme");
    check_say(r,
        is_far               ? CHECK_STATUS_FAIL
        : is_good && is_nvme ? CHECK_STATUS_PASS
                             : CHECK_STATUS_WARN,
        "%s is on %s (%s).", d.dir, d.source, d.type);
    if (r->status != CHECK_STATUS_PASS) {
        check_remedy(r,
            "%s The engine reads hundreds of small rows per token; choose the internal NVMe.",
            is_far ? "The folder is on a network or memory file system."
                   : "This is no NVMe file system.");
    }
}

/* "1073741824 bytes (1.1 GB, 1.0 GiB) copied, 0.5 s, 2.1 GB/s": bytes and seconds. */
static bool dd_rate(const char *text, double *rate) {
    const char *bytes = strstr(text, " bytes"), *copied = strstr(text, "copied, ");
    double seconds = 0, count = 0;
    if (bytes == NULL || copied == NULL) return false;
    const char *start = bytes;
    while (start > text && start[-1] >= '0' && start[-1] <= '9')
        start--;
    char number[40];
    str_copy(number, sizeof number, start);
    number[strcspn(number, " ")] = '\0';
    if (parse_double(number, &count) != OK) return false;
    str_copy(number, sizeof number, copied + 8);
    number[strcspn(number, " ")] = '\0';
    if (parse_double(number, &seconds) != OK || seconds <= 0) return false;
    *rate = count / seconds;
    return true;
}

/* dd writes its figures to standard error. */
static bool run_dd(check_context *c, int i, const char *const *argv, double *rate, err *e) {
    remote_result out;
    remote_result_init(&out);
    node_command k = {.argv = argv, .timeout_ms = 120000};
    int rc = node_run(c->node[i], &k, &out, e);
    bool is_fine = rc == OK && out.exit_code == 0 && dd_rate(buf_cstr(&out.err), rate);
    if (rc == OK && !is_fine) err_set(e, ERR_IO, "%.200s", buf_cstr(&out.err));
    remote_result_release(&out);
    return is_fine;
}

CHECK_RUN(check_d4) {
    disk d;
    if (!read_disk(c, i, &d, r)) return;
    buf file = BUF_INIT, out_word = BUF_INIT, in_word = BUF_INIT;
    err e = ERR_INIT;
    double write_rate = 0, read_rate = 0;
    int code = 0;
    if (buf_printf(&file, "%s/.tandem-write-test", d.dir) != OK ||
        buf_printf(&out_word, "of=%s", buf_cstr(&file)) != OK ||
        buf_printf(&in_word, "if=%s", buf_cstr(&file)) != OK) {
        return;
    }
    const char *put[] = {"dd", "if=/dev/zero", buf_cstr(&out_word), "bs=4M", "count=256",
        "oflag=direct", "conv=fsync", NULL};
    const char *get[] = {"dd", buf_cstr(&in_word), "of=/dev/null", "bs=4M", "iflag=direct", NULL};
    const char *drop[] = {"rm", "-f", "--", buf_cstr(&file), NULL};
    bool is_fine = d.available > (2ull << 30) && run_dd(c, i, put, &write_rate, &e) &&
                   run_dd(c, i, get, &read_rate, &e);
    buf text = BUF_INIT;
    (void)check_tool(c, i, drop, &text, &code, NULL);
    check_remedy(r, "Another program may be writing; see the disk health (D6).");
    if (!is_fine) {
        check_say(r, CHECK_STATUS_FAIL, "The write test of 1 GiB in %s failed: %s.", d.dir,
            e.msg[0] != '\0' ? e.msg : "less than 2 GiB are free");
    } else {
        bool is_slow = write_rate < SLOW_BYTES_PER_S || d.inodes_used_percent > 95;
        check_value(r, write_rate);
        check_say(r, is_slow ? CHECK_STATUS_WARN : CHECK_STATUS_PASS,
            "Wrote 1 GiB at %.2f GB/s and read it back at %.2f GB/s; inodes used: %d%%.",
            write_rate / GB, read_rate / GB, (int)d.inodes_used_percent);
        if (!is_slow) r->remedy[0] = '\0';
    }
    buf_release(&text);
    buf_release(&file);
    buf_release(&out_word);
    buf_release(&in_word);
}

/* "USER MODE", the mode in octal. */
static bool may_others_write(const char *owner) {
    size_t n = strlen(owner);
    return n > 0 && owner[n - 1] >= '0' && owner[n - 1] <= '7' && ((owner[n - 1] - '0') & 2) != 0;
}

CHECK_RUN(check_d5) {
    disk d;
    if (!read_disk(c, i, &d, r)) return;
    const char *stat_line[] = {"stat", "-L", "-c", "%U %a", "--", d.dir, NULL};
    const char *test[] = {"test", "-w", d.dir, NULL};
    const char *real[] = {"readlink", "-f", "--", d.dir, NULL};
    char owner[80], path[512];
    buf text = BUF_INIT;
    err e = ERR_INIT;
    int code = 1;
    int rc = check_tool(c, i, test, &text, &code, &e);
    bool is_known = rc == OK && check_tool_line(c, i, stat_line, owner, sizeof owner, &e) == OK &&
                    check_tool_line(c, i, real, path, sizeof path, &e) == OK;
    buf_release(&text);
    if (!is_known) {
        check_unknown(r, "The data folder", &e);
    } else if (code != 0) {
        check_say(r, CHECK_STATUS_FAIL, "%s cannot be written by this user (owner and mode: %s).",
            d.dir, owner);
        check_remedy(r,
            "If a container made it, it belongs to root. Fix the owner on this machine: sudo "
            "chown -R USER %s. The program does not change ownership by itself.",
            d.dir);
    } else if (d.exists && may_others_write(owner)) {
        check_say(
            r, CHECK_STATUS_FAIL, "Others may write to %s (owner and mode: %s).", d.dir, owner);
        check_remedy(r,
            "The engine and the helper are kept there and run as you: whoever writes there could "
            "change them. On this machine: chmod o-w %s, or choose a folder of your own.",
            d.dir);
    } else if (!str_eq(path, d.dir)) {
        check_say(r, CHECK_STATUS_WARN, "%s leads to %s.", d.dir, path);
        check_remedy(r, "Set the folder to where it really is.");
    } else {
        check_say(r, CHECK_STATUS_PASS, "%s%s (%s).", d.dir,
            d.exists ? "" : " can be made below here", owner);
    }
}

/* Highest of the disks' sensors in degrees, -1 when there is none. */
static double hottest(check_context *c, int i) {
    buf disks = BUF_INIT, dirs = BUF_INIT, path = BUF_INIT;
    double best = -1;
    char *save = NULL, *dir_save, text[32];
    bool has = node_list(c->node[i], "/sys/class/nvme", &disks, NULL) == OK && disks.len > 0;
    for (char *d = has ? strtok_r(disks.data, "\n", &save) : NULL; d != NULL;
         d = strtok_r(NULL, "\n", &save)) {
        buf_reset(&path);
        dir_save = NULL;
        if (buf_printf(&path, "/sys/class/nvme/%s", d) != OK ||
            node_list(c->node[i], buf_cstr(&path), &dirs, NULL) != OK || dirs.len == 0) {
            continue;
        }
        for (char *h = strtok_r(dirs.data, "\n", &dir_save); h != NULL;
             h = strtok_r(NULL, "\n", &dir_save)) {
            double v = 0;
            if (!str_starts(h, "hwmon")) continue;
            buf_reset(&path);
            if (buf_printf(&path, "/sys/class/nvme/%s/%s/temp1_input", d, h) == OK &&
                check_line(c, i, buf_cstr(&path), text, sizeof text) &&
                parse_double(text, &v) == OK && v / 1000 > best) {
                best = v / 1000;
            }
        }
    }
    buf_release(&disks);
    buf_release(&dirs);
    buf_release(&path);
    return best;
}

/* Reading the health log needs root: asked for without a password only. */
static bool smart_of(check_context *c, int i, int64_t *warning, int64_t *used) {
    const char *argv[] = {"nvme", "smart-log", "-o", "json", "/dev/nvme0", NULL};
    node_command k = {.argv = argv};
    remote_result out;
    remote_result_init(&out);
    int rc = node_access_is_fixture(c->node[i])
                 ? node_run(c->node[i], &k, &out, NULL)
                 : node_run_root(c->node[i], &k, "reading the disk's health", &out, NULL);
    json *v = NULL;
    bool is_read = rc == OK && out.exit_code == 0 &&
                   json_parse(buf_cstr(&out.out), out.out.len, NULL, &v, NULL) == OK &&
                   json_i64(json_get(v, "critical_warning"), warning) == OK;
    if (is_read && json_i64(json_get(v, "percent_used"), used) != OK &&
        json_i64(json_get(v, "percentage_used"), used) != OK) {
        *used = -1;
    }
    json_free(v);
    remote_result_release(&out);
    return is_read;
}

CHECK_RUN(check_d6) {
    double degrees = hottest(c, i);
    int64_t warning = 0, used = -1;
    bool has_smart = smart_of(c, i, &warning, &used);
    if (degrees >= 0) check_value(r, degrees);
    if (has_smart && warning != 0) {
        check_say(r, CHECK_STATUS_FAIL, "The disk reports a critical warning (%d).", (int)warning);
        check_remedy(r, "Back up and replace it before loading 400 GB.");
    } else if (degrees > 70) {
        check_say(r, CHECK_STATUS_WARN, "The disk has %.0f C.", degrees);
        check_remedy(r, "Improve the airflow; a hot disk slows down.");
    } else if (has_smart && degrees >= 0) {
        check_say(
            r, CHECK_STATUS_PASS, "No warning, %d%% of its life used, %.0f C.", (int)used, degrees);
    } else {
        check_say(r, CHECK_STATUS_UNKNOWN, "The disk's health log cannot be read without root%s.",
            degrees >= 0 ? "; its temperature is fine" : "");
        check_remedy(r, "Look yourself: sudo nvme smart-log /dev/nvme0");
    }
}
