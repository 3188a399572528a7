/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of `ckv report`, made in a workplace and read back. Everything fails the case when it cannot be done. */
#ifndef CKV_TESTS_SUPPORT_REPORT_PAGE_H
#define CKV_TESTS_SUPPORT_REPORT_PAGE_H

#include "tests/support/workplace.h"
#include "tools/trace/trace.h"

#include <ckv/reference.h>
#include <jansson.h>

#define REPORT_ELEMENT_ENDS "</script>"

/* A small rollout, whose recorded output may have a fault (rollout_trace.h); written to the file `t`. */
trace *report_rollout(ckv_key_fault fault, int64_t token, int64_t forward);
void report_write_trace(const workplace *place, const trace *t);

/* A page, for the caller to free, and the object that its script draws. */
char *report_read(const workplace *place, const char *name);
json_t *report_parse(const char *page);

/* The object of `ckv report t -o r.html OPTIONS`, which must end with `code`. */
json_t *report_make(workplace *place, const char *options, int code);

/* Members that must be there. */
int64_t report_integer(const json_t *object, const char *key);
const char *report_text(const json_t *object, const char *key);
json_t *report_forward(const json_t *report, size_t index);

#endif
