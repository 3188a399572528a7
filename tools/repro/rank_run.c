/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/repro/rank_run.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct player {
    pthread_t thread;
    const trace *trace;
    ckv_comm *comm;
    const rank_run_options *options;
    rank_run *run; /* rank 0's; NULL for the others */
    ckv_status status;
    problem why;
} player;

static ckv_status out_of_memory(problem *why)
{
    problem_format(why, "out of memory");
    return CKV_ERROR_MEMORY;
}

static ckv_status keep(player *p, const trace_op *op, const session_result *result)
{
    rank_run *run = p->run;
    const trace_config *model = &p->trace->config;
    if (run == NULL)
        return CKV_OK;
    size_t bytes = (size_t)(op->rows * model->q_heads * model->head_dim) * ckv_dtype_bytes(model->dtype);
    void *copy = malloc(bytes);
    if (copy == NULL)
        return out_of_memory(&p->why);
    memcpy(copy, result->gathered, bytes);
    run->results[run->forwards] = *result;
    run->outputs[run->forwards++] = copy;
    run->wrong += !result->output_ok;
    return CKV_OK;
}

static ckv_status play_ops(player *p, session *s)
{
    for (size_t i = 0; i < p->trace->num_ops; i++) {
        const trace_op *op = &p->trace->ops[i];
        session_result result;
        ckv_status status = replay_op(s, op, &result, &p->why);
        if (status == CKV_OK && op->kind == TRACE_FORWARD)
            status = session_agree(p->comm, keep(p, op, &result), &p->why);
        if (status != CKV_OK) {
            problem cause = p->why;
            problem_format(&p->why, "op %zu (%s): %s", i, trace_op_name(op->kind), cause.text);
            return status;
        }
    }
    return CKV_OK;
}

/* A session for the trace, every op, and `p->status`. */
static void play(player *p)
{
    session_config config = session_config_default();
    config.model = p->trace->config;
    config.tolerance = p->options->tolerance;
    config.exchange = p->options->exchange;
    config.gather_output = true;
    session *s = NULL;
    size_t op = 0;
    p->status = replay_pool_tokens(p->trace, ckv_comm_size(p->comm), &config.pool_tokens, &op, &p->why);
    if (p->status != CKV_OK) {
        problem cause = p->why;
        problem_format(&p->why, "op %zu (open): %s", op, cause.text);
    }
    if (p->status == CKV_OK)
        p->status = session_create(p->comm, &config, &s, &p->why);
    if (p->status == CKV_OK)
        p->status = play_ops(p, s);
    session_destroy(&s);
}

static void *play_thread(void *argument)
{
    player *p = argument;
    play(p);
    ckv_comm_destroy(&p->comm);
    return NULL;
}

/* A rank that cannot be started leaves the others waiting until their deadline: its communicator goes at once. */
static void play_all(player *players, int ranks, ckv_comm **comms)
{
    int started = 0;
    for (int rank = 0; rank < ranks; rank++)
        players[rank].comm = comms[rank];
    while (started < ranks && pthread_create(&players[started].thread, NULL, play_thread, &players[started]) == 0)
        started++;
    for (int rank = started; rank < ranks; rank++) {
        ckv_comm_destroy(&players[rank].comm);
        players[rank].status = CKV_ERROR_MEMORY;
        problem_format(&players[rank].why, "rank %d: no thread could be started", rank);
    }
    for (int rank = 0; rank < started; rank++)
        pthread_join(players[rank].thread, NULL);
}

static bool prepare(const trace *t, rank_run *run_out)
{
    *run_out = (rank_run){.results = calloc(t->num_ops + 1, sizeof *run_out->results),
                          .outputs = calloc(t->num_ops + 1, sizeof *run_out->outputs)};
    return run_out->results != NULL && run_out->outputs != NULL;
}

ckv_status rank_run_on(ckv_comm *comm, const trace *t, const rank_run_options *options, rank_run *run_out, problem *why)
{
    player self = {.trace = t, .comm = comm, .options = options, .run = run_out};
    ckv_status status = prepare(t, run_out) ? CKV_OK : out_of_memory(&self.why);
    self.status = session_agree(comm, status, &self.why);
    if (self.status == CKV_OK)
        play(&self);
    if (self.status != CKV_OK)
        *why = self.why;
    return self.status;
}

ckv_status rank_run_trace(const trace *t, const rank_run_options *options, rank_run *run_out, problem *why)
{
    int ranks = options->ranks;
    bool prepared = prepare(t, run_out);
    player *players = calloc((size_t)ranks, sizeof *players);
    ckv_comm **comms = calloc((size_t)ranks, sizeof(ckv_comm *));
    ckv_status status = CKV_OK;
    if (!prepared || players == NULL || comms == NULL)
        status = out_of_memory(why);
    if (status == CKV_OK) {
        status = ranks == 1 ? ckv_comm_create_self(comms) : ckv_comm_create_threads(ranks, 0, comms);
        if (status != CKV_OK)
            problem_format(why, "%s", ckv_last_error());
    }
    if (status == CKV_OK) {
        for (int rank = 0; rank < ranks; rank++)
            players[rank] = (player){.trace = t, .options = options, .run = rank == 0 ? run_out : NULL};
        play_all(players, ranks, comms);
        for (int rank = ranks - 1; rank >= 0; rank--) {
            if (players[rank].status == CKV_OK)
                continue;
            status = players[rank].status;
            *why = players[rank].why;
        }
    }
    free(comms);
    free(players);
    return status;
}

void rank_run_free(rank_run *run)
{
    for (size_t i = 0; run->outputs != NULL && i < run->forwards; i++)
        free(run->outputs[i]);
    free(run->outputs);
    free(run->results);
    *run = (rank_run){0};
}

/* The largest difference between two outputs of `count` elements. */
static double distance(ckv_dtype dtype, const void *a, const void *b, size_t count)
{
    double largest = 0;
    size_t element = ckv_dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        float x, y;
        ckv_convert_to_float(dtype, (const char *)a + i * element, 1, &x);
        ckv_convert_to_float(dtype, (const char *)b + i * element, 1, &y);
        double apart = fabs((double)x - (double)y);
        largest = isnan(apart) ? INFINITY : fmax(largest, apart); /* neither may be NaN */
    }
    return largest;
}

size_t rank_run_compare(const trace *t, const rank_run *many, const rank_run *one, double *largest_out)
{
    size_t forward = 0, apart = 0;
    *largest_out = 0;
    for (size_t i = 0; i < t->num_ops; i++) {
        if (t->ops[i].kind != TRACE_FORWARD)
            continue;
        size_t count = (size_t)(t->ops[i].rows * t->config.q_heads * t->config.head_dim);
        double error = distance(t->config.dtype, many->outputs[forward], one->outputs[forward], count);
        apart += error > 2 * one->results[forward].tolerance;
        *largest_out = fmax(*largest_out, error);
        forward++;
    }
    return apart;
}

error_t repro_parse_tolerance(const char *text, double *tolerance_out)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < 0)
        return cli_usage_error("--tolerance is '%s'; it must be a number of 0 or more", text);
    *tolerance_out = value;
    return 0;
}
