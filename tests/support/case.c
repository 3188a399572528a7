/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/case_run.h"
#include "tests/support/record.h"
#include "tests/support/signals.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { CAPTURE_BYTES = 8192, DEFAULT_SEED = 1 };

static struct {
    const char *suite;
    const char *device, *backend, *pages;
    uint64_t seed;
    int rank, ranks;
} run = {.device = "host", .backend = "auto", .pages = "", .seed = DEFAULT_SEED, .ranks = 1};

static struct {
    const ckv_test_case *running; /* NULL between cases */
    int verdict;
    bool told; /* the record and the reader know why */
} now;

uint64_t ckv_test_seed(void)
{
    return run.seed;
}

const char *ckv_test_device(void)
{
    return run.device;
}

const char *ckv_test_backend(void)
{
    return run.backend;
}

const char *ckv_test_pages(void)
{
    return run.pages;
}

/* --- CMocka's own output goes to memory; only what a case prints itself reaches standard output and error. --- */

static struct {
    int memory, output, error; /* the last two hold the real descriptors while capturing, else -1 */
} capture = {-1, -1, -1};

static void capture_begin(void)
{
    if (capture.memory < 0)
        capture.memory = memfd_create("cmocka", MFD_CLOEXEC);
    if (capture.memory < 0 || capture.output >= 0)
        return;
    fflush(NULL);
    capture.output = dup(STDOUT_FILENO);
    capture.error = dup(STDERR_FILENO);
    dup2(capture.memory, STDOUT_FILENO);
    dup2(capture.memory, STDERR_FILENO);
}

static void capture_end(void)
{
    if (capture.output < 0)
        return;
    fflush(NULL);
    dup2(capture.output, STDOUT_FILENO);
    dup2(capture.error, STDERR_FILENO);
    close(capture.output);
    close(capture.error);
    capture.output = capture.error = -1;
}

/* What was captured since the last call. */
static void capture_take(char *text, size_t bytes)
{
    text[0] = '\0';
    if (capture.memory < 0)
        return;
    ssize_t length = pread(capture.memory, text, bytes - 1, 0);
    text[length > 0 ? length : 0] = '\0';
    if (ftruncate(capture.memory, 0) != 0 || lseek(capture.memory, 0, SEEK_SET) != 0)
        capture.memory = -1;
}

/* --- Failures --- */

static void tell(const char *event, const char *where, const char *text)
{
    record_line line;
    record_begin(&line, event);
    record_text(&line, "where", where);
    record_text(&line, "message", text);
    record_operation(&line);
    record_end(&line);
    now.told = true;
    fflush(stdout);
    const char *kind = now.verdict == CKV_TEST_SKIP ? "skipped" : "failed";
    fprintf(stderr, "%s.%s %s on rank %d: %s%s%s (seed %" PRIu64 ")\n", run.suite,
            now.running ? now.running->name : "?", kind, run.rank, where, where[0] ? ": " : "", text, run.seed);
}

void case_tell_failure(const char *text)
{
    now.verdict = CKV_TEST_FAIL;
    tell("failure", "", text);
}

static void trim_end(char *text)
{
    size_t length = strlen(text);
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == ' '))
        text[--length] = '\0';
}

/* Cut CMocka's report into a place and a message, and tell. */
static void tell_captured(char *text)
{
    static const char error_tag[] = "[  ERROR   ] --- ", line_tag[] = "[   LINE   ] --- ";
    const char *where = "";
    if (strstr(text, "[  SKIPPED ]") != NULL) {
        tell("failure", "", "left through CMocka's skip(); ckv_test_skip says why a case cannot run");
        return;
    }
    char *message = strstr(text, error_tag);
    message = message ? message + sizeof error_tag - 1 : text;
    char *end = strstr(message, "[  FAILED  ]");
    if (end != NULL)
        *end = '\0';
    char *place = strstr(message, line_tag);
    if (place != NULL) {
        *place = '\0';
        where = place + sizeof line_tag - 1;
        char *where_end = strstr(place + sizeof line_tag - 1, ": error:");
        if (where_end != NULL)
            *where_end = '\0';
    }
    trim_end(message);
    tell("failure", where, message[0] ? message : "assertion failed");
}

_Noreturn void case_leave(int verdict)
{
    now.verdict = verdict;
    now.told = true;
    _fail("", 0); /* CMocka's way out of a case, for skips too: the verdict is ours */
    abort();
}

