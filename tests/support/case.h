/* SPDX-License-Identifier: Apache-2.0 */
/* Test cases: CMocka's asserts, our own main. A program is a suite, a table of named cases.
 *
 *     PROGRAM --list | [--seed N] [--device NAME] [--backend NAME] [--pages DTYPE] [CASE...]      no CASE: all of them
 *
 * Exit codes: 0 pass, 1 fail, 2 usage (a name that matches nothing included), 3 infrastructure, 4 hang, 77 skipped.
 * Environment: CKV_TEST_SEED, CKV_TEST_DEVICE, CKV_TEST_BACKEND; CKV_TEST_RECORD names the file that receives one JSON
 * line per event
 * (.rankN is appended, and the rank's output goes to .rankN.log); CKV_TEST_TIMEOUT is the deadline of one case in
 * seconds. Only the thread that runs the case may use asserts. */
#ifndef CKV_TESTS_SUPPORT_CASE_H
#define CKV_TESTS_SUPPORT_CASE_H

/* cmocka.h needs these before it, in any order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ckv/comm.h>
#include <ckv/status.h>

enum {
    CKV_TEST_PASS = 0,
    CKV_TEST_FAIL = 1,
    CKV_TEST_USAGE = 2,
    CKV_TEST_INFRASTRUCTURE = 3,
    CKV_TEST_HANG = 4,
    CKV_TEST_SKIP = 77,
};

typedef struct ckv_test_case {
    const char *name;
    void (*body)(void **state); /* the state is NULL; each case builds what it needs */
} ckv_test_case;

#define CKV_CASE(function)                                                                                             \
    {                                                                                                                  \
#function, function                                                                                            \
    }

#define CKV_TEST_MAIN(suite, cases)                                                                                    \
    int main(int argc, char **argv)                                                                                    \
    {                                                                                                                  \
        return ckv_test_main(suite, cases, sizeof(cases) / sizeof *(cases), argc, argv);                               \
    }

int ckv_test_main(const char *suite, const ckv_test_case *cases, size_t num_cases, int argc, char **argv);

/* Start of every random sequence in a case; the same on all ranks, printed when the case fails. */
uint64_t ckv_test_seed(void);

/* The ckv_device the case shall run on; "host" unless chosen. */
const char *ckv_test_device(void);

/* The attention backend the case shall use; "auto" unless chosen. */
const char *ckv_test_backend(void);

/* The dtype that pages shall hold, where it is another than the tensors'; "" unless chosen. */
const char *ckv_test_pages(void);

/* A new folder in /tmp, which is removed with all that is in it when the case has passed, failed or skipped; a case may
 * remove it before. At most 16 at a time. */
enum { CKV_TEST_FOLDER_BYTES = 32 };
void ckv_test_folder(char path[static CKV_TEST_FOLDER_BYTES]);

/* Leave the case as skipped. Under several ranks all must skip, or the case fails. CMocka's skip() counts as a failure.
 */
_Noreturn void ckv_test_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Leave the case as failed. */
_Noreturn void ckv_test_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

#undef fail_msg
#define fail_msg(...) ckv_test_fail(__FILE__, __LINE__, __VA_ARGS__)

/* A ckv call must return CKV_OK, or exactly this error; the message carries ckv_last_error(). */
#define assert_ok(call) assert_status(call, CKV_OK)
#define assert_status(call, expected) ckv_test_expect_status(call, expected, #call, __FILE__, __LINE__)
void ckv_test_expect_status(ckv_status status, ckv_status expected, const char *call, const char *file, int line);

/* Name the communicator whose last operation explains a crash or a hang of this case; NULL before it is destroyed. */
void ckv_test_set_comm(const ckv_comm *comm);

#endif
