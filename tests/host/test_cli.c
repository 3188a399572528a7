/* SPDX-License-Identifier: Apache-2.0 */
/* The ckv program itself, and `ckv size` against the formulas of a geometry's size. */
#include "tests/support/case.h"
#include "tests/support/workplace.h"
#include "tools/common/geometries.h"

#include <ckv/cache.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void open_ckv(workplace *place)
{
    workplace_open(place, "'" CKV_PROGRAM "'");
}

static void expect_refusal(workplace *place, const char *arguments, const char *cause)
{
    workplace_expect(place, arguments, 2, "", cause);
    if (lines_of(place->err) != 1)
        fail_msg("ckv %s: more than one line: %s", arguments, place->err);
}

typedef struct figures {
    json_int_t resident, private, pool, pages, bytes, state, budget, window; /* the last two -1 without --budget */
} figures;

static figures ckv_size(workplace *place, const char *arguments)
{
    char command[1024];
    snprintf(command, sizeof command, "size %s --json", arguments);
    workplace_expect(place, command, 0, NULL, "");
    assert_int_equal(lines_of(place->out), 1);
    json_error_t error;
    json_t *object = json_loads(place->out, 0, &error);
    figures size = {.budget = -1, .window = -1};
    int parsed =
        json_unpack(object, "{sI sI sI sI sI sI s?I s?I!}", "resident_tokens", &size.resident, "private_tokens",
                    &size.private, "pool_tokens", &size.pool, "pool_pages", &size.pages, "pool_bytes", &size.bytes,
                    "state_bytes", &size.state, "budget_bytes", &size.budget, "max_window_tokens", &size.window);
    if (parsed != 0)
        fail_msg("ckv %s: %s", command, place->out);
    json_decref(object);
    return size;
}

static int64_t pages_of(int64_t tokens, int64_t page)
{
    return (tokens + page - 1) / page;
}

static int64_t private_pages_of(int64_t staged, int64_t block, int64_t page)
{
    return staged / block * pages_of(3 * (page - 1) + block, page);
}

static void check_geometry(workplace *place, const char *name, int64_t page)
{
    const model_geometry *g = geometry_find(name);
    assert_non_null(g);
    char arguments[256];
    snprintf(arguments, sizeof arguments, "--geometry %s --tokens-per-page %" PRId64, name, page);
    figures size = ckv_size(place, arguments);
    int64_t first = g->first_chunk_frames * g->frame_tokens, later = g->chunk_frames * g->frame_tokens;
    int64_t staged = first > later ? first : later;
    int64_t resident = pages_of(g->pin_tokens + g->window_frames * g->frame_tokens + staged, page) + 1;
    int64_t own = private_pages_of(staged, later, page);
    if (first != later)
        own += private_pages_of(staged, first, page);
    if (g->clean_in_frames && g->frame_tokens != first && g->frame_tokens != later)
        own += private_pages_of(staged, g->frame_tokens, page);
    assert_int_equal(size.resident, resident * page);
    assert_int_equal(size.private, own * page);
    assert_int_equal(size.pages, resident + own);
    assert_int_equal(size.pool, (resident + own) * page);
    int64_t token_bytes = g->layers * 2 * g->kv_heads * g->head_dim * 2;
    assert_int_equal(size.bytes, (size.pool + page) * token_bytes); /* and the guard page */
}

static void sizes_follow_the_formulas(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    char *names = strdup(geometry_names());
    size_t count = 0;
    for (char *name = strtok(names, ", "); name != NULL; name = strtok(NULL, ", "), count++)
        for (int64_t page = 1; page <= 128; page = page == 1 ? 32 : 4 * page)
            check_geometry(&place, name, page);
    assert_true(count >= 5);
    free(names);

    figures nano = ckv_size(&place, "--geometry cosmos3-nano"); /* by hand */
    assert_int_equal(nano.resident, (1248 + 1) * 32);           /* 512 + 37824 + 1576 = 39912 tokens */
    assert_int_equal(nano.private, (53 + 4 * 16) * 32);         /* one block of 1576, four of 394 */
    assert_int_equal(nano.bytes, INT64_C(32) * (1249 + 117 + 1) * 36 * 2 * 8 * 128 * 2);
    workplace_close(&place);
}

static void options_override_a_geometry(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    figures all = ckv_size(&place, "-g cosmos3-nano"), half = ckv_size(&place, "-g cosmos3-nano --ranks 2"),
            wide = ckv_size(&place, "-g cosmos3-nano --dtype fp32"),
            narrow_pages = ckv_size(&place, "-g cosmos3-nano --dtype fp8_e4m3");
    assert_int_equal(half.pool, all.pool);
    assert_int_equal(2 * half.bytes, all.bytes);
    assert_int_equal(wide.bytes, 2 * all.bytes);
    assert_int_equal(narrow_pages.bytes, all.bytes / 2 + INT64_C(36) * 2 * 8 * 4); /* scales */
    figures own = ckv_size(&place, "--pin-tokens 5 --window-tokens 8 --max-staged-tokens 6 --causal-block-sizes 6,2,6 "
                                   "--layers 2 --kv-heads 2 --head-dim 16 --dtype fp32 --tokens-per-page 4");
    assert_int_equal(own.resident, 24);
    assert_int_equal(own.private, 52);
    assert_int_equal(own.pages, 19);
    assert_int_equal(own.bytes, 80 * 2 * 2 * 2 * 16 * 4);
    figures narrow = ckv_size(&place, "-g longlive --window-tokens 0 --layers 1 --kv-heads 1 --head-dim 8");
    assert_int_equal(narrow.resident, (293 + 1) * 32); /* 4680 + 0 + 4680 */
    workplace_close(&place);
}

