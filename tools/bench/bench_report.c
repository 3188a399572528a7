/* SPDX-License-Identifier: Apache-2.0 */
/* ckv bench report: what was measured before, shown again. */
#include "tools/bench/plot.h"
#include "tools/bench/report.h"
#include "tools/common/cli.h"
#include "tools/common/out_file.h"

#include <stdlib.h>

enum { KEY_MARKDOWN = 256, KEY_PLOT, KEY_RATIO };

typedef struct request {
    char **files; /* borrowed from argv */
    int count;
    bench_format format;
    char *plot;
    bench_plot_y plot_y;
} request;

static const struct argp_option option_table[] = {
    {"markdown", KEY_MARKDOWN, NULL, 0, "print Markdown", 0},
    {"plot", KEY_PLOT, "FILE", 0, "draw the sweeps of all files as SVG, and print nothing", 0},
    {"ratio", KEY_RATIO, NULL, 0, "draw times as parts of their baselines'", 0},
    {0},
};

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    request *r = state->input;
    switch (key) {
    case KEY_MARKDOWN:
        r->format = BENCH_MARKDOWN;
        return 0;
    case KEY_PLOT:
        r->plot = value;
        return 0;
    case KEY_RATIO:
        r->plot_y = BENCH_PLOT_RATIO;
        return 0;
    case ARGP_KEY_ARGS:
        r->files = state->argv + state->next;
        r->count = state->argc - state->next;
        return 0;
    case ARGP_KEY_NO_ARGS:
        return cli_usage_error("files that 'ckv bench --json FILE' wrote are missing");
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int refuse(const char *argv0, const problem *why)
{
    cli_error(argv0, "%s", why->text);
    return CLI_USAGE;
}

static int draw(const char *argv0, const request *r)
{
    problem why;
    int code = CLI_OK;
    for (int i = 0; i < r->count; i++) {
        if (!is_one_file(r->plot, r->files[i]))
            continue;
        problem_format(&why, "--plot %s is one of the files that are drawn; give another one", r->plot);
        return refuse(argv0, &why);
    }
    bench_results *all = bench_results_create();
    for (int i = 0; i < r->count && code == CLI_OK; i++)
        if (!bench_results_read_json(all, r->files[i], &why))
            code = refuse(argv0, &why);
    if (code == CLI_OK && !bench_plot_write(all, r->plot_y, r->plot, &why))
        code = refuse(argv0, &why);
    bench_results_destroy(&all);
    return code;
}

/* Nothing is printed of files after one that cannot be read. */
static int print(const char *argv0, const request *r)
{
    problem why;
    int code = CLI_OK;
    for (int i = 0; i < r->count && code == CLI_OK; i++) {
        bench_results *one = bench_results_create();
        if (bench_results_read_json(one, r->files[i], &why)) {
            if (i > 0)
                putchar('\n');
            bench_results_print(one, r->format, stdout);
        } else {
            code = refuse(argv0, &why);
        }
        bench_results_destroy(&one);
    }
    return code;
}

int bench_report(int argc, char **argv)
{
    static const struct argp argp = {
        option_table, parse_option,
        "FILE...",    "Print what 'ckv bench --json FILE' wrote, as text or Markdown, or draw it.",
        NULL,         NULL,
        NULL};
    request r = {.format = BENCH_TEXT};
    int code = cli_parse(&argp, argc, argv, &r);
    if (code != CLI_OK)
        return code;
    return r.plot != NULL ? draw(argv[0], &r) : print(argv[0], &r);
}
