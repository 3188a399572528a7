/* SPDX-License-Identifier: Apache-2.0 */
/* Signals during a case: a fatal one is recorded and then takes its course; SIGUSR1 and SIGTERM ask where the rank is.
 */
#ifndef CKV_TESTS_SUPPORT_SIGNALS_H
#define CKV_TESTS_SUPPORT_SIGNALS_H

/* Remember who handles fatal signals now (a sanitizer, MPI), before CMocka replaces them. Once, at the start. */
void signals_remember(void);

/* Take the signals over; called inside CMocka's frame, after it has installed its own handlers. */
void signals_take(void);

#endif