_Noreturn void ckv_test_skip(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    now.verdict = CKV_TEST_SKIP;
    tell("skip", "", text);
    case_leave(CKV_TEST_SKIP);
}

_Noreturn void ckv_test_fail(const char *file, int line, const char *format, ...)
{
    char text[1024], where[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(where, sizeof where, "%s:%d", file, line);
    tell("failure", where, text);
    case_leave(CKV_TEST_FAIL);
}

void ckv_test_expect_status(ckv_status status, ckv_status expected, const char *call, const char *file, int line)
{
    if (status == expected)
        return;
    ckv_test_fail(file, line, "%s: %s, expected %s%s%s", call, ckv_status_name(status), ckv_status_name(expected),
                  status == CKV_OK ? "" : ": ", status == CKV_OK ? "" : ckv_last_error());
}

/* An assert on another thread ends in exit(255) without a word, and exit(0) in a case would look like success. */
static void on_exit_inside_case(void)
{
    if (now.running == NULL)
        return;
    capture_end();
    tell("failure", "", "exit() inside the case (CMocka's asserts on a thread other than the case's own do that)");
    fflush(NULL);
    _exit(CKV_TEST_FAIL);
}

static double seconds_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* --- One case --- */

static void run_body(void **state)
{
    capture_end();
    signals_take();
    *state = NULL;
    now.running->body(state);
    now.verdict = CKV_TEST_PASS;
}

static int resume_capture(void **state)
{
    (void)state;
    capture_begin();
    return 0;
}

static const char *verdict_name(int verdict)
{
    switch (verdict) {
    case CKV_TEST_PASS:
        return "pass";
    case CKV_TEST_SKIP:
        return "skip";
    case CKV_TEST_HANG:
        return "hang";
    default:
        return "fail";
    }
}

static void record_start(void)
{
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, run.seed);
    record_line line;
    record_begin(&line, "start");
    record_text(&line, "suite", run.suite);
    record_text(&line, "case", now.running->name);
    record_text(&line, "device", run.device);
    record_text(&line, "seed", seed);
    record_number(&line, "ranks", run.ranks);
    record_number(&line, "pid", getpid());
    record_end(&line);
}

void case_conclude(int verdict)
{
    now.verdict = verdict;
    record_line line;
    record_begin(&line, "end");
    record_text(&line, "case", now.running->name);
    record_text(&line, "verdict", verdict_name(now.verdict));
    record_end(&line);
    now.running = NULL;
    case_folders_remove();
}

/* Each case is a CMocka group of its own. CMocka's return value only ever adds failures (leaked test_malloc blocks,
 * unused expectations): it is 0 for skips and for failed teardowns, and a count that wraps at 256 otherwise. */
static int run_case(const ckv_test_case *test, const case_ranks *ranks)
{
    now.running = test;
    now.verdict = CKV_TEST_FAIL;
    now.told = false;
    record_set_operation_source(NULL, NULL); /* a failed case may have left its communicator there */
    record_start();
    if (ranks != NULL)
        ranks->begin();
    const struct CMUnitTest unit[] = {{test->name, run_body, NULL, resume_capture, NULL}};
    capture_begin();
    int failures = cmocka_run_group_tests_name(run.suite, unit, NULL, NULL);
    capture_end();

    char report[CAPTURE_BYTES];
    capture_take(report, sizeof report);
    if (now.verdict == CKV_TEST_PASS && failures != 0)
        now.verdict = CKV_TEST_FAIL;
    if (now.verdict == CKV_TEST_FAIL && !now.told)
        tell_captured(report);
    case_conclude(ranks != NULL ? ranks->settle(now.verdict) : now.verdict);
    return now.verdict;
}

/* --- The program --- */

/* CMocka would let these turn failures into aborts and send its report elsewhere. */
static void shield_cmocka(void)
{
    unsetenv("CMOCKA_TEST_ABORT");
    unsetenv("CMOCKA_MESSAGE_OUTPUT");
    unsetenv("CMOCKA_XML_FILE");
    cmocka_set_message_output(CM_OUTPUT_STDOUT);
}

static int parse_seed(const char *program, const char *source, const char *text)
{
    char *end;
    errno = 0;
    run.seed = strtoull(text, &end, 0);
    if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0)
        return CKV_TEST_PASS;
    fprintf(stderr, "%s: %s is '%s'; it must be an unsigned 64-bit integer\n", program, source, text);
    return CKV_TEST_USAGE;
}

