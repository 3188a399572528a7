/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKV_VERSION_H
#define CKV_VERSION_H

#define CKV_VERSION_MAJOR 0
#define CKV_VERSION_MINOR 1
#define CKV_VERSION_PATCH 0
#define CKV_VERSION_STRING "0.1.0"

#if defined(__GNUC__)
#define CKV_API __attribute__((visibility("default")))
#else
#define CKV_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the library that is loaded, as opposed to the header's. Static storage. */
CKV_API const char *ckv_version(void);

#ifdef __cplusplus
}
#endif
#endif
