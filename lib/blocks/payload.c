/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind the blocks, and the copies between slots.
 *
 * Copies are decided under the manager's lock and enqueued in that order outside of it, on one stream per direction.
 * What orders copies of different streams is the slots they touch: each remembers the last copy that wrote it and, per
 * stream, the last that read it. A copy waits for the writer of its source, and for the writer and all readers of its
 * target; what those waited for, they have waited for. */
#include "lib/blocks/payload.h"

#include "lib/blocks/blocks.h"
#include "lib/blocks/staging.h"
#include "lib/pool/tier.h"
#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <stdlib.h>

typedef enum direction { TO_HOST, FROM_HOST, WITHIN, NUM_DIRECTIONS } direction;

/* Events of a stream: number n has the place n % EVENTS. One that has been used again marks a later point, and waiting
 * for it is waiting for longer than needed. */
enum { EVENTS = 256 };

typedef struct payload_pool {
    ckv_tier tiers[CKV_BLOCKS_TIERS];
    int64_t groups;    /* runs of token rows in a block: layer, K or V, head */
    int64_t row_bytes; /* of one token in a run; 0: a block is one thing */
} payload_pool;

/* Numbers of the copies on each stream that touched a slot last; 0: none. */
typedef struct slot_use {
    uint64_t written, read[NUM_DIRECTIONS];
    direction writer;
} slot_use;

typedef struct payload_window {
    payload_pool *pools; /* [num_pools] */
    int64_t num_pools;
    slot_use *uses[CKV_BLOCKS_TIERS]; /* [slots] */
} payload_window;

typedef struct copy_stream {
    ckv_stream stream;
    ckv_event events[EVENTS];
    uint64_t last; /* number of the last copy */
} copy_stream;

struct payload {
    const ckv_device *device;
    payload_window windows[CKV_BLOCKS_MAX_WINDOWS];
    int32_t num_windows;
    int64_t tokens_per_block;
    pthread_mutex_t queue_lock; /* of the queue alone, held for moments */
    payload_copy *queue;        /* a ring of decided copies not enqueued yet */
    uint64_t queue_capacity, decided, taken;
    pthread_mutex_t run_lock; /* of everything below, held while copies are enqueued */
    uint64_t done;
    ckv_status failed; /* of a copy nobody has been told of */
    copy_stream streams[NUM_DIRECTIONS];
    ckv_event computed;
    staging staging; /* of tables */
};

/* ---- Creation ---- */

static bool grow_queue(payload *p)
{
    uint64_t capacity = p->queue_capacity > 0 ? 2 * p->queue_capacity : 64;
    payload_copy *larger = malloc(capacity * sizeof *larger);
    if (larger == NULL)
        return false;
    for (uint64_t i = p->taken; p->queue_capacity > 0 && i < p->decided; i++)
        larger[i % capacity] = p->queue[i % p->queue_capacity];
    free(p->queue);
    p->queue = larger;
    p->queue_capacity = capacity;
    return true;
}

static ckv_status create_pool(payload *p, const window_state *w, int64_t block_bytes, int64_t groups, bool whole,
                              payload_pool *pool)
{
    pool->groups = ckv_max_i64(groups, 1);
    pool->row_bytes = whole ? 0 : block_bytes / pool->groups / p->tokens_per_block;
    for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++)
        CKV_TRY(
            ckv_tier_create(p->device, tier == CKV_BLOCKS_HOST, w->info.blocks[tier], block_bytes, &pool->tiers[tier]));
    return CKV_OK;
}

static ckv_status create_pools(payload *p, const window_state *w, int64_t row_bytes, payload_window *pw)
{
    pw->num_pools = row_bytes > 0 ? 1 : w->info.num_pools;
    pw->pools = calloc((size_t)pw->num_pools, sizeof *pw->pools);
    if (pw->pools == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "blocks: out of host memory");
    if (row_bytes > 0)
        return create_pool(p, w, row_bytes * p->tokens_per_block, 1, false, &pw->pools[0]);
    for (int64_t i = 0; i < pw->num_pools; i++) {
        const ckv_blocks_pool *pool = &w->info.pools[i];
        bool whole = pool->kind == CKV_BLOCKS_POOL_STATE;
        /* Elements of fp4, scales and indexers are bytes here. */
        int64_t element = pool->kind == CKV_BLOCKS_POOL_KV ? ckv_blocks_element_bytes(w->info.dtype) : 1;
        int64_t groups = whole ? 1 : pool->block_bytes / (pool->size_per_head * element) / p->tokens_per_block;
        CKV_TRY(create_pool(p, w, pool->block_bytes, groups, whole, &pw->pools[i]));
    }
    return CKV_OK;
}

