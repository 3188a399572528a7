/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* The few declarations of nvml.h that are used, so that building needs no CUDA. */
typedef struct nvmlDevice_st *nvml_device;
typedef struct nvml_memory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
} nvml_memory;

typedef struct nvml_functions {
    int (*init)(void);
    int (*shutdown)(void);
    int (*driver_version)(char *, unsigned);
    int (*cuda_version)(int *);
    int (*count)(unsigned *);
    int (*handle)(unsigned, nvml_device *);
    int (*name)(nvml_device, char *, unsigned);
    int (*uuid)(nvml_device, char *, unsigned);
    int (*memory)(nvml_device, nvml_memory *);
    int (*capability)(nvml_device, int *, int *);
    int (*p2p_status)(nvml_device, nvml_device, int, int *); /* may be absent */
} nvml_functions;

enum { NVML_P2P_CAPS_INDEX_NVLINK = 2, NVML_P2P_STATUS_OK = 0 };

/* POSIX lets an object pointer from dlsym carry a function; C does not let a cast say so. */
static bool load(void *library, const char *symbol, void *function_out)
{
    void *address = dlsym(library, symbol);
    memcpy(function_out, &address, sizeof address);
    return address != NULL;
}

static bool load_functions(void *library, nvml_functions *nvml)
{
    load(library, "nvmlDeviceGetP2PStatus", &nvml->p2p_status);
    return load(library, "nvmlInit_v2", &nvml->init) && load(library, "nvmlShutdown", &nvml->shutdown) &&
           load(library, "nvmlSystemGetDriverVersion", &nvml->driver_version) &&
           load(library, "nvmlSystemGetCudaDriverVersion", &nvml->cuda_version) &&
           load(library, "nvmlDeviceGetCount_v2", &nvml->count) &&
           load(library, "nvmlDeviceGetHandleByIndex_v2", &nvml->handle) &&
           load(library, "nvmlDeviceGetName", &nvml->name) && load(library, "nvmlDeviceGetUUID", &nvml->uuid) &&
           load(library, "nvmlDeviceGetMemoryInfo", &nvml->memory) &&
           load(library, "nvmlDeviceGetCudaComputeCapability", &nvml->capability);
}

static bool read_gpu(const nvml_functions *nvml, unsigned index, nvml_gpu *gpu)
{
    nvml_device device;
    nvml_memory memory = {0};
    if (nvml->handle(index, &device) != 0 || nvml->name(device, gpu->name, sizeof gpu->name) != 0 ||
        nvml->memory(device, &memory) != 0 ||
        nvml->capability(device, &gpu->capability_major, &gpu->capability_minor) != 0)
        return false;
    if (nvml->uuid(device, gpu->uuid, sizeof gpu->uuid) != 0)
        gpu->uuid[0] = '\0';
    gpu->memory_bytes = memory.total;
    return true;
}

static void read_links(const nvml_functions *nvml, nvml_machine *machine)
{
    for (unsigned i = 0; nvml->p2p_status != NULL && i < machine->count; i++) {
        for (unsigned j = 0; j < machine->count; j++) {
            nvml_device one, other;
            int status;
            machine->linked[i][j] = i != j && nvml->handle(i, &one) == 0 && nvml->handle(j, &other) == 0 &&
                                    nvml->p2p_status(one, other, NVML_P2P_CAPS_INDEX_NVLINK, &status) == 0 &&
                                    status == NVML_P2P_STATUS_OK;
        }
    }
}

static const char *read_machine(const nvml_functions *nvml, nvml_machine *machine)
{
    unsigned count = 0;
    if (nvml->driver_version(machine->driver_version, sizeof machine->driver_version) != 0)
        machine->driver_version[0] = '\0';
    if (nvml->cuda_version(&machine->cuda_version) != 0)
        machine->cuda_version = 0;
    if (nvml->count(&count) != 0)
        return "NVML cannot count the GPUs";
    if (count > NVML_MAX_GPUS)
        return "more GPUs than this program can list";
    for (unsigned i = 0; i < count; i++)
        if (!read_gpu(nvml, i, &machine->gpu[i]))
            return "NVML cannot describe a GPU that it counts";
    machine->count = count;
    read_links(nvml, machine);
    return NULL;
}

static const char library_name[] = "libnvidia-ml.so.1";

const char *nvml_probe(nvml_machine *machine_out)
{
    memset(machine_out, 0, sizeof *machine_out);
    void *library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return NULL;
    const char *problem = NULL;
    nvml_functions nvml;
    if (!load_functions(library, &nvml)) {
        problem = "libnvidia-ml.so.1 lacks a function that is needed";
    } else if (nvml.init() != 0) {
        problem = "NVML is installed but does not start; is the driver loaded?";
    } else {
        problem = read_machine(&nvml, machine_out);
        nvml.shutdown();
    }
    dlclose(library);
    return problem;
}

struct nvml_watch {
    void *library;
    nvml_functions nvml;
};

nvml_watch *nvml_watch_open(void)
{
    nvml_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return NULL;
    watch->library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (watch->library != NULL && load_functions(watch->library, &watch->nvml) && watch->nvml.init() == 0)
        return watch;
    if (watch->library != NULL)
        dlclose(watch->library);
    free(watch);
    return NULL;
}

void nvml_watch_close(nvml_watch *watch)
{
    if (watch == NULL)
        return;
    watch->nvml.shutdown();
    dlclose(watch->library);
    free(watch);
}

bool nvml_watch_used_bytes(const nvml_watch *watch, unsigned gpu, uint64_t *bytes_out)
{
    nvml_device device;
    nvml_memory memory = {0};
    if (watch->nvml.handle(gpu, &device) != 0 || watch->nvml.memory(device, &memory) != 0)
        return false;
    *bytes_out = memory.used;
    return true;
}
