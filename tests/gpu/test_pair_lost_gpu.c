/* tests/api/test_ranks_lost.c with two processes on a GPU each, over peer memory: a rank that is killed or
 * stopped is noticed, what was on its way ends with an error, and the pair serves again. Then a worker
 * that is lost in the middle of a reply over NCCL. */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "engine/dist/exchange_nccl.h"
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
    (void)setenv("TANDEM_TEST_EXCHANGE", "peer", 1);
    int rc = api_main();
    if (rc != 0 || exchange_nccl_version() == 0) return rc;
    (void)setenv("TANDEM_TEST_EXCHANGE", "nccl", 1);
    cmocka_set_test_filter("worker_*_while_writing");
    return api_main();
}
