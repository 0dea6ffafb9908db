/* Where prepared files are, which layout they need, and the prompt self-test. */
#include "setup/prepare.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/manifest.h"
#include "setup/paths.h"

int prepare_place_find(
    prepare_place *p, const settings *s, const char *profile, bool is_worker, err *e) {
    const char *key = is_worker ? "WORKER_DATA" : "HEAD_DATA";
    if (profile == NULL) profile = settings_get(s, "PROFILE");
    if (!settings_is_set(s, key))
        return err_set(e, ERR_ARG, "%s is not set; `tandem setup` asks for it", key);
    if (profile[0] == '\0')
        return err_set(e, ERR_ARG, "no profile is set: `tandem config set PROFILE NAME`");
    buf_reset(&p->model_dir);
    buf_reset(&p->out_dir);
    int rc = buf_printf(&p->model_dir, "%s/models/%s", settings_get(s, key), profile);
    if (rc == OK) rc = buf_printf(&p->out_dir, "%s/prepared/%s", settings_get(s, key), profile);
    return rc;
}

void prepare_place_release(prepare_place *p) {
    buf_release(&p->model_dir);
    buf_release(&p->out_dir);
}

int prepare_places(const settings *s, bool is_worker, buf *model_dir, buf *out_dir, err *e) {
    prepare_place p = {.model_dir = *model_dir, .out_dir = *out_dir};
    int rc = prepare_place_find(&p, s, NULL, is_worker, e);
    *model_dir = p.model_dir;
    *out_dir = p.out_dir;
    return rc;
}

int prepare_record_path(buf *out, err *e) {
    buf state = BUF_INIT;
    int rc = paths_state(&state, e);
    if (rc == OK) rc = path_join(out, buf_cstr(&state), "prepared.json");
    buf_release(&state);
    return rc;
}

int prepare_layout(const char *daemon, exl3_layout *out, err *e) {
    node_access *here = node_access_local("head", NULL);
    buf text = BUF_INIT;
    int rc = node_tool(here, &text, e, daemon, "--version", NULL);
    if (rc == OK)
        *out = strstr(buf_cstr(&text), "engine: CUDA") != NULL ? EXL3_LAYOUT_GPU : EXL3_LAYOUT_CPU;
    buf_release(&text);
    node_access_close(here);
    return err_add(e, rc, "asking the engine what it computes on");
}

int prepare_self_test(const char *model_dir, self_test_result *out, err *e) {
    buf path = BUF_INIT, dir = BUF_INIT, cases = BUF_MAX(SELF_TEST_MAX_BYTES);
    tokenizer *t = NULL;
    *out = (self_test_result){0};
    int rc = manifest_templates(&path, e);
    path_dir(&dir, buf_cstr(&path));
    if (rc == OK) rc = path_join(&path, buf_cstr(&dir), "prompt-self-test.json");
    if (rc == OK) rc = file_read(buf_cstr(&path), &cases, SELF_TEST_MAX_BYTES, e);
    if (rc == OK) rc = path_join(&path, model_dir, "tokenizer.json");
    if (rc == OK) rc = tokenizer_open(buf_cstr(&path), &t, e);
    if (rc == OK) rc = self_test_run(cases.data, cases.len, t, out, e);
    tokenizer_close(t);
    buf_release(&path);
    buf_release(&dir);
    buf_release(&cases);
    return rc;
}
