/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists_run/run.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const double settle_s = 5;                        /* for a driver to clean up after killed processes */
static const uint64_t slack_bytes = (uint64_t)64 << 20;  /* contexts of others come and go */
static const uint64_t busy_bytes = (uint64_t)1024 << 20; /* more than an idle driver holds */

/* The name of a GPU for CUDA_VISIBLE_DEVICES. */
static void gpu_name(const run_state *run, int gpu, char *out, size_t bytes)
{
    const char *uuid = run->machine.gpu[gpu].uuid;
    if (uuid[0] != '\0')
        snprintf(out, bytes, "%s", uuid);
    else
        snprintf(out, bytes, "%d", gpu);
}

/* An item of CUDA_VISIBLE_DEVICES: a number, or the start of a UUID. -1: none of this machine's. */
static int find_gpu(const run_state *run, const char *item)
{
    char *end;
    long index = strtol(item, &end, 10);
    if (end != item && *end == '\0')
        return index >= 0 && index < (long)run->machine.count ? (int)index : -1;
    for (unsigned i = 0; i < run->machine.count; i++)
        if (strncmp(run->machine.gpu[i].uuid, item, strlen(item)) == 0)
            return (int)i;
    return -1;
}

/* Mark the GPUs that CUDA_VISIBLE_DEVICES leaves. False when it names something else (parts of GPUs). */
static bool read_visible(const run_state *run, const char *visible, bool *usable)
{
    char *copy = strdup(visible), *rest = NULL;
    bool known = copy != NULL;
    memset(usable, 0, NVML_MAX_GPUS * sizeof *usable);
    for (char *item = copy ? strtok_r(copy, ", ", &rest) : NULL; item != NULL; item = strtok_r(NULL, ", ", &rest)) {
        int gpu = find_gpu(run, item);
        if (gpu < 0) {
            known = strcmp(item, "-1") == 0; /* CUDA reads up to the first that is none */
            break;
        }
        usable[gpu] = true;
    }
    free(copy);
    return known;
}

void run_gpus_find(run_state *run, FILE *warnings)
{
    bool usable[NVML_MAX_GPUS];
    const char *problem = nvml_probe(&run->machine), *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (problem != NULL)
        fprintf(warnings, "warning: %s: cases on GPUs run one at a time\n", problem);
    for (int i = 0; i < NVML_MAX_GPUS; i++)
        usable[i] = true;
    if (run->machine.count > 0 && visible != NULL && !read_visible(run, visible, usable)) {
        fprintf(warnings,
                "warning: CUDA_VISIBLE_DEVICES is '%s', not GPUs of this machine: cases on GPUs run one at a time\n",
                visible);
        return;
    }
    run->slots.num_gpus = (int)run->machine.count;
    memcpy(run->slots.linked, run->machine.linked, sizeof run->slots.linked);
    if (run->machine.count > 0)
        run->watch = nvml_watch_open();
    for (int i = 0; i < run->slots.num_gpus; i++) {
        uint64_t bytes;
        if (!usable[i])
            slots_retire(&run->slots, i);
        else if (run->watch != NULL && nvml_watch_used_bytes(run->watch, (unsigned)i, &bytes) && bytes > busy_bytes)
            fprintf(warnings, "warning: GPU %d already holds %" PRIu64 " MiB of somebody's\n", i, bytes >> 20);
    }
}

const char *run_gpus_prepare(run_state *run, run_attempt *attempt)
{
    const slot_grant *grant = &attempt->grant;
    const char *list = "";
    for (int i = 0; i < grant->num_gpus; i++) {
        char name[96];
        gpu_name(run, grant->gpu[i], name, sizeof name);
        list = arena_format(run->memory, "%s%s%s", list, i > 0 ? "," : "", name);
        if (run->watch == NULL || !nvml_watch_used_bytes(run->watch, (unsigned)grant->gpu[i], &attempt->used_before[i]))
            attempt->used_before[i] = UINT64_MAX;
    }
    return list;
}

/* The first granted GPU that holds more than before; -1: none. */
static int find_holder(const run_state *run, const run_attempt *attempt, uint64_t *more_out)
{
    for (int i = 0; i < attempt->grant.num_gpus && run->watch != NULL; i++) {
        uint64_t bytes, before = attempt->used_before[i];
        if (before == UINT64_MAX || !nvml_watch_used_bytes(run->watch, (unsigned)attempt->grant.gpu[i], &bytes) ||
            bytes <= before + slack_bytes)
            continue;
        *more_out = bytes - before;
        return attempt->grant.gpu[i];
    }
    return -1;
}

bool run_gpus_settled(run_state *run, run_attempt *attempt)
{
    uint64_t more = 0;
    bool is_shared = run->slots.slots_per_gpu > 1; /* whose memory it is cannot be told */
    int holder = is_shared ? -1 : find_holder(run, attempt, &more);
    if (holder < 0)
        return true;
    if (attempt->settle_until <= 0)
        attempt->settle_until = run_now() + settle_s;
    if (run_now() < attempt->settle_until)
        return false;
    harness_verdict *verdict = &attempt->result.verdict;
    char before[512];
    snprintf(before, sizeof before, "%.500s", verdict->reason);
    snprintf(verdict->reason, sizeof verdict->reason,
             "GPU %d still holds %" PRIu64
             " MiB more than before the case, %.0f s after its end; it is used no more%s%s",
             holder, more >> 20, settle_s, before[0] != '\0' ? "; and: " : "", before);
    if (verdict->code == HARNESS_PASS || verdict->code == HARNESS_SKIP)
        verdict->code = HARNESS_FAIL;
    for (; holder >= 0; holder = find_holder(run, attempt, &more)) {
        slots_retire(&run->slots, holder);
        for (int i = 0; i < attempt->grant.num_gpus; i++)
            if (attempt->grant.gpu[i] == holder)
                attempt->used_before[i] = UINT64_MAX;
    }
    return true;
}
