/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
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
    int (*p2p_status)(nvml_device, nvml_device, int, int *); /* this and what follows may be absent */
    int (*handle_by_address)(const char *, nvml_device *);
    int (*clock)(nvml_device, int, unsigned *);
    int (*power)(nvml_device, unsigned *);
    int (*performance_state)(nvml_device, int *);
    int (*temperature)(nvml_device, int, unsigned *);
    int (*limits)(nvml_device, unsigned long long *);
} nvml_functions;

enum { NVML_P2P_CAPS_INDEX_NVLINK = 2, NVML_P2P_STATUS_OK = 0 };
enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2, NVML_TEMPERATURE_GPU = 0 };

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
    load(library, "nvmlDeviceGetHandleByPciBusId_v2", &nvml->handle_by_address);
    load(library, "nvmlDeviceGetClockInfo", &nvml->clock);
    load(library, "nvmlDeviceGetPowerUsage", &nvml->power);
    load(library, "nvmlDeviceGetPerformanceState", &nvml->performance_state);
    load(library, "nvmlDeviceGetTemperature", &nvml->temperature);
    load(library, "nvmlDeviceGetCurrentClocksThrottleReasons", &nvml->limits);
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

bool nvml_watch_state(const nvml_watch *watch, const char *pci_bus_id, nvml_gpu_state *state_out)
{
    const nvml_functions *nvml = &watch->nvml;
    nvml_device device;
    nvml_gpu_state state = {0};
    int performance_state;
    if (nvml->handle_by_address == NULL || nvml->clock == NULL || nvml->power == NULL || nvml->temperature == NULL ||
        nvml->performance_state == NULL || nvml->limits == NULL)
        return false;
    if (nvml->handle_by_address(pci_bus_id, &device) != 0 || nvml->clock(device, NVML_CLOCK_SM, &state.sm_mhz) != 0 ||
        nvml->clock(device, NVML_CLOCK_MEM, &state.memory_mhz) != 0 || nvml->power(device, &state.power_mw) != 0 ||
        nvml->performance_state(device, &performance_state) != 0 ||
        nvml->temperature(device, NVML_TEMPERATURE_GPU, &state.temperature_c) != 0 ||
        nvml->limits(device, &state.limits) != 0 ||
        nvml->driver_version(state.driver_version, sizeof state.driver_version) != 0)
        return false;
    state.performance_state = (unsigned)performance_state;
    *state_out = state;
    return true;
}

const char *nvml_limits_text(unsigned long long limits)
{
    static const char *const names[] = {
        "idleness",        "an applications clock", "the power limit", "a hardware slowdown", "sync boost",
        "heat (software)", "heat (hardware)",       "the power brake", "a display's clock"};
    static char text[256];
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if ((limits >> i & 1) != 0)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used > 0 ? ", " : "", names[i]);
    return used > 0 ? text : "nothing";
}
