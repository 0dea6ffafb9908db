/* Raw bytes at a real server: heads, bodies, chunks, several requests at once. Whatever comes, the
 * server answers with HTTP and without a fault of its own, or closes. */
#include <stdint.h>
#include <stdlib.h>

#include "engine/base/mem.h"
#include "tests/harness/http_probe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static http_probe *probe;
    buf why = BUF_INIT;
    if (probe == NULL) probe = http_probe_new();
    CHECK(probe != NULL);
    if (!http_probe_bytes(probe, data, size, size % 2 == 0, &why))
        crash_now(__FILE__, __LINE__, "%s", buf_cstr(&why));
    buf_release(&why);
    return 0;
}