static int parse_options(int argc, char **argv, bool *list_out)
{
    static const struct option options[] = {
        {"list", no_argument, NULL, 'l'},         {"seed", required_argument, NULL, 's'},
        {"device", required_argument, NULL, 'd'}, {"backend", required_argument, NULL, 'b'},
        {"pages", required_argument, NULL, 'p'},  {NULL, 0, NULL, 0}};
    const char *seed = getenv("CKV_TEST_SEED"), *device = getenv("CKV_TEST_DEVICE");
    const char *backend = getenv("CKV_TEST_BACKEND");
    if (seed != NULL && parse_seed(argv[0], "CKV_TEST_SEED", seed) != CKV_TEST_PASS)
        return CKV_TEST_USAGE;
    if (device != NULL)
        run.device = device;
    if (backend != NULL)
        run.backend = backend;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 'l')
            *list_out = true;
        else if (option == 'd')
            run.device = optarg;
        else if (option == 'b')
            run.backend = optarg;
        else if (option == 'p')
            run.pages = optarg;
        else if (option != 's' || parse_seed(argv[0], "--seed", optarg) != CKV_TEST_PASS)
            return CKV_TEST_USAGE; /* getopt has said why */
    }
    return CKV_TEST_PASS;
}

static const ckv_test_case *find_case(const ckv_test_case *cases, size_t num_cases, const char *name)
{
    for (size_t i = 0; i < num_cases; i++)
        if (strcmp(cases[i].name, name) == 0)
            return &cases[i];
    fprintf(stderr, "suite '%s' has no case '%s'; --list names them\n", run.suite, name);
    return NULL;
}

static int run_selected(const ckv_test_case *cases, size_t num_cases, char **names, int num_names,
                        const case_ranks *ranks)
{
    int passed = 0, failed = 0, skipped = 0, hung = 0;
    int total = num_names > 0 ? num_names : (int)num_cases;
    for (int i = 0; i < total; i++) {
        const ckv_test_case *test = num_names > 0 ? find_case(cases, num_cases, names[i]) : &cases[i];
        double started = seconds_now();
        int verdict = run_case(test, ranks);
        passed += verdict == CKV_TEST_PASS;
        skipped += verdict == CKV_TEST_SKIP;
        hung += verdict == CKV_TEST_HANG;
        failed += verdict == CKV_TEST_FAIL;
        if (run.rank == 0)
            printf("%s %s.%s (%.3f s)\n", verdict_name(verdict), run.suite, test->name, seconds_now() - started);
    }
    if (run.rank == 0)
        printf("%d passed, %d failed, %d skipped\n", passed, failed + hung, skipped);
    if (failed > 0)
        return CKV_TEST_FAIL;
    if (hung > 0)
        return CKV_TEST_HANG;
    return passed > 0 ? CKV_TEST_PASS : CKV_TEST_SKIP;
}

int case_main(const char *suite, const ckv_test_case *cases, size_t num_cases, int argc, char **argv,
              const case_ranks *ranks)
{
    bool list = false;
    run.suite = suite;
    if (parse_options(argc, argv, &list) != CKV_TEST_PASS)
        return CKV_TEST_USAGE;
    for (size_t i = 0; list && i < num_cases; i++)
        puts(cases[i].name);
    if (list)
        return CKV_TEST_PASS;
    for (int i = optind; i < argc; i++)
        if (find_case(cases, num_cases, argv[i]) == NULL)
            return CKV_TEST_USAGE;
    if (num_cases == 0) {
        fprintf(stderr, "suite '%s' has no cases\n", suite);
        return CKV_TEST_USAGE;
    }

    int stopped = ranks != NULL ? ranks->start(&run.rank, &run.ranks) : 0;
    if (stopped)
        return stopped;
    if (ranks == NULL && record_open(0, false) != 0) {
        perror("CKV_TEST_RECORD");
        return CKV_TEST_INFRASTRUCTURE;
    }
    shield_cmocka();
    signals_remember();
    atexit(on_exit_inside_case);
    int code = run_selected(cases, num_cases, argv + optind, argc - optind, ranks);
    if (ranks != NULL)
        ranks->finish(code);
    return code;
}

int ckv_test_main(const char *suite, const ckv_test_case *cases, size_t num_cases, int argc, char **argv)
{
    return case_main(suite, cases, num_cases, argc, argv, NULL);
}
