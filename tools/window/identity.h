/* SPDX-License-Identifier: Apache-2.0 */
/* Token identity inside K and V vectors: id, version, layer, head and K-or-V as small integers that every dtype holds
 * exactly, repeated over head_dim. Room for 2^42 ids, 2^35 versions, 2^14 layers and heads; what goes beyond is cut off
 * on both sides. */
#ifndef CKV_TOOLS_IDENTITY_H
#define CKV_TOOLS_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

enum { IDENTITY_MIN_HEAD_DIM = 16 };

typedef struct identity {
    int64_t id;
    int64_t version;
} identity;

typedef struct identity_place {
    int is_v;
    int64_t layer, head;
} identity_place;

typedef enum identity_kind { IDENTITY_TOKEN, IDENTITY_ZERO, IDENTITY_NEVER_WRITTEN, IDENTITY_BROKEN } identity_kind;

void identity_encode(identity token, identity_place place, int64_t head_dim, float *vector_out);

/* IDENTITY_BROKEN: something else's vector, or pieces of several. */
identity_kind identity_decode(const float *vector, identity_place place, int64_t head_dim, identity *token_out);

#endif