static ckv_status create_window(payload *p, const window_state *w, int64_t row_bytes)
{
    payload_window *pw = &p->windows[p->num_windows++];
    for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++) {
        pw->uses[tier] = calloc((size_t)w->info.blocks[tier] + 1, sizeof *pw->uses[tier]);
        if (pw->uses[tier] == NULL)
            return ckv_fail(CKV_ERROR_MEMORY, "blocks: out of host memory");
    }
    return create_pools(p, w, row_bytes, pw);
}

static ckv_status create_streams(payload *p)
{
    for (int i = 0; i < NUM_DIRECTIONS; i++) {
        CKV_TRY(p->device->stream_create(&p->streams[i].stream));
        for (int n = 0; n < EVENTS; n++)
            CKV_TRY(p->device->event_create(&p->streams[i].events[n]));
    }
    return p->device->event_create(&p->computed);
}

ckv_status ckv_payload_create(const ckv_device *device, const window_state *windows, int32_t num_windows,
                              int64_t row_bytes, int64_t tokens_per_block, payload **payload_out)
{
    payload *p = calloc(1, sizeof *p);
    if (p == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "blocks: out of host memory");
    p->device = device;
    p->tokens_per_block = tokens_per_block;
    pthread_mutex_init(&p->queue_lock, NULL);
    pthread_mutex_init(&p->run_lock, NULL);
    ckv_status status = grow_queue(p) ? create_streams(p) : ckv_fail(CKV_ERROR_MEMORY, "blocks: out of host memory");
    for (int32_t i = 0; status == CKV_OK && i < num_windows; i++)
        status = create_window(p, &windows[i], row_bytes);
    if (status != CKV_OK)
        ckv_payload_destroy(&p);
    else
        *payload_out = p;
    return status;
}

static ckv_status wait_for_streams(payload *p)
{
    ckv_status status = CKV_OK;
    for (int i = 0; i < NUM_DIRECTIONS; i++) {
        ckv_status waited = p->streams[i].last > 0 ? p->device->wait(p->streams[i].stream) : CKV_OK;
        status = status == CKV_OK ? waited : status;
    }
    return status;
}

void ckv_payload_destroy(payload **payload_in)
{
    payload *p = *payload_in;
    if (p == NULL)
        return;
    wait_for_streams(p); /* a failure leaves nobody to tell */
    ckv_staging_free(&p->staging, p->device);
    for (int i = 0; i < NUM_DIRECTIONS; i++) {
        for (int n = 0; n < EVENTS; n++)
            p->device->event_destroy(p->streams[i].events[n]);
        p->device->stream_destroy(p->streams[i].stream);
    }
    p->device->event_destroy(p->computed);
    for (int32_t i = 0; i < p->num_windows; i++) {
        payload_window *pw = &p->windows[i];
        for (int64_t n = 0; pw->pools != NULL && n < pw->num_pools; n++)
            for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++)
                ckv_tier_free(&pw->pools[n].tiers[tier]);
        free(pw->pools);
        for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++)
            free(pw->uses[tier]);
    }
    free(p->queue);
    pthread_mutex_destroy(&p->queue_lock);
    pthread_mutex_destroy(&p->run_lock);
    free(p);
    *payload_in = NULL;
}

/* ---- Copies ---- */

static direction direction_of(const payload_copy *copy)
{
    if (copy->from_tier == copy->to_tier)
        return WITHIN;
    return copy->to_tier == CKV_BLOCKS_HOST ? TO_HOST : FROM_HOST;
}

