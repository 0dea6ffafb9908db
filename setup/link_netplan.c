/* The netplan file: what is installed, what ours would say, and how they differ. */
#include <ctype.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/link.h"

enum { FILE_MAX = 64 << 10, DIFF_LINES = 400 };
#define NETPLAN_DIR "/etc/netplan"

void link_netplan_release(link_netplan *p) {
    buf_release(&p->ours);
}

/* Files of netplan are often for root only. Without asking for a password: read, else sudo -n. */
static int read_file(node_access *n, const char *path, buf *out, err *e) {
    err why = ERR_INIT;
    int rc = node_read(n, path, FILE_MAX, out, &why);
    if (rc == OK || rc == ERR_NOT_FOUND || node_access_is_fixture(n)) {
        if (rc != OK && e != NULL) *e = why;
        return rc;
    }
    const char *argv[] = {"cat", "--", path, NULL};
    node_command c = {.argv = argv};
    remote_result r;
    remote_result_init(&r);
    rc = node_run_root(n, &c, "reading the network settings", &r, e);
    if (rc == OK && r.exit_code != 0) rc = err_set(e, ERR_IO, "%s cannot be read", path);
    if (rc == OK) rc = buf_append(out, buf_cstr(&r.out), r.out.len);
    remote_result_release(&r);
    return rc;
}

/* The value of the first "key: value" line, comments aside. */
static bool value_of(const char *text, const char *key, char *out, size_t cap) {
    size_t n = strlen(key);
    for (const char *p = text; p != NULL && *p != '\0';) {
        const char *start = p + strspn(p, " \t");
        if (strncmp(start, key, n) == 0 && start[n] == ':') {
            const char *v = start + n + 1 + strspn(start + n + 1, " \t\"'");
            size_t len = strcspn(v, " \t\r\n\"'#");
            if (len >= cap) return false;
            memcpy(out, v, len);
            out[len] = '\0';
            return true;
        }
        p = strchr(p, '\n');
        if (p != NULL) p++;
    }
    return false;
}

static void take_foreign(
    const link_plan *plan, int i_node, const char *path, const char *text, link_netplan *out) {
    char value[32];
    if (out->renderer[0] == '\0') (void)value_of(text, "renderer", out->renderer, 32);
    for (int r = 0; r < LINK_RAILS; r++) {
        const char *dev = plan->rail[i_node][r].netdev;
        if (dev[0] != '\0' && out->foreign[r][0] == '\0' && value_of(text, dev, value, 32)) {
            str_copy(out->foreign[r], sizeof out->foreign[r], path);
        }
    }
}

int link_netplan_read(
    node_access *n, const link_plan *plan, int i_node, link_netplan *out, err *e) {
    *out = (link_netplan){.ours = BUF_INIT, .is_readable = true};
    buf names = BUF_INIT, path = BUF_INIT, text = BUF_INIT;
    int rc = node_list(n, NETPLAN_DIR, &names, e);
    if (rc == ERR_NOT_FOUND) {
        err_set(e, ERR_NOT_FOUND, "%s has no %s: its network is not set up by netplan",
            node_access_name(n), NETPLAN_DIR);
    }
    char *save = NULL;
    for (char *name = rc == OK && names.len > 0 ? strtok_r(names.data, "\n", &save) : NULL;
         name != NULL && rc == OK; name = strtok_r(NULL, "\n", &save)) {
        if (!str_ends(name, ".yaml")) continue;
        buf_reset(&path);
        buf_reset(&text);
        rc = buf_printf(&path, "%s/%s", NETPLAN_DIR, name);
        if (rc == OK && read_file(n, buf_cstr(&path), &text, NULL) != OK) {
            out->is_readable = false;
        } else if (rc == OK && str_eq(buf_cstr(&path), LINK_NETPLAN_FILE)) {
            out->has_ours = true;
            rc = buf_append(&out->ours, buf_cstr(&text), text.len);
        } else if (rc == OK) {
            take_foreign(plan, i_node, buf_cstr(&path), buf_cstr(&text), out);
        }
    }
    /* A rewrite keeps the choice that stands in our own file only. */
    if (out->renderer[0] == '\0' && out->has_ours) {
        (void)value_of(buf_cstr(&out->ours), "renderer", out->renderer, 32);
    }
    buf_release(&names);
    buf_release(&path);
    buf_release(&text);
    return rc;
}

