/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a script on a real cache. What a forward prints is decoded from the K and V that its rows read. */
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

/* K and V of tokens with consecutive ids, dense; `kv` points into *memory_out, which the caller frees. */
static ckv_kv make_source(const window_run *run, int64_t layer, int64_t first_position, int64_t tokens,
                          void **memory_out)
{
    const ckv_pool_config *config = &run->config;
    ckv_cache_state state = ckv_cache_get_state(run->cache);
    int64_t bytes = vector_bytes(run);
    int64_t plane = tokens * config->kv_heads * bytes;
    char *memory = malloc((size_t)(2 * plane));
    float *vector = malloc((size_t)config->head_dim * sizeof *vector);
    if (memory == NULL || vector == NULL)
        abort(); /* a command-line tool out of memory has nothing left to say */
    for (int64_t i = 0; i < tokens; i++) {
        int64_t position = first_position + i;
        int64_t evicted = position < state.fixed_tokens ? 0 : state.committed_tokens - state.staging_offset;
        identity token = {position + evicted, run->version + 1};
        for (int64_t head = 0; head < config->kv_heads; head++) {
            for (int is_v = 0; is_v < 2; is_v++) {
                identity_encode(token, (identity_place){is_v, layer, head}, config->head_dim, vector);
                ckv_convert_from_float(config->dtype, vector, (size_t)config->head_dim,
                                       memory + is_v * plane + (i * config->kv_heads + head) * bytes);
            }
        }
    }
    free(vector);
    *memory_out = memory;
    return ckv_kv_dense(memory, memory + plane, config->kv_heads, config->head_dim);
}

/* A write in every layer. The first layer decides whether it is refused: all are checked alike. */
static ckv_status write_layers(window_run *run, const window_op *op)
{
    ckv_cache_state state = ckv_cache_get_state(run->cache);
    int64_t most = op->kind == WINDOW_FORWARD ? state.max_staged_tokens : state.resident_tokens;
    /* A length the library will refuse needs no data behind it. */
    int64_t tokens = op->tokens >= 1 && op->tokens <= most ? op->tokens : 1;
    ckv_status status = CKV_OK;
    for (int64_t layer = 0; layer < run->config.layers && status == CKV_OK; layer++) {
        void *memory;
        ckv_kv source =
            make_source(run, layer, op->kind == WINDOW_FORWARD ? state.staging_offset : op->start, tokens, &memory);
        status = op->kind == WINDOW_FORWARD
                     ? ckv_cache_write_staged(run->cache, layer, op->tokens, op->causal_block_size, &source, 1, NULL)
                     : ckv_cache_write_range(run->cache, layer, op->start, op->tokens, &source, NULL);
        free(memory);
    }
    if (status == CKV_OK)
        run->version++;
    return status;
}

typedef struct row_reading {
    identity_kind *kinds; /* [tokens] */
    identity *tokens;     /* [tokens] */
} row_reading;

/* Decode one layer of K or V; the heads must agree. False at the first key that makes no sense. */
static bool decode_plane(const window_run *run, const char *plane, int is_v, int64_t layer, int64_t tokens,
                         row_reading *reading, int64_t *key_out)
{
    const ckv_pool_config *config = &run->config;
    float *vector = malloc((size_t)config->head_dim * sizeof *vector);
    bool ok = vector != NULL;
    for (int64_t key = 0; ok && key < tokens; key++) {
        for (int64_t head = 0; ok && head < config->kv_heads; head++) {
            identity token = {-1, 0};
            ckv_convert_to_float(config->dtype, plane + (key * config->kv_heads + head) * vector_bytes(run),
                                 (size_t)config->head_dim, vector);
            identity_kind kind = identity_decode(vector, (identity_place){is_v, layer, head}, config->head_dim, &token);
            if (head == 0) {
                reading->kinds[key] = kind;
                reading->tokens[key] = token;
            }
            ok = kind != IDENTITY_BROKEN && kind == reading->kinds[key] && token.id == reading->tokens[key].id &&
                 token.version == reading->tokens[key].version;
            *key_out = key;
        }
    }
    free(vector);
    return ok;
}

