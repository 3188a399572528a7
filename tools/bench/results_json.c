/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/results.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* A text that is not UTF-8 is left out. */
static void put_text(json_t *object, const char *key, const char *text)
{
    json_t *value = text == NULL ? NULL : json_string(text);
    if (value != NULL)
        json_object_set_new(object, key, value);
}

static void put_positive(json_t *object, const char *key, double value)
{
    if (isfinite(value) && value > 0)
        json_object_set_new(object, key, json_real(value));
}

static json_t *row_json(const bench_results *results, const bench_row *row)
{
    json_t *object = json_object();
    put_text(object, "group", row->group);
    put_text(object, "variant", row->variant);
    put_text(object, "params", row->params);
    put_text(object, "x_name", row->x_name);
    if (row->x_name != NULL && isfinite(row->x))
        json_object_set_new(object, "x", json_real(row->x));
    put_text(object, "baseline", row->baseline);
    put_text(object, "note", row->note);
    if (row->failed) {
        json_object_set_new(object, "failed", json_true());
        return object;
    }
    put_positive(object, "min_us", row->min_us);
    put_positive(object, "median_us", row->median_us);
    put_positive(object, "max_us", row->max_us);
    put_positive(object, "bytes", row->bytes);
    put_positive(object, "flops", row->flops);
    put_positive(object, "ratio", bench_results_ratio(results, row));
    if (isfinite(row->max_error))
        json_object_set_new(object, "max_error", json_real(row->max_error));
    return object;
}

void bench_results_print_json(const bench_results *results, FILE *stream)
{
    json_t *facts = json_object(), *rows = json_array();
    for (size_t i = 0; i < bench_results_num_facts(results); i++) {
        const char *key = bench_results_fact_key(results, i);
        put_text(facts, key, bench_results_fact_value(results, key));
    }
    for (size_t i = 0; i < bench_results_count(results); i++)
        json_array_append_new(rows, row_json(results, bench_results_row(results, i)));
    json_t *all = json_pack("{so so}", "facts", facts, "rows", rows);
    json_dumpf(all, stream, JSON_INDENT(1));
    putc('\n', stream);
    json_decref(all);
}

/* The ratio is not read: it follows from the rows. */
static bool read_row(bench_results *results, json_t *object, json_error_t *error)
{
    bench_row row = bench_row_default();
    double ratio;
    int failed = 0;
    if (json_unpack_ex(object, error, 0, "{ss ss s?s s?s s?F s?s s?s s?b s?F s?F s?F s?F s?F s?F s?F !}", "group",
                       &row.group, "variant", &row.variant, "params", &row.params, "x_name", &row.x_name, "x", &row.x,
                       "baseline", &row.baseline, "note", &row.note, "failed", &failed, "min_us", &row.min_us,
                       "median_us", &row.median_us, "max_us", &row.max_us, "bytes", &row.bytes, "flops", &row.flops,
                       "ratio", &ratio, "max_error", &row.max_error) != 0)
        return false;
    row.failed = failed;
    bench_results_add(results, &row);
    return true;
}

bool bench_results_read_json(bench_results *results, const char *path, problem *why)
{
    json_error_t error;
    json_t *all = json_load_file(path, 0, &error), *facts = NULL, *rows = NULL, *value;
    bool ok = all != NULL && json_unpack_ex(all, &error, 0, "{so so !}", "facts", &facts, "rows", &rows) == 0;
    if (ok && !(json_is_object(facts) && json_is_array(rows))) {
        snprintf(error.text, sizeof error.text, "facts have to be an object and rows an array");
        ok = false;
    }
    const char *key;
    size_t i;
    json_object_foreach(facts, key, value) if (ok && json_is_string(value))
        bench_results_fact(results, key, "%s", json_string_value(value));
    json_array_foreach(rows, i, value) ok = ok && read_row(results, value, &error);
    if (!ok)
        problem_format(why, "%s: %s", path, error.text);
    json_decref(all);
    return ok;
}
