/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of this machine, asked of the driver's management library (NVML), loaded when it is there. */
#ifndef CKV_LISTS_NVML_H
#define CKV_LISTS_NVML_H

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
    char driver_version[80]; /* empty: unknown */
    int cuda_version;        /* the driver's, 1000 * major + 10 * minor; 0: unknown */
} nvml_machine;

/* No library, no driver or no GPU: zero GPUs. The text says why there are none, or is NULL. */
const char *nvml_probe(nvml_machine *machine_out);

#endif
