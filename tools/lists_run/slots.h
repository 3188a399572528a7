/* SPDX-License-Identifier: Apache-2.0 */
/* Who may run now: CPUs and GPUs as slots. A GPU belongs to one rank of one case at a time, unless it is said that
 * cases of one GPU may share; a case of several GPUs always has each alone. */
#ifndef CKV_LISTS_RUN_SLOTS_H
#define CKV_LISTS_RUN_SLOTS_H

#include "tools/lists/nvml.h"

#include <stdbool.h>

typedef struct slot_request {
    int cpus; /* more than there are count as all */
    int gpus;
    bool alone; /* nothing else runs beside it */
} slot_request;

typedef struct slot_grant {
    int cpus;
    int num_gpus;
    int gpu[NVML_MAX_GPUS];
    bool alone;
    bool any_gpu; /* GPUs are not known: the case runs without another GPU case beside it, and sees what there is */
} slot_grant;

typedef struct slots {
    int cpus, free_cpus;
    int num_gpus; /* 0: not known */
    int slots_per_gpu;
    int used[NVML_MAX_GPUS]; /* slots of each GPU */
    bool retired[NVML_MAX_GPUS];
    bool linked[NVML_MAX_GPUS][NVML_MAX_GPUS]; /* by NVLink */
    int running;
    bool alone_running, any_gpu_running;
} slots;

/* False: not now. Of several GPUs those with the most NVLinks among them are taken; of one, one whose links are of
 * least use to others. */
bool slots_take(slots *all, const slot_request *request, slot_grant *grant_out);
void slots_give(slots *all, const slot_grant *grant);

/* A GPU that is not fit for another case. */
void slots_retire(slots *all, int gpu);

/* Whether the request could be granted on an idle machine. */
bool slots_can_ever(const slots *all, const slot_request *request);

#endif
