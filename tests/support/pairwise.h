/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a table of factors such that any two values of two factors meet in some row, as far as the rows that a
 * predicate admits allow. Deterministic. */
#ifndef CKV_TESTS_SUPPORT_PAIRWISE_H
#define CKV_TESTS_SUPPORT_PAIRWISE_H

enum { PAIRWISE_MAX_FACTORS = 12, PAIRWISE_MAX_VALUES = 8 };

typedef struct pairwise_row {
    int values[PAIRWISE_MAX_FACTORS];
} pairwise_row;

typedef struct pairwise_table {
    int num_factors;
    int num_values[PAIRWISE_MAX_FACTORS];
    int (*admits)(const pairwise_row *row); /* looks at the first num_bound factors alone */
    int num_bound;
} pairwise_table;

/* The next combination of the first `count` factors, after a row of zeros; 0 after the last. */
int pairwise_next(const pairwise_table *table, int count, pairwise_row *row);

/* The rows; free them. All pairs that some admitted row has are in them, and every row is admitted. */
pairwise_row *pairwise_choose(const pairwise_table *table, int *count_out);

/* Pairs of values that meet in no row of `rows` but could; 0 for what pairwise_choose returns. Found in another way
 * than the choice was made. */
int pairwise_missing(const pairwise_table *table, const pairwise_row *rows, int count);

#endif
