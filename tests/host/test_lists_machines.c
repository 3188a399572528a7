/* SPDX-License-Identifier: Apache-2.0 */
/* The project's own lists on machines that are not here: which cases each kind and size of GPU machine runs. */
#include "tests/support/case.h"
#include "tests/support/workplace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gpu_kind {
    const char *name, *list; /* as NVML says it; what l0_ and l0_dgx_ end in */
} gpu_kind;

static const gpu_kind kinds[] = {
    {"NVIDIA H100 80GB HBM3", "h100"},
    {"NVIDIA H200", "h200"},
    {"NVIDIA B200", "b200"},
};
enum { NUM_KINDS = sizeof kinds / sizeof kinds[0] };

static const int sizes[] = {1, 2, 4, 8};
enum { NUM_SIZES = sizeof sizes / sizeof sizes[0] };

static void open_machine(workplace *place, const char *gpu, const char *cpu, int gpus)
{
    char facts[256];
    workplace_open(place, "'" CKV_PROGRAM "' lists");
    snprintf(facts, sizeof facts,
             "{\"gpu\": \"%s\", \"cpu\": \"%s\", \"system_gpu_count\": %d, \"sysname\": \"Linux\"}", gpu, cpu, gpus);
    workplace_put(place, "machine.json", facts);
}

static void select_context(workplace *place, const char *context, const char *stage)
{
    char arguments[512];
    snprintf(arguments, sizeof arguments,
             "select --dir '" CKV_SOURCE_DIR "/test_lists' -c %s --facts machine.json --set stage=%s", context, stage);
    workplace_run(place, arguments);
    if (place->code != 0)
        fail_msg("%s: exit %d: %s", arguments, place->code, place->err);
}

/* The number after the last "-np" of an entry; 0: none. */
static int ranks_of(const char *entry)
{
    int ranks = 0;
    for (const char *at = strstr(entry, "-np"); at != NULL; at = strstr(at + 1, "-np"))
        ranks = atoi(at + 3);
    return ranks;
}

/* Entries of the last selection whose cases have this many ranks. */
static int entries_of(const workplace *place, int ranks)
{
    int count = 0;
    char *all = strdup(place->out), *rest = NULL;
    for (char *entry = strtok_r(all, "\n", &rest); entry != NULL; entry = strtok_r(NULL, "\n", &rest))
        count += ranks_of(entry) == ranks;
    free(all);
    return count;
}

/* Every rank has a GPU of its own: cases of as many ranks as the machine has GPUs, and of fewer, never of more. */
static void a_machine_runs_what_its_gpus_allow(void **state)
{
    (void)state;
    for (int kind = 0; kind < NUM_KINDS; kind++)
        for (int size = 0; size < NUM_SIZES; size++) {
            char context[32];
            workplace place;
            open_machine(&place, kinds[kind].name, "x86_64", sizes[size]);
            snprintf(context, sizeof context, "l0_dgx_%s", kinds[kind].list);
            select_context(&place, context, "pre_merge");
            for (int ranks = 1; ranks < NUM_SIZES; ranks++)
                if ((entries_of(&place, sizes[ranks]) > 0) != (sizes[ranks] <= sizes[size]))
                    fail_msg("%s with %d GPUs selects %d entries of %d ranks:\n%s", context, sizes[size],
                             entries_of(&place, sizes[ranks]), sizes[ranks], place.out);
            if ((place.out[0] != '\0') != (sizes[size] > 1))
                fail_msg("%s with %d GPUs selects:\n%s", context, sizes[size], place.out);
            workplace_close(&place);
        }
}

/* One GPU is enough for the list of its kind, and larger machines run it too. */
static void one_gpu_is_enough_for_its_list(void **state)
{
    (void)state;
    for (int kind = 0; kind < NUM_KINDS; kind++)
        for (int size = 0; size < NUM_SIZES; size++)
            for (int list = 0; list < NUM_KINDS; list++) {
                char context[32];
                workplace place;
                open_machine(&place, kinds[kind].name, "x86_64", sizes[size]);
                snprintf(context, sizeof context, "l0_%s", kinds[list].list);
                select_context(&place, context, "pre_merge");
                if ((place.out[0] != '\0') != (list == kind))
                    fail_msg("%s on %s:\n%s", context, kinds[kind].name, place.out);
                workplace_close(&place);
            }
}

/* The CPU list needs no GPU, and a machine with some runs it all the same. */
static void the_cpu_list_runs_everywhere(void **state)
{
    (void)state;
    workplace bare, full;
    workplace_open(&bare, "'" CKV_PROGRAM "' lists");
    workplace_put(&bare, "machine.json", "{\"cpu\": \"x86_64\", \"system_gpu_count\": 0, \"sysname\": \"Linux\"}");
    open_machine(&full, "NVIDIA H200", "x86_64", 8);
    select_context(&bare, "l0_cpu", "pre_merge");
    select_context(&full, "l0_cpu", "pre_merge");
    assert_true(bare.out[0] != '\0');
    assert_string_equal(bare.out, full.out);
    workplace_close(&full);
    workplace_close(&bare);
}

/* A GH200 has an H200 in its name and another CPU beside it. */
static void grace_machines_are_kept_out(void **state)
{
    (void)state;
    workplace place;
    open_machine(&place, "NVIDIA GH200 480GB", "aarch64", 4);
    select_context(&place, "l0_dgx_h200", "pre_merge");
    assert_string_equal(place.out, "");
    select_context(&place, "l0_h200", "pre_merge");
    assert_string_equal(place.out, "");
    workplace_close(&place);
}

/* A machine whose driver is gone selects nothing from its list: green by itself, an error when cases are expected. */
static void a_run_of_nothing_can_be_refused(void **state)
{
    (void)state;
    static const char run[] = "run --dir '" CKV_SOURCE_DIR "/test_lists' -c l0_dgx_h200 --facts machine.json "
                              "-s stage=pre_merge --cases none.json --out results";
    char refused[sizeof run + 16];
    workplace place;
    workplace_open(&place, "'" CKV_PROGRAM "' lists");
    workplace_put(&place, "machine.json", "{\"cpu\": \"x86_64\", \"system_gpu_count\": 0}");
    workplace_put(&place, "none.json",
                  "{\"kind\": \"ctestInfo\", \"version\": {\"major\": 1, \"minor\": 0}, \"tests\": []}");
    workplace_expect(&place, run, 0, NULL, "'l0_dgx_h200' selects nothing on this machine");
    snprintf(refused, sizeof refused, "%s --nonempty", run);
    workplace_expect(&place, refused, 2, "", "'l0_dgx_h200' selects nothing on this machine");
    workplace_close(&place);
}

static const ckv_test_case cases[] = {
    CKV_CASE(a_machine_runs_what_its_gpus_allow), CKV_CASE(one_gpu_is_enough_for_its_list),
    CKV_CASE(the_cpu_list_runs_everywhere),       CKV_CASE(grace_machines_are_kept_out),
    CKV_CASE(a_run_of_nothing_can_be_refused),
};

CKV_TEST_MAIN("lists_machines", cases)
