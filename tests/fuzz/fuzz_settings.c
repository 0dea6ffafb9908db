/* The settings file: any text is taken whole or refused whole, and what was taken reads back. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/mem.h"
#include "setup/settings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    settings *s = settings_new(), *fresh = settings_new();
    err e = ERR_INIT;
    buf a = BUF_INIT, b = BUF_INIT;
    int rc = settings_load_text(s, (const char *)data, size, "fuzz", &e);
    settings_frozen(s, false, &a);
    if (rc != OK) {
        CHECK(e.msg[0] != '\0');
        settings_frozen(fresh, false, &b);
        CHECK(strcmp(buf_cstr(&a), buf_cstr(&b)) == 0);
    }
    settings_free(s);
    settings_free(fresh);
    buf_release(&a);
    buf_release(&b);
    return 0;
}
