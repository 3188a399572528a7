/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/support/error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

void ckv_record_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
}

const char *ckv_last_error(void)
{
    return last_error;
}

const char *ckv_status_name(ckv_status status)
{
    switch (status) {
#define CKV_STATUS_NAME(name, value, message)                                                                          \
    case CKV_##name:                                                                                                   \
        return #name;
        CKV_STATUS_LIST(CKV_STATUS_NAME)
#undef CKV_STATUS_NAME
    }
    return "UNKNOWN";
}

const char *ckv_status_message(ckv_status status)
{
    switch (status) {
#define CKV_STATUS_TEXT(name, value, message)                                                                          \
    case CKV_##name:                                                                                                   \
        return message;
        CKV_STATUS_LIST(CKV_STATUS_TEXT)
#undef CKV_STATUS_TEXT
    }
    return "unknown status";
}

const char *ckv_version(void)
{
    return CKV_VERSION_STRING;
}
