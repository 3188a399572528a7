/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a script on a real cache. What a forward prints is decoded from the K and V that its rows read. */
#include "tools/common/arena.h"
#include "tools/common/cli.h"
#include "tools/window/identity.h"
#include "tools/window/window.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct window_run {
    FILE *out;
    int64_t printed_layer;
    ckv_pool_config config;
    ckv_cache *cache; /* NULL when create was refused */
    int64_t version;  /* of the last accepted write */
    arena memory;     /* of one layer's tensors or one block's reading */
} window_run;

static const char *const op_names[] = {
    [WINDOW_CREATE] = "create",
    [WINDOW_OPEN] = "open",
    [WINDOW_WRITE_RANGE] = "write_range",
    [WINDOW_ZERO_VALUES] = "zero_values",
    [WINDOW_FORWARD] = "forward",
    [WINDOW_COMMIT] = "commit",
    [WINDOW_CLOSE] = "close",
};

/* The library has no code for what the tool itself refuses; both print alike. */
static const char *error_name(ckv_status status)
{
    switch (status) {
    case CKV_ERROR_STATE:
        return "state";
    case CKV_ERROR_CAPACITY:
        return "capacity";
    case CKV_ERROR_UNSUPPORTED:
        return "unsupported";
    default:
        return "invalid";
    }
}

static void print_object(window_run *run, json_t *object)
{
    json_dumpf(object, run->out, JSON_COMPACT);
    fputc('\n', run->out);
    json_decref(object);
}

static void print_refusal(window_run *run, const window_op *op, ckv_status status, const char *message)
{
    print_object(run,
                 json_pack("{ss ss ss}", "op", op_names[op->kind], "error", error_name(status), "message", message));
}

static void print_state(window_run *run, const window_op *op)
{
    ckv_cache_state state = ckv_cache_get_state(run->cache);
    print_object(run, json_pack("{ss sI sI sI}", "op", op_names[op->kind], "fixed_tokens",
                                (json_int_t)state.fixed_tokens, "history_tokens", (json_int_t)state.history_tokens,
                                "staging_offset", (json_int_t)state.staging_offset));
}

static int64_t vector_bytes(const window_run *run)
{
    return run->config.head_dim * (int64_t)ckv_dtype_bytes(run->config.dtype);
}

/* K and V of tokens with consecutive ids, dense, in the run's memory. */
static char *make_planes(window_run *run, int64_t layer, int64_t first_position, int64_t tokens)
{
    const ckv_pool_config *config = &run->config;
    ckv_cache_state state = ckv_cache_get_state(run->cache);
    int64_t bytes = vector_bytes(run);
    int64_t plane = tokens * config->kv_heads * bytes;
    char *planes = arena_alloc(&run->memory, (size_t)(2 * plane));
    float *vector = arena_alloc(&run->memory, (size_t)config->head_dim * sizeof *vector);
    for (int64_t i = 0; i < tokens; i++) {
        int64_t position = first_position + i;
        int64_t evicted = position < state.fixed_tokens ? 0 : state.committed_tokens - state.staging_offset;
        identity token = {position + evicted, run->version + 1};
        for (int64_t head = 0; head < config->kv_heads; head++) {
            for (int is_v = 0; is_v < 2; is_v++) {
                identity_encode(token, (identity_place){is_v, layer, head}, config->head_dim, vector);
                ckv_convert_from_float(config->dtype, vector, (size_t)config->head_dim,
                                       planes + is_v * plane + (i * config->kv_heads + head) * bytes);
            }
        }
    }
    return planes;
}

static ckv_status write_layer(window_run *run, const window_op *op, int64_t layer)
{
    ckv_cache_state state = ckv_cache_get_state(run->cache);
    bool forward = op->kind == WINDOW_FORWARD;
    int64_t start = forward ? state.staging_offset : op->start;
    int64_t most = forward ? state.max_staged_tokens : state.resident_tokens;
    /* What the library will refuse needs one token behind it, no more. */
    bool in_range = op->tokens >= 1 && op->tokens <= most && start >= 0 && start <= state.resident_tokens;
    int64_t tokens = in_range ? op->tokens : 1;
    size_t plane = (size_t)(tokens * run->config.kv_heads * vector_bytes(run));
    char *moved = NULL;
    ckv_status status = ckv_device_alloc(run->config.device, 2 * plane, (void **)&moved);
    if (status == CKV_OK)
        status = ckv_device_upload(run->config.device, moved, make_planes(run, layer, in_range ? start : 0, tokens),
                                   2 * plane, NULL);
    if (status == CKV_OK) {
        ckv_kv source = ckv_kv_dense(moved, moved + plane, run->config.kv_heads, run->config.head_dim);
        status = forward
                     ? ckv_cache_write_staged(run->cache, layer, op->tokens, op->causal_block_size, &source, 1, NULL)
                     : ckv_cache_write_range(run->cache, layer, start, op->tokens, &source, NULL);
    }
    ckv_device_free(run->config.device, moved);
    arena_free(&run->memory);
    return status;
}

