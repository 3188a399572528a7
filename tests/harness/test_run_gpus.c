/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs in ckv lists run, on a machine that fake_nvml.c makes up: who gets which, memory that does not come back. */
#include "tests/harness/mini.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inner_run run;

#define COUNT(cases) (sizeof(cases) / sizeof *(cases))
#define ONE_GPU "RESOURCE_GROUPS [=[1,gpus:1]=]"
#define TWO_GPUS "RESOURCE_GROUPS [=[2,gpus:1]=]"

/* 0 and 2 are connected, and 1 and 3. */
static const char crossed[] = "GPU-a 100 2\nGPU-b 100 3\nGPU-c 100 0\nGPU-d 100 1\n";

static void run_on(const char *machine, const mini_case *cases, size_t count, const char *before, const char *options)
{
    char path[256], libraries[4096];
    const char *others = getenv("LD_LIBRARY_PATH");
    mini_begin(&run, cases, count, "20");
    mini_put(&run, "machine", machine);
    snprintf(path, sizeof path, "%s/machine", run.folder);
    setenv("FAKE_NVML", path, 1);
    snprintf(libraries, sizeof libraries, "%s%s%s", CKV_FAKE_NVML_DIR, others ? ":" : "", others ? others : "");
    setenv("LD_LIBRARY_PATH", libraries, 1);
    mini_run(&run, before, options);
}

static const char *gpus_of(const char *name)
{
    return json_string_value(json_object_get(mini_event(&run, "start", name), "gpus"));
}

/* What a log holds; the caller frees it. */
static char *log_of(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "out/cases/mini.%s/merged.log", name);
    return inner_read(&run, path);
}

static void facts_name_the_links(void **state)
{
    (void)state;
    static const mini_case one = MINI("x", "!exit 0", 1);
    run_on(crossed, &one, 1, "", "");
    char *facts = inner_read(&run, "out/facts.json");
    bool links = strstr(facts, "\"nvlink\": \"0010,0001,1000,0100\"") != NULL;
    bool pairs = strstr(facts, "\"nvlink_pairs\": \"2\"") != NULL;
    free(facts);
    assert_true(links && pairs);
    mini_end(&run);
}

static void each_rank_has_its_gpu(void **state)
{
    (void)state;
    static const mini_case cases[] = {
        MINI_WITH("pair", "prints_gpu", 2, TWO_GPUS, NULL),
        MINI_WITH("program", "!echo \"sees $CUDA_VISIBLE_DEVICES\"", 1, ONE_GPU, NULL),
        MINI("host", "!echo \"sees ${CUDA_VISIBLE_DEVICES-everything}\"", 1),
        MINI_WITH("five", "!exit 0", 1, "RESOURCE_GROUPS [=[5,gpus:1]=]", NULL),
    };
    run_on(crossed, cases, COUNT(cases), "unset CUDA_VISIBLE_DEVICES;", "-j1");
    assert_string_equal(gpus_of("mini.pair"), "GPU-a,GPU-c");
    char *pair = log_of("pair"), *program = log_of("program"), *host = log_of("host");
    bool right = strstr(pair, "[rank 0] GPU-a\n") != NULL && strstr(pair, "[rank 1] GPU-c\n") != NULL &&
                 strcmp(program, "sees GPU-a\n") == 0 && strcmp(host, "sees everything\n") == 0;
    free(pair);
    free(program);
    free(host);
    assert_true(right);
    mini_expect(&run, "five", "infrastructure", "it needs 5 GPUs, more than this run may use");
    mini_end(&run);
}

/* Go through the events: a GPU has one case at a time. Returns how many cases ran at once at most. */
static int check_sharing(void)
{
    char *events = inner_read(&run, "out/events.jsonl"), *rest = events;
    const char *owner[4] = {NULL};
    static const char *const gpus[4] = {"GPU-a", "GPU-b", "GPU-c", "GPU-d"};
    int running = 0, most = 0;
    json_t *lines = json_array();
    for (char *line; (line = strsep(&rest, "\n")) != NULL && line[0] != '\0';) {
        json_t *event = json_loads(line, 0, NULL);
        assert_non_null(event);
        json_array_append_new(lines, event); /* owners borrow their names */
        const char *kind = json_string_value(json_object_get(event, "event"));
        const char *name = json_string_value(json_object_get(event, "case"));
        bool starts = strcmp(kind, "start") == 0, ends = strcmp(kind, "end") == 0;
        running += starts - ends;
        most = running > most ? running : most;
        for (int i = 0; i < 4; i++) {
            const char *list = json_string_value(json_object_get(event, "gpus"));
            if (ends && owner[i] != NULL && strcmp(owner[i], name) == 0)
                owner[i] = NULL;
            if (!starts || strstr(list, gpus[i]) == NULL)
                continue;
            assert_null(owner[i]);
            owner[i] = name;
        }
    }
    json_decref(lines);
    free(events);
    return most;
}

