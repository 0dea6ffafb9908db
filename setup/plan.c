#include "setup/plan.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "setup/step.h"

void plan_init(setup_plan *p) {
    *p = (setup_plan){0};
}

void plan_release(setup_plan *p) {
    for (size_t i = 0; i < p->n; i++) {
        plan_action *a = &p->actions[i];
        mem_free(a->step);
        mem_free(a->node);
        mem_free(a->what);
        mem_free(a->command);
        mem_free(a->undo);
    }
    mem_free(p->actions);
    *p = (setup_plan){0};
}

static char *copy_of(const char *s) {
    return mem_strdup(s != NULL ? s : "");
}

void plan_add(setup_plan *p, const plan_action *a) {
    p->actions = mem_realloc(p->actions, (p->n + 1) * sizeof *p->actions);
    p->actions[p->n++] = (plan_action){.step = copy_of(a->step),
        .node = copy_of(a->node),
        .what = copy_of(a->what),
        .command = copy_of(a->command),
        .undo = copy_of(a->undo),
        .is_root = a->is_root,
        .is_later = a->is_later};
}

void plan_append(setup_plan *p, const setup_plan *from) {
    for (size_t i = 0; i < from->n; i++)
        plan_add(p, &from->actions[i]);
}

void plan_id(const setup_plan *p, char out[PLAN_ID_BYTES]) {
    sha256 *s = sha256_new();
    uint8_t raw[SHA256_BYTES];
    char hex[SHA256_HEX];
    for (size_t i = 0; i < p->n; i++) {
        const plan_action *a = &p->actions[i];
        const char *const texts[] = {a->step, a->node, a->what, a->command, a->undo,
            a->is_root ? "root" : "user", a->is_later ? "later" : "now"};
        /* With the final NUL, so that no two lists of texts run together. */
        for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++)
            sha256_update(s, texts[k], strlen(texts[k]) + 1);
    }
    sha256_finish(s, raw);
    sha256_free(s);
    sha256_hex(raw, hex);
    str_copy(out, PLAN_ID_BYTES, hex);
}

bool plan_holds(const setup_plan *whole, const plan_action *a) {
    for (size_t i = 0; i < whole->n; i++) {
        const plan_action *b = &whole->actions[i];
        if (!b->is_later && str_eq(a->step, b->step) && str_eq(a->node, b->node) &&
            str_eq(a->command, b->command) && a->is_root == b->is_root) {
            return true;
        }
    }
    return false;
}

static int print_block(buf *out, const char *label, const char *text) {
    int rc = OK;
    while (*text != '\0' && rc == OK) {
        size_t n = strcspn(text, "\n");
        rc = buf_printf(out, "      %s%.*s\n", label, (int)n, text);
        text += n + (text[n] == '\n');
    }
    return rc;
}

int plan_print(const setup_plan *p, buf *out) {
    int rc = OK;
    for (size_t i = 0; i < p->n && rc == OK; i++) {
        const plan_action *a = &p->actions[i];
        int step = step_find(a->step);
        rc = step >= 0 ? buf_printf(out, "step %d, %s", step, step_info_of(step)->title)
                       : buf_puts(out, a->step);
        if (rc == OK)
            rc = buf_printf(out, "; %s%s: %s\n", a->node, a->is_root ? " (as root)" : "", a->what);
        if (rc == OK) rc = print_block(out, "", a->command);
        if (rc == OK && a->undo[0] != '\0') rc = print_block(out, "undo: ", a->undo);
    }
    if (rc == OK && p->n == 0) rc = buf_puts(out, "nothing would be changed\n");
    return rc;
}

void plan_json(const setup_plan *p, json_w *w) {
    json_w_array(w);
    for (size_t i = 0; i < p->n; i++) {
        const plan_action *a = &p->actions[i];
        json_w_object(w);
        json_w_kstr(w, "step", a->step);
        json_w_kstr(w, "node", a->node);
        json_w_kstr(w, "what", a->what);
        json_w_kstr(w, "command", a->command);
        json_w_kstr(w, "undo", a->undo);
        json_w_kbool(w, "root", a->is_root);
        json_w_kbool(w, "later", a->is_later);
        json_w_close(w);
    }
    json_w_close(w);
}