/* A write in every layer. The first layer decides whether it is refused: all are checked alike. */
static ckv_status write_layers(window_run *run, const window_op *op)
{
    for (int64_t layer = 0; layer < run->config.layers; layer++) {
        ckv_status status = write_layer(run, op, layer);
        if (status != CKV_OK)
            return status;
    }
    run->version++;
    return CKV_OK;
}

/* What one key or value was found to be. */
typedef struct reading {
    identity_kind kind;
    identity token; /* {-1, 0} unless the kind is IDENTITY_TOKEN */
} reading;

/* Decode K or V of one layer. The first plane to be decoded fills `readings` from its head 0; all else must agree.
 * The first key that makes no sense, or `tokens`. */
static int64_t decode_plane(window_run *run, const char *plane, identity_place place, int64_t tokens, bool fills,
                            reading *readings)
{
    const ckv_pool_config *config = &run->config;
    float *vector = arena_alloc(&run->memory, (size_t)config->head_dim * sizeof *vector);
    for (int64_t key = 0; key < tokens; key++) {
        for (place.head = 0; place.head < config->kv_heads; place.head++) {
            reading found = {.token = {-1, 0}};
            ckv_convert_to_float(config->dtype, plane, (size_t)config->head_dim, vector);
            plane += vector_bytes(run);
            found.kind = identity_decode(vector, place, config->head_dim, &found.token);
            if (fills && place.head == 0)
                readings[key] = found;
            if (found.kind == IDENTITY_BROKEN || found.kind != readings[key].kind ||
                found.token.id != readings[key].token.id || found.token.version != readings[key].token.version)
                return key;
        }
    }
    return tokens;
}

static json_t *readings_to_json(const reading *readings, int64_t tokens)
{
    json_t *list = json_array();
    for (int64_t key = 0; key < tokens; key++) {
        const identity *token = &readings[key].token;
        json_array_append_new(list, readings[key].kind == IDENTITY_ZERO
                                        ? json_null()
                                        : json_pack("[I,I]", (json_int_t)token->id, (json_int_t)token->version));
    }
    return list;
}

static int internal_error(void)
{
    cli_error("ckv window", "internal error: %s", ckv_last_error());
    return CLI_INTERNAL;
}

/* K and V of one block in one layer, decoded and compared with readings[2], which the printed layer fills. */
static int read_layer(window_run *run, const window_op *op, int64_t block, int64_t layer, int64_t tokens,
                      char *planes[2], reading *readings[2])
{
    int64_t seq_len_kv;
    if (ckv_cache_read_row(run->cache, layer, op->causal_block_size, block, tokens, planes[0], planes[1], &seq_len_kv,
                           NULL) != CKV_OK)
        return internal_error();
    for (int is_v = 0; is_v < 2; is_v++) {
        int64_t key = decode_plane(run, planes[is_v], (identity_place){.is_v = is_v, .layer = layer}, tokens,
                                   layer == run->printed_layer, readings[is_v]);
        if (key < tokens) {
            cli_error("ckv window",
                      "internal error: block %" PRId64 ", %s, layer %" PRId64 ", key %" PRId64
                      ": layers or heads disagree, or the slot holds something else",
                      block, is_v ? "V" : "K", layer, key);
            return CLI_INTERNAL;
        }
    }
    return CLI_OK;
}

static int read_block(window_run *run, const window_op *op, int64_t block, json_t *blocks)
{
    int64_t tokens = 0;
    if (ckv_cache_read_row(run->cache, 0, op->causal_block_size, block, 0, NULL, NULL, &tokens, NULL) != CKV_OK)
        return internal_error();
    char *planes[2];
    reading *readings[2];
    for (int i = 0; i < 2; i++) {
        planes[i] = arena_alloc(&run->memory, (size_t)(tokens * run->config.kv_heads * vector_bytes(run)));
        readings[i] = arena_alloc(&run->memory, (size_t)tokens * sizeof *readings[i]);
    }
    int result = read_layer(run, op, block, run->printed_layer, tokens, planes, readings);
    for (int64_t layer = 0; layer < run->config.layers && result == CLI_OK; layer++)
        if (layer != run->printed_layer)
            result = read_layer(run, op, block, layer, tokens, planes, readings);
    if (result == CLI_OK)
        json_array_append_new(blocks,
                              json_pack("{so so sI}", "keys", readings_to_json(readings[0], tokens), "values",
                                        readings_to_json(readings[1], tokens), "seq_len_kv", (json_int_t)tokens));
    arena_free(&run->memory);
    return result;
}

