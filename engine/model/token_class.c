/* The Engram class of every token id: given by the caller, derived from the tokenizer, or read from
 * token_map.json. */
#include <string.h>

#include "engine/base/file.h"
#include "engine/model/model_internal.h"
#include "engine/text/compress.h"
#include "engine/text/tokenizer.h"

static int read_classes(const char *dir, class_map *map, err *e) {
    buf path = BUF_INIT;
    int rc = path_join(&path, dir, "tokenizer.json");
    if (rc == OK && file_exists(buf_cstr(&path))) {
        tokenizer *t = NULL;
        rc = tokenizer_open(buf_cstr(&path), &t, e);
        if (rc == OK) {
            rc = class_map_build(t, map, e);
        }
        tokenizer_close(t);
    } else {
        rc = path_join(&path, dir, "token_map.json");
        if (rc == OK && !file_exists(buf_cstr(&path))) {
            rc = err_set(e, ERR_NOT_FOUND,
                "%s has no tokenizer.json, which the Engram layers need; copy it from "
                "the model's repository",
                dir);
        } else if (rc == OK) {
            rc = class_map_read(buf_cstr(&path), map, e);
        }
    }
    buf_release(&path);
    return rc;
}

static int check_classes(const model *m, const class_map *map, err *e) {
    const model_config *c = &m->config;
    int rc = model_config_check_vocab(c, map->n_tokens, e);
    if (rc != OK) {
        return rc;
    }
    if (map->n_classes > c->n_classes) {
        return err_set(e, ERR_MISMATCH,
            "the tokenizer gives %d Engram classes, config.json says %d; take "
            "tokenizer.json and config.json from the same model",
            map->n_classes, c->n_classes);
    }
    return OK;
}

int model_load_classes(model *m, err *e) {
    const model_config *c = &m->config;
    if (c->n_engram == 0) {
        return OK;
    }
    m->token_class = mem_array((size_t)c->n_vocab, sizeof(int32_t));
    if (m->options.token_class != NULL) {
        memcpy(m->token_class, m->options.token_class, (size_t)c->n_vocab * sizeof(int32_t));
    } else {
        class_map map = {0};
        int rc = read_classes(m->options.dir, &map, e);
        if (rc == OK) {
            rc = check_classes(m, &map, e);
        }
        if (rc == OK) {
            memcpy(m->token_class, map.classes, (size_t)map.n_tokens * sizeof(int32_t));
        }
        class_map_release(&map);
        if (rc != OK) {
            return rc;
        }
    }
    m->options.token_class = NULL;
    m->pad_class = m->token_class[c->engram_pad_id];
    return OK;
}
