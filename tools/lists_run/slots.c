/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists_run/slots.h"

#include <string.h>

static bool has_room(const slots *all, int gpu)
{
    return !all->retired[gpu] && all->used[gpu] < all->slots_per_gpu;
}

static int count_gpus(const slots *all)
{
    int count = 0;
    for (int i = 0; i < all->num_gpus; i++)
        count += has_room(all, i);
    return count;
}

/* NVLinks from a GPU to those that are marked. */
static int links_to(const slots *all, int gpu, const bool *marked)
{
    int links = 0;
    for (int i = 0; i < all->num_gpus; i++)
        links += marked[i] && i != gpu && all->linked[gpu][i];
    return links;
}

/* Starting from one GPU, add the one with the most links to those taken, and of these the one with the fewest links to
 * those left. Returns the links among them, and through `spare_out` the links that are cut to GPUs left free. */
static int grow_group(const slots *all, int start, int wanted, bool *group, int *spare_out)
{
    bool left[NVML_MAX_GPUS];
    int links = 0;
    memset(group, 0, NVML_MAX_GPUS * sizeof *group);
    for (int i = 0; i < all->num_gpus; i++)
        left[i] = has_room(all, i);
    for (int next = start, size = 0; size < wanted; size++) {
        links += links_to(all, next, group);
        group[next] = true;
        left[next] = false;
        next = -1;
        for (int i = 0, best = 0, best_spare = 0; i < all->num_gpus; i++) {
            if (!left[i])
                continue;
            int own = links_to(all, i, group), spare = links_to(all, i, left);
            if (next >= 0 && (own < best || (own == best && spare >= best_spare)))
                continue;
            next = i;
            best = own;
            best_spare = spare;
        }
    }
    *spare_out = 0;
    for (int i = 0; i < all->num_gpus; i++)
        *spare_out += group[i] ? links_to(all, i, left) : 0;
    return links;
}

static void choose_gpus(slots *all, int wanted, slot_grant *grant)
{
    bool best_group[NVML_MAX_GPUS] = {false}, group[NVML_MAX_GPUS];
    int best = -1, best_used = 0, best_spare = 0;
    for (int start = 0; start < all->num_gpus; start++) {
        if (!has_room(all, start))
            continue;
        int spare, used = all->used[start], links = grow_group(all, start, wanted, group, &spare);
        if (best >= 0 && (links < best || (links == best && used > best_used) ||
                          (links == best && used == best_used && spare >= best_spare)))
            continue;
        best = links;
        best_used = used;
        best_spare = spare;
        memcpy(best_group, group, sizeof group);
    }
    for (int i = 0; i < all->num_gpus; i++) {
        if (!best_group[i])
            continue;
        grant->gpu[grant->num_gpus++] = i;
        all->used[i]++;
    }
}

bool slots_take(slots *all, const slot_request *request, slot_grant *grant_out)
{
    slot_grant grant = {.cpus = request->cpus < all->cpus ? request->cpus : all->cpus, .alone = request->alone};
    if (all->alone_running || (request->alone && all->running > 0) || grant.cpus > all->free_cpus)
        return false;
    grant.any_gpu = request->gpus > 0 && all->num_gpus == 0;
    if (grant.any_gpu && all->any_gpu_running)
        return false;
    if (request->gpus > 0 && !grant.any_gpu) {
        if (count_gpus(all) < request->gpus)
            return false;
        choose_gpus(all, request->gpus, &grant);
    }
    all->free_cpus -= grant.cpus;
    all->running++;
    all->alone_running = grant.alone;
    all->any_gpu_running = all->any_gpu_running || grant.any_gpu;
    *grant_out = grant;
    return true;
}

void slots_give(slots *all, const slot_grant *grant)
{
    all->free_cpus += grant->cpus;
    all->running--;
    if (grant->alone)
        all->alone_running = false;
    if (grant->any_gpu)
        all->any_gpu_running = false;
    for (int i = 0; i < grant->num_gpus; i++)
        all->used[grant->gpu[i]]--;
}

void slots_retire(slots *all, int gpu)
{
    all->retired[gpu] = true;
}

bool slots_can_ever(const slots *all, const slot_request *request)
{
    int fit = 0;
    for (int i = 0; i < all->num_gpus; i++)
        fit += !all->retired[i];
    return request->gpus == 0 || all->num_gpus == 0 || fit >= request->gpus;
}
