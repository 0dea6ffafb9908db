/* tests/api/test_ranks.c with two processes on a GPU each: `tandemd pair --backend cuda` and what is
 * said about it there, over peer memory; then the answers once more over NCCL. */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "engine/dist/exchange_nccl.h"
#include "tests/harness/rank_pair.h"

#define main api_main
#include "tests/api/test_ranks.c"
#undef main

int main(void) {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 2) {
        printf("skipped: %d GPU\n", n);
        return 77;
    }
    (void)setenv("TANDEM_TEST_BACKEND", "cuda", 1);
    (void)setenv("TANDEM_TEST_EXCHANGE", "peer", 1);
    int rc = api_main();
    if (rc != 0 || exchange_nccl_version() == 0) return rc;
    (void)setenv("TANDEM_TEST_EXCHANGE", "nccl", 1);
    cmocka_set_test_filter("two_ranks_*");
    return api_main();
}