/* The stream of `own` goes on only behind copy `number` of another stream. */
static ckv_status wait_for(payload *p, direction own, direction other, uint64_t number)
{
    if (number == 0 || own == other)
        return CKV_OK;
    return p->device->event_wait(p->streams[other].events[number % EVENTS], p->streams[own].stream);
}

static ckv_status copy_pools(payload *p, const payload_copy *copy, ckv_stream stream)
{
    const payload_window *pw = &p->windows[copy->window];
    for (int64_t i = 0; i < pw->num_pools; i++) {
        const payload_pool *pool = &pw->pools[i];
        const ckv_tier *from = &pool->tiers[copy->from_tier], *to = &pool->tiers[copy->to_tier];
        bool part = copy->rows > 0 && pool->row_bytes > 0;
        size_t pitch = part ? (size_t)(pool->row_bytes * p->tokens_per_block) : (size_t)from->slot_bytes;
        size_t width = part ? (size_t)(pool->row_bytes * copy->rows) : pitch;
        CKV_TRY(p->device->copy_2d(ckv_tier_slot(to, copy->to_slot), pitch, ckv_tier_slot(from, copy->from_slot), pitch,
                                   width, part ? (size_t)pool->groups : 1, stream));
    }
    return CKV_OK;
}

static ckv_status enqueue(payload *p, const payload_copy *copy)
{
    direction own = direction_of(copy);
    slot_use *from = &p->windows[copy->window].uses[copy->from_tier][copy->from_slot];
    slot_use *to = &p->windows[copy->window].uses[copy->to_tier][copy->to_slot];
    copy_stream *stream = &p->streams[own];
    CKV_TRY(wait_for(p, own, from->writer, from->written));
    CKV_TRY(wait_for(p, own, to->writer, to->written));
    for (int i = 0; i < NUM_DIRECTIONS; i++)
        CKV_TRY(wait_for(p, own, (direction)i, to->read[i]));
    CKV_TRY(copy_pools(p, copy, stream->stream));
    stream->last++;
    from->read[own] = stream->last;
    *to = (slot_use){.written = stream->last, .writer = own};
    return p->device->event_record(stream->events[stream->last % EVENTS], stream->stream);
}

static bool push(payload *p, payload_copy copy)
{
    pthread_mutex_lock(&p->queue_lock);
    bool ok = p->decided - p->taken < p->queue_capacity || grow_queue(p);
    if (ok)
        p->queue[p->decided++ % p->queue_capacity] = copy;
    pthread_mutex_unlock(&p->queue_lock);
    return ok;
}

static bool pop(payload *p, payload_copy *copy_out)
{
    pthread_mutex_lock(&p->queue_lock);
    bool any = p->taken < p->decided;
    if (any)
        *copy_out = p->queue[p->taken++ % p->queue_capacity];
    pthread_mutex_unlock(&p->queue_lock);
    return any;
}

uint64_t ckv_payload_ticket(const payload *p)
{
    return p != NULL ? p->decided : 0;
}

static ckv_status run(payload *p, uint64_t ticket, bool quietly)
{
    ckv_status status = CKV_OK;
    payload_copy copy;
    pthread_mutex_lock(&p->run_lock);
    for (; p->done < ticket && pop(p, &copy); p->done++) {
        ckv_status enqueued = enqueue(p, &copy);
        p->failed = p->failed == CKV_OK ? enqueued : p->failed;
    }
    if (!quietly) {
        status = p->failed;
        p->failed = CKV_OK;
    }
    pthread_mutex_unlock(&p->run_lock);
    return status;
}

ckv_status ckv_payload_run(payload *p, uint64_t ticket)
{
    return run(p, ticket, false);
}

/* Without memory for a longer queue there is room again when everything in it has been enqueued. */
void ckv_payload_add(payload *p, payload_copy copy)
{
    while (!push(p, copy))
        run(p, p->decided, true);
}

/* ---- Public ---- */

static ckv_status check_memory(const ckv_blocks *blocks, const char *call)
{
    if (blocks == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "%s: blocks is NULL", call);
    if (blocks->payload == NULL)
        return ckv_fail(CKV_ERROR_STATE, "%s: the manager was made without memory", call);
    return CKV_OK;
}

