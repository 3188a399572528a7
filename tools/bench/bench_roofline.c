/* SPDX-License-Identifier: Apache-2.0 */
/* ckv bench roofline: the least time that an operation's counted bytes and operations can take on this machine, and how
 * near its measured time comes. */
#include "lib/support/error.h"
#include "tools/bench/ceilings.h"
#include "tools/common/cli.h"

#include <string.h>

/* One benchmark, and the rate of the bytes its rows count. */
typedef struct section {
    int (*run)(const bench_options *options, bench_results *results);
    const char *clock; /* the name of that fact */
    double bytes_per_us;
    bool is_attention;
} section;

/* The benchmark of attention counts operations only: q, the output, and every key once. */
static double attention_bytes(const bench_options *o, const bench_row *row)
{
    const model_geometry *g = &o->geometry;
    double ranks = ckv_comm_size(o->comm), element = (double)ckv_dtype_bytes(o->dtype);
    double queries = (double)(g->chunk_frames * g->frame_tokens);
    double q_token = (double)(g->q_heads * g->head_dim) / ranks, kv_token = (double)(g->kv_heads * g->head_dim) / ranks;
    double keys = row->flops / (4 * queries * q_token);
    return 2 * element * (queries * q_token + keys * kv_token);
}

/* The larger of both times; false when no ceiling says anything. */
static bool make_bound(const section *s, const bench_ceilings *ceilings, double bytes, double flops, bench_row *bound,
                       char *note, size_t note_bytes)
{
    double by_bytes = s->bytes_per_us > 0 ? bytes / s->bytes_per_us : 0;
    double by_operations = ceilings->operations_per_us > 0 ? flops / ceilings->operations_per_us : 0;
    bound->median_us = by_bytes > by_operations ? by_bytes : by_operations;
    bound->note = note;
    if (by_operations > by_bytes)
        snprintf(note, note_bytes, "%.3g operations; %.3g MB would take %.3g us", flops, bytes * 1e-6, by_bytes);
    else if (flops > 0)
        snprintf(note, note_bytes, "%.3g MB; %.3g operations would take %.3g us", bytes * 1e-6, flops, by_operations);
    else
        snprintf(note, note_bytes, "%.3g MB", bytes * 1e-6);
    return bound->median_us > 0;
}

/* Variants that do the same share a bound; it is named after the first one of several. */
static const char *add_bound(bench_results *results, bench_row *bound, const char *variant)
{
    static char name[160];
    snprintf(name, sizeof name, "bound");
    for (size_t i = 0; i < bench_results_count(results); i++) {
        const bench_row *row = bench_results_row(results, i);
        if (strcmp(row->group, bound->group) != 0 || strcmp(row->params, bound->params) != 0 ||
            strncmp(row->variant, "bound", strlen("bound")) != 0)
            continue;
        if (row->median_us == bound->median_us)
            return row->variant;
        snprintf(name, sizeof name, "bound of %s", variant);
    }
    bound->variant = name;
    bench_results_add(results, bound);
    return name;
}

static void add_measured(const bench_options *o, const section *s, const bench_ceilings *ceilings,
                         const bench_row *measured, bench_results *results)
{
    char note[128];
    bench_row row = *measured, bound = bench_row_default();
    row.params = row.params == NULL ? "" : row.params;
    row.x_name = NULL;
    row.x = 0;
    bound.group = row.group;
    bound.params = row.params;
    double bytes = s->is_attention && row.bytes == 0 ? attention_bytes(o, &row) : row.bytes;
    if (!row.failed && (!(row.median_us > 0) || !make_bound(s, ceilings, bytes, row.flops, &bound, note, sizeof note)))
        return;
    row.baseline = row.failed ? NULL : add_bound(results, &bound, row.variant);
    bench_results_add(results, &row);
}

static int run_section(const bench_options *o, const section *s, const bench_ceilings *ceilings, bench_results *results)
{
    bench_results *measured = bench_results_create();
    int code = s->run(o, measured);
    const char *clock = bench_results_fact_value(measured, "clock");
    if (code == CLI_OK && clock != NULL)
        bench_results_fact(results, s->clock, "%s", clock);
    for (size_t i = 0; i < bench_results_count(measured) && code == CLI_OK; i++)
        add_measured(o, s, ceilings, bench_results_row(measured, i), results);
    bench_results_destroy(&measured);
    return code;
}

static int measure_ceilings(const bench_options *o, bench_results *results, bench_ceilings *ceilings)
{
    bench_timer *timer = NULL;
    ckv_status status = bench_timer_create(o, &timer);
    if (status == CKV_OK)
        status = bench_ceilings_measure(o, timer, results, ceilings);
    if (status == CKV_OK)
        bench_timer_facts(timer, results);
    bench_timer_destroy(&timer);
    return bench_exit_code(o, status);
}

int bench_roofline(const bench_options *options, bench_results *results)
{
    bench_options o = *options;
    bench_ceilings ceilings = {0};
    o.sweep = BENCH_SWEEP_NONE;
    o.launch = o.on_gpu ? BENCH_GRAPH : o.launch;
    o.sizes[0] = o.geometry.chunk_frames * o.geometry.frame_tokens;
    o.num_sizes = 1;
    int code = measure_ceilings(&o, results, &ceilings);
    const section sections[] = {{bench_attention, "clock of attention", ceilings.copy_bytes_per_us, true},
                                {bench_write, "clock of writes", ceilings.copy_bytes_per_us, false},
                                {bench_commit, "clock of commits", ceilings.copy_bytes_per_us, false},
                                {bench_exchange, "clock of exchanges", ceilings.off_rank_bytes_per_us, false}};
    for (size_t i = 0; i < sizeof sections / sizeof sections[0] && code == CLI_OK; i++)
        if (sections[i].run != bench_exchange || ckv_comm_size(o.comm) > 1)
            code = run_section(&o, &sections[i], &ceilings, results);
    return code;
}
