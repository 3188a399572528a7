/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/match.h"

#include "tools/lists/value.h"

#include <math.h>
#include <string.h>

static bool holds(const list_operand *operand, const char *text, double number)
{
    switch (operand->op) {
    case LIST_GTE:
        return number >= operand->number;
    case LIST_LTE:
        return number <= operand->number;
    case LIST_GT:
        return number > operand->number;
    case LIST_LT:
        return number < operand->number;
    case LIST_GLOB:
        return value_glob(operand->text, text);
    case LIST_EQUAL:
        return value_equal(operand->text, text);
    }
    return false;
}

static match_result match_text(const list_condition *condition, const char *text)
{
    double number = 0;
    bool is_range = condition->part == LIST_RANGES;
    if (is_range && !value_number(text, &number))
        return MATCH_NOT_NUMBER;
    /* a range is an AND of bounds, globs and terms are an OR */
    for (const list_operand *operand = condition->operands; operand != NULL; operand = operand->next)
        if (holds(operand, text, number) != is_range)
            return is_range ? MATCH_NO : MATCH_YES;
    return is_range ? MATCH_YES : MATCH_NO;
}

match_result match_condition(const list_condition *condition, const fact_set *facts)
{
    const char *text = facts_get(facts, condition->key);
    return text == NULL ? MATCH_UNKNOWN : match_text(condition, text);
}

match_result match_all(const list_condition *conditions, const fact_set *facts)
{
    match_result all = MATCH_YES;
    for (; conditions != NULL; conditions = conditions->next) {
        match_result one = match_condition(conditions, facts);
        if (one == MATCH_NO || one == MATCH_NOT_NUMBER)
            return MATCH_NO;
        if (one == MATCH_UNKNOWN)
            all = MATCH_UNKNOWN;
    }
    return all;
}

void match_explain(FILE *stream, const list_condition *condition, const fact_set *facts)
{
    const char *text = facts_get(facts, condition->key);
    fprintf(stream, "%s.%s: ", list_part_name(condition->part), condition->key);
    if (text == NULL)
        fputs("this machine's value is unknown", stream);
    else
        fprintf(stream, "this machine has '%s'", text);
    fputs(", the list asks for", stream);
    const char *before = "";
    for (const list_operand *operand = condition->operands; operand != NULL; operand = operand->next) {
        if (condition->part == LIST_RANGES)
            fprintf(stream, " %s %s", list_operator_name(operand->op), operand->text);
        else
            fprintf(stream, "%s '%s'", before, operand->text);
        before = " or";
    }
    if (text != NULL && match_text(condition, text) == MATCH_NOT_NUMBER)
        fputs(" and the value is not a number", stream);
}

typedef struct interval {
    double low, high;
    bool low_open, high_open;
} interval;

static void narrow(interval *range, const list_condition *condition)
{
    for (const list_operand *bound = condition->operands; bound != NULL; bound = bound->next) {
        bool is_open = bound->op == LIST_GT || bound->op == LIST_LT;
        bool is_low = bound->op == LIST_GT || bound->op == LIST_GTE;
        if (is_low && (bound->number > range->low || (bound->number == range->low && is_open))) {
            range->low = bound->number;
            range->low_open = is_open;
        }
        if (!is_low && (bound->number < range->high || (bound->number == range->high && is_open))) {
            range->high = bound->number;
            range->high_open = is_open;
        }
    }
}

static bool ranges_meet(const list_condition *a, const list_condition *b)
{
    interval range = {-INFINITY, INFINITY, false, false};
    narrow(&range, a);
    narrow(&range, b);
    return range.low < range.high || (range.low == range.high && !range.low_open && !range.high_open);
}

/* A pattern taken as the shortest text that it stands for. */
static void shortest_text(const char *glob, char *out, size_t size)
{
    size_t length = 0;
    for (; *glob != '\0' && length + 1 < size; glob++)
        if (*glob != '*')
            out[length++] = *glob;
    out[length] = '\0';
}

static bool globs_meet(const list_condition *a, const list_condition *b)
{
    for (const list_operand *one = a->operands; one != NULL; one = one->next) {
        for (const list_operand *other = b->operands; other != NULL; other = other->next) {
            char one_text[256], other_text[256];
            shortest_text(one->text, one_text, sizeof one_text);
            shortest_text(other->text, other_text, sizeof other_text);
            if (value_glob(one->text, other_text) || value_glob(other->text, one_text))
                return true;
        }
    }
    return false;
}

/* Of conditions on the same key. */
static bool can_meet(const list_condition *a, const list_condition *b)
{
    if (a->operands == NULL || b->operands == NULL)
        return false;
    if (a->part == LIST_TERMS && b->part == LIST_TERMS)
        return value_equal(a->operands->text, b->operands->text);
    if (a->part == LIST_TERMS)
        return match_text(b, a->operands->text) == MATCH_YES;
    if (b->part == LIST_TERMS)
        return match_text(a, b->operands->text) == MATCH_YES;
    if (a->part != b->part)
        return true;
    return a->part == LIST_RANGES ? ranges_meet(a, b) : globs_meet(a, b);
}

bool match_compatible(const list_condition *a, const list_condition *b)
{
    for (const list_condition *one = a; one != NULL; one = one->next)
        for (const list_condition *other = b; other != NULL; other = other->next)
            if (strcmp(one->key, other->key) == 0 && !can_meet(one, other))
                return false;
    return true;
}
