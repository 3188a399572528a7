/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/window/identity.h"

#include <math.h>
#include <string.h>

enum { BASE = 128, DIGITS = IDENTITY_MIN_HEAD_DIM, LAYER_AT = 1, HEAD_AT = 3, ID_AT = 5, VERSION_AT = 11 };

static void put(int64_t value, int first, int end, float *digits)
{
    for (int i = first; i < end; i++, value /= BASE)
        digits[i] = (float)(value % BASE);
}

static int64_t get(const float *digits, int first, int end)
{
    int64_t value = 0;
    for (int i = end - 1; i >= first; i--)
        value = value * BASE + (int64_t)digits[i];
    return value;
}

static void encode_digits(identity token, identity_place place, float digits[DIGITS])
{
    digits[0] = place.is_v ? 2 : 1;
    put(place.layer, LAYER_AT, HEAD_AT, digits);
    put(place.head, HEAD_AT, ID_AT, digits);
    put(token.id, ID_AT, VERSION_AT, digits);
    put(token.version, VERSION_AT, DIGITS, digits);
}

void identity_encode(identity token, identity_place place, int64_t head_dim, float *vector_out)
{
    float digits[DIGITS];
    encode_digits(token, place, digits);
    for (int64_t i = 0; i < head_dim; i++)
        vector_out[i] = digits[i % DIGITS];
}

identity_kind identity_decode(const float *vector, identity_place place, int64_t head_dim, identity *token_out)
{
    int64_t zeros = 0, nans = 0, in_range = 0;
    for (int64_t i = 0; i < head_dim; i++) {
        zeros += vector[i] == 0;
        nans += isnan(vector[i]) != 0;
        in_range += vector[i] >= 0 && vector[i] < BASE && vector[i] == floorf(vector[i]);
    }
    if (zeros == head_dim && place.is_v)
        return IDENTITY_ZERO;
    if (nans == head_dim)
        return IDENTITY_NEVER_WRITTEN;
    if (in_range != head_dim)
        return IDENTITY_BROKEN;
    identity token = {get(vector, ID_AT, VERSION_AT), get(vector, VERSION_AT, DIGITS)};
    float digits[DIGITS];
    encode_digits(token, place, digits);
    for (int64_t i = 0; i < head_dim; i++)
        if (vector[i] != digits[i % DIGITS])
            return IDENTITY_BROKEN;
    *token_out = token;
    return IDENTITY_TOKEN;
}
