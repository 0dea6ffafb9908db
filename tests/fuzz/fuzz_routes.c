/* Bodies at every route that takes one: the first byte says which. Whatever the body, no answer is a
 * fault of the server, and the connection serves the next one. */
#include <stdint.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/harness/http_probe.h"
#include "tests/harness/mutate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static http_probe *probe;
    buf why = BUF_INIT;
    if (size == 0) return 0;
    if (probe == NULL) probe = http_probe_new();
    CHECK(probe != NULL);
    if (!http_probe_body(probe, data[0], data + 1, size - 1, &why))
        crash_now(__FILE__, __LINE__, "%s", buf_cstr(&why));
    buf_release(&why);
    return 0;
}

/* Three times of four a JSON value is exchanged, so that most bodies get past the parser. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    buf b = BUF_INIT;
    rand_state r;
    rand_init(&r, seed, 1);
    if (size < 2 || rand_below(&r, 4) == 0) return LLVMFuzzerMutate(data, size, max);
    buf_append(&b, data + 1, size - 1);
    mutate_json(&r, &b, max - 1);
    memcpy(data + 1, buf_cstr(&b), b.len);
    size = b.len + 1;
    buf_release(&b);
    return size;
}