static void pairs_run_beside_single_gpus(void **state)
{
    (void)state;
    static const mini_case cases[] = {
        MINI_WITH("one_1", "!sleep 0.4", 1, ONE_GPU, NULL),   MINI_WITH("pair_1", "!sleep 0.4", 1, TWO_GPUS, NULL),
        MINI_WITH("one_2", "!sleep 0.4", 1, ONE_GPU, NULL),   MINI_WITH("one_3", "!sleep 0.4", 1, ONE_GPU, NULL),
        MINI_WITH("pair_2", "!sleep 0.4", 1, TWO_GPUS, NULL), MINI_WITH("alone", "!sleep 0.1", 1, ONE_GPU, "ISOLATION"),
        MINI_WITH("one_4", "!sleep 0.4", 1, ONE_GPU, NULL),
    };
    run_on(crossed, cases, COUNT(cases), "unset CUDA_VISIBLE_DEVICES;", "-j8");
    assert_int_equal(run.outcome.exit_code, 0);
    assert_true(check_sharing() >= 3);
    const char *pair = gpus_of("mini.pair_1");
    assert_true(strcmp(pair, "GPU-a,GPU-c") == 0 || strcmp(pair, "GPU-b,GPU-d") == 0);
    mini_end(&run);
}

static void only_visible_gpus_are_used(void **state)
{
    (void)state;
    static const mini_case cases[] = {MINI_WITH("one", "!exit 0", 1, ONE_GPU, NULL),
                                      MINI_WITH("two", "!exit 0", 1, TWO_GPUS, NULL)};
    run_on(crossed, cases, COUNT(cases), "CUDA_VISIBLE_DEVICES=GPU-d", "");
    assert_string_equal(gpus_of("mini.one"), "GPU-d");
    mini_expect(&run, "two", "infrastructure", "it needs 2 GPUs, more than this run may use");
    mini_end(&run);
    run_on(crossed, cases, COUNT(cases), "CUDA_VISIBLE_DEVICES=1,2", "");
    assert_string_equal(gpus_of("mini.two"), "GPU-b,GPU-c");
    mini_end(&run);
    run_on(crossed, cases, COUNT(cases), "CUDA_VISIBLE_DEVICES=MIG-1", "");
    assert_string_equal(gpus_of("mini.two"), ""); /* not known: left as it is, one case at a time */
    mini_expect(&run, "two", "pass", "");
    mini_end(&run);
}

static void memory_that_stays_is_blamed(void **state)
{
    (void)state;
    static const mini_case cases[] = {
        MINI_WITH("1_lingers", "!sed 's/GPU-a 100/GPU-a 900/' machine >m; mv m machine", 1, ONE_GPU, NULL),
        MINI_WITH("2_next", "!exit 0", 1, ONE_GPU, NULL),
        MINI_WITH("3_both", "!exit 0", 1, TWO_GPUS, NULL),
    };
    run_on("GPU-a 100 1\nGPU-b 100 0\n", cases, COUNT(cases), "unset CUDA_VISIBLE_DEVICES;", "-j1");
    mini_expect(&run, "1_lingers", "fail", "GPU 0 still holds 800 MiB more than before the case, *");
    assert_string_equal(gpus_of("mini.2_next"), "GPU-b");
    mini_expect(&run, "2_next", "pass", "");
    mini_expect(&run, "3_both", "infrastructure", "it needs 2 GPUs, more than this run may use");
    assert_int_equal(run.outcome.exit_code, 1);
    mini_end(&run);
}

static void memory_that_comes_back_is_waited_for(void **state)
{
    (void)state;
    static const mini_case cases[] = {
        MINI_WITH("1_late", "!sed 's/GPU-a 100/GPU-a 900/' machine >m; mv m machine", 1, ONE_GPU, NULL),
        MINI_WITH("2_next", "!exit 0", 1, ONE_GPU, NULL),
    };
    run_on("GPU-a 100 -\n", cases, COUNT(cases),
           "unset CUDA_VISIBLE_DEVICES; { (sleep 1; sed 's/ 900/ 100/' machine >n; mv n machine) & } &&", "-j1");
    mini_expect(&run, "1_late", "pass", "");
    double waited = json_number_value(json_object_get(mini_event(&run, "case", "mini.1_late"), "seconds"));
    assert_true(waited > 0.5);
    mini_expect(&run, "2_next", "pass", "");
    mini_end(&run);
}

static void one_device_twice_is_refused(void **state)
{
    (void)state;
    static const mini_case one = MINI_WITH("x", "!exit 0", 1, TWO_GPUS, NULL);
    run_on("GPU-a 100 -\nGPU-a 100 -\n", &one, 1, "unset CUDA_VISIBLE_DEVICES;", "");
    assert_int_equal(run.outcome.exit_code, 2);
    assert_non_null(strstr(run.last_line, "GPUs 0 and 1 are one device, GPU-a"));
    mini_end(&run);
}

static const ckv_test_case cases[] = {
    CKV_CASE(facts_name_the_links),         CKV_CASE(each_rank_has_its_gpu),
    CKV_CASE(pairs_run_beside_single_gpus), CKV_CASE(only_visible_gpus_are_used),
    CKV_CASE(memory_that_stays_is_blamed),  CKV_CASE(memory_that_comes_back_is_waited_for),
    CKV_CASE(one_device_twice_is_refused),
};

CKV_TEST_MAIN("run_gpus", cases)
