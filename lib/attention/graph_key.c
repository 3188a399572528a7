/* SPDX-License-Identifier: Apache-2.0 */
/* What a captured forward depends on, as one number. */
#include "lib/attention/attention.h"
#include "lib/cache/cache.h"
#include "lib/support/error.h"
#include "lib/support/mutant.h"

#include <string.h>

/* FNV-1a over 64-bit words, finished with splitmix64's mixer so that every bit of the key depends on every word. */
static void add_word(uint64_t *key, uint64_t word)
{
    *key = (*key ^ word) * 0x100000001b3u;
    *key ^= *key >> 32;
}

static uint64_t finish(uint64_t key)
{
    key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9u;
    key = (key ^ key >> 27) * 0x94d049bb133111ebu;
    return key ^ key >> 31;
}

ckv_status ckv_attention_graph_key(const ckv_attention_args *args, uint64_t *key_out)
{
    CKV_TRY(ckv_attention_validate(args));
    const int64_t block = args->causal_block_size != 0 ? args->causal_block_size : args->seq_len;
    const int64_t shape[] = {args->layer,
                             args->q_heads,
                             args->first_kv_head,
                             args->kv_heads,
                             args->rows,
                             args->seq_len,
                             block,
                             args->q_token_stride,
                             args->q_head_stride,
                             args->kv.k_token_stride,
                             args->kv.k_head_stride,
                             args->kv.v_token_stride,
                             args->kv.v_head_stride,
                             args->out_token_stride,
                             args->out_head_stride,
                             args->lse != NULL,
                             args->mask,
                             args->quantization};
    uint64_t key = 0xcbf29ce484222325u, scale;
    add_word(&key, ckv_cache_geometry_id(args->cache));
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        if (!(CKV_MUTANT(graph_key_without_strides) && i > 6 && i < 15))
            add_word(&key, (uint64_t)shape[i]);
    memcpy(&scale, &args->scale, sizeof scale);
    add_word(&key, scale);
    for (const char *name = args->backend != NULL ? args->backend : "auto"; *name != '\0'; name++)
        add_word(&key, (uint64_t)(unsigned char)*name);
    *key_out = finish(key);
    return CKV_OK;
}
