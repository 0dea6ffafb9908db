#include "kernels/head/shortlist_kernel.cuh"

void shortlist_cuda(kernel_context *k, const shortlist_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = SHORTLIST_PARTS;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)(a->n_rows * SHORTLIST_PARTS));
    config.blockDim = dim3(SHORTLIST_BLOCK);
    config.stream = cuda_of(k)->stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    k->rc = cuda_check(&k->error, cudaLaunchKernelEx(&config, shortlist_kernel, *a), "shortlist");
}
