/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKV_H
#define CKV_H

#include <ckv/attention.h>
#include <ckv/blocks.h>
#include <ckv/blocks_report.h>
#include <ckv/cache.h>
#include <ckv/comm.h>
#include <ckv/pool.h>
#include <ckv/qk_norm_rope.h>
#include <ckv/reference.h>
#include <ckv/status.h>
#include <ckv/types.h>
#include <ckv/ulysses.h>
#include <ckv/version.h>

#endif
