/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks, power and temperature of the current GPU while something runs on it, asked of NVML and never set. */
#ifndef CKV_TOOLS_BENCH_GPU_STATE_H
#define CKV_TOOLS_BENCH_GPU_STATE_H

#include "tools/bench/results.h"

typedef struct gpu_state gpu_state;

/* NULL when there is nothing to ask; the other functions take it. */
gpu_state *gpu_state_open(void);
void gpu_state_close(gpu_state *state);

/* Once more; the extremes are kept. */
void gpu_state_look(gpu_state *state);

/* The device's name, driver and versions, and what the looks have seen. */
void gpu_state_facts(const gpu_state *state, bench_results *results);

#endif
