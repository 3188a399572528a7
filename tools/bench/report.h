/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKV_TOOLS_BENCH_REPORT_H
#define CKV_TOOLS_BENCH_REPORT_H

/* `ckv bench report FILE...`; argv[0] is its name. */
int bench_report(int argc, char **argv);

#endif
