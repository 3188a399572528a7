/* SPDX-License-Identifier: Apache-2.0 */
/* Traces on several ranks and GPUs, over any transport of device memory. */
#ifndef CKV_TESTS_MULTI_GPU_REPLAY_ROLLOUT_H
#define CKV_TESTS_MULTI_GPU_REPLAY_ROLLOUT_H

#include "tests/multi_gpu/gpu_driver.h"

/* Sound traces are right on every path of the exchange, and it is that path which ran. */
void replay_sound_rollouts(gpu_transport transport);

/* A reference with a shorter window finds the same wrong forwards, and the key, as on one rank. */
void replay_wrong_rollout(gpu_transport transport);

#endif
