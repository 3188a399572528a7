/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of this machine, asked of the driver's management library (NVML), loaded when it is there. */
#ifndef CKV_LISTS_NVML_H
#define CKV_LISTS_NVML_H

#include <stdbool.h>
#include <stdint.h>

enum { NVML_MAX_GPUS = 64 };

typedef struct nvml_gpu {
    char name[96];
    char uuid[96];
    uint64_t memory_bytes;
    int capability_major;
    int capability_minor;
} nvml_gpu;

typedef struct nvml_machine {
    unsigned count;
    nvml_gpu gpu[NVML_MAX_GPUS];
    char driver_version[80];                   /* empty: unknown */
    int cuda_version;                          /* the driver's, 1000 * major + 10 * minor; 0: unknown */
    bool linked[NVML_MAX_GPUS][NVML_MAX_GPUS]; /* NVLink carries traffic between two GPUs, directly or over a switch */
} nvml_machine;

/* No library, no driver or no GPU: zero GPUs. The text says why there are none, or is NULL. */
const char *nvml_probe(nvml_machine *machine_out);

/* The memory of GPUs over time. */
typedef struct nvml_watch nvml_watch;

/* NULL: no library, no driver, or no memory. */
nvml_watch *nvml_watch_open(void);
void nvml_watch_close(nvml_watch *watch);

/* Memory in use on one GPU, by anybody. False when it cannot be asked. */
bool nvml_watch_used_bytes(const nvml_watch *watch, unsigned gpu, uint64_t *bytes_out);

typedef struct nvml_gpu_state {
    char driver_version[80];
    unsigned sm_mhz, memory_mhz, power_mw, performance_state, temperature_c;
    unsigned long long limits; /* what holds the clocks back: NVML's bits */
} nvml_gpu_state;

/* The GPU at an address on the PCI bus, as it is now. False when it cannot be asked. */
bool nvml_watch_state(const nvml_watch *watch, const char *pci_bus_id, nvml_gpu_state *state_out);

/* The names of `limits`, separated by ", "; "nothing". Static storage, until the next call. */
const char *nvml_limits_text(unsigned long long limits);

#endif
