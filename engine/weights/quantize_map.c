#include <fnmatch.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/weights/quantize_plan.h"

enum { MAP_MAX_BYTES = 1 << 20 };

/* demo-model.md 3. */
static const char demo_map[] =
    "*.hc_attn_fn=f16 *.hc_ffn_fn=f16 head=6 mtp.*=4 *.attn.indexer.wk=8 "
    "*.ffn.experts.*=3 *.ffn.shared_experts.*=4 *.attn.*=4 *.engram.wkv=4";

static int parse_value(const char *text, quantize_rule *r, err *e, const char *rule) {
    static const struct {
        const char *name;
        st_dtype dtype;
    } floats[] = {{"f16", ST_F16}, {"bf16", ST_BF16}, {"f32", ST_F32}};
    double bits;
    if (strcmp(text, "keep") == 0) {
        r->action = ACTION_KEEP;
        return OK;
    }
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        if (strcmp(text, floats[i].name) == 0) {
            r->action = ACTION_FLOAT;
            r->dtype = floats[i].dtype;
            return OK;
        }
    }
    bool ok = parse_double(text, &bits) == OK && bits >= 1.0 && bits <= 8.0;
    r->k2 = ok ? (int)(bits * 2.0) : 0;
    if (!ok || (double)r->k2 != bits * 2.0 || !exl3_rate_ok(EXL3_MUL1, r->k2)) {
        return err_set(e, ERR_ARG,
            "bit map rule %s: %s is not 1 to 8, 1.5, 2.5, 3.5, keep, f16, bf16 or f32", rule, text);
    }
    r->action = ACTION_BITS;
    return OK;
}

static int add_rule(quantize_map *m, const char *text, size_t len, err *e) {
    char *rule = mem_strndup(text, len);
    char *equals = strrchr(rule, '=');
    int rc;
    if (equals == NULL || equals == rule) {
        rc = err_set(e, ERR_ARG, "bit map rule %s: expected PATTERN=BITS", rule);
        mem_free(rule);
        return rc;
    }
    if (m->n_rules == m->cap_rules) {
        m->cap_rules = m->cap_rules == 0 ? 16 : m->cap_rules * 2;
        m->rules = mem_realloc(m->rules, (size_t)m->cap_rules * sizeof *m->rules);
    }
    quantize_rule *r = &m->rules[m->n_rules];
    memset(r, 0, sizeof *r);
    rc = parse_value(equals + 1, r, e, rule);
    if (rc == OK) {
        r->pattern = mem_strndup(rule, (size_t)(equals - rule));
        m->n_rules++;
    }
    mem_free(rule);
    return rc;
}

static bool is_separator(char c) {
    return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static int parse_rules(quantize_map *m, const char *text, err *e) {
    int rc = OK;
    while (*text != '\0' && rc == OK) {
        if (*text == '#') {
            text += strcspn(text, "\n");
        } else if (is_separator(*text)) {
            text++;
        } else {
            size_t len = strcspn(text, ", \t\n\r");
            rc = add_rule(m, text, len, e);
            text += len;
        }
    }
    if (rc == OK && m->n_rules == 0) {
        rc = err_set(e, ERR_ARG, "the bit map is empty: expected PATTERN=BITS, for example *=4");
    }
    return rc;
}

int quantize_map_parse(const char *text, quantize_map **out, err *e) {
    quantize_map *m = mem_alloc(sizeof *m);
    buf file = BUF_MAX(MAP_MAX_BYTES);
    int rc = OK;
    if (strcmp(text, "demo") == 0) {
        text = demo_map;
    } else if (*text == '@') {
        rc = file_read(text + 1, &file, MAP_MAX_BYTES, e);
        text = buf_cstr(&file);
    }
    if (rc == OK) {
        m->text = mem_strdup(text);
        rc = parse_rules(m, text, e);
    }
    buf_release(&file);
    if (rc != OK) {
        quantize_map_free(m);
        m = NULL;
    }
    *out = m;
    return rc;
}

void quantize_map_free(quantize_map *m) {
    if (m == NULL) return;
    for (int i = 0; i < m->n_rules; i++) {
        mem_free(m->rules[i].pattern);
    }
    mem_free(m->rules);
    mem_free(m->text);
    mem_free(m);
}

quantize_rule quantize_map_find(const quantize_map *m, const char *name) {
    for (int i = 0; i < m->n_rules; i++) {
        if (fnmatch(m->rules[i].pattern, name, 0) == 0) return m->rules[i];
    }
    return (quantize_rule){.action = ACTION_KEEP};
}
