/* SPDX-License-Identifier: Apache-2.0 */
/* The body of host_tile.c, for vectors of LANES floats; NAMED makes its names distinct. Included once per width, so
 * it has no guard. Vectors pass between functions through memory: by value they would depend on the target's ABI. */

#define lanes NAMED(lanes)
#define lane_bits NAMED(lane_bits)
#define multiply_columns NAMED(multiply_columns)
#define multiply NAMED(multiply)
#define exp_lanes NAMED(exp_lanes)
#define largest NAMED(largest)
#define weigh NAMED(weigh)
#define attend NAMED(attend)

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), may_alias));
typedef uint32_t lane_bits __attribute__((vector_size(LANES * sizeof(uint32_t)), may_alias));

/* c [ROWS, 2 * LANES] = a [ROWS, depth] * b [depth, 2 * LANES of PANEL], added to c if `add`. Named accumulators,
 * because an array of them would live in memory wherever a compiler does not unroll. */
INLINE void multiply_columns(const float *a, int64_t a_stride, const float *b, int64_t depth, float *c,
                             int64_t c_stride, int add)
{
#define DECLARE(r) lanes low##r = {0}, high##r = {0};
#define LOAD(r)                                                                                                        \
    low##r = *(const lanes *)(c + r * c_stride);                                                                       \
    high##r = *(const lanes *)(c + r * c_stride + LANES);
#define MULTIPLY_ADD(r)                                                                                                \
    low##r += a[r * a_stride + i] * b_low;                                                                             \
    high##r += a[r * a_stride + i] * b_high;
#define STORE(r)                                                                                                       \
    *(lanes *)(c + r * c_stride) = low##r;                                                                             \
    *(lanes *)(c + r * c_stride + LANES) = high##r;
    EACH_ROW(DECLARE)
    if (add) {
        EACH_ROW(LOAD)
    }
    for (int64_t i = 0; i < depth; i++) {
        lanes b_low = *(const lanes *)(b + i * PANEL);
        lanes b_high = *(const lanes *)(b + i * PANEL + LANES);
        EACH_ROW(MULTIPLY_ADD)
    }
    EACH_ROW(STORE)
#undef DECLARE
#undef LOAD
#undef MULTIPLY_ADD
#undef STORE
}

INLINE void multiply(const float *a, int64_t a_stride, const float *b, int64_t depth, float *c, int64_t c_stride,
                     int add)
{
    for (int64_t column = 0; column < PANEL; column += 2 * LANES)
        multiply_columns(a, a_stride, b + column, depth, c + column, c_stride, add);
}

/* LANES values become exp(x), for x <= 0 to 2 units in the last place; 0 below -87, where the result leaves the normal
 * floats; NaN for NaN. x = n ln 2 + r with |r| <= ln(2) / 2; the Taylor series of exp(r) up to r^7 is off by less than
 * 2^-27 there. */
INLINE void exp_lanes(float *values)
{
    lanes x = *(const lanes *)values;
    const float round_to_int = 0x1.8p23f; /* added, leaves the integer part in the low bits */
    lanes shifted = x * 0x1.715476p+0f + round_to_int;
    lanes n = shifted - round_to_int;
    lanes r = x - n * 0x1.62e4p-1f; /* ln 2 in two parts: n times the first is exact */
    r = r - n * 0x1.7f7d1cp-20f;
    lanes series = r * (1.0f / 5040) + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    lanes power = (lanes)(((lane_bits)shifted + 127u) << 23); /* 2^n; the bits above n shift out */
    lane_bits vanishes = (lane_bits)(x < -87.0f);
    *(lanes *)values = (lanes)(~vanishes & (lane_bits)(series * power));
}

INLINE float largest(const float *scores)
{
    lanes max = *(const lanes *)scores;
    for (int64_t i = LANES; i < KEYS; i += LANES) {
        lanes next = *(const lanes *)(scores + i);
        lane_bits above = (lane_bits)(next > max);
        max = (lanes)((above & (lane_bits)next) | (~above & (lane_bits)max));
    }
    float result = -INFINITY;
    for (int i = 0; i < LANES; i++)
        result = max[i] > result ? max[i] : result;
    return result;
}

/* Scores of one query become weights exp(score - max); what it has summed so far is brought to the new maximum. */
INLINE void weigh(const ckv_host_tile *tile, int64_t query, float *scores)
{
    for (int64_t i = tile->num_keys; i < KEYS; i++)
        scores[i] = -INFINITY;
    float old_max = tile->max[query];
    float tile_max = largest(scores);
    float max = tile_max > old_max ? tile_max : old_max;
    float base = max == -INFINITY ? 0.0f : max; /* -inf - -inf would be NaN */
    lanes sums = {0};
    for (int64_t i = 0; i < KEYS; i += LANES) {
        *(lanes *)(scores + i) -= base;
        exp_lanes(scores + i);
        sums += *(const lanes *)(scores + i);
    }
    float sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += sums[i];
    float correction = old_max == max ? 1.0f : expf(old_max - base);
    tile->max[query] = max;
    tile->sum[query] = tile->sum[query] * correction + sum;
    if (correction != 1.0f) {
        float *out = tile->out + query * tile->padded_dim;
        for (int64_t i = 0; i < tile->padded_dim; i += LANES)
            *(lanes *)(out + i) *= correction;
    }
}

INLINE void attend(const ckv_host_tile *tile)
{
    int64_t head_dim = tile->head_dim, padded_dim = tile->padded_dim;
    for (int64_t first = 0; first < tile->num_queries; first += CKV_HOST_TILE_GROUP) {
        int64_t left = tile->num_queries - first;
        int64_t group = left < CKV_HOST_TILE_GROUP ? left : CKV_HOST_TILE_GROUP;
        for (int64_t key = 0; key < tile->num_keys; key += PANEL)
            for (int64_t row = 0; row < group; row += ROWS)
                multiply(tile->queries + (first + row) * head_dim, head_dim, tile->keys + key * head_dim, head_dim,
                         tile->scores + row * KEYS + key, KEYS, 0);
        for (int64_t row = 0; row < group; row++)
            weigh(tile, first + row, tile->scores + row * KEYS);
        for (int64_t channel = 0; channel < padded_dim; channel += PANEL)
            for (int64_t row = 0; row < group; row += ROWS)
                multiply(tile->scores + row * KEYS, KEYS, tile->values + channel * KEYS, tile->num_keys,
                         tile->out + (first + row) * padded_dim + channel, padded_dim, 1);
    }
}

#undef lanes
#undef lane_bits
#undef multiply_columns
#undef multiply
#undef exp_lanes
#undef largest
#undef weigh
#undef attend