/* netplan joins the address lists of all files, so an address that another file sets is not written
 * again, and one that must go cannot be taken away from here. */
static int render_rail(const link_rail *x, const char *foreign, buf *out, err *e) {
    bool is_set_there = foreign[0] != '\0' && str_eq(x->now, x->address);
    if (foreign[0] != '\0' && x->now[0] != '\0' && !is_set_there) {
        return err_set(e, ERR_EXISTS,
            "%s gives %s the address %s, which must become %s; change it in that file, then plan again",
            foreign, x->netdev, x->now, x->address);
    }
    int rc = buf_printf(out,
        "    %s:\n      dhcp4: no\n      link-local: []\n      optional: true\n      mtu: %d\n",
        x->netdev, LINK_MTU);
    if (rc == OK && !is_set_there)
        rc = buf_printf(out, "      addresses:\n        - %s\n", x->address);
    return rc;
}

int link_netplan_render(
    const link_plan *plan, int i_node, const link_netplan *now, buf *out, err *e) {
    if (plan->physical_ports_used == 0) {
        return err_set(e, ERR_NOT_FOUND, "there is no port to give addresses to: %s", plan->reason);
    }
    int rc =
        buf_puts(out, "# The cable between the two machines, written by Tandem. To undo: remove "
                      "this file,\n# then run: netplan apply\nnetwork:\n  version: 2\n");
    if (rc == OK && now->renderer[0] != '\0')
        rc = buf_printf(out, "  renderer: %s\n", now->renderer);
    if (rc == OK) rc = buf_puts(out, "  ethernets:\n");
    for (int r = 0; r < LINK_RAILS && rc == OK; r++)
        rc = render_rail(&plan->rail[i_node][r], now->foreign[r], out, e);
    return rc;
}

/* Lines of a text: starts and lengths. */
typedef struct lines {
    const char *at[DIFF_LINES];
    int len[DIFF_LINES], n;
} lines;

static int lines_of(const char *text, lines *out) {
    out->n = 0;
    while (*text != '\0') {
        if (out->n == DIFF_LINES) return ERR_LIMIT;
        const char *end = strchr(text, '\n');
        size_t n = end != NULL ? (size_t)(end - text) : strlen(text);
        out->at[out->n] = text;
        out->len[out->n++] = (int)n;
        text += n + (end != NULL ? 1 : 0);
    }
    return OK;
}

static bool same_line(const lines *a, int i, const lines *b, int j) {
    return a->len[i] == b->len[j] && memcmp(a->at[i], b->at[j], (size_t)a->len[i]) == 0;
}

/* Longest common part by the plain table: these files have a few dozen lines. */
static int diff_lines(const lines *a, const lines *b, buf *out) {
    size_t width = (size_t)b->n + 1;
    int *common = mem_array(((size_t)a->n + 1) * width, sizeof *common), rc = OK;
    for (int i = a->n - 1; i >= 0; i--) {
        for (int j = b->n - 1; j >= 0; j--) {
            int *c = &common[(size_t)i * width + (size_t)j];
            if (same_line(a, i, b, j))
                *c = c[width + 1] + 1;
            else
                *c = c[width] > c[1] ? c[width] : c[1];
        }
    }
    for (int i = 0, j = 0; (i < a->n || j < b->n) && rc == OK;) {
        const int *c = &common[(size_t)i * width + (size_t)j];
        if (i < a->n && j < b->n && same_line(a, i, b, j)) {
            rc = buf_printf(out, " %.*s\n", a->len[i], a->at[i]);
            i++;
            j++;
        } else if (i < a->n && (j == b->n || c[width] >= c[1])) {
            rc = buf_printf(out, "-%.*s\n", a->len[i], a->at[i]);
            i++;
        } else {
            rc = buf_printf(out, "+%.*s\n", b->len[j], b->at[j]);
            j++;
        }
    }
    mem_free(common);
    return rc;
}

int link_diff(const char *path, const char *before, const char *after, buf *out) {
    lines *a = mem_alloc(sizeof *a), *b = mem_alloc(sizeof *b);
    int rc = lines_of(before, a);
    if (rc == OK) rc = lines_of(after, b);
    if (rc == OK && !str_eq(before, after)) {
        rc = buf_printf(
            out, "--- %s%s\n+++ %s\n", path, before[0] == '\0' ? " (not there)" : "", path);
        if (rc == OK) rc = diff_lines(a, b, out);
    }
    mem_free(a);
    mem_free(b);
    return rc;
}
