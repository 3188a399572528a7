/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/gpu_state.h"

#if CKV_HAVE_CUDA
#include "tools/lists/nvml.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

struct gpu_state {
    nvml_watch *watch;
    char address[32]; /* on the PCI bus */
    size_t looks;
    nvml_gpu_state least, most;
};

gpu_state *gpu_state_open(void)
{
    int device;
    gpu_state *state = calloc(1, sizeof *state);
    if (state == NULL)
        return NULL;
    state->watch = nvml_watch_open();
    if (state->watch != NULL && cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetPCIBusId(state->address, sizeof state->address, device) == cudaSuccess)
        return state;
    gpu_state_close(state);
    return NULL;
}

void gpu_state_close(gpu_state *state)
{
    if (state == NULL)
        return;
    nvml_watch_close(state->watch);
    free(state);
}

static void keep(unsigned value, unsigned *least, unsigned *most)
{
    *least = value < *least ? value : *least;
    *most = value > *most ? value : *most;
}

void gpu_state_look(gpu_state *state)
{
    nvml_gpu_state now;
    if (state == NULL || !nvml_watch_state(state->watch, state->address, &now))
        return;
    if (state->looks++ == 0)
        state->least = state->most = now;
    keep(now.sm_mhz, &state->least.sm_mhz, &state->most.sm_mhz);
    keep(now.memory_mhz, &state->least.memory_mhz, &state->most.memory_mhz);
    keep(now.power_mw, &state->least.power_mw, &state->most.power_mw);
    keep(now.performance_state, &state->least.performance_state, &state->most.performance_state);
    keep(now.temperature_c, &state->least.temperature_c, &state->most.temperature_c);
    state->most.limits |= now.limits;
}

static void version_fact(bench_results *results, const char *key, int version)
{
    bench_results_fact(results, key, "%d.%d", version / 1000, version % 1000 / 10);
}

void gpu_state_facts(const gpu_state *state, bench_results *results)
{
    int device, driver, runtime;
    struct cudaDeviceProp properties;
    if (cudaGetDevice(&device) == cudaSuccess && cudaGetDeviceProperties(&properties, device) == cudaSuccess)
        bench_results_fact(results, "device", "%s, %d multiprocessors, %zu MiB", properties.name,
                           properties.multiProcessorCount, properties.totalGlobalMem >> 20);
    if (cudaRuntimeGetVersion(&runtime) == cudaSuccess)
        version_fact(results, "CUDA", runtime);
    if (cudaDriverGetVersion(&driver) == cudaSuccess)
        version_fact(results, "CUDA of the driver", driver);
    if (state == NULL || state->looks == 0)
        return;
    const nvml_gpu_state *least = &state->least, *most = &state->most;
    bench_results_fact(results, "driver", "%s", most->driver_version);
    bench_results_fact(results, "clocks, untouched", "SM %u to %u MHz, memory %u to %u MHz, P%u to P%u", least->sm_mhz,
                       most->sm_mhz, least->memory_mhz, most->memory_mhz, least->performance_state,
                       most->performance_state);
    bench_results_fact(results, "power", "%u to %u W, %u to %u C, clocks held back by: %s", least->power_mw / 1000,
                       most->power_mw / 1000, least->temperature_c, most->temperature_c,
                       nvml_limits_text(most->limits));
}
#else
gpu_state *gpu_state_open(void)
{
    return NULL;
}

void gpu_state_close(gpu_state *state)
{
    (void)state;
}

void gpu_state_look(gpu_state *state)
{
    (void)state;
}

void gpu_state_facts(const gpu_state *state, bench_results *results)
{
    (void)state, (void)results;
}
#endif
