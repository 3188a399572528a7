/* SPDX-License-Identifier: Apache-2.0 */
/* ckv replay: run a recorded trace, compare every forward with the exact window. */
#include "tools/common/cli.h"
#include "tools/common/launch_env.h"
#include "tools/common/out_file.h"
#include "tools/trace/gpus.h"
#include "tools/trace/replay.h"

#include <ckv/attention.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *trace, *out, *device, *backend, *exchange;
    double tolerance;
} options;

typedef struct replay {
    const options *options;
    ckv_comm *host; /* as launched */
    ckv_comm *comm; /* for memory of the device; `host` until there is another */
    bool speaks;    /* rank 0 */
    trace *trace;
    session *session;
    size_t forwards, wrong;
    safetensors_tensor *outputs; /* what --out writes: [forwards]; names and data are owned */
    size_t num_outputs;
    problem why;
} replay;

static const char doc[] =
    "Run a recorded trace and compare every forward with the exact window.\vTRACE.safetensors holds the calls a model "
    "made on its cache and attention, with the tensors. Alone, everything runs on one rank; under a launcher (mpirun "
    "-np P ckv replay ...) the ranks shard every forward by Ulysses. With --device cuda each rank takes a GPU of its "
    "own, and a line before the last one says which exchange ran.\n\n"
    "One line a forward, counted from 0, and a last line 'N forwards, N ok, N wrong'. The first wrong forward says "
    "where: row, head, channel, the rank that computed it, and whether one key that should not have been read, or was "
    "left out, explains it.\n\n"
    "docs/FORMATS.md says how to write a trace; examples/trace.py writes one.\n\n"
    "Exit status: 0 all right, 1 something is wrong, 2 the trace cannot be replayed, 3 the ranks or the machine "
    "failed.";

enum { OPTION_OUT = 256, OPTION_DEVICE, OPTION_BACKEND, OPTION_EXCHANGE, OPTION_TOLERANCE };

static const struct argp_option option_table[] = {
    {"out", OPTION_OUT, "OUT.safetensors", 0, "write what the ranks computed: NAME.o of every forward", 0},
    {"device", OPTION_DEVICE, "NAME", 0, "host (default) or cuda", 0},
    {"backend", OPTION_BACKEND, "NAME", 0, "attention backend: auto (default), host, cudnn, hopper", 0},
    {"exchange", OPTION_EXCHANGE, "NAME", 0, "how ranks on GPUs exchange heads: auto (default), sendrecv, fused", 0},
    {"tolerance", OPTION_TOLERANCE, "T", 0,
     "largest absolute difference that is right (default: by dtype, relative to the largest value of the forward: "
     "fp32 0.0001, fp16 0.002, bf16 0.016)",
     0},
    {0}};

static error_t parse_tolerance(const char *text, double *tolerance_out)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < 0)
        return cli_usage_error("--tolerance is '%s'; it must be a number of 0 or more", text);
    *tolerance_out = value;
    return 0;
}

