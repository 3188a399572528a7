/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKV_TOOLS_REPRO_CMD_SHRINK_H
#define CKV_TOOLS_REPRO_CMD_SHRINK_H

/* ckv repro shrink. argv[0] is "ckv repro shrink"; returns the exit code. */
int repro_shrink(int argc, char **argv);

#endif
