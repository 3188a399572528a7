/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/gpus.h"

#include "tools/common/launch_env.h"
#include "tools/trace/session.h"

#if CKV_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif
#if CKV_HAVE_NCCL
#include <ckv/nccl.h>
#endif

#if CKV_HAVE_CUDA
static ckv_status take_gpu(problem *why)
{
    int gpus = 0;
    cudaError_t error = cudaGetDeviceCount(&gpus);
    if (error == cudaSuccess && gpus > 0)
        error = cudaSetDevice(launch_env_local_rank() % gpus);
    else if (error == cudaSuccess)
        error = cudaErrorNoDevice;
    if (error == cudaSuccess)
        return CKV_OK;
    problem_format(why, "cannot use a GPU: %s: %s", cudaGetErrorName(error), cudaGetErrorString(error));
    return CKV_ERROR_UNSUPPORTED;
}
#else
static ckv_status take_gpu(problem *why)
{
    problem_format(why, "this build has no CUDA");
    return CKV_ERROR_UNSUPPORTED;
}
#endif

#if CKV_HAVE_NCCL
static ckv_status connect(ckv_comm *host, ckv_comm **comm_out, problem *why)
{
    ckv_status status = ckv_comm_create_nccl(host, NULL, comm_out);
    if (status != CKV_OK)
        problem_format(why, "%s", ckv_last_error());
    return status;
}
#else
static ckv_status connect(ckv_comm *host, ckv_comm **comm_out, problem *why)
{
    *comm_out = NULL;
    problem_format(why, "this build has no NCCL, which %d ranks need; one rank does not", ckv_comm_size(host));
    return CKV_ERROR_UNSUPPORTED;
}
#endif

ckv_status gpus_connect(ckv_comm *host, ckv_comm **comm_out, problem *why)
{
    *comm_out = NULL;
    ckv_status status = session_agree(host, take_gpu(why), why);
    if (status != CKV_OK || ckv_comm_size(host) == 1)
        return status;
    return connect(host, comm_out, why);
}