/* Of a cache that is made and opened, on the host and, with its rounding, on any device this machine has. */
static void state_is_what_an_open_cache_takes(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    static const char arguments[] = "--pin-tokens 5 --window-tokens 8 --max-staged-tokens 6 --causal-block-sizes 6,2 "
                                    "--layers 2 --kv-heads 2 --head-dim 16 --dtype fp32 --tokens-per-page 4";
    static const char *const devices[] = {"host", "strict", "cuda"};
    ckv_rollout_config rollout = ckv_rollout_config_default();
    rollout.pin_tokens = 5;
    rollout.window_tokens = 8;
    rollout.max_staged_tokens = 6;
    rollout.causal_block_sizes = (int64_t[]){6, 2};
    rollout.num_causal_block_sizes = 2;
    ckv_pool_config pool = ckv_pool_config_default();
    pool.layers = pool.kv_heads = 2;
    pool.head_dim = 16;
    pool.dtype = CKV_FP32;
    pool.tokens_per_page = 4;
    pool.pool_tokens = 76;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        char on_device[512];
        snprintf(on_device, sizeof on_device, "%s --device %s", arguments, devices[i]);
        if (ckv_device_find(devices[i], &pool.device) != CKV_OK) {
            char refused[600];
            snprintf(refused, sizeof refused, "size %s", on_device);
            expect_refusal(&place, refused, "--device: ");
            continue;
        }
        ckv_cache *cache;
        assert_int_equal(ckv_cache_create(&pool, &cache), CKV_OK);
        assert_int_equal(ckv_cache_open(cache, &rollout, NULL), CKV_OK);
        figures size = ckv_size(&place, on_device);
        assert_int_equal(size.state, ckv_cache_device_bytes(cache));
        assert_int_equal(size.bytes, ckv_pool_bytes(ckv_cache_pool(cache)));
        if (i == 0) {
            char line[64], command[512];
            snprintf(line, sizeof line, "\nstate     %12" PRId64 " bytes ", ckv_cache_device_bytes(cache));
            snprintf(command, sizeof command, "size %s", arguments);
            workplace_expect(&place, command, 0, NULL, "");
            assert_non_null(strstr(place.out, line));
        }
        ckv_cache_destroy(&cache);
    }
    workplace_close(&place);
}

static void budget_gives_the_largest_window(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    static const char *const same[] = {"1GiB", "1024MiB", "1048576KiB", "1073741824"};
    char arguments[256];
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        snprintf(arguments, sizeof arguments, "-g cosmos3-nano --budget %s", same[i]);
        figures size = ckv_size(&place, arguments);
        assert_int_equal(size.budget, INT64_C(1) << 30);
        snprintf(arguments, sizeof arguments, "-g cosmos3-nano --window-tokens %" JSON_INTEGER_FORMAT, size.window);
        assert_true(ckv_size(&place, arguments).bytes <= size.budget);
        snprintf(arguments, sizeof arguments, "-g cosmos3-nano --window-tokens %" JSON_INTEGER_FORMAT, size.window + 1);
        assert_true(ckv_size(&place, arguments).bytes > size.budget);
    }
    workplace_expect(&place, "size -g cosmos3-nano --budget 1GiB", 0, NULL, "");
    assert_non_null(strstr(place.out, "tokens of window at most in 1073741824 bytes"));
    workplace_expect(&place, "size -g cosmos3-nano --budget 1", 1, "", "the budget is 1");
    workplace_close(&place);
}

