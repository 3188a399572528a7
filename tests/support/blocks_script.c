/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/blocks_script.h"

#include "tests/support/blocks_pair.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int weight;
} kinds[] = {
#define KIND(name, weight) {#name, weight},
    SCRIPT_OP_LIST(KIND)
#undef KIND
};

const char *script_op_name(script_op_kind kind)
{
    return kinds[kind].name;
}

static script_op_kind draw_kind(ckv_random *random)
{
    int sum = 0, at = 0;
    for (int i = 0; i < SCRIPT_NUM_KINDS; i++)
        sum += kinds[i].weight;
    int ticket = (int)ckv_random_range(random, 0, sum - 1);
    while (ticket >= kinds[at].weight)
        ticket -= kinds[at++].weight;
    return (script_op_kind)at;
}

script script_make(uint64_t seed, int num_ops)
{
    script s = {.seed = seed, .num_ops = num_ops};
    ckv_random random = {seed ^ 0x5ca1ab1eu};
    for (int i = 0; i < num_ops; i++)
        s.ops[i] = (script_op){draw_kind(&random), ckv_random_next(&random)};
    return s;
}

bool script_run(const script *s, char *message, size_t message_bytes)
{
    pair *p = malloc(sizeof *p);
    if (p == NULL)
        abort();
    bool same = pair_open(p, s->seed, message, message_bytes);
    int done = 0;
    for (; same && done < s->num_ops; done++)
        same = pair_step(p, &s->ops[done]) && pair_compare(p);
    if (same)
        same = pair_finish(p);
    else
        done--;
    pair_close(p);
    free(p);
    if (!same) {
        char detail[512];
        snprintf(detail, sizeof detail, "%s", message);
        snprintf(message, message_bytes, "operation %d of %d (%s): %s", done + 1, s->num_ops,
                 done >= 0 && done < s->num_ops ? script_op_name(s->ops[done].kind) : "end", detail);
    }
    return same;
}

/* Take out runs of operations, long ones first, as long as it still fails. */
script script_shrink(const script *failing, char *message, size_t message_bytes)
{
    script best = *failing;
    script_run(&best, message, message_bytes);
    for (int length = best.num_ops / 2; length > 0; length /= 2) {
        for (int at = 0; at + length <= best.num_ops;) {
            script shorter = best;
            memmove(shorter.ops + at, shorter.ops + at + length,
                    (size_t)(best.num_ops - at - length) * sizeof *best.ops);
            shorter.num_ops -= length;
            char why[1024];
            if (script_run(&shorter, why, sizeof why)) {
                at += length;
                continue;
            }
            best = shorter;
            snprintf(message, message_bytes, "%s", why);
        }
    }
    return best;
}
