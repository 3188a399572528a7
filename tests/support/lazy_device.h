/* SPDX-License-Identifier: Apache-2.0 */
/* The host device with streams that really run behind their callers: what is enqueued happens later, streams in any
 * order that the events allow. Finds copies that do not wait for what they depend on, without a GPU. */
#ifndef CKV_TESTS_SUPPORT_LAZY_DEVICE_H
#define CKV_TESTS_SUPPORT_LAZY_DEVICE_H

#include "lib/device/device.h"

#include <stdint.h>

/* One at a time, for one thread. Streams run in an order drawn from the seed. */
const ckv_device *lazy_device_open(uint64_t seed);
void lazy_device_close(void);

/* Run at most `steps` of what is enqueued. */
void lazy_device_run(int steps);

/* Enqueue a call. `argument` is freed after it. */
void lazy_device_call(ckv_stream stream, void (*function)(void *argument), void *argument);

#endif
