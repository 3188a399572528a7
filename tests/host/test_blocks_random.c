/* SPDX-License-Identifier: Apache-2.0 */
/* Random scripts on the block manager and on the slow one: the same answers, blocks, events, counters and contents
 * after every operation. CKV_BLOCKS_OPS sets how many operations are run. */
#include "tests/support/blocks_script.h"
#include "tests/support/case.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEFAULT_OPS = 40000, OPS_EACH = 160 };

static void report(const script *failing)
{
    char message[1024];
    script shortest = script_shrink(failing, message, sizeof message);
    printf("script of seed %" PRIu64 ", %d operations:\n", shortest.seed, shortest.num_ops);
    for (int i = 0; i < shortest.num_ops; i++)
        printf("  %3d %-8s %" PRIu64 "\n", i + 1, script_op_name(shortest.ops[i].kind), shortest.ops[i].seed);
    fail_msg("seed %" PRIu64 ": %s", shortest.seed, message);
}

static void random_scripts(void **state)
{
    (void)state;
    const char *wanted = getenv("CKV_BLOCKS_OPS");
    int64_t ops = wanted != NULL ? strtoll(wanted, NULL, 10) : DEFAULT_OPS;
    for (int64_t done = 0, n = 0; done < ops; done += OPS_EACH, n++) {
        char message[1024];
        script s = script_make(ckv_test_seed() * 1000003u + (uint64_t)n, OPS_EACH);
        if (!script_run(&s, message, sizeof message))
            report(&s);
    }
}

static const ckv_test_case cases[] = {
    CKV_CASE(random_scripts),
};

CKV_TEST_MAIN("blocks_random", cases)
