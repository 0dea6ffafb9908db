/* tests/api/test_ranks_lost.c with two processes on a GPU each, over peer memory: a rank that is killed or
 * stopped is noticed, what was on its way ends with an error, and the pair serves again. */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "tests/harness/rank_pair.h"

#define main api_main
#include "tests/api/test_ranks_lost.c"
#undef main

int main(void) {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 2) {
        printf("skipped: %d GPU\n", n);
        return 77;
    }
    (void)setenv("TANDEM_TEST_BACKEND", "cuda", 1);
    return api_main();
}