ckv_status ckv_blocks_get_pool(const ckv_blocks *blocks, int64_t wanted, int64_t pool, int64_t tier,
                               ckv_blocks_pool_view *view_out)
{
    CKV_TRY(check_memory(blocks, "get_pool"));
    if (view_out == NULL || tier < 0 || tier >= CKV_BLOCKS_TIERS)
        return ckv_fail(CKV_ERROR_INVALID, "get_pool: tier %lld, or view_out is NULL", (long long)tier);
    int64_t index;
    CKV_TRY(ckv_blocks_find_window(blocks, wanted, &index));
    const payload_window *pw = &blocks->payload->windows[index];
    if (pool < 0 || pool >= pw->num_pools)
        return ckv_fail(CKV_ERROR_NOT_FOUND, "get_pool: window %lld has %lld pools", (long long)wanted,
                        (long long)pw->num_pools);
    const ckv_tier *memory = &pw->pools[pool].tiers[tier];
    *view_out = (ckv_blocks_pool_view){memory->memory, memory->slot_bytes, memory->slots};
    return CKV_OK;
}

/* Run what has been decided, then `visit` under the lock of the streams. */
static ckv_status with_streams(ckv_blocks *blocks, const char *call, ckv_stream stream,
                               ckv_status (*visit)(payload *p, ckv_stream stream))
{
    CKV_TRY(check_memory(blocks, call));
    payload *p = blocks->payload;
    pthread_mutex_lock(&blocks->lock);
    uint64_t ticket = ckv_payload_ticket(p);
    pthread_mutex_unlock(&blocks->lock);
    CKV_TRY(ckv_payload_run(p, ticket));
    pthread_mutex_lock(&p->run_lock);
    ckv_status status = visit(p, stream);
    pthread_mutex_unlock(&p->run_lock);
    return status;
}

static ckv_status begin(payload *p, ckv_stream stream)
{
    for (int i = 0; i < NUM_DIRECTIONS; i++) {
        const copy_stream *copies = &p->streams[i];
        if (copies->last > 0)
            CKV_TRY(p->device->event_wait(copies->events[copies->last % EVENTS], stream));
    }
    return CKV_OK;
}

static ckv_status end(payload *p, ckv_stream stream)
{
    CKV_TRY(p->device->event_record(p->computed, stream));
    for (int i = 0; i < NUM_DIRECTIONS; i++)
        CKV_TRY(p->device->event_wait(p->computed, p->streams[i].stream));
    return CKV_OK;
}

static ckv_status wait_for_all(payload *p, ckv_stream stream)
{
    (void)stream;
    return wait_for_streams(p);
}

ckv_status ckv_blocks_step_begin(ckv_blocks *blocks, ckv_stream stream)
{
    return with_streams(blocks, "step_begin", stream, begin);
}

ckv_status ckv_blocks_step_end(ckv_blocks *blocks, ckv_stream stream)
{
    return with_streams(blocks, "step_end", stream, end);
}

ckv_status ckv_blocks_wait(ckv_blocks *blocks)
{
    return with_streams(blocks, "wait", NULL, wait_for_all);
}

ckv_status ckv_blocks_upload_slots(ckv_blocks *blocks, int64_t wanted, const int64_t *slots, int64_t count,
                                   int32_t *destination, ckv_stream stream)
{
    CKV_TRY(check_memory(blocks, "upload_slots"));
    if (count < 0 || (count > 0 && (slots == NULL || destination == NULL)))
        return ckv_fail(CKV_ERROR_INVALID, "upload_slots: %lld slots, or a list is NULL", (long long)count);
    int64_t index;
    CKV_TRY(ckv_blocks_find_window(blocks, wanted, &index));
    payload *p = blocks->payload;
    int32_t guard = (int32_t)blocks->windows[index].info.blocks[CKV_BLOCKS_PRIMARY];
    pthread_mutex_lock(&p->run_lock);
    ckv_status status = ckv_staging_upload(&p->staging, p->device, slots, count, guard, destination, stream);
    pthread_mutex_unlock(&p->run_lock);
    return status;
}
