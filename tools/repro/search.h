/* SPDX-License-Identifier: Apache-2.0 */
/* ckv repro search: padded first chunks drawn at random until the time is up. */
#ifndef CKV_TOOLS_REPRO_SEARCH_H
#define CKV_TOOLS_REPRO_SEARCH_H

/* argv[0] is "ckv repro search"; returns the exit code. */
int repro_search(int argc, char **argv);

#endif
