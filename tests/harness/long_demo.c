#include "tests/harness/long_demo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/str.h"

static void die(const char *what) {
    perror(what);
    exit(1);
}

static bool find_model(char *out, size_t cap) {
    const char *top = getenv("TANDEM_SOURCE_DIR");
    const char *weights = getenv("DEMO_WEIGHTS");
    char here[3000];
    char config[4200];
    if (top != NULL) {
        str_copy(here, sizeof here, top);
    } else if (getcwd(here, sizeof here) == NULL) {
        die("getcwd");
    }
    snprintf(out, cap, "%s/templates/demo-model", here);
    snprintf(config, sizeof config, "%s/config.json", out);
    if (file_exists(config)) return true;
    if (weights == NULL) return false;
    str_copy(out, cap, weights);
    return true;
}

typedef struct link_job {
    const char *from, *to;
} link_job;

static int link_file(void *ctx, const char *name, err *e) {
    const link_job *j = ctx;
    char from[4400];
    char to[600];
    (void)e;
    if (strcmp(name, "config.json") == 0) return OK;
    snprintf(from, sizeof from, "%s/%s", j->from, name);
    snprintf(to, sizeof to, "%s/%s", j->to, name);
    if (symlink(from, to) != 0) die(to);
    return OK;
}

static void write_config(const char *from, const char *to, int64_t n_tokens) {
    static const char key[] = "\"max_position_embeddings\":";
    char path[4400];
    buf old = BUF_INIT;
    buf new = BUF_INIT;
    snprintf(path, sizeof path, "%s/config.json", from);
    if (file_read(path, &old, 1 << 20, NULL) != OK) die(path);
    const char *text = buf_cstr(&old);
    const char *at = strstr(text, key);
    if (at == NULL) die(key);
    at += strlen(key);
    buf_append(&new, text, (size_t)(at - text));
    buf_printf(&new, "%lld", (long long)n_tokens);
    buf_puts(&new, at + strspn(at, " 0123456789"));
    snprintf(path, sizeof path, "%s/config.json", to);
    if (file_write_atomic(path, new.data, new.len, 0600, NULL) != OK) die(path);
    buf_release(&old);
    buf_release(&new);
}

bool long_demo_make(int64_t n_tokens, char out[256]) {
    char from[4096];
    if (!find_model(from, sizeof from)) return false;
    snprintf(out, 256, "/tmp/tandem-long-XXXXXX");
    if (mkdtemp(out) == NULL) die(out);
    link_job j = {from, out};
    if (dir_each(from, link_file, &j, NULL) != OK) die(from);
    write_config(from, out, n_tokens);
    return true;
}

void long_demo_remove(const char *dir) {
    (void)dir_remove_all(dir, NULL);
}
