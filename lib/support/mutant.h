/* SPDX-License-Identifier: Apache-2.0 */
/* Deliberate mistakes, which tests have to notice; tests/mutants has the table.
 *
 * CKV_MUTANT(name) is 0, so that the mistake is no code, unless the build asks for mutants (CKV_MUTANTS); there it is 1
 * when the environment variable CKV_MUTANT is `name`. CKV_MUTATE(name, wrong, right) is one of the two. */
#ifndef CKV_SUPPORT_MUTANT_H
#define CKV_SUPPORT_MUTANT_H

#ifdef CKV_MUTANTS
#include <stdlib.h>
#include <string.h>

static inline int ckv_mutant_is(const char *name)
{
    const char *chosen = getenv("CKV_MUTANT");
    return chosen != NULL && strcmp(chosen, name) == 0;
}

#define CKV_MUTANT(name) ckv_mutant_is(#name)
#else
#define CKV_MUTANT(name) 0
#endif

#define CKV_MUTATE(name, wrong, right) (CKV_MUTANT(name) ? (wrong) : (right))

#endif
