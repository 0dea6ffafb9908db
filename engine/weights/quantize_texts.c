/* The files of a pack that are not weights. */
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/weights/quantize_plan.h"

enum { TEXT_MAX_BYTES = 64 << 20 };

static void write_block(
    json_w *w, const quantize_options *o, const quantize_report *r, const json *old) {
    quantize_rule head = quantize_map_find(o->map, "head");
    json_w_object(w);
    json_w_kstr(w, "quant_method", "exl3");
    json_w_kstr(w, "version", "1.4.1");
    json_w_key(w, "bits");
    json_w_fixed(w, r->mean_bits, 3);
    if (head.action == ACTION_BITS) {
        json_w_kdouble(w, "head_bits", head.k2 / 2.0);
    }
    json_w_kstr(w, "out_scales", "always");
    json_w_kstr(w, "codebook", "mul1");
    json_w_kstr(w, "bit_map", o->map->text);
    json_w_key(w, "original_quantization_config");
    json_w_value(w, old);
    json_w_close(w);
}

int quantize_write_config(const char *in_dir, const char *out_dir, const quantize_options *o,
    const quantize_report *r, err *e) {
    buf path = BUF_INIT;
    buf text = BUF_INIT;
    json *config = NULL;
    json_w w;
    path_join(&path, in_dir, "config.json");
    int rc = json_parse_file(buf_cstr(&path), NULL, &config, e);
    if (rc == OK && !json_is_object(config)) {
        rc = err_set(e, ERR_FORMAT, "%s: not a JSON object", buf_cstr(&path));
    }
    if (rc != OK) goto out;
    json_w_begin(&w, &text);
    json_w_object(&w);
    JSON_EACH(member, config) {
        if (strcmp(json_key(member), "quantization_config") == 0) continue;
        json_w_key(&w, json_key(member));
        json_w_value(&w, member);
    }
    json_w_key(&w, "quantization_config");
    write_block(&w, o, r, json_get(config, "quantization_config"));
    json_w_close(&w);
    rc = json_w_end(&w);
    if (rc != OK) goto out;
    buf_putc(&text, '\n');
    path_join(&path, out_dir, "config.json");
    rc = file_write_atomic(buf_cstr(&path), text.data, text.len, 0644, e);
out:
    json_free(config);
    buf_release(&path);
    buf_release(&text);
    return err_add(e, rc, "writing the config");
}

/* Files that belong to a model whatever its weights are. */
static bool is_kept(const char *name) {
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "generation_config.json", "chat_template.jinja"};
    static const char *const starts[] = {"LICENSE", "LICENCE", "NOTICE", "WORDNET", "SCOWL"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) return true;
    }
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        if (str_starts(name, starts[i])) return true;
    }
    return false;
}

typedef struct copy_run {
    const char *from, *to;
} copy_run;

static int copy_entry(void *ctx, const char *name, err *e) {
    const copy_run *r = ctx;
    buf path = BUF_INIT;
    buf text = BUF_MAX(TEXT_MAX_BYTES);
    if (!is_kept(name)) return OK;
    path_join(&path, r->from, name);
    int rc = file_read(buf_cstr(&path), &text, TEXT_MAX_BYTES, e);
    if (rc == OK) {
        path_join(&path, r->to, name);
        rc = file_write_atomic(buf_cstr(&path), buf_cstr(&text), text.len, 0644, e);
    }
    buf_release(&path);
    buf_release(&text);
    return rc;
}

int quantize_copy_texts(const char *in_dir, const char *out_dir, err *e) {
    copy_run r = {in_dir, out_dir};
    return dir_each(in_dir, copy_entry, &r, e);
}

static void put_index_entry(json_w *w, const char *name, const char *suffix, const char *shard) {
    buf full = BUF_INIT;
    buf_printf(&full, "%s%s", name, suffix);
    json_w_kstr(w, buf_cstr(&full), shard);
    buf_release(&full);
}

int quantize_write_index(const quantize_plan *p, const char *dir, err *e) {
    const char *parts[4] = {".trellis", ".suh", ".svh", NULL};
    parts[3] = p->codebook == EXL3_MUL1 ? ".mul1" : p->codebook == EXL3_MCG ? ".mcg" : NULL;
    buf path = BUF_INIT;
    buf text = BUF_MAX((size_t)256 << 20);
    json_w w;
    json_w_begin(&w, &text);
    json_w_object(&w);
    json_w_key(&w, "weight_map");
    json_w_object(&w);
    for (int i = 0; i < p->n_items; i++) {
        char shard[64];
        const plan_item *it = &p->items[i];
        quantize_shard_name(p, it->i_shard, shard);
        for (int j = 0; j < 4 && it->is_matrix && parts[j] != NULL; j++) {
            put_index_entry(&w, it->name, parts[j], shard);
        }
        if (!it->is_matrix) {
            put_index_entry(&w, it->name, "", shard);
        }
    }
    json_w_close(&w);
    json_w_close(&w);
    int rc = json_w_end(&w);
    if (rc == OK) {
        path_join(&path, dir, "model.safetensors.index.json");
        rc = file_write_atomic(buf_cstr(&path), text.data, text.len, 0644, e);
    }
    buf_release(&path);
    buf_release(&text);
    return err_add(e, rc, "writing the index");
}
