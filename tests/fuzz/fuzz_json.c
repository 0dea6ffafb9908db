/* JSON text: whatever is taken prints, and the print parses to the same print. */
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void print(const json *v, buf *out) {
    buf_reset(out);
    CHECK(json_print(v, out) == OK);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    json *v = NULL;
    err e = ERR_INIT;
    int rc = json_parse((const char *)data, n, NULL, &v, &e);
    if (rc != OK) {
        CHECK(v == NULL && e.code == rc && e.msg[0] != '\0');
        return 0;
    }
    buf first = BUF_INIT;
    buf second = BUF_INIT;
    print(v, &first);
    json *again = NULL;
    CHECK(json_parse(first.data, first.len, NULL, &again, &e) == OK);
    print(again, &second);
    CHECK(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
    json_free(again);
    json_free(v);
    buf_release(&first);
    buf_release(&second);
    return 0;
}
