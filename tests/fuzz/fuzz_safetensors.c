/* Safetensors headers: the first byte chooses how many bytes of data follow; whatever is taken has
 * tensors that lie inside the data and do not overlap, and an index or EXL3 check of it is safe. */
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/weights/header_scan.h"
#include "engine/weights/safetensors_internal.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void check_tensors(const st_header *h, uint64_t data_bytes) {
    uint64_t at = 0;
    for (size_t i = 0; i < h->n_tensors; i++) {
        const st_tensor *t = &h->tensors[i];
        char text[64];
        CHECK(t->offset == at && t->bytes <= data_bytes - at);
        CHECK(st_elements(t) * st_dtype_bytes(t->dtype) == t->bytes);
        CHECK(strlen(t->name) < h->names_cap && t->n_dims <= ST_MAX_DIMS);
        st_describe(t, text, sizeof text);
        CHECK(strlen(text) < sizeof text);
        at += t->bytes;
    }
    CHECK(at == data_bytes);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    st_header h;
    err e = ERR_INIT;
    header_scan s;
    if (n == 0) return 0;
    uint64_t data_bytes = data[0];
    const char *text = (const char *)data + 1;
    int rc = st_header_parse(&h, text, n - 1, data_bytes, "fuzz", &e);
    if (rc == OK) {
        check_tensors(&h, data_bytes);
        st_header_release(&h);
    } else {
        CHECK(e.code == rc && strstr(e.msg, "fuzz") != NULL);
        CHECK(h.names == NULL && h.tensors == NULL);
    }
    header_scan_init(&s, text, n - 1);
    if (!header_scan_skip(&s)) {
        CHECK(s.wrong != NULL);
    }
    CHECK(s.at >= s.start && s.at <= s.end);
    return 0;
}