static bool is_one_of(const char *text, const char *const *names)
{
    while (*names != NULL && strcmp(text, *names) != 0)
        names++;
    return *names != NULL;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    static const char *const exchanges[] = {"auto", "sendrecv", "fused", NULL};
    options *o = state->input;
    switch (key) {
    case OPTION_OUT:
        o->out = text;
        return 0;
    case OPTION_DEVICE:
        o->device = text;
        return 0;
    case OPTION_BACKEND:
        o->backend = text;
        return 0;
    case OPTION_EXCHANGE:
        o->exchange = text;
        return is_one_of(text, exchanges)
                   ? 0
                   : cli_usage_error("--exchange is '%s'; it must be auto, sendrecv or fused", text);
    case OPTION_TOLERANCE:
        return parse_tolerance(text, &o->tolerance);
    case ARGP_KEY_ARG:
        if (o->trace != NULL)
            return cli_usage_error("one trace at a time: '%s' is too many", text);
        o->trace = text;
        return 0;
    case ARGP_KEY_NO_ARGS:
        return cli_usage_error("the trace is missing");
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Exit code of a status: the caller's mistake, or ours. */
static int exit_code(ckv_status status)
{
    switch (status) {
    case CKV_OK:
        return CLI_OK;
    case CKV_ERROR_INVALID:
    case CKV_ERROR_STATE:
    case CKV_ERROR_CAPACITY:
    case CKV_ERROR_UNSUPPORTED:
        return CLI_USAGE;
    default:
        return CLI_INTERNAL;
    }
}

static int fail(const replay *r, ckv_status status)
{
    if (launch_speaks(r->comm, status))
        cli_error("ckv replay", "%s", r->why.text);
    return exit_code(status);
}

/* The cause, behind the file and the op it is about. */
static int fail_op(replay *r, size_t index, ckv_status status)
{
    problem cause = r->why;
    problem_format(&r->why, "%s: op %zu (%s): %s", r->options->trace, index, trace_op_name(r->trace->ops[index].kind),
                   cause.text);
    return fail(r, status);
}

static bool is_on_gpu(const replay *r)
{
    return strcmp(r->options->device, "cuda") == 0;
}

/* What can be refused without looking into the trace. */
static bool check_options(replay *r)
{
    const options *o = r->options;
    const ckv_device *device;
    if (ckv_device_find(o->device, &device) != CKV_OK)
        return problem_set(&r->why, "--device %s: %s", o->device, ckv_last_error());
    if (!is_on_gpu(r) && strcmp(o->exchange, "auto") != 0)
        return problem_set(&r->why, "--exchange %s is for tensors in GPU memory; on the %s device use auto",
                           o->exchange, o->device);
    bool known = strcmp(o->backend, "auto") == 0;
    for (size_t i = 0; i < ckv_attention_num_backends(); i++)
        known |= strcmp(o->backend, ckv_attention_backend_name(i)) == 0;
    if (!known)
        return problem_set(&r->why, "--backend %s: this build has no such backend; auto takes the first that fits",
                           o->backend);
    if (o->out != NULL && is_one_file(o->out, o->trace))
        return problem_set(&r->why, "--out %s is the trace itself; give another file", o->out);
    return o->out == NULL || !r->speaks || safetensors_check_writable(o->out, &r->why);
}

/* Every rank reads the trace itself; what one cannot read, none replays, and all must have read the same. */
static int read_trace(replay *r)
{
    bool ok = check_options(r) && trace_read(r->options->trace, &r->trace, &r->why);
    ckv_status status = session_agree(r->comm, ok ? CKV_OK : CKV_ERROR_INVALID, &r->why);
    if (status != CKV_OK)
        return fail(r, status);
    int ranks = ckv_comm_size(r->comm);
    uint64_t *digests = calloc((size_t)ranks, sizeof *digests);
    if (digests == NULL || ckv_comm_all_gather(r->comm, &r->trace->digest, sizeof *digests, digests) != CKV_OK) {
        free(digests);
        problem_format(&r->why, "the ranks cannot compare their traces");
        return fail(r, CKV_ERROR_COMM);
    }
    for (int rank = 1; rank < ranks && status == CKV_OK; rank++) {
        if (digests[rank] == digests[0])
            continue;
        problem_format(&r->why, "%s: rank %d reads another trace under this name than rank 0", r->options->trace, rank);
        status = CKV_ERROR_INVALID;
    }
    free(digests);
    return status == CKV_OK ? CLI_OK : fail(r, status);
}

static int connect_gpus(replay *r)
{
    ckv_comm *gpus = NULL;
    ckv_status status = is_on_gpu(r) ? gpus_connect(r->host, &gpus, &r->why) : CKV_OK;
    if (gpus != NULL)
        r->comm = gpus;
    if (status == CKV_OK)
        return CLI_OK;
    problem cause = r->why;
    problem_format(&r->why, "--device %s: %s", r->options->device, cause.text);
    return fail(r, status);
}

static int create_session(replay *r)
{
    session_config config = session_config_default();
    size_t op = 0;
    ckv_status status = replay_pool_tokens(r->trace, ckv_comm_size(r->comm), &config.pool_tokens, &op, &r->why);
    if (status != CKV_OK)
        return fail_op(r, op, status); /* the same on every rank */
    config.model = r->trace->config;
    config.device = r->options->device;
    config.backend = r->options->backend;
    config.exchange = r->options->exchange;
    config.tolerance = r->options->tolerance;
    config.gather_output = r->options->out != NULL;
    status = session_create(r->comm, &config, &r->session, &r->why);
    if (status == CKV_OK)
        return CLI_OK;
    problem cause = r->why;
    problem_format(&r->why, "%s: config: %s", r->options->trace, cause.text);
    return fail(r, status);
}

static void print_explanation(const session_result *result, const session_difference *worst, int64_t seq_len)
{
    const ckv_key_explanation *key = &result->explanation;
    switch (key->fault) {
    case CKV_KEY_MISSING:
        printf("  one key explains it: token %" PRId64 " is missing", key->token);
        break;
    case CKV_KEY_EXTRA:
        printf("  one key explains it: token %" PRId64 " should not have been read", key->token);
        break;
    case CKV_KEY_PADDING:
        printf("  one key explains it: padding row %" PRId64 " was read", key->token);
        break;
    case CKV_KEY_NONE:
        if (worst->row >= seq_len)
            printf("  row %" PRId64 " is padding: it must come back zero\n", worst->row);
        else if (isnan(worst->observed))
            printf("  no single key explains it; a value that is not a number was read: padding, or memory that was "
                   "never written\n");
        else
            printf("  no single key explains it\n");
        return;
    }
    printf(" (with it, the error is %.2g instead of %.2g)\n", key->error_explained, key->error_before);
}

/* Where the first wrong forward is wrong, and why. */
static void print_details(const session_result *result, int64_t seq_len)
{
    const session_difference *worst = result->output_ok ? &result->expected : &result->output;
    printf("  %s differs from the exact window by %.2g (tolerance %.2g)\n",
           result->output_ok ? "the recorded output (.expected)" : "the replayed output", worst->error,
           result->tolerance);
    printf("  worst at row %" PRId64 " head %" PRId64 " channel %" PRId64 " rank %d: %.6g instead of %.6g\n",
           worst->row, worst->head, worst->channel, worst->rank, worst->observed, worst->wanted);
    print_explanation(result, worst, seq_len);
}

static void print_forward(replay *r, const trace_op *op, const session_result *result)
{
    bool ok = result->output_ok && result->expected_ok;
    /* the error that made the verdict */
    double error = result->output_ok && !result->expected_ok ? result->expected.error : result->output.error;
    if (r->speaks) {
        printf("forward %zu: tokens %" PRId64 " (padded %" PRId64 ") block %" PRId64 " max_error %.2g %s\n",
               r->forwards, op->seq_len, result->padded_tokens, result->causal_block_size, error, ok ? "ok" : "wrong");
        if (!ok && r->wrong == 0)
            print_details(result, op->seq_len);
        fflush(stdout);
    }
    r->forwards++;
    r->wrong += !ok;
}

/* Keep NAME.o until the file is written; on rank 0 only. */
static ckv_status keep_output(replay *r, const trace_op *op, const session_result *result)
{
    const trace_config *model = &r->trace->config;
    size_t bytes = (size_t)(op->rows * model->q_heads * model->head_dim) * ckv_dtype_bytes(model->dtype);
    void *data = malloc(bytes);
    char *name = NULL;
    if (data == NULL || asprintf(&name, "%s.o", op->tensor) < 0) {
        free(data);
        problem_format(&r->why, "out of memory");
        return CKV_ERROR_MEMORY;
    }
    memcpy(data, result->gathered, bytes);
    safetensors_tensor *output = &r->outputs[r->num_outputs++];
    output->name = name;
    output->dtype = trace_file_dtype(model->dtype);
    output->num_dimensions = 3;
    output->shape[0] = op->rows;
    output->shape[1] = model->q_heads;
    output->shape[2] = model->head_dim;
    output->data = data;
    output->bytes = bytes;
    return CKV_OK;
}

static ckv_status run_op(replay *r, const trace_op *op)
{
    session_result result;
    ckv_status status = replay_op(r->session, op, &result, &r->why);
    if (status != CKV_OK || op->kind != TRACE_FORWARD)
        return status;
    print_forward(r, op, &result);
    if (r->options->out == NULL)
        return CKV_OK;
    status = r->speaks ? keep_output(r, op, &result) : CKV_OK;
    return session_agree(r->comm, status, &r->why);
}

static int run_ops(replay *r)
{
    for (size_t i = 0; i < r->trace->num_ops; i++) {
        ckv_status status = run_op(r, &r->trace->ops[i]);
        if (status != CKV_OK)
            return fail_op(r, i, status);
    }
    return CLI_OK;
}

static int write_outputs(replay *r)
{
    if (r->options->out == NULL)
        return CLI_OK;
    bool ok = !r->speaks || safetensors_write(r->options->out, NULL, 0, r->outputs, r->num_outputs, &r->why);
    ckv_status status = session_agree(r->comm, ok ? CKV_OK : CKV_ERROR_INVALID, &r->why);
    return status == CKV_OK ? CLI_OK : fail(r, status);
}

static void print_verdict(const replay *r)
{
    const char *why_not_fused;
    const char *exchange = session_exchange(r->session, &why_not_fused);
    if (is_on_gpu(r) && ckv_comm_size(r->comm) > 1)
        printf("exchange %s%s%s\n", exchange, why_not_fused[0] != '\0' ? ", not fused: " : "", why_not_fused);
    printf("%zu forwards, %zu ok, %zu wrong\n", r->forwards, r->forwards - r->wrong, r->wrong);
}

static int run_replay(replay *r)
{
    int code = read_trace(r);
    if (code == CLI_OK)
        code = connect_gpus(r);
    if (code == CLI_OK)
        code = create_session(r);
    if (code != CLI_OK)
        return code;
    r->outputs = calloc(r->trace->num_ops + 1, sizeof *r->outputs);
    ckv_status status = r->outputs == NULL ? CKV_ERROR_MEMORY : CKV_OK;
    if (status != CKV_OK)
        problem_format(&r->why, "out of memory");
    status = session_agree(r->comm, status, &r->why);
    if (status != CKV_OK)
        return fail(r, status);
    code = run_ops(r);
    if (code == CLI_OK)
        code = write_outputs(r);
    if (code == CLI_OK && r->speaks)
        print_verdict(r);
    return code == CLI_OK && r->wrong != 0 ? CLI_FAIL : code;
}

static void free_name_and_data(const safetensors_tensor *tensor)
{
    union {
        const void *borrowed;
        void *owned;
    } name = {tensor->name}, data = {tensor->data}; /* a safetensors_tensor does not own; these do */
    free(name.owned);
    free(data.owned);
}

static void free_replay(replay *r)
{
    for (size_t i = 0; i < r->num_outputs; i++)
        free_name_and_data(&r->outputs[i]);
    free(r->outputs);
    session_destroy(&r->session);
    if (r->comm != r->host)
        ckv_comm_destroy(&r->comm);
    trace_free(&r->trace);
}

int cmd_replay(int argc, char **argv)
{
    static const struct argp argp = {option_table, parse_option, "TRACE.safetensors", doc, NULL, NULL, NULL};
    options o = {.device = "host", .backend = "auto", .exchange = "auto", .tolerance = -1};
    int parsed = launch_parse(&argp, argc, argv, &o);
    replay r = {.options = &o};
    int code = launch_start(argv[0], &r.host);
    if (code != CLI_OK)
        return code;
    r.comm = r.host;
    r.speaks = ckv_comm_rank(r.comm) == 0;
    /* the ranks leave together: a launcher stops the others, heard or not, when one leaves with an error */
    code = parsed == CLI_OK ? run_replay(&r) : parsed;
    free_replay(&r);
    return launch_end(&r.host, code);
}