static void size_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *cause;
    } refused[] = {
        {"", "ckv size"},
        {"--geometry cosmos3-nana", "--geometry is 'cosmos3-nana'; it must be one of cosmos3-nano, "},
        {"--geometri cosmos3-nano", "did you mean '--geometry'?"},
        {"--geometry", "needs a value"},
        {"-g cosmos3-nano more", "unexpected argument 'more'"},
        {"-g cosmos3-nano --ranks 3", "8 K/V heads cannot be shared evenly by 3 ranks"},
        {"-g cosmos3-nano --ranks 0", "--ranks is '0'"},
        {"-g cosmos3-nano --dtype int8", "--dtype: dtype 'int8'"},
        {"-g cosmos3-nano --tokens-per-page 24", "power of two"},
        {"-g cosmos3-nano --window-tokens -1", "--window-tokens is '-1'"},
        {"-g cosmos3-nano --window-tokens 1e3", "--window-tokens is '1e3'"},
        {"-g cosmos3-nano --window-tokens 99999999999999999999", "--window-tokens is '99999999999999999999'"},
        {"-g cosmos3-nano --window-tokens 9223372036854775807", "window_tokens is 9223372036854775807"},
        {"-g cosmos3-nano --layers 9223372036854775807", "ckv size"},
        {"-g cosmos3-nano --kv-heads 4611686018427387904 --head-dim 4", "ckv size"},
        {"-g cosmos3-nano --tokens-per-page 4611686018427387904", "tokens_per_page"},
        {"-g cosmos3-nano --causal-block-sizes 1,,2", "--causal-block-sizes is ''"},
        {"-g cosmos3-nano --causal-block-sizes 0", "--causal-block-sizes is '0'"},
        {"-g cosmos3-nano --causal-block-sizes 1577", "a causal block size is 1577"},
        {"-g cosmos3-nano --causal-block-sizes 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", "more than 16"},
        {"-g cosmos3-nano --device tpu", "--device: "},
        {"-g cosmos3-nano --budget 1TiB", "--budget is '1TiB'"},
        {"-g cosmos3-nano --budget GiB", "--budget is 'GiB'"},
        {"-g cosmos3-nano --budget 0", "--budget is '0'"},
        {"-g cosmos3-nano --budget 1.5GiB", "--budget is '1.5"},
        {"-g cosmos3-nano --budget 8589934592GiB", "--budget is '8589934592"},
    };
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments, "size %s", refused[i].arguments);
        expect_refusal(&place, arguments, refused[i].cause);
    }
    workplace_close(&place);
}

static void program_explains_itself(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    static const char *const commands[] = {"window", "size", "lists"};
    workplace_expect(&place, "--help", 0, NULL, "");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        assert_non_null(strstr(place.out, commands[i]));
    char *help = strdup(place.out);
    workplace_expect(&place, "help", 0, help, "");
    workplace_expect(&place, "-h", 0, help, "");
    free(help);
    workplace_expect(&place, "--version", 0, NULL, "");
    assert_int_equal(strncmp(place.out, "ckv ", 4), 0);
    assert_int_equal(lines_of(place.out), 1);
    workplace_expect(&place, "size --help", 0, NULL, "");
    assert_non_null(strstr(place.out, "--budget"));
    char *names = strdup(geometry_names());
    for (char *name = strtok(names, ", "); name != NULL; name = strtok(NULL, ", "))
        assert_non_null(strstr(place.out, name));
    free(names);
    expect_refusal(&place, "", "a command is missing; see 'ckv --help'");
    expect_refusal(&place, "nonsense", "unknown command 'nonsense'");
    expect_refusal(&place, "replya", "unknown command 'replya', did you mean 'replay'?");
    expect_refusal(&place, "''", "unknown command ''");
    expect_refusal(&place, "--nonsense", "unknown command '--nonsense'");
    expect_refusal(&place, "\"$(printf 'a\\nb')\"", "unknown command 'a?b'");
    expect_refusal(&place, "window \"$(printf -- '--la\\nyer')\"", "unknown option '--la?yer'");
    expect_refusal(&place, "replay --device \"$(printf 'a\\r\\nb')\" x", "a??b");
    expect_refusal(&place, "lists select --context x --dir \"$(printf 'a\\nb')\"", "a?b: No such file or directory");
    workplace_close(&place);
}

#define ALONE "env -u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_RANK -u PMI_SIZE -u PMI_RANK "

/* What nobody could read was not done, whatever the command found. */
static void output_that_is_lost_is_a_failure(void **state)
{
    (void)state;
    static const char *const programs[] = {ALONE "sh -c '\"$0\" \"$@\" >/dev/full' '" CKV_PROGRAM "'",
                                           ALONE "sh -c '\"$0\" \"$@\" >&-' '" CKV_PROGRAM "'"};
    static const char *const commands[] = {"--help",
                                           "--version",
                                           "size --help",
                                           "size -g cosmos3-nano --json",
                                           "repro search --seconds 0",
                                           "repro padded-first-chunk -o kept",
                                           "replay kept",
                                           "explain kept -f 0 -r 0",
                                           "lists facts"};
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        for (size_t k = 0; k < sizeof commands / sizeof *commands; k++) {
            place.program = programs[i];
            workplace_expect(&place, commands[k], 3, "", "standard output: ");
            assert_int_equal(lines_of(place.err), 1);
        }
        place.program = ALONE "'" CKV_PROGRAM "'"; /* and what it wrote beside is sound */
        workplace_expect(&place, "replay kept", 0, NULL, "");
    }
    workplace_close(&place);
}

static const ckv_test_case cases[] = {
    CKV_CASE(sizes_follow_the_formulas),         CKV_CASE(options_override_a_geometry),
    CKV_CASE(budget_gives_the_largest_window),   CKV_CASE(size_refuses),
    CKV_CASE(state_is_what_an_open_cache_takes), CKV_CASE(program_explains_itself),
    CKV_CASE(output_that_is_lost_is_a_failure),
};

CKV_TEST_MAIN("cli", cases)
