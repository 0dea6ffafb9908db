/* The two halves of indexer_cuda, for the bench and the tests of the pick. One thread at a time. */
#ifndef TANDEM_KERNELS_INDEXER_INDEXER_GPU_H
#define TANDEM_KERNELS_INDEXER_INDEXER_GPU_H

#include "kernels/cuda_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { INDEXER_DO_SCORES = 1, INDEXER_DO_PICK = 2 };

/* indexer_cuda with these halves only (the pick finds the scores of a run before where all rows fit into
 * the work space at once), and at most most_parts CTAs (1, 2, 4 or 8) that pick of a row. */
void indexer_cuda_parts(kernel_context *k, const indexer_args *a, int which, int most_parts);

#ifdef __cplusplus
}
#endif

#endif
