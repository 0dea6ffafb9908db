/* A tokenizer.json of any bytes: refused with a message, or usable. So that the interesting
 * parts are reached, the input is also tried in place of the pre-tokenizer rule, of the added tokens
 * and of the model of a sound file. */
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/text/compress.h"
#include "engine/text/tokenizer.h"

#define MINI "tests/data/cases/tokenizer/mini-tokenizer.json"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static json *mini(void) {
    static json *root; /* read once for the whole run */
    if (root == NULL) CHECK(json_parse_file(MINI, NULL, &root, NULL) == OK);
    return root;
}

static void use(const tokenizer *t) {
    static const char text[] = "The 12 cats\n\n<think> caf\xC3\xA9 \xE4\xB8\xAD\xFF";
    token_list ids = {0};
    buf back = BUF_INIT;
    int rc = tokenizer_encode(t, (text_span){text, sizeof text - 1, true}, &ids, NULL);
    CHECK(rc == OK || rc == ERR_LIMIT);
    CHECK(tokenizer_decode(t, ids.ids, ids.len, &back) == OK);
    token_list_release(&ids);
    buf_release(&back);
}

static void try_text(const char *text, size_t n) {
    tokenizer *t = NULL;
    err e = ERR_INIT;
    int rc = tokenizer_parse(text, n, &t, &e);
    if (rc != OK) {
        CHECK(t == NULL && e.code != OK && e.msg[0] != 0);
        return;
    }
    use(t);
    tokenizer_close(t);
}

static void try_member(const char *key, const json *value) {
    buf text = BUF_INIT;
    json_w w;
    json_w_begin(&w, &text);
    json_w_object(&w);
    JSON_EACH(member, mini()) {
        json_w_key(&w, json_key(member));
        json_w_value(&w, strcmp(json_key(member), key) == 0 ? value : member);
    }
    json_w_close(&w);
    if (json_w_end(&w) == OK) try_text(text.data, text.len);
    buf_release(&text);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    json *value = NULL;
    try_text((const char *)data, n);
    if (json_parse((const char *)data, n, NULL, &value, NULL) != OK) return 0;
    try_member("pre_tokenizer", value);
    try_member("added_tokens", value);
    try_member("model", value);
    json_free(value);
    return 0;
}
