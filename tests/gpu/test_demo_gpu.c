/* tests/golden/test_demo.c on the GPU: the demo's golden answers with the CUDA back end, same data, same tolerances. */
#include "tests/gpu/gpu_backend.h"
#include "tests/harness/model_probe.h"
#include "tests/harness/vectors.h"

#define main golden_main
#include "tests/golden/test_demo.c"
#undef main

int main(void) {
    if (!gpu_backend_use()) {
        return 77;
    }
    return golden_main();
}