static json_t *reading_to_json(const row_reading *reading, int64_t tokens)
{
    json_t *list = json_array();
    for (int64_t key = 0; key < tokens; key++)
        json_array_append_new(list, reading->kinds[key] == IDENTITY_ZERO
                                        ? json_null()
                                        : json_pack("[I,I]", (json_int_t)reading->tokens[key].id,
                                                    (json_int_t)reading->tokens[key].version));
    return list;
}

static bool same_reading(const row_reading *a, const row_reading *b, int64_t tokens)
{
    for (int64_t key = 0; key < tokens; key++)
        if (a->kinds[key] != b->kinds[key] || a->tokens[key].id != b->tokens[key].id ||
            a->tokens[key].version != b->tokens[key].version)
            return false;
    return true;
}

/* All layers of one block, K and V, with the printed layer's in printed[0] and printed[1]. */
static int read_layers(window_run *run, const window_op *op, int64_t block, int64_t tokens, char *planes[2],
                       row_reading printed[2], row_reading *scratch)
{
    for (int64_t i = 0; i < run->config.layers; i++) {
        /* The printed layer comes first: the others are compared with it. */
        int64_t layer = i == 0 ? run->printed_layer : i <= run->printed_layer ? i - 1 : i;
        int64_t seq_len_kv, key = 0;
        ckv_status status = ckv_cache_read_row(run->cache, layer, op->causal_block_size, block, tokens, planes[0],
                                               planes[1], &seq_len_kv, NULL);
        if (status != CKV_OK) {
            cli_error("ckv window", "internal error: %s", ckv_last_error());
            return CLI_INTERNAL;
        }
        for (int kv = 0; kv < 2; kv++) {
            row_reading *reading = i == 0 ? &printed[kv] : scratch;
            if (!decode_plane(run, planes[kv], kv, layer, tokens, reading, &key) ||
                !same_reading(&printed[kv], reading, tokens)) {
                cli_error("ckv window",
                          "internal error: block %" PRId64 ", %s, layer %" PRId64 ", key %" PRId64
                          ": layers or heads disagree, or the slot holds something else",
                          block, kv ? "V" : "K", layer, key);
                return CLI_INTERNAL;
            }
        }
    }
    return CLI_OK;
}

static int read_block(window_run *run, const window_op *op, int64_t block, json_t *blocks)
{
    int64_t tokens = 0;
    if (ckv_cache_read_row(run->cache, 0, op->causal_block_size, block, 0, NULL, NULL, &tokens, NULL) != CKV_OK) {
        cli_error("ckv window", "internal error: %s", ckv_last_error());
        return CLI_INTERNAL;
    }
    size_t plane = (size_t)(tokens * run->config.kv_heads * vector_bytes(run));
    char *planes[2] = {malloc(plane), malloc(plane)};
    row_reading readings[3];
    for (int i = 0; i < 3; i++)
        readings[i] =
            (row_reading){calloc((size_t)tokens, sizeof(identity_kind)), calloc((size_t)tokens, sizeof(identity))};
    int result = read_layers(run, op, block, tokens, planes, readings, &readings[2]);
    if (result == CLI_OK)
        json_array_append_new(blocks,
                              json_pack("{so so sI}", "keys", reading_to_json(&readings[0], tokens), "values",
                                        reading_to_json(&readings[1], tokens), "seq_len_kv", (json_int_t)tokens));
    for (int i = 0; i < 3; i++) {
        free(readings[i].kinds);
        free(readings[i].tokens);
    }
    free(planes[0]);
    free(planes[1]);
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
    if (status == CKV_ERROR_INTERNAL) {
        cli_error("ckv window", "internal error: %s", ckv_last_error());
        return CLI_INTERNAL;
    }
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
