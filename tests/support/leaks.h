/* SPDX-License-Identifier: Apache-2.0 */
/* LeakSanitizer and MPI. What MPI allocates while it starts is its own affair; and the check has to come before
 * MPI_Finalize, which unloads plug-ins and leaves hundreds of blocks that have neither an owner nor a name. What
 * remains is suppressed by lsan.supp. All of it does nothing in other builds. */
#ifndef CKV_TESTS_SUPPORT_LEAKS_H
#define CKV_TESTS_SUPPORT_LEAKS_H

#if defined(__SANITIZE_ADDRESS__)
#define CKV_TEST_LEAKS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CKV_TEST_LEAKS 1
#endif
#endif

#if defined(CKV_TEST_LEAKS)
#include <sanitizer/lsan_interface.h>
#define leaks_ignore_begin() __lsan_disable()
#define leaks_ignore_end() __lsan_enable()
#define leaks_check() __lsan_do_leak_check() /* replaces the one at exit */
#else
#define leaks_ignore_begin() ((void)0)
#define leaks_ignore_end() ((void)0)
#define leaks_check() ((void)0)
#endif

#endif