static int print_forward(window_run *run, const window_op *op)
{
    json_t *blocks = json_array();
    for (int64_t block = 0; block < op->tokens / op->causal_block_size; block++) {
        int result = read_block(run, op, block, blocks);
        if (result != CLI_OK) {
            json_decref(blocks);
            return result;
        }
    }
    print_object(run, json_pack("{ss so}", "op", "forward", "blocks", blocks));
    return CLI_OK;
}

static ckv_status zero_layers(window_run *run, const window_op *op)
{
    for (int64_t layer = 0; layer < run->config.layers; layer++) {
        ckv_status status = ckv_cache_zero_values(run->cache, layer, op->start, op->tokens, NULL);
        if (status != CKV_OK)
            return status;
    }
    return CKV_OK;
}

static ckv_status open_rollout(window_run *run, const window_op *op)
{
    ckv_rollout_config config = ckv_rollout_config_default();
    config.pin_tokens = op->pin_tokens;
    config.window_tokens = op->window_tokens;
    config.max_staged_tokens = op->max_staged_tokens;
    config.causal_block_sizes = op->causal_block_sizes.values;
    config.num_causal_block_sizes = op->causal_block_sizes.count;
    return ckv_cache_open(run->cache, &config, NULL);
}

static ckv_status apply(window_run *run, const window_op *op)
{
    switch (op->kind) {
    case WINDOW_OPEN:
        return open_rollout(run, op);
    case WINDOW_WRITE_RANGE:
    case WINDOW_FORWARD:
        return write_layers(run, op);
    case WINDOW_ZERO_VALUES:
        return zero_layers(run, op);
    case WINDOW_COMMIT:
        return ckv_cache_commit(run->cache, op->tokens, NULL);
    default:
        return CKV_OK;
    }
}

/* Closing is a no-op in the library when nothing is open; in a script that is a mistake worth reporting. */
static void run_close(window_run *run, const window_op *op)
{
    if (!ckv_cache_get_state(run->cache).is_open) {
        print_refusal(run, op, CKV_ERROR_STATE, "close: no rollout is open");
        return;
    }
    ckv_cache_close(run->cache);
    print_object(run, json_pack("{ss}", "op", "close"));
}

static int run_op(window_run *run, const window_op *op)
{
    if (run->cache == NULL) {
        print_refusal(run, op, CKV_ERROR_STATE, "the cache was not created");
        return CLI_OK;
    }
    if (op->kind == WINDOW_CLOSE) {
        run_close(run, op);
        return CLI_OK;
    }
    ckv_status status = apply(run, op);
    if (status == CKV_ERROR_INTERNAL)
        return internal_error();
    if (status != CKV_OK)
        print_refusal(run, op, status, ckv_last_error());
    else if (op->kind == WINDOW_FORWARD)
        return print_forward(run, op);
    else
        print_state(run, op);
    return CLI_OK;
}

static void run_create(window_run *run, const window_op *op, const ckv_device *device)
{
    run->config = op->pool;
    run->config.device = device;
    run->config.poison_fresh_pages = 1; /* so that a slot never written is seen to be */
    if (op->pool.head_dim < IDENTITY_MIN_HEAD_DIM) {
        print_refusal(run, op, CKV_ERROR_INVALID, "create: head_dim must be at least 16 to hold a token's identity");
        return;
    }
    ckv_status status = ckv_cache_create(&run->config, &run->cache);
    if (status != CKV_OK)
        print_refusal(run, op, status, ckv_last_error());
}

int window_script_run(const window_script *script, const ckv_device *device, int64_t layer, FILE *out)
{
    window_run run = {.out = out, .printed_layer = layer};
    run_create(&run, &script->ops[0], device);
    int result = CLI_OK;
    for (size_t i = 1; i < script->num_ops && result == CLI_OK; i++)
        result = run_op(&run, &script->ops[i]);
    ckv_cache_destroy(&run.cache);
    return result;
}
