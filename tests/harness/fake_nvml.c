/* SPDX-License-Identifier: Apache-2.0 */
/* NVML of a machine that is described in the file FAKE_NVML names, one GPU a line: UUID, MiB in use, and the GPUs that
 * NVLink connects it to ("GPU-a 100 1,2"; "-" for none). Read at every call, so that a test can change it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gpu_line {
    char uuid[96], links[64];
    unsigned long long used_mib;
} gpu_line;

enum { MAX_GPUS = 16, OK = 0, ERROR_UNKNOWN = 999, P2P_OK = 0, P2P_NOT_SUPPORTED = 3 };

static unsigned read_machine(gpu_line *gpus)
{
    unsigned count = 0;
    const char *path = getenv("FAKE_NVML");
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    while (file != NULL && count < MAX_GPUS &&
           fscanf(file, "%95s %llu %63s", gpus[count].uuid, &gpus[count].used_mib, gpus[count].links) == 3)
        count++;
    if (file != NULL)
        fclose(file);
    return count;
}

/* A device handle is the GPU's number and one, as a pointer. */
static int find(const void *device, gpu_line *gpu_out)
{
    gpu_line gpus[MAX_GPUS];
    size_t index = (size_t)device - 1;
    if (index >= read_machine(gpus))
        return ERROR_UNKNOWN;
    *gpu_out = gpus[index];
    return OK;
}

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlSystemGetDriverVersion(char *text, unsigned bytes);
int nvmlSystemGetCudaDriverVersion(int *version);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetName(void *device, char *text, unsigned bytes);
int nvmlDeviceGetUUID(void *device, char *text, unsigned bytes);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory);
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);
int nvmlDeviceGetP2PStatus(void *one, void *other, int capability, int *status);

int nvmlInit_v2(void)
{
    return OK;
}

int nvmlShutdown(void)
{
    return OK;
}

int nvmlSystemGetDriverVersion(char *text, unsigned bytes)
{
    snprintf(text, bytes, "999.0");
    return OK;
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    *version = 13000;
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    gpu_line gpus[MAX_GPUS];
    *count = read_machine(gpus);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    memcpy(device, &(size_t){index + 1}, sizeof *device);
    return OK;
}

int nvmlDeviceGetName(void *device, char *text, unsigned bytes)
{
    gpu_line gpu;
    snprintf(text, bytes, "NVIDIA Fake 1");
    return find(device, &gpu);
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned bytes)
{
    gpu_line gpu;
    int code = find(device, &gpu);
    if (code == OK)
        snprintf(text, bytes, "%s", gpu.uuid);
    return code;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) /* total, free, used */
{
    gpu_line gpu;
    int code = find(device, &gpu);
    if (code != OK)
        return code;
    memory[0] = 80000ULL << 20;
    memory[2] = gpu.used_mib << 20;
    memory[1] = memory[0] - memory[2];
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    gpu_line gpu;
    *major = 9;
    *minor = 0;
    return find(device, &gpu);
}

int nvmlDeviceGetP2PStatus(void *one, void *other, int capability, int *status)
{
    gpu_line gpu;
    char wanted[16];
    int code = find(one, &gpu);
    snprintf(wanted, sizeof wanted, "%zu", (size_t)other - 1);
    *status = P2P_NOT_SUPPORTED;
    for (char *rest = gpu.links, *item; code == OK && (item = strsep(&rest, ",")) != NULL;)
        if (capability == 2 && strcmp(item, wanted) == 0)
            *status = P2P_OK;
    return code;
}
