/* tests/golden/test_invariants.c on the GPU: the exactness rules with the CUDA back end, same data, same tolerances. */
#include "tests/gpu/gpu_backend.h"
#include "tests/harness/model_probe.h"
#include "tests/harness/vectors.h"

#define main golden_main
#include "tests/golden/test_invariants.c"
#undef main

int main(int argc, char **argv) {
    if (!gpu_backend_use()) {
        return 77;
    }
    return golden_main(argc, argv);
}
